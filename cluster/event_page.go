package cluster

import (
	"bytes"
	"context"
	"errors"
	"math"

	"bivouac.dev/bivouac/fsm"
)

// ReadEvents calls fn with the events of a chain from a position on, in their order or backwards, until
// it returns false. The chain is of a view of this node. They come from this node's disk, and from a
// member's while this node lacks some. fn must not keep stored. CodeNoLeader: no member that answers has
// them now.
func (n *Node) ReadEvents(
	ctx context.Context, chain fsm.EventChain, from uint64, backwards bool,
	fn func(at uint64, stored []byte) bool,
) error {
	if chain.Number == 0 || from >= chain.Number {
		return nil
	}
	ctx, leave, err := n.enter(ctx, n.cfg.ReadTimeout)
	if err != nil {
		return err
	}
	defer leave()
	p := &eventPage{next: from, end: chain.Number, back: backwards, fn: fn}
	if n.events.open != nil {
		whole, err := n.hasEvents(chain)
		if err == nil && whole {
			err = n.events.present().Events(chain.Key, from, backwards, p.take)
		}
		if err == nil && (p.over || whole && p.done()) {
			return nil
		}
	}
	return n.readFromMembers(ctx, chain, p)
}

// hasEvents reports whether this node has a chain as far as a view of it says.
func (n *Node) hasEvents(chain fsm.EventChain) (bool, error) {
	s, err := n.events.get()
	if err != nil {
		return false, err
	}
	head, err := s.Head(chain.Key)
	if err == nil && (head == nil || head.Number < chain.Number) {
		// The view may have an event that the store gets in this moment.
		err = n.raftFSM.Together(func(*fsm.View) (err error) {
			head, err = s.Head(chain.Key)
			return err
		})
	}
	return err == nil && head != nil && head.Number >= chain.Number, err
}

// eventPage hands on events that follow each other.
type eventPage struct {
	next, end uint64
	back      bool
	fn        func(at uint64, stored []byte) bool
	// over: fn wants no more.
	over bool
}

// done reports whether there are no more events.
func (p *eventPage) done() bool { return p.next >= p.end }

// take hands on the next event, and nothing behind a gap.
func (p *eventPage) take(at uint64, stored []byte) bool {
	if p.done() || at != p.next {
		return false
	}
	switch {
	case !p.back:
		p.next++
	case at == 0:
		p.next = math.MaxUint64 // the end
	default:
		p.next--
	}
	p.over = !p.fn(at, stored)
	return !p.over
}

// readFromMembers goes on with a page by what members answer. They are believed as far as their
// certificates go: the hash of the chain covers whole chains only.
func (n *Node) readFromMembers(ctx context.Context, chain fsm.EventChain, p *eventPage) error {
	var refused []error
	for _, s := range (&filler{node: n}).members() {
		for !p.over && !p.done() {
			list, err := n.fetchEvents(ctx, s, eventsRequest{Key: chain.Key, From: p.next, Back: p.back})
			if err != nil || len(list) == 0 {
				refused = append(refused, err)
				break
			}
			for _, stored := range list {
				if !p.take(p.next, stored) {
					break
				}
			}
		}
		if p.over || p.done() {
			return nil
		}
	}
	err := errors.Join(refused...)
	if err != nil {
		n.logger.Warn("cluster: events can't be read here, and no member answers with them", "error", err)
	}
	return &fsm.Error{Code: fsm.CodeNoLeader, RetryAfter: retryAfter,
		Message: "no node that answers has the events of this conversation now"}
}

// FindEvents returns copies of stored events by their ids; what the chain does not have is left out. A
// node that lacks events of the chain answers CodeNoLeader.
func (n *Node) FindEvents(ctx context.Context, chain fsm.EventChain, ids []string) (map[string][]byte, error) {
	found := map[string][]byte{}
	if chain.Number == 0 || n.events.open == nil {
		return found, nil
	}
	_, leave, err := n.enter(ctx, n.cfg.ReadTimeout)
	if err != nil {
		return nil, err
	}
	defer leave()
	whole, err := n.hasEvents(chain)
	if err != nil {
		return nil, err
	}
	if !whole {
		return nil, &fsm.Error{Code: fsm.CodeNoLeader, RetryAfter: retryAfter,
			Message: "this node lacks events of this conversation and fetches them"}
	}
	s := n.events.present()
	positions, err := s.Find(chain.Key, ids)
	if err != nil {
		return nil, err
	}
	for id, at := range positions {
		err = errors.Join(err, s.Events(chain.Key, at, false, func(_ uint64, stored []byte) bool {
			found[id] = bytes.Clone(stored)
			return false
		}))
	}
	return found, err
}
