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

// Runner runs sandboxes as local processes. It implements scheduler.Runner. The nodes of one
// program share one Runner. It is safe for concurrent use.
type Runner struct {
	cfg     Config
	log     *slog.Logger
	dir     string
	boot    string
	lock    *os.File
	spawner *spawner

	mu        sync.Mutex
	sandboxes map[string]*sandbox
	watchers  map[*watcher]bool
	lastIndex uint64
	closed    bool

	// markMu guards the file of the mark.
	markMu sync.Mutex

	portsMu sync.Mutex
	ports   map[int]bool
}

var _ scheduler.Backend = (*Runner)(nil)

// New locks the directory, kills the processes that an earlier program left in it and reads the
// jobs. It starts none. It fails when another program uses the directory. The caller calls
// Close at the end.
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
		sandboxes: map[string]*sandbox{}, watchers: map[*watcher]bool{}, ports: map[int]bool{},
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

// load reads the jobs on disk. Their processes have ended, so they count as stopped.
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
			// An unfinished start made it; os.Remove keeps a directory with files.
			_ = os.Remove(filepath.Join(dir, workspaceDir))
			_ = os.Remove(dir)
			continue
		case err != nil || st.SandboxID != e.Name():
			r.log.Error("reading a sandbox's state failed, it is left as it is", "path", dir, "error", err)
			continue
		}
		sb := newSandbox(st.SandboxID, dir, r.cfg.MaxLog)
		sb.state = st
		r.sandboxes[sb.id] = sb
		r.lastIndex = max(r.lastIndex, st.ModifyIndex)
		if st.Run != nil {
			runs = append(runs, *st.Run)
		}
	}
	if err := killLeftovers(runs, r.boot); err != nil {
		return fmt.Errorf("killing what is left over: %w", err)
	}
	for _, sb := range r.sandboxes {
		if err := r.markStopped(sb); err != nil {
			return err
		}
	}
	return nil
}

// markStopped records that a job no longer runs. The caller holds the sandbox's op, or is New.
func (r *Runner) markStopped(sb *sandbox) error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.state.Stopped {
		return nil
	}
	st := sb.state
	st.Stopped = true
	st.ModifyIndex = r.nextIndex()
	st.Version++
	if err := writeState(sb.dir, st); err != nil {
		return err
	}
	sb.state = st
	return nil
}

// nextIndex returns a number higher than any before, also those of removed jobs: a caller with
// an old index must not match a new job.
func (r *Runner) nextIndex() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastIndex = max(r.lastIndex+1, uint64(time.Now().UnixMicro()))
	return r.lastIndex
}

// Close stops every sandbox, waits until they have ended, and unlocks the directory. Workspaces
// and jobs stay. It may be called again.
func (r *Runner) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	sandboxes := make([]*sandbox, 0, len(r.sandboxes))
	for _, sb := range r.sandboxes {
		sandboxes = append(sandboxes, sb)
	}
	for w := range r.watchers {
		w.signal()
	}
	r.mu.Unlock()

	errs := make([]error, len(sandboxes))
	var wg sync.WaitGroup
	for i, sb := range sandboxes {
		wg.Go(func() {
			sb.op <- struct{}{}
			defer func() { <-sb.op }()
			if sb.exists() {
				errs[i] = r.markStopped(sb)
			}
			sb.endRun(context.Background())
		})
	}
	wg.Wait()
	r.spawner.close()
	return errors.Join(errors.Join(errs...), unlockFile(r.lock))
}

// acquire returns the sandbox for the caller alone until release, and makes it if there
// is none. An invalid id is a *scheduler.Failure.
func (r *Runner) acquire(ctx context.Context, id string) (*sandbox, error) {
	if !safeID(id) {
		return nil, specFailure("%q can't be the id of a local sandbox", id)
	}
	for {
		r.mu.Lock()
		if r.closed {
			r.mu.Unlock()
			return nil, fsm.Errorf(fsm.CodeScheduler, "the process runner is closed")
		}
		sb := r.sandboxes[id]
		if sb == nil {
			sb = newSandbox(id, filepath.Join(r.dir, id), r.cfg.MaxLog)
			r.sandboxes[id] = sb
		}
		r.mu.Unlock()
		select {
		case sb.op <- struct{}{}:
		case <-ctx.Done():
			return nil, fsm.Errorf(fsm.CodeScheduler, "the sandbox is busy: %v", ctx.Err())
		}
		r.mu.Lock()
		current, closed := r.sandboxes[id] == sb, r.closed
		r.mu.Unlock()
		if current && !closed {
			return sb, nil
		}
		<-sb.op
	}
}

// release releases the sandbox and drops it if it holds no job.
func (r *Runner) release(sb *sandbox) {
	if !sb.exists() {
		r.mu.Lock()
		if r.sandboxes[sb.id] == sb {
			delete(r.sandboxes, sb.id)
		}
		r.mu.Unlock()
	}
	<-sb.op
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

// removeAll removes a tree, also one with directories that are not writable.
func removeAll(dir string) error {
	err := os.RemoveAll(dir)
	if err == nil {
		return nil
	}
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, _ error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(path, 0o700) // the second attempt reports it
		}
		return nil
	})
	return os.RemoveAll(dir)
}
