package cluster

import (
	"context"
	"errors"
	"math"

	"bivouac.dev/bivouac/cluster/eventstore"
	"bivouac.dev/bivouac/fsm"
)

// EventQuery says which events of a chain are read.
type EventQuery struct {
	// From is the position of the first one. Back means backwards from there.
	From uint64
	Back bool
	// Takes narrows them by their heads, nil for all. Bodies of others are not read.
	Takes func(fsm.EventHead) bool
	// Outlines means that no bodies are wanted.
	Outlines bool
}

// byOutline reports whether heads decide what is read.
func (q EventQuery) byOutline() bool { return q.Takes != nil || q.Outlines }

// ReadEvents calls fn with the events of a chain that a query asks for, until it returns false. The chain
// is of a view of this node. They come from this node's disk, and from a member's while this node lacks
// some. fn must not keep stored. CodeNoLeader: no member that answers has them now.
func (n *Node) ReadEvents(
	ctx context.Context, chain fsm.EventChain, q EventQuery, fn func(at uint64, stored []byte) bool,
) error {
	if chain.Number == 0 || q.From >= chain.Number {
		return nil
	}
	ctx, leave, err := n.enter(ctx, n.cfg.ReadTimeout)
	if err != nil {
		return err
	}
	defer leave()
	p := &eventPage{ctx: ctx, next: q.From, end: chain.Number, query: q, fn: fn}
	var failure error
	if n.events.open != nil {
		if p.end, failure = n.hasEvents(chain); failure == nil {
			failure = p.readHere(n.events.present(), chain.Key)
		}
		p.end = chain.Number
		if failure == nil && (p.over || p.done()) {
			return nil
		}
		if ctx.Err() != nil {
			return &fsm.Error{Code: fsm.CodeTimeout, RetryAfter: retryAfter,
				Message: "the request ended while events were read"}
		}
	}
	return n.readFromMembers(ctx, chain, p, failure)
}

// hasEvents returns how many of a chain's events, as a view of this node has it, are here without a gap.
func (n *Node) hasEvents(chain fsm.EventChain) (number uint64, err error) {
	s, err := n.events.get()
	if err != nil {
		return 0, err
	}
	head, err := s.Head(chain.Key)
	if err == nil && (head == nil || head.Number < chain.Number) {
		// The view may have an event that the store gets in this moment.
		err = n.raftFSM.Together(func(*fsm.View) (err error) {
			head, err = s.Head(chain.Key)
			return err
		})
	}
	if err != nil || head == nil {
		return 0, err
	}
	return min(head.Number, chain.Number), nil
}

// eventPage hands on events that follow each other.
type eventPage struct {
	ctx       context.Context
	next, end uint64
	query     EventQuery
	fn        func(at uint64, stored []byte) bool
	// over: fn wants no more.
	over bool
}

// readHere reads from this node's disk.
func (p *eventPage) readHere(s *eventstore.Store, key fsm.ChainKey) error {
	if !p.query.byOutline() {
		return s.Events(key, p.next, p.query.Back, p.take)
	}
	var failure error
	err := s.Outlines(key, p.next, p.query.Back, func(at uint64, outline []byte) bool {
		stored, wanted := outline, p.wants(outline)
		if wanted && !p.query.Outlines {
			if stored, failure = s.Event(key, at); stored == nil {
				return false // it was deleted meanwhile
			}
		}
		return p.hand(at, stored, wanted)
	})
	return errors.Join(err, failure)
}

// wants reports whether the query takes an event.
func (p *eventPage) wants(stored []byte) bool {
	if p.query.Takes == nil {
		return true
	}
	head, _, err := fsm.CutEvent(stored)
	return err == nil && p.query.Takes(head)
}

// done reports whether there are no more events.
func (p *eventPage) done() bool { return p.next >= p.end }

// take hands on the next event if it is wanted.
func (p *eventPage) take(at uint64, stored []byte) bool { return p.hand(at, stored, p.wants(stored)) }

// hand goes on to the next event, and hands it on if it is wanted. Nothing behind a gap is.
func (p *eventPage) hand(at uint64, stored []byte, wanted bool) bool {
	if p.done() || at != p.next || p.ctx.Err() != nil {
		return false
	}
	switch {
	case !p.query.Back:
		p.next++
	case at == 0:
		p.next = math.MaxUint64 // the end
	default:
		p.next--
	}
	if wanted {
		p.over = !p.fn(at, stored)
	}
	return !p.over
}

// readFromMembers goes on with a page by what members answer. They are believed as far as their
// certificates go: the hash of the chain covers whole chains only.
//
// here is why this node could not read.
func (n *Node) readFromMembers(ctx context.Context, chain fsm.EventChain, p *eventPage, here error) error {
	refused := []error{here}
	for _, s := range (&filler{node: n}).members() {
		for !p.over && !p.done() && ctx.Err() == nil {
			list, err := n.fetchEvents(ctx, s, eventsRequest{Key: chain.Key, From: p.next, Back: p.query.Back})
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
	return n.noEvents(refused)
}

// noEvents is the error of a read that found events neither here nor at a member.
func (n *Node) noEvents(refused []error) error {
	if err := errors.Join(refused...); err != nil {
		n.logger.Warn("cluster: events can't be read here, and no member answers with them", "error", err)
	}
	return &fsm.Error{Code: fsm.CodeNoLeader, RetryAfter: retryAfter,
		Message: "no node that answers has the events of this conversation now"}
}
