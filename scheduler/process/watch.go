package process

import (
	"context"
	"sync"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// List implements scheduler.Runner.
func (r *Runner) List(_ context.Context, clusterID string) ([]scheduler.Observed, error) {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil, fsm.Errorf(fsm.CodeScheduler, "the process runner is closed")
	}
	sandboxes := make([]*sandbox, 0, len(r.sandboxes))
	for _, sb := range r.sandboxes {
		sandboxes = append(sandboxes, sb)
	}
	r.mu.Unlock()
	var out []scheduler.Observed
	for _, sb := range sandboxes {
		if st := sb.snapshot(); st.SandboxID != "" && st.ClusterID == clusterID {
			out = append(out, sb.observe())
		}
	}
	return out, nil
}

// watcher collects the ids that changed since its caller last read them.
type watcher struct {
	cluster string
	wake    chan struct{}

	mu    sync.Mutex
	dirty map[string]bool
}

func (w *watcher) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Watch implements scheduler.Runner. It returns an error when the runner is closed.
func (r *Runner) Watch(ctx context.Context, clusterID string, fn func(scheduler.Observed)) error {
	w := &watcher{cluster: clusterID, wake: make(chan struct{}, 1), dirty: map[string]bool{}}
	r.mu.Lock()
	r.watchers[w] = true
	if r.closed {
		w.signal()
	}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.watchers, w)
		r.mu.Unlock()
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.wake:
		}
		w.mu.Lock()
		dirty := w.dirty
		w.dirty = map[string]bool{}
		w.mu.Unlock()
		for id := range dirty {
			fn(r.look(id, clusterID))
		}
		r.mu.Lock()
		closed := r.closed
		r.mu.Unlock()
		if closed {
			return fsm.Errorf(fsm.CodeScheduler, "the process runner is closed")
		}
	}
}

// look returns one sandbox as it is now.
func (r *Runner) look(id, clusterID string) scheduler.Observed {
	r.mu.Lock()
	sb := r.sandboxes[id]
	r.mu.Unlock()
	if sb == nil {
		return scheduler.Observed{SandboxID: id}
	}
	if st := sb.snapshot(); st.SandboxID != "" && st.ClusterID != clusterID {
		return scheduler.Observed{SandboxID: id, Exists: true, Foreign: true}
	}
	return sb.observe()
}

// changed notifies the cluster's watchers of a sandbox.
func (r *Runner) changed(id, clusterID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for w := range r.watchers {
		if w.cluster != clusterID {
			continue
		}
		w.mu.Lock()
		w.dirty[id] = true
		w.mu.Unlock()
		w.signal()
	}
}
