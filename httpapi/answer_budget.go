package httpapi

import (
	"encoding/json"
	"net/http"
	"time"

	"bivouac.dev/bivouac/httpapi/limits"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// The bounds of large answers, in bytes (API.md, "Paging").
const (
	// maxPageBytes bounds a page of more than one item.
	maxPageBytes = 4 << 20
	// maxBatchBytes bounds a batch.
	maxBatchBytes = 16 << 20
	// A client has answerSlack to begin to read a large answer, and reads answerRate bytes a second.
	answerSlack = 10 * time.Second
	answerRate  = 256 << 10
)

// reserve reserves bytes of an answer until the request has ended.
func (c *call) reserve(bytes int) error {
	if !c.server.answers.Take(c.who.user, bytes) {
		return &response.HTTPError{
			Status: http.StatusServiceUnavailable, RetryAfter: time.Second,
			Text: "Too many large answers are being read; nothing was done. Read the others to their end, " +
				"ask for fewer items, or try again.",
		}
	}
	c.held += bytes
	return nil
}

// reserveUpTo reserves what an answer of a size needs of the budget.
func (c *call) reserveUpTo(bytes int) error {
	if over := bytes - limits.FreeBytes - c.held; over > 0 {
		return c.reserve(over)
	}
	return nil
}

// beginLarge prepares an answer of about a size.
func (c *call) beginLarge(bytes int) error {
	if bytes <= limits.FreeBytes {
		return nil
	}
	if err := c.reserveUpTo(bytes); err != nil {
		return err
	}
	return c.slot.TakeTurn(c.ctx)
}

// list is what an answer lists: n items, each made by item. size is about how many bytes one has,
// nil if all are small.
type list struct {
	n    int
	item func(i int) any
	size func(i int) int
}

// items encodes the items of an answer while they come to at most limit bytes, and at least one of
// them. Before an answer gets above freeDataBytes it takes of the budget and waits for its turn. It
// must be read in time.
func (c *call) items(of list, limit int) ([]json.RawMessage, error) {
	defer c.slot.EndTurn()
	out, total := []json.RawMessage{}, 0
	for i := range of.n {
		about := total
		if of.size != nil {
			about += of.size(i)
		}
		if i > 0 && about > limit {
			break
		}
		if err := c.beginLarge(about); err != nil {
			return nil, err
		}
		b, err := response.Encode(of.item(i))
		if err != nil {
			return nil, err
		}
		if i > 0 && total+len(b) > limit {
			break
		}
		total += len(b)
		if err := c.reserveUpTo(total); err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	if total > limits.FreeBytes {
		until := time.Now().Add(answerSlack + time.Duration(total)*time.Second/answerRate)
		_ = http.NewResponseController(c.writer).SetWriteDeadline(until) // without deadlines the write just waits
	}
	return out, nil
}

// boundedPage makes a page of at most maxPageBytes of the items that one listing gave. shorter
// repeats the listing with fewer items and returns the token behind them.
func (c *call) boundedPage(of list, next string, shorter func(limit int) (next string)) (answer, error) {
	items, err := c.items(of, maxPageBytes)
	if err != nil {
		return answer{}, err
	}
	if len(items) < of.n {
		next = shorter(len(items))
	}
	token, err := response.Encode(wire.OrNull(next))
	if err != nil {
		return answer{}, err
	}
	return ok(encodedItems{before: `{"items":[`, items: items, after: `],"next_page_id":` + string(token) + "}"})
}
