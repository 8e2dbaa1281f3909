package cluster

import (
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
	// stallAfter is how long one write may take before the node stops passing
	// for a leader: a disk that slow holds up every write of the cluster, and the
	// others have disks of their own. hashicorp/raft's heartbeats do not depend on
	// the disk, so without this a leader whose disk hangs would lead for ever.
	stallAfter = time.Second
	// hangAfter is how long one write may take before the node stops.
	hangAfter = 30 * time.Second
	// stallTick is how often that is looked at.
	stallTick = 50 * time.Millisecond
	// markEvery is how often the newest index is noted beside the log.
	markEvery = time.Second
)

// runbook is where the way out of each of these errors is described.
const runbook = "ops/runbooks/disk.md"

// disk watches over the data directory: the first error of a write or a read is
// the last thing done with it (a failed fsync can't be repeated: the kernel has
// dropped the pages that it could not write, and the next one succeeds), and an
// operation that takes too long is noticed.
type disk struct {
	dir    string
	logger *slog.Logger
	// failed is closed at the first failure.
	failed chan struct{}

	// altering is held by the one operation that changes files.
	altering sync.Mutex

	mu  sync.Mutex
	err error
	// busy are the operations in progress.
	busy map[*diskOperation]struct{}
	// stalled is closed while an operation takes longer than stallAfter; healed
	// while none does.
	stalled, healed chan struct{}
	slow            bool
}

type diskOperation struct {
	what  string
	begin time.Time
}

func newDisk(dir string, logger *slog.Logger) *disk {
	d := &disk{dir: dir, logger: logger, failed: make(chan struct{}), busy: map[*diskOperation]struct{}{}, stalled: make(chan struct{}), healed: make(chan struct{})}
	close(d.healed)
	return d
}

// do runs one operation on the disk. The first error, and any error after it,
// is the end: nothing more is tried. A panic of a store, and a page of a mapped
// file that can't be read, are errors like any other. what is of the form
// "writing X".
func (d *disk) do(what string, operation func() error) error {
	if err := d.failure(); err != nil {
		return err
	}
	o := &diskOperation{what: what, begin: time.Now()}
	d.mu.Lock()
	d.busy[o] = struct{}{}
	d.mu.Unlock()
	err := contained(operation)
	d.mu.Lock()
	delete(d.busy, o)
	d.mu.Unlock()
	if err != nil {
		return d.fail(fmt.Errorf("%s: %w; %s", what, err, d.advice(err)))
	}
	return nil
}

// alter is do for an operation that changes files. There is one at a time, so
// that none is on its way when another fails.
func (d *disk) alter(what string, operation func() error) error {
	return d.do(what, func() error {
		d.altering.Lock()
		defer d.altering.Unlock()
		if err := d.failure(); err != nil {
			return err
		}
		return operation()
	})
}

// contained runs fn and turns a panic, or a fault in mapped memory, into an
// error.
func contained(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	return fn()
}

// fail notes the first failure, and gives it.
func (d *disk) fail(err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil {
		d.err = err
		close(d.failed)
	}
	return d.err
}

// failure gives the first failure; nil without a disk.
func (d *disk) failure() error {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

// failures is closed at the first failure; never without a disk.
func (d *disk) failures() <-chan struct{} {
	if d == nil {
		return nil
	}
	return d.failed
}

// stall gives a channel that is closed while the disk does not answer, and one
// that is closed while it does.
func (d *disk) stall() (stalled, healed <-chan struct{}) {
	if d == nil {
		return nil, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stalled, d.healed
}

// trouble is why this node must not pass for a leader, nil for none.
func (d *disk) trouble() error {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil && d.slow {
		return errors.New("the disk of this node does not answer")
	}
	return d.err
}

// look compares the oldest operation with the bounds.
func (d *disk) look(now time.Time) {
	d.mu.Lock()
	var oldest *diskOperation
	for o := range d.busy {
		if oldest == nil || o.begin.Before(oldest.begin) {
			oldest = o
		}
	}
	age := time.Duration(0)
	if oldest != nil {
		age = now.Sub(oldest.begin)
	}
	was := d.slow
	d.slow = age >= stallAfter
	switch {
	case d.slow && !was:
		d.healed = make(chan struct{})
		close(d.stalled)
	case !d.slow && was:
		d.stalled = make(chan struct{})
		close(d.healed)
	}
	d.mu.Unlock()
	switch {
	case d.slow && !was:
		d.logger.Error("cluster: the disk does not answer; this node stops leading until it does", "path", d.dir, "duration", age, "error", oldest.what)
	case !d.slow && was:
		d.logger.Warn("cluster: the disk answers again", "path", d.dir)
	}
	if age >= hangAfter {
		_ = d.fail(fmt.Errorf("%s has taken %s: the disk hangs; look at the disk below %s and start the node again (%s)", oldest.what, age.Round(time.Second), d.dir, runbook))
	}
}

// advice says what a person can do about an error.
func (d *disk) advice(err error) string {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Sprintf("make room on the file system of %s and start the node again; nothing that was acknowledged is lost (%s)", d.dir, runbook)
	case errors.Is(err, syscall.EROFS), errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return fmt.Sprintf("make %s writable for this process and start the node again (%s)", d.dir, runbook)
	case errors.Is(err, wal.ErrSealed):
		return fmt.Sprintf("the log's next file could not be made, the log says why (\"rotate error\"): mend that, make room if there is none, and start the node again; nothing that was acknowledged is lost (%s)", runbook)
	}
	return fmt.Sprintf("do not trust this disk: give the node another one, with an empty data directory, and it fetches everything from the others (%s)", runbook)
}

// advisable: the operating system refused, so the content is not to blame.
func (d *disk) advisable(err error) bool {
	var number syscall.Errno
	return errors.As(err, &number) && number != syscall.EIO
}

// damaged is the error of a file whose content can't be trusted.
func (d *disk) damaged(path, format string, args ...any) error {
	return fmt.Errorf("%s is damaged: %s; this node does not work on it, the others go on: move %s away and start the node, and it fetches everything from them (%s)",
		path, fmt.Sprintf(format, args...), d.dir, runbook)
}
