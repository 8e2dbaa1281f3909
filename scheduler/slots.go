package scheduler

import (
	"context"
	"slices"
	"sync"
)

// holderShare is the part of shared slots that one holder may have.
const holderShare = 4

// shared is a number of slots of which each holder, a user or a Nomad client, may
// have a share.
type shared struct {
	share int
	all   *slots

	mu      sync.Mutex
	holders map[string]*slots
}

func newShared(size int, newestFirst bool) *shared {
	return &shared{
		all: &slots{newestFirst: newestFirst, free: size}, share: max(size/holderShare, 1), holders: map[string]*slots{},
	}
}

// of is the holder's own part.
func (s *shared) of(holder string) *slots {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := s.holders[holder]
	if own == nil {
		own = &slots{newestFirst: s.all.newestFirst, free: s.share}
		s.holders[holder] = own
	}
	return own
}

// tryEnter takes a slot if one is free now; leave is nil when there is none.
func (s *shared) tryEnter(holder string) (leave func()) {
	own := s.of(holder)
	if !own.try() {
		return nil
	}
	if !s.all.try() {
		own.give()
		return nil
	}
	return s.leave(own)
}

// leave gives a slot back.
func (s *shared) leave(own *slots) func() {
	return func() {
		s.all.give()
		own.give()
	}
}

// enter waits for a slot; leave gives it back, and is nil when ctx ended first.
func (s *shared) enter(ctx context.Context, holder string) (leave func()) {
	own := s.of(holder)
	if !own.take(ctx) {
		return nil
	}
	if !s.all.take(ctx) {
		own.give()
		return nil
	}
	return s.leave(own)
}

// slots is a number of slots and who waits for one, oldest first.
type slots struct {
	newestFirst bool

	mu      sync.Mutex
	free    int
	waiting []chan struct{}
}

// try takes a slot if one is free.
func (s *slots) try() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.free == 0 {
		return false
	}
	s.free--
	return true
}

// take waits for a slot; false when ctx ended before.
func (s *slots) take(ctx context.Context) bool {
	s.mu.Lock()
	if s.free > 0 {
		s.free--
		s.mu.Unlock()
		return true
	}
	turn := make(chan struct{})
	s.waiting = append(s.waiting, turn)
	s.mu.Unlock()
	select {
	case <-turn:
		return true
	case <-ctx.Done():
	}
	s.mu.Lock()
	i := slices.Index(s.waiting, turn)
	if i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
	}
	s.mu.Unlock()
	if i < 0 {
		s.give() // it came all the same
	}
	return false
}

// give gives a slot back, to whoever is next.
func (s *slots) give() {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.waiting)
	if n == 0 {
		s.free++
		return
	}
	next := 0
	if s.newestFirst {
		next = n - 1
	}
	close(s.waiting[next])
	s.waiting = slices.Delete(s.waiting, next, next+1)
}
