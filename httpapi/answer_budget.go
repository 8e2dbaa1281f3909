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
	// freeAnswerBytes is the size up to which an answer needs nothing of the budget.
	freeAnswerBytes = 64 << 10
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

// reserve reserves bytes of an answer until the request has ended. The answer is held twice: its
// items, and the whole that is sent.
func (c *call) reserve(bytes int) error {
	if !c.server.answers.take(c.who.user, 2*bytes) {
		return &response.HTTPError{
			Status: http.StatusServiceUnavailable, RetryAfter: time.Second,
			Text: "Too many large answers are being read; nothing was done. Read the others to their end, ask for fewer items, or try again.",
		}
	}
	c.held += 2 * bytes
	return nil
}

// items encodes the items of an answer while they come to at most limit bytes, and at least one of
// them. An answer above freeAnswerBytes takes of the budget before more is encoded, and must be read
// in time.
func (c *call) items(n, limit int, item func(i int) any) ([]json.RawMessage, error) {
	out, total := []json.RawMessage{}, 0
	for i := range n {
		b, err := response.Encode(item(i))
		if err != nil {
			return nil, err
		}
		if i > 0 && total+len(b) > limit {
			break
		}
		total += len(b)
		if over := total - freeAnswerBytes - c.held/2; over > 0 {
			if err := c.reserve(over); err != nil {
				return nil, err
			}
		}
		out = append(out, b)
	}
	if total > freeAnswerBytes {
		until := time.Now().Add(answerSlack + time.Duration(total)*time.Second/answerRate)
		_ = http.NewResponseController(c.writer).SetWriteDeadline(until) // without deadlines the write just waits
	}
	return out, nil
}

// boundedPage makes a page of at most maxPageBytes of the items that one listing gave. list repeats
// the listing with fewer items and returns the token behind them.
func (c *call) boundedPage(n int, next string, item func(i int) any, list func(limit int) (next string)) (answer, error) {
	items, err := c.items(n, maxPageBytes, item)
	if err != nil {
		return answer{}, err
	}
	if len(items) < n {
		next = list(len(items))
	}
	return ok(newPage(items, next))
}
