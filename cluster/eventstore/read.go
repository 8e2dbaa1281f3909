package eventstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"bivouac.dev/bivouac/fsm"
)

// purgeInterval is how often the room of dropped chains is given back.
const purgeInterval = time.Hour

// get returns a copy of a value, nil for none.
func (s *Store) get(key []byte) ([]byte, error) {
	value, closer, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	value = append([]byte{}, value...)
	return value, closer.Close()
}

// number returns a number, 0 for none.
func (s *Store) number(key []byte) (uint64, error) {
	value, err := s.get(key)
	if err != nil || value == nil {
		return 0, err
	}
	if len(value) != 8 {
		return 0, errHead
	}
	return binary.BigEndian.Uint64(value), nil
}

// head returns the head of a chain, nil for none.
func (s *Store) head(key fsm.ChainKey) (*Head, error) {
	value, err := s.get(headKey(key))
	if err != nil || value == nil {
		return nil, err
	}
	return decodeHead(key, value)
}

// read runs fn, which only reads.
func (s *Store) read(fn func() error) error {
	if err := s.Failure(); err != nil {
		return err
	}
	if err := contain(fn); err != nil {
		return s.named("reading events", err)
	}
	return nil
}

// Head returns how far the events of a chain are here without a gap, nil for a chain that is not here.
func (s *Store) Head(key fsm.ChainKey) (head *Head, err error) {
	err = s.read(func() (err error) {
		head, err = s.head(key)
		return err
	})
	return head, err
}

// Heads calls fn with the head of each chain, until it returns false.
func (s *Store) Heads(fn func(*Head) bool) error {
	return s.read(func() error {
		return scan(s.db, []byte{prefixHead}, nil, false, func(key, value []byte) (bool, error) {
			if len(key) != 1+len(fsm.ChainKey{}) {
				return false, errHead
			}
			head, err := decodeHead(fsm.ChainKey(key[1:]), value)
			return err == nil && fn(head), err
		})
	})
}

// scan calls fn with the keys that begin with prefix, from a key on, until it returns false. nil is the
// first one.
func scan(
	in pebble.Reader, prefix, from []byte, backwards bool, fn func(key, value []byte) (bool, error),
) (err error) {
	it, err := in.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: behind(prefix)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	valid, next := false, it.Next
	if backwards {
		valid, next = it.SeekLT(append(bytes.Clone(from), 0)), it.Prev
	} else {
		valid = it.SeekGE(from)
	}
	for ; valid; valid = next() {
		value, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if more, err := fn(it.Key(), value); err != nil || !more {
			return err
		}
	}
	return it.Error()
}

// Events calls fn with the events of a chain from a position on, in their order or backwards, until it
// returns false. There may be gaps behind the head. fn must not keep stored.
func (s *Store) Events(key fsm.ChainKey, from uint64, backwards bool, fn func(at uint64, stored []byte) bool) error {
	return s.positions(chainKey(prefixEvent, key), from, backwards, fn)
}

// Outlines is Events without their bodies.
func (s *Store) Outlines(
	key fsm.ChainKey, from uint64, backwards bool, fn func(at uint64, outline []byte) bool,
) error {
	return s.positions(chainKey(prefixOutline, key), from, backwards, fn)
}

// Event returns a copy of one event, nil for one that is not here.
func (s *Store) Event(key fsm.ChainKey, at uint64) (stored []byte, err error) {
	err = s.read(func() (err error) {
		stored, err = s.get(eventKey(key, at))
		return err
	})
	return stored, err
}

// positions calls fn with what is below a prefix and a position.
func (s *Store) positions(prefix []byte, from uint64, backwards bool, fn func(at uint64, value []byte) bool) error {
	return s.read(func() error { return positions(s.db, prefix, from, backwards, fn) })
}

func positions(
	in pebble.Reader, prefix []byte, from uint64, backwards bool, fn func(at uint64, value []byte) bool,
) error {
	first := binary.BigEndian.AppendUint64(bytes.Clone(prefix), from)
	return scan(in, prefix, first, backwards, func(k, value []byte) (bool, error) {
		if len(k) != len(prefix)+8 {
			return false, errHead
		}
		return fn(binary.BigEndian.Uint64(k[len(prefix):]), value), nil
	})
}

// Find returns the positions of events by their ids. An id that is not here has none.
func (s *Store) Find(key fsm.ChainKey, ids []string) (positions map[string]uint64, err error) {
	positions = make(map[string]uint64, len(ids))
	err = s.read(func() error {
		for _, id := range ids {
			value, err := s.get(idKey(key, []byte(id)))
			if err != nil {
				return err
			}
			if len(value) == 8 {
				positions[id] = binary.BigEndian.Uint64(value)
			}
		}
		return nil
	})
	return positions, err
}

// Run gives back the room of dropped chains until ctx ends.
func (s *Store) Run(ctx context.Context) {
	ticker := time.NewTicker(purgeInterval)
	defer ticker.Stop()
	for {
		if err := s.Purge(ctx); err != nil && ctx.Err() == nil {
			s.logger.Warn("eventstore: deleted events still take room; it is tried again", "path", s.dir, "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// compact rewrites a range of keys, without what was deleted.
func (s *Store) compact(ctx context.Context, from, to []byte) error {
	done := make(chan error, 1)
	go func() { done <- contain(func() error { return s.db.Compact(ctx, from, to, false) }) }()
	select {
	case err := <-done:
		return err
	case <-s.failed:
		return s.Failure()
	}
}

// manyDropped is from how many dropped chains on one compaction takes all of them.
const manyDropped = 256

// Purge gives back the room of the chains that were dropped before: their bytes leave the disk. While there
// are pins, which may keep them, it leaves all for the next time.
func (s *Store) Purge(ctx context.Context) error {
	var dropped []fsm.ChainKey
	err := s.read(func() error {
		return scan(s.db, []byte{prefixDropped}, nil, false, func(key, _ []byte) (bool, error) {
			if len(key) != 1+len(fsm.ChainKey{}) {
				return false, errHead
			}
			dropped = append(dropped, fsm.ChainKey(key[1:]))
			return true, nil
		})
	})
	if err != nil || s.pinned() {
		return err
	}
	size := 1
	if len(dropped) >= manyDropped {
		size = len(dropped)
	}
	for some := range slices.Chunk(dropped, size) {
		for _, prefix := range perEvent() {
			err := s.compact(ctx, chainKey(prefix, some[0]), behind(chainKey(prefix, some[len(some)-1])))
			if err = errors.Join(err, ctx.Err()); err != nil {
				return err
			}
		}
		err := s.change("writing events", func(b *pebble.Batch) (err error) {
			for _, key := range some {
				err = errors.Join(err, b.Delete(chainKey(prefixDropped, key), nil))
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// pinned reports whether a view is in use. One of before a chain was dropped keeps its bytes.
func (s *Store) pinned() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pins) > 0
}
