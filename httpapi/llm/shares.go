package llm

import "sync"

// shares bounds bytes of memory: those of each user and those of all.
type shares struct {
	all, each int64

	mu    sync.Mutex
	used  int64
	users map[string]int64
}

func newShares(all, each int64) *shares {
	return &shares{all: all, each: each, users: map[string]int64{}}
}

// take takes n bytes for a user. It reports whether there is room, and takes none without.
func (s *shares) take(user string, n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used+n > s.all || s.users[user]+n > s.each {
		return false
	}
	s.used += n
	s.users[user] += n
	return true
}

// mayTake reports whether there is room for n bytes of somebody.
func (s *shares) mayTake(n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used+n <= s.all
}

// give gives n bytes of a user's back.
func (s *shares) give(user string, n int64) {
	if n == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= n
	if s.users[user] -= n; s.users[user] == 0 {
		delete(s.users, user)
	}
}
