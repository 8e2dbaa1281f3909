package eventstore

import (
	"errors"

	"github.com/cockroachdb/pebble/v2"

	"bivouac.dev/bivouac/fsm"
)

// Put stores events of a chain that were fetched, from a position on. They count only when Settle finds
// that the chain ends as the state says.
func (s *Store) Put(chain Head, at uint64, events [][]byte) error {
	return s.change("writing events", func(b *pebble.Batch) error {
		head, err := s.head(chain.Key)
		if err != nil {
			return err
		}
		if head == nil { // so that Heads shows the chain
			none := Head{chain.UserID, chain.ConversationID, chain.Key.Begin()}
			if err := b.Set(headKey(chain.Key), encodeHead(&none), nil); err != nil {
				return err
			}
		}
		return put(b, chain.Key, at, events)
	})
}

// Follow continues a chain from a point on over the events that are here, up to a number of them. It
// returns how far it came.
func (s *Store) Follow(from fsm.EventChain, to uint64) (fsm.EventChain, error) {
	if from.Number >= to {
		return from, nil
	}
	err := s.Events(from.Key, from.Number, false, func(at uint64, stored []byte) bool {
		if at != from.Number {
			return false // a gap
		}
		from = from.Next(stored)
		return from.Number < to
	})
	return from, err
}

// Settle makes a chain's head what the state says, once Follow came there, and removes what is behind.
func (s *Store) Settle(chain Head) error {
	return s.change("writing events", func(b *pebble.Batch) error {
		first := eventKey(chain.Key, chain.Number)
		prefix := chainKey(prefixEvent, chain.Key)
		surplus := false
		err := scan(s.db, prefix, first, false, func(_, stored []byte) (bool, error) {
			surplus = true
			id := idKey(chain.Key, fsm.EventID(stored))
			if at, err := s.number(id); err != nil || at < chain.Number {
				return err == nil, err
			}
			return true, b.Delete(id, nil)
		})
		if err != nil {
			return err
		}
		if surplus {
			if err := errors.Join(
				b.DeleteRange(first, behind(prefix), nil),
				b.DeleteRange(outlineKey(chain.Key, chain.Number), behind(chainKey(prefixOutline, chain.Key)), nil),
			); err != nil {
				return err
			}
		}
		return b.Set(headKey(chain.Key), encodeHead(&chain), nil)
	})
}

// Drop removes a chain that the state does not have, or that differs from the state's.
func (s *Store) Drop(key fsm.ChainKey) error {
	return s.change("writing events", func(b *pebble.Batch) error { return drop(b, key) })
}
