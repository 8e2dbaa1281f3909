// Package eventstore keeps the events of conversations below a node's data directory, of which the
// state has the number, the bytes and a hash for each conversation (fsm.EventChain).
//
// Raft's log is its write-ahead log: Write does not sync. Flush makes durable what was written, and a
// snapshot of Raft is not finished before. After a kill the store has a prefix of what was written, and
// Raft applies the rest again from its newest snapshot, with the same keys and bytes. What is missing
// beside that, or differs, the node fetches from a member (cluster/fill.go).
//
// The store never ends the process. Its first error of a write is its last operation: Failed is closed,
// Failure names the directory, and what the store has open goes with the process (guard.go).
package eventstore

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"bivouac.dev/bivouac/fsm"
)

// The bounds of what the store keeps in memory and open.
const (
	defaultCacheBytes    = 32 << 20
	defaultMemTableBytes = 16 << 20
	openFiles            = 256
)

// Options say how Open opens a store.
type Options struct {
	// FS is the file system, nil for the machine's.
	FS vfs.FS
	// Logger gets what the store does in the background at DEBUG; nil discards it.
	Logger *slog.Logger
	// CacheBytes and MemTableBytes bound the memory for what was read and what is not flushed; 0 is the
	// default. The store has at most four memory tables.
	CacheBytes    int64
	MemTableBytes uint64
}

// Store is an opened store of events. All methods are safe for concurrent use.
type Store struct {
	dir    string
	db     *pebble.DB
	cache  *pebble.Cache
	logger *slog.Logger

	failing sync.Mutex
	failure error
	failed  chan struct{}

	// mu is held by what changes the store.
	mu sync.Mutex
	// applied is the index of the last Write, dirty that something was written since the last Flush began.
	applied uint64
	dirty   bool
	// flushed is closed with the end of the last Flush that began, nil before the first. Flushes end in
	// their order.
	flushed <-chan struct{}
	// pins are the views that are in use.
	pins map[*Pin]struct{}
	// gapped: a Write did not follow what is here.
	gapped atomic.Bool
}

// Open opens or creates the store in a directory, which no other process may have open.
func Open(dir string, o Options) (*Store, error) {
	s := &Store{dir: dir, logger: o.Logger, failed: make(chan struct{}), pins: map[*Pin]struct{}{}}
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	if o.CacheBytes == 0 {
		o.CacheBytes = defaultCacheBytes
	}
	if o.MemTableBytes == 0 {
		o.MemTableBytes = defaultMemTableBytes
	}
	if o.FS == nil {
		o.FS = vfs.Default
	}
	s.cache = pebble.NewCache(o.CacheBytes)
	listener := pebble.EventListener{BackgroundError: s.background}
	options := &pebble.Options{
		Cache: s.cache, FS: guardedFS{o.FS, s}, Logger: library{s}, EventListener: &listener,
		MemTableSize: o.MemTableBytes, MemTableStopWritesThreshold: 4, MaxOpenFiles: openFiles,
		// Raft's log has what a kill takes from memory.
		DisableWAL: true,
		// It is raised only by who knows that no older program has to read the directory.
		FormatMajorVersion: pebble.FormatColumnarBlocks,
	}
	opened := make(chan error, 1)
	go func() {
		opened <- contain(func() (err error) {
			s.db, err = pebble.Open(dir, options)
			return err
		})
	}()
	select {
	case err := <-opened:
		if err == nil {
			s.applied, err = s.number(keyApplied)
		}
		if err != nil {
			return nil, errors.Join(s.named("opening the store of events", err), s.release())
		}
		return s, s.Failure() // of the background
	case <-s.failed:
		return nil, s.Failure() // what the library has open goes with the process
	}
}

// release closes what is open.
func (s *Store) release() (err error) {
	if s.db != nil {
		err = contain(s.db.Close)
		s.db = nil
	}
	s.cache.Unref()
	return err
}

// Close makes durable what was written and closes the store. One that has failed stays open: goroutines
// of it wait for ever. No other method may run then or later.
func (s *Store) Close() error {
	if err := s.Flush(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.pins {
		delete(s.pins, p)
		_ = p.view.Close()
	}
	closed := make(chan error, 1)
	go func() { closed <- s.release() }()
	select {
	case err := <-closed:
		if err != nil {
			return s.fail("closing the store of events", err)
		}
		return nil
	case <-s.failed:
		return s.Failure()
	}
}

// Failed is closed when the store has failed; then Failure says why.
func (s *Store) Failed() <-chan struct{} { return s.failed }

// Failure returns the error that stopped the store, nil while it works.
func (s *Store) Failure() error {
	s.failing.Lock()
	defer s.failing.Unlock()
	return s.failure
}

// fail stops the store; the first error stays, and is returned.
func (s *Store) fail(what string, err error) error {
	s.failing.Lock()
	defer s.failing.Unlock()
	if s.failure == nil {
		s.failure = s.named(what, err)
		close(s.failed)
	}
	return s.failure
}

// named makes an error name the directory and the way out.
func (s *Store) named(what string, err error) error {
	return fmt.Errorf("%s in %s: %w; if the disk is all right and another member has all events, move that "+
		"directory away and start the node again: it fetches them (a cluster of one would lose all: restore a backup)",
		what, s.dir, err)
}

// background takes the errors of flushes and compactions. They would be tried again for ever.
func (s *Store) background(err error) {
	if errors.Is(err, pebble.ErrCancelledCompaction) {
		return
	}
	_ = s.fail("writing events", err) // damage that a compaction found, for one
}

// contain turns a panic of the library into an error.
func contain(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	return fn()
}

// library is the logger of the library. Its own would end the process at Fatalf.
type library struct{ s *Store }

// Infof implements pebble.Logger.
func (l library) Infof(format string, args ...any) {
	l.s.logger.Debug("eventstore: library", "reason", fmt.Sprintf(format, args...))
}

// Errorf implements pebble.Logger.
func (l library) Errorf(format string, args ...any) {
	l.s.logger.Warn("eventstore: library", "error", fmt.Sprintf(format, args...))
}

// Fatalf implements pebble.Logger. It returns, and the store does nothing more.
func (l library) Fatalf(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	for _, a := range args {
		if cause, ok := a.(error); ok {
			err = cause
		}
	}
	_ = l.s.fail("writing events", err)
}

// Applied returns the index of the last Write.
func (s *Store) Applied() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.applied
}

// Own records whose store this is. One of another node may have been written at other indexes: what
// Applied says of it counts for nothing.
func (s *Store) Own(node string) error {
	return s.change("recording the node", func(b *pebble.Batch) error {
		was, err := s.get(keyOwner)
		if err != nil || string(was) == node {
			return err
		}
		if was != nil {
			s.logger.Warn("eventstore: these events were another node's; they are compared with the state",
				"path", s.dir, "node", string(was))
		}
		s.applied = 0
		return errors.Join(b.Set(keyOwner, []byte(node), nil), b.Delete(keyApplied, nil))
	})
}

// change commits what fn puts into a batch, or fails the store.
func (s *Store) change(what string, fn func(*pebble.Batch) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.Failure(); err != nil {
		return err
	}
	err := contain(func() error {
		b := s.db.NewBatch()
		err := fn(b)
		if err == nil && !b.Empty() {
			s.dirty = true
			err = b.Commit(pebble.NoSync)
		}
		return errors.Join(err, b.Close())
	})
	if err != nil {
		return s.fail(what, err)
	}
	return s.Failure() // of the background meanwhile
}

// Flush returns when all that was written before is on the disk.
func (s *Store) Flush() error {
	flushed, err := s.flush()
	if err != nil || flushed == nil {
		return err
	}
	// A flush that fails is tried again and never ends.
	select {
	case <-flushed:
		return s.Failure()
	case <-s.failed:
		return s.Failure()
	}
}

// flush begins to make durable what was written since the last flush began, and returns what is closed when
// that and all before it are on the disk, nil for nothing.
func (s *Store) flush() (<-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.Failure(); err != nil || !s.dirty {
		return s.flushed, err
	}
	err := contain(func() (err error) {
		s.flushed, err = s.db.AsyncFlush()
		return err
	})
	if err != nil {
		return nil, s.fail("flushing events", err)
	}
	s.dirty = false
	return s.flushed, nil
}

// batchBytes bounds what is written at once, beside one change.
const batchBytes = 4 << 20

// Write stores what the log up to an index did to events. It is repeated after a kill, with the same
// changes.
func (s *Store) Write(index uint64, changes []fsm.EventChange) error {
	for len(changes) > 0 {
		n, size := 0, 0
		for n < len(changes) && size < batchBytes {
			for _, stored := range changes[n].Events {
				size += len(stored)
			}
			n++
		}
		upTo := index
		if n < len(changes) {
			upTo = 0
		}
		if err := s.write(upTo, changes[:n]); err != nil {
			return err
		}
		changes = changes[n:]
	}
	return nil
}

// write is Write in one batch.
func (s *Store) write(index uint64, changes []fsm.EventChange) error {
	return s.change("writing events", func(b *pebble.Batch) error {
		heads := map[fsm.ChainKey]*Head{}
		for _, c := range changes {
			key := c.Chain.Key
			head, known := heads[key]
			if !known {
				var err error
				if head, err = s.head(key); err != nil {
					return err
				}
			}
			if c.Dropped {
				heads[key] = nil
				if err := drop(b, key); err != nil {
					return err
				}
				continue
			}
			if head == nil {
				head = &Head{c.UserID, c.ConversationID, key.Begin()}
			}
			if err := put(b, key, c.At(), c.Events); err != nil {
				return err
			}
			// Behind a gap, or events that differ, the head stays where it is.
			switch {
			case head.Number == c.At() && head.Hash == c.Before:
				head = &Head{c.UserID, c.ConversationID, c.Chain}
			case head.Number <= c.At():
				s.gapped.Store(true)
			}
			heads[key] = head
			if err := b.Set(headKey(key), encodeHead(head), nil); err != nil {
				return err
			}
		}
		if index <= s.applied {
			return nil // again
		}
		s.applied = index
		return b.Set(keyApplied, encodeNumber(index), nil)
	})
}

// Gapped reports whether a Write since the last call did not follow what is here.
func (s *Store) Gapped() bool { return s.gapped.Swap(false) }
