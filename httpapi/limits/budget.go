package limits

import (
	"sync"
	"time"
)

// The bounds of large answers, in bytes (API.md, "Paging").
const (
	// FreeBytes is the size up to which a body or an answer is small: it waits for nothing.
	FreeBytes = 64 << 10
	// answerBudget bounds the large answers that a node holds at a time, UserBudget those of one user.
	answerBudget = 128 << 20
	UserBudget   = 32 << 20
)

// Budget counts the bytes of large answers that are being made or sent.
type Budget struct {
	mu    sync.Mutex
	all   int
	users map[string]int
}

// NewBudget makes a budget of which nothing is taken.
func NewBudget() *Budget { return &Budget{users: map[string]int{}} }

// Take reserves bytes for a user's answer. It returns false when there is no room.
func (b *Budget) Take(user string, bytes int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all+bytes > answerBudget || b.users[user]+bytes > UserBudget {
		return false
	}
	b.all += bytes
	b.users[user] += bytes
	return true
}

// Give returns what Take reserved.
func (b *Budget) Give(user string, bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all -= bytes
	if b.users[user] -= bytes; b.users[user] == 0 {
		delete(b.users, user)
	}
}

// Used is how many bytes all users' answers take.
func (b *Budget) Used() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all
}

// ChunkTime is how long a client may take to read a chunk of a stream.
const ChunkTime = time.Minute
