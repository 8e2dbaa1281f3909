// Package slots bounds how many calls are under way. A slow sandbox, or the sandboxes of one
// Nomad client or user, must not take the slots of all others.
package slots

import (
	"context"
	"slices"
	"sync"
)

// Share divides shared slots: one holder may use one in so many.
const Share = 4

// Shared is a number of slots of which each holder, a user or a Nomad client, may use a share.
type Shared struct {
	share int
	all   *slots

	mu      sync.Mutex
	holders map[string]*holder
}

// holder is a holder's own share, for as long as any of it is used or waited for.
type holder struct {
	own  slots
	uses int
}

// New makes size slots. newestFirst serves the newest of those that wait first, and not the
// oldest.
func New(size int, newestFirst bool) *Shared {
	return &Shared{
		all: &slots{newestFirst: newestFirst, free: size}, share: max(size/Share, 1), holders: map[string]*holder{},
	}
}

// use returns the holder's own share; done ends the use of it.
func (s *Shared) use(name string) (own *slots, done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.holders[name]
	if h == nil {
		h = &holder{own: slots{newestFirst: s.all.newestFirst, free: s.share}}
		s.holders[name] = h
	}
	h.uses++
	return &h.own, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if h.uses--; h.uses == 0 {
			delete(s.holders, name)
		}
	}
}

// TryEnter takes a slot if one is free now; leave is nil when there is none.
func (s *Shared) TryEnter(holder string) (leave func()) {
	return s.by(holder, (*slots).try)
}

// Enter waits for a slot. leave returns it, and is nil when ctx ended first.
func (s *Shared) Enter(ctx context.Context, holder string) (leave func()) {
	return s.by(holder, func(part *slots) bool { return part.take(ctx) })
}

// by takes a slot of the holder's own share and one of all.
func (s *Shared) by(holder string, take func(*slots) bool) (leave func()) {
	own, done := s.use(holder)
	if !take(own) {
		done()
		return nil
	}
	if !take(s.all) {
		own.give()
		done()
		return nil
	}
	return func() {
		s.all.give()
		own.give()
		done()
	}
}

// slots is a number of free slots and a queue of those that wait for one, oldest first.
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
		s.give() // the slot was assigned meanwhile
	}
	return false
}

// give returns a slot, and assigns it to the next that waits.
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
