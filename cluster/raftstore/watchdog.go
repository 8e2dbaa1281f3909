package raftstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	wal "github.com/hashicorp/raft-wal"
)

const (
	// stallAfter is how long one write may take before the node stops leading: such a disk
	// holds up every write of the cluster, and the others have disks of their own.
	// hashicorp/raft's heartbeats do not depend on the disk, so without this a leader whose
	// disk hangs would keep leadership.
	stallAfter = time.Second
	// hangAfter is how long one write may take before the node stops.
	hangAfter = 30 * time.Second
	// stallTick is how often the oldest operation's age is checked while it is too long.
	stallTick = 50 * time.Millisecond
	// markEvery is how often the newest index is stored beside the log.
	markEvery = time.Second
)

// runbook describes the way out of each of these errors.
const runbook = "bivouac runbook disk"

// Watchdog watches the operations on a data directory. The first failed read or write is
// the last operation: a failed fsync can't be repeated, because the kernel drops the pages
// that it could not write and the next fsync succeeds. An operation that takes too long is
// a stall. The methods of a nil Watchdog report neither.
type Watchdog struct {
	dir    string
	logger *slog.Logger
	// failed is closed at the first failure.
	failed chan struct{}

	// altering is held by the one operation that changes files.
	altering sync.Mutex

	mu  sync.Mutex
	err error
	// busy are the operations in progress.
	busy map[*operation]struct{}
	// stalled is closed while an operation takes longer than stallAfter, healed while none
	// does.
	stalled, healed chan struct{}
	slow            bool
}

type operation struct {
	what  string
	begin time.Time
}

func newWatchdog(dir string, logger *slog.Logger) *Watchdog {
	w := &Watchdog{
		dir: dir, logger: logger, failed: make(chan struct{}), busy: map[*operation]struct{}{},
		stalled: make(chan struct{}), healed: make(chan struct{}),
	}
	close(w.healed)
	return w
}

// Do runs one operation on the disk, unless an earlier one failed. A panic of a library
// and an unreadable page of a mapped file are failures too. what reads "writing X".
func (w *Watchdog) Do(what string, run func() error) error {
	if err := w.Failure(); err != nil {
		return err
	}
	o := &operation{what: what, begin: time.Now()}
	w.mu.Lock()
	w.busy[o] = struct{}{}
	w.mu.Unlock()
	err := Contain(run)
	w.mu.Lock()
	delete(w.busy, o)
	w.mu.Unlock()
	if err != nil {
		return w.fail(fmt.Errorf("%s: %w; %s", what, err, w.advice(err)))
	}
	return nil
}

// alter is Do for an operation that changes files. One runs at a time, so that none is in
// progress when another fails.
func (w *Watchdog) alter(what string, run func() error) error {
	return w.Do(what, func() error {
		w.altering.Lock()
		defer w.altering.Unlock()
		if err := w.Failure(); err != nil {
			return err
		}
		return run()
	})
}

// Contain runs fn and turns a panic, or a fault in mapped memory, into an error.
func Contain(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	return fn()
}

// fail records the first failure and returns it.
func (w *Watchdog) fail(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
		close(w.failed)
	}
	return w.err
}

// Failure is the first failure, nil for none.
func (w *Watchdog) Failure() error {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Failed is closed at the first failure.
func (w *Watchdog) Failed() <-chan struct{} {
	if w == nil {
		return nil
	}
	return w.failed
}

// Stall gives a channel that is closed while the disk stalls, and one that is closed while
// it does not.
func (w *Watchdog) Stall() (stalled, healed <-chan struct{}) {
	if w == nil {
		return nil, nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stalled, w.healed
}

// Trouble is why this node must not lead: the first failure, or a stall.
func (w *Watchdog) Trouble() error {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil && w.slow {
		return errors.New("the disk of this node does not answer")
	}
	return w.err
}

// check compares the age of the oldest operation with the bounds, and returns when to do so again: an
// operation that begins now is too long only after stallAfter.
func (w *Watchdog) check(now time.Time) (again time.Duration) {
	w.mu.Lock()
	var oldest *operation
	for o := range w.busy {
		if oldest == nil || o.begin.Before(oldest.begin) {
			oldest = o
		}
	}
	age := time.Duration(0)
	if oldest != nil {
		age = now.Sub(oldest.begin)
	}
	was := w.slow
	w.slow = age >= stallAfter
	if again = stallAfter - age; w.slow {
		again = stallTick
	}
	switch {
	case w.slow && !was:
		w.healed = make(chan struct{})
		close(w.stalled)
	case !w.slow && was:
		w.stalled = make(chan struct{})
		close(w.healed)
	}
	w.mu.Unlock()
	switch {
	case w.slow && !was:
		w.logger.Error("cluster: the disk does not answer; this node stops leading until it does", "path", w.dir,
			"duration", age, "error", oldest.what)
	case !w.slow && was:
		w.logger.Warn("cluster: the disk answers again", "path", w.dir)
	}
	if age >= hangAfter {
		_ = w.fail(fmt.Errorf("%s has taken %s: the disk hangs; look at the disk below %s and start the node again (%s)",
			oldest.what, age.Round(time.Second), w.dir, runbook))
	}
	return again
}

// Watch checks the pace of the disk, and stores once a second where the log ends, until
// ctx ends. Without a watchdog it returns at once.
func (s *Store) Watch(ctx context.Context) {
	if s.watchdog == nil {
		return
	}
	pace, mark := time.NewTimer(0), time.NewTicker(markEvery)
	defer pace.Stop()
	defer mark.Stop()
	var storing sync.WaitGroup
	defer storing.Wait()
	storing.Go(func() {
		for {
			select {
			case <-mark.C:
				_ = s.mark.store() // a failure stops the node by the watchdog
			case <-ctx.Done():
				return
			}
		}
	})
	for {
		select {
		case now := <-pace.C:
			pace.Reset(s.watchdog.check(now))
		case <-ctx.Done():
			return
		}
	}
}

// MarkEnd stores where the log ends, so that the next Open misses the last entry too. The
// node calls it when it stops in order.
func (s *Store) MarkEnd() error {
	if s.mark == nil || s.watchdog.Failure() != nil {
		return nil
	}
	return s.mark.store()
}

// advice says what an operator can do about an error.
func (w *Watchdog) advice(err error) string {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Sprintf(
			"make room on the file system of %s and start the node again; nothing that was acknowledged is lost (%s)",
			w.dir,
			runbook,
		)
	case errors.Is(err, syscall.EROFS), errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return fmt.Sprintf("make %s writable for this process and start the node again (%s)", w.dir, runbook)
	case errors.Is(err, wal.ErrSealed):
		return fmt.Sprintf(
			"the log's next file could not be made, the log says why (\"rotate error\"): repair that, "+
				"make room if there is none, and start the node again; nothing that was acknowledged is lost (%s)",
			runbook,
		)
	}
	return fmt.Sprintf(
		"do not trust this disk: give the node another one, with an empty data directory, "+
			"and it fetches everything from the others (%s)",
		runbook,
	)
}

// refusedBySystem: the operating system refused, so the files are not to blame.
func refusedBySystem(err error) bool {
	var number syscall.Errno
	return errors.As(err, &number) && number != syscall.EIO
}

// damaged is the error of a file that can't be trusted.
func (w *Watchdog) damaged(path, format string, args ...any) error {
	return fmt.Errorf("%s is damaged: %s; this node does not work on it, the others go on: "+
		"move %s away and start the node, and it fetches everything from them (%s)",
		path, fmt.Sprintf(format, args...), w.dir, runbook)
}

// Remedy says what to do with a data directory that other members object to.
func (s *Store) Remedy() string {
	where := "the data directory"
	if s.watchdog != nil {
		where = s.watchdog.dir
	}
	return fmt.Sprintf(
		"if it is older than another disk of this node, do not run it: move %s away and start the node with an empty one, "+
			"and it fetches everything from the others; if it is the newest, have the members forget what they know (bivouac "+
			"operator records --clear) (%s)",
		where,
		runbook,
	)
}
