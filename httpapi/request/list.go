package request

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
	// MaxPageBytes bounds a page of more than one item.
	MaxPageBytes = 4 << 20
	// MaxBatchBytes bounds a batch.
	MaxBatchBytes = 16 << 20
	// A client has answerSlack to begin to read a large answer, and reads answerRate bytes a second.
	answerSlack = 10 * time.Second
	answerRate  = 256 << 10
)

// reserve reserves bytes of an answer until the request has ended.
func (c *Call) reserve(bytes int) error {
	if !c.server.Answers.Take(c.Caller.User, bytes) {
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
func (c *Call) reserveUpTo(bytes int) error {
	if over := bytes - limits.FreeBytes - c.held; over > 0 {
		return c.reserve(over)
	}
	return nil
}

// beginLarge prepares an answer of about a size.
func (c *Call) beginLarge(bytes int) error {
	if bytes <= limits.FreeBytes {
		return nil
	}
	if err := c.reserveUpTo(bytes); err != nil {
		return err
	}
	return c.slot.TakeTurn(c.Ctx)
}

// List is what an answer lists: n items, each made by item. size is about how many bytes one has,
// nil if all are small.
type List struct {
	N    int
	Item func(i int) any
	Size func(i int) int
}

// Items encodes the items of an answer while they come to at most limit bytes, and at least one of
// them. Before an answer gets above limits.FreeBytes it takes of the budget and waits for its turn. It
// must be read in time.
func (c *Call) Items(of List, limit int) ([]json.RawMessage, error) {
	defer c.slot.EndTurn()
	out, total := []json.RawMessage{}, 0
	for i := range of.N {
		about := total
		if of.Size != nil {
			about += of.Size(i)
		}
		if i > 0 && about > limit {
			break
		}
		if err := c.beginLarge(about); err != nil {
			return nil, err
		}
		b, err := response.Encode(of.Item(i))
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
		_ = http.NewResponseController(c.Writer).SetWriteDeadline(until) // without deadlines the write just waits
	}
	return out, nil
}

// BoundedPage makes a page of at most MaxPageBytes of the items that one listing gave. shorter
// repeats the listing with fewer items and returns the token behind them.
func (c *Call) BoundedPage(of List, next string, shorter func(limit int) (next string)) (response.Response, error) {
	items, err := c.Items(of, MaxPageBytes)
	if err != nil {
		return response.Response{}, err
	}
	if len(items) < of.N {
		next = shorter(len(items))
	}
	token, err := response.Encode(wire.OrNull(next))
	if err != nil {
		return response.Response{}, err
	}
	return response.OK(response.EncodedItems{
		Before: `{"items":[`,
		Items:  items,
		After:  `],"next_page_id":` + string(token) + "}",
	})
}
