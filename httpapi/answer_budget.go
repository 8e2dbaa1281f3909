package httpapi

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"bivouac.dev/bivouac/httpapi/response"
)

// The bounds of large answers, in bytes (API.md, "Paging").
const (
	// maxPageBytes bounds a page of more than one item.
	maxPageBytes = 4 << 20
	// maxBatchBytes bounds a batch.
	maxBatchBytes = 16 << 20
	// freeDataBytes is the size up to which a body or an answer is small: it waits for nothing.
	freeDataBytes = 64 << 10
	// answerBudget bounds the large answers that a node holds at a time, userBudget those of one user.
	answerBudget = 128 << 20
	userBudget   = 32 << 20
	// A client has answerSlack to begin to read a large answer, and reads answerRate bytes a second.
	answerSlack = 10 * time.Second
	answerRate  = 256 << 10
)

// budget counts the bytes of large answers that are being made or sent.
type budget struct {
	mu    sync.Mutex
	all   int
	users map[string]int
}

func newBudget() *budget { return &budget{users: map[string]int{}} }

// take reserves bytes for a user's answer. It returns false when there is no room.
func (b *budget) take(user string, bytes int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all+bytes > answerBudget || b.users[user]+bytes > userBudget {
		return false
	}
	b.all += bytes
	b.users[user] += bytes
	return true
}

// give returns what take reserved.
func (b *budget) give(user string, bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all -= bytes
	if b.users[user] -= bytes; b.users[user] == 0 {
		delete(b.users, user)
	}
}

// reserve reserves bytes of an answer until the request has ended.
func (c *call) reserve(bytes int) error {
	if !c.server.answers.take(c.who.user, bytes) {
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
	if over := bytes - freeDataBytes - c.held; over > 0 {
		return c.reserve(over)
	}
	return nil
}

// beginLarge prepares an answer of about a size.
func (c *call) beginLarge(bytes int) error {
	if bytes <= freeDataBytes {
		return nil
	}
	if err := c.reserveUpTo(bytes); err != nil {
		return err
	}
	return c.slot.takeTurn(c.ctx)
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
	defer c.slot.endTurn()
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
	if total > freeDataBytes {
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
	token, err := response.Encode(orNull(next))
	if err != nil {
		return answer{}, err
	}
	return ok(encodedItems{before: `{"items":[`, items: items, after: `],"next_page_id":` + string(token) + "}"})
}
