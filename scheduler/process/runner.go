package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// Runner runs sandboxes as local processes; it implements scheduler.Runner.
// The nodes of one program share one Runner. It is safe for concurrent use.
type Runner struct {
	cfg     Config
	log     *slog.Logger
	dir     string
	boot    string
	lock    *os.File
	spawner *spawner

	mu        sync.Mutex
	boxes     map[string]*box
	watchers  map[*watcher]bool
	lastIndex uint64
	closed    bool

	// markMu guards the file of the mark.
	markMu sync.Mutex

	portsMu sync.Mutex
	ports   map[int]bool
}

var _ scheduler.Backend = (*Runner)(nil)

// New takes the directory, kills whatever an earlier program left running in
// it and reads the jobs; it starts none. It fails when another program uses the
// directory. The caller calls Close at the end.
func New(cfg Config) (*Runner, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	root, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("process runner's directory: %w", err)
	}
	r := &Runner{
		cfg: cfg, log: cfg.Logger, dir: root, boot: boot,
		boxes: map[string]*box{}, watchers: map[*watcher]bool{}, ports: map[int]bool{},
	}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the process runner's directory: %w", err)
	}
	if r.lock, err = lockFile(filepath.Join(root, lockName)); err != nil {
		return nil, fmt.Errorf("process runner: %w", err)
	}
	if err := r.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("process runner: %w", err), unlockFile(r.lock))
	}
	r.spawner = newSpawner()
	return r, nil
}

// load reads the jobs on disk. Their processes are gone, so they are stopped.
func (r *Runner) load() error {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return err
	}
	var runs []runMark
	for _, e := range entries {
		dir := filepath.Join(r.dir, e.Name())
		if strings.HasPrefix(e.Name(), removedMark) {
			if err := removeAll(dir); err != nil {
				return fmt.Errorf("removing an old workspace: %w", err)
			}
			continue
		}
		if !e.IsDir() || !safeID(e.Name()) {
			continue
		}
		st, err := readState(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			// A start that did not get to its end; what holds files stays.
			_ = os.Remove(filepath.Join(dir, workspaceDir))
			_ = os.Remove(dir)
			continue
		case err != nil || st.SandboxID != e.Name():
			r.log.Error("a sandbox's state can't be read; it is left as it is", "path", dir, "error", err)
			continue
		}
		b := newBox(st.SandboxID, dir, r.cfg.MaxLog)
		b.state = st
		r.boxes[b.id] = b
		r.lastIndex = max(r.lastIndex, st.ModifyIndex)
		if st.Run != nil {
			runs = append(runs, *st.Run)
		}
	}
	if err := killLeftovers(runs, r.boot); err != nil {
		return fmt.Errorf("killing what is left over: %w", err)
	}
	for _, b := range r.boxes {
		if err := r.markStopped(b); err != nil {
			return err
		}
	}
	return nil
}

// markStopped notes that a job does not run any more. The caller holds the
// box's op, or is New.
func (r *Runner) markStopped(b *box) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state.Stopped {
		return nil
	}
	st := b.state
	st.Stopped = true
	st.ModifyIndex = r.nextIndex()
	st.Version++
	if err := writeState(b.dir, st); err != nil {
		return err
	}
	b.state = st
	return nil
}

// nextIndex gives a number higher than any before, also than those of jobs
// that are gone: whoever still holds one must not meet it again.
func (r *Runner) nextIndex() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastIndex = max(r.lastIndex+1, uint64(time.Now().UnixMicro()))
	return r.lastIndex
}

// Close stops every sandbox, waits for their ends, and lets go of the
// directory. Workspaces and jobs stay. It may be called again.
func (r *Runner) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	boxes := make([]*box, 0, len(r.boxes))
	for _, b := range r.boxes {
		boxes = append(boxes, b)
	}
	for w := range r.watchers {
		w.signal()
	}
	r.mu.Unlock()

	errs := make([]error, len(boxes))
	var wg sync.WaitGroup
	for i, b := range boxes {
		wg.Go(func() {
			b.op <- struct{}{}
			defer func() { <-b.op }()
			if b.exists() {
				errs[i] = r.markStopped(b)
			}
			b.endRun(context.Background())
		})
	}
	wg.Wait()
	r.spawner.close()
	return errors.Join(errors.Join(errs...), unlockFile(r.lock))
}

// acquire gives the sandbox's box, made when there is none, for the caller
// alone until release. A *scheduler.Failure says that the id can't be one.
func (r *Runner) acquire(ctx context.Context, id string) (*box, error) {
	if !safeID(id) {
		return nil, specFailure("%q can't be the id of a local sandbox", id)
	}
	for {
		r.mu.Lock()
		if r.closed {
			r.mu.Unlock()
			return nil, fsm.Errorf(fsm.CodeScheduler, "the process runner is closed")
		}
		b := r.boxes[id]
		if b == nil {
			b = newBox(id, filepath.Join(r.dir, id), r.cfg.MaxLog)
			r.boxes[id] = b
		}
		r.mu.Unlock()
		select {
		case b.op <- struct{}{}:
		case <-ctx.Done():
			return nil, fsm.Errorf(fsm.CodeScheduler, "the sandbox is busy: %v", ctx.Err())
		}
		r.mu.Lock()
		current, closed := r.boxes[id] == b, r.closed
		r.mu.Unlock()
		if current && !closed {
			return b, nil
		}
		<-b.op
	}
}

// release gives the box back, and forgets it when it holds no job.
func (r *Runner) release(b *box) {
	if !b.exists() {
		r.mu.Lock()
		if r.boxes[b.id] == b {
			delete(r.boxes, b.id)
		}
		r.mu.Unlock()
	}
	<-b.op
}

func safeID(id string) bool {
	if id == "" || len(id) > 64 || id[0] == '-' {
		return false
	}
	for _, c := range id {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '-' {
			return false
		}
	}
	return true
}

// removeAll removes a tree, also one with directories its owner may not write.
func removeAll(dir string) error {
	err := os.RemoveAll(dir)
	if err == nil {
		return nil
	}
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, _ error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(path, 0o700) // the second try tells
		}
		return nil
	})
	return os.RemoveAll(dir)
}
