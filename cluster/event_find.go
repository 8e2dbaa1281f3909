package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"bivouac.dev/bivouac/fsm"
)

// FindEvents returns copies of stored events by their ids; what the chain does not have is left out. The
// chain is of a view of this node. They come from this node's disk, and from a member's while this node
// lacks some. CodeNoLeader: no member that answers has them now.
func (n *Node) FindEvents(ctx context.Context, chain fsm.EventChain, ids []string) (map[string][]byte, error) {
	found := map[string][]byte{}
	if chain.Number == 0 {
		return found, nil
	}
	ctx, leave, err := n.enter(ctx, n.cfg.ReadTimeout)
	if err != nil {
		return nil, err
	}
	defer leave()
	take := func(stored []byte) bool {
		found[string(fsm.EventID(stored))] = bytes.Clone(stored)
		return true
	}
	if n.events.open != nil {
		if err = n.findHere(chain, ids, take); err == nil {
			return found, nil
		}
	}
	refused := []error{err}
	for _, s := range (&filler{node: n}).members() {
		left := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return found[id] != nil })
		for len(left) > 0 {
			list, err := n.fetchEvents(ctx, s, eventsRequest{Key: chain.Key, Number: chain.Number, IDs: left})
			if err != nil {
				refused = append(refused, err)
				break
			}
			before := len(left)
			for _, stored := range list {
				take(stored)
			}
			left = slices.DeleteFunc(left, func(id string) bool { return found[id] != nil })
			if len(left) == before {
				return found, nil // the chain does not have them
			}
		}
		if len(left) == 0 {
			return found, nil
		}
	}
	return nil, n.noEvents(refused)
}

// errLacks: this node lacks events of a conversation.
var errLacks = errors.New("this node lacks events of this conversation and fetches them")

// findHere calls fn with the events of some ids in their order, until it returns false, if this node has the
// whole chain.
func (n *Node) findHere(chain fsm.EventChain, ids []string, fn func(stored []byte) bool) error {
	number, err := n.hasEvents(chain)
	if err != nil {
		return err
	}
	if number < chain.Number {
		return errLacks
	}
	s := n.events.present()
	positions, err := s.Find(chain.Key, ids)
	if err != nil {
		return err
	}
	for _, id := range ids {
		at, known := positions[id]
		if !known {
			continue
		}
		stored, err := s.Event(chain.Key, at)
		if err != nil || stored == nil {
			return errors.Join(err, fmt.Errorf("event %d is not there", at))
		}
		if !fn(stored) {
			return nil
		}
	}
	return nil
}
