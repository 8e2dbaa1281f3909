package httpapi

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
)

// maxVisits is how many requests and streams one sandbox may have open on one
// node: its user must not be able to use up the node's sockets.
const maxVisits = 1024

// maxFollowed is how many may follow one sandbox's logs on one node at a time.
const maxFollowed = 32

// errCut is why a stream was ended by us.
type errCut struct{ reason string }

// Error implements error.
func (e *errCut) Error() string { return e.reason }

// The reasons.
func errMoved() *errCut    { return &errCut{"the sandbox was paused, deleted or moved"} }
func errRevoked() *errCut  { return &errCut{"the API key was revoked"} }
func errDraining() *errCut { return &errCut{"this node is stopping"} }

// streams knows every request that is being proxied, and ends those whose
// sandbox is no longer where they go. It starts a goroutine for each sandbox
// that is being visited, which ends with the last visit.
type streams struct {
	cluster Cluster

	mu       sync.Mutex
	watches  map[watchKey]*watch
	visits   map[*visit]struct{}
	followed map[string]int // by sandbox
	draining bool
	// done is closed by the last visit to end while draining.
	done chan struct{}
}

// watchKey names one life of a sandbox at one place.
type watchKey struct {
	id         string
	generation uint64
	alloc      string
	address    string
}

// watch is a goroutine that waits for the end of that life.
type watch struct {
	visits int
	// keyed are the visits by an API key. Guarded by streams.mu.
	keyed  map[*visit]struct{}
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// visit is one request on its way through the door.
type visit struct {
	// ctx ends with the request, or with an *errCut as its cause.
	ctx    context.Context
	cancel context.CancelCauseFunc
	// live is set once it is a stream, which is ended at once when the node
	// drains, so that its client goes to another one. Guarded by streams.mu.
	live bool
	end  func()
	// user and credential are whose it is, and by what.
	user       string
	credential fsm.Credential
}

func newStreams(c Cluster) *streams {
	return &streams{cluster: c, watches: map[watchKey]*watch{}, visits: map[*visit]struct{}{}, followed: map[string]int{}, done: make(chan struct{})}
}

// open registers a visit to a sandbox that serves, as seen at a log index. The
// caller must call end.
func (s *streams) open(ctx context.Context, g grant, index uint64) (*visit, error) {
	v, err := s.openTo(ctx, g, index)
	if err != nil {
		return nil, err
	}
	// From here on the watch sees it; before, nobody did.
	if now, err := s.cluster.View(ctx, cluster.Stale); err == nil && now.Index() >= index && !now.Good(v.user, v.credential) {
		v.end()
		return nil, errUnauthorized()
	}
	return v, nil
}

func (s *streams) openTo(ctx context.Context, g grant, index uint64) (*visit, error) {
	row := g.row
	place := row.Status.Placement
	key := watchKey{id: row.ID, generation: row.Generation, alloc: place.AllocID, address: place.Address}
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.watches[key]
	if w == nil {
		w = &watch{keyed: map[*visit]struct{}{}}
		w.ctx, w.cancel = context.WithCancelCause(context.Background())
		s.watches[key] = w
		go s.watch(w, row, index)
	}
	if w.visits >= maxVisits {
		return nil, errCrowded()
	}
	v := s.add(ctx)
	v.user, v.credential = row.UserID, g.credential
	w.visits++
	if v.credential.Lookup != "" {
		w.keyed[v] = struct{}{}
	}
	unlink := context.AfterFunc(w.ctx, func() { v.cancel(context.Cause(w.ctx)) })
	v.end = sync.OnceFunc(func() {
		unlink()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.remove(v)
		delete(w.keyed, v)
		if w.visits--; w.visits == 0 {
			w.cancel(context.Canceled)
			delete(s.watches, key)
		}
	})
	return v, nil
}

// enroll registers a visit that is to no sandbox yet. The caller must call end.
func (s *streams) enroll(ctx context.Context) *visit {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.add(ctx)
	v.end = sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.remove(v)
	})
	return v
}

// follow registers a visit that reads a sandbox's log as long as it is written.
// The caller must call end.
func (s *streams) follow(ctx context.Context, id string) (*visit, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.draining:
		return nil, errStopping()
	case s.followed[id] >= maxFollowed:
		return nil, errCrowded()
	}
	s.followed[id]++
	v := s.add(ctx)
	v.live = true
	v.end = sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.remove(v)
		if s.followed[id]--; s.followed[id] == 0 {
			delete(s.followed, id)
		}
	})
	return v, nil
}

func errCrowded() error {
	return &refusal{status: http.StatusServiceUnavailable, text: "Too many connections to this sandbox", retryAfter: time.Second}
}

// add and remove keep the set of visits. The caller holds mu.
func (s *streams) add(ctx context.Context) *visit {
	v := &visit{}
	v.ctx, v.cancel = context.WithCancelCause(ctx)
	s.visits[v] = struct{}{}
	return v
}

func (s *streams) remove(v *visit) {
	v.cancel(context.Canceled)
	delete(s.visits, v)
	if s.draining && len(s.visits) == 0 {
		s.markDone()
	}
}

// watch cancels w once row is no longer how things are. What this node believed
// before index does not count.
func (s *streams) watch(w *watch, row *fsm.Sandbox, index uint64) {
	keys := uint64(0)
	for {
		v, err := s.cluster.View(w.ctx, cluster.Stale)
		if err == nil && v.KeysRevoked() != keys {
			keys = v.KeysRevoked()
			s.endRevoked(w, v)
		}
		if err == nil && v.Index() >= index && isOver(v.SandboxAny(row.ID), row) {
			w.cancel(errMoved())
			return
		}
		var changed <-chan struct{}
		if err == nil {
			changed = v.Changed()
		}
		select {
		case <-changed:
		case <-w.ctx.Done():
			return
		}
	}
}

// endRevoked ends the visits whose key is no longer good.
func (s *streams) endRevoked(w *watch, v *fsm.View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for visit := range w.keyed {
		if !v.Good(visit.user, visit.credential) {
			visit.cancel(errRevoked())
		}
	}
}

// isOver reports whether the life that began with then has ended. A sandbox that
// merely fails a health check keeps its connections.
func isOver(now, then *fsm.Sandbox) bool {
	if now == nil || now.Desired != fsm.DesiredRunning || now.Generation != then.Generation || now.KeyHash != then.KeyHash {
		return true
	}
	return !now.Status.Placement.Equal(then.Status.Placement)
}

// stream marks a visit as one that may last; false when the node is draining,
// which has no place for it.
func (s *streams) stream(v *visit) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return false
	}
	v.live = true
	return true
}

// drain ends every stream, and lets none begin.
func (s *streams) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	if len(s.visits) == 0 {
		s.markDone()
	}
	for v := range s.visits {
		if v.live {
			v.cancel(errDraining())
		}
	}
}

// stop ends every visit and waits for the last, at most until ctx ends. drain
// came before it.
func (s *streams) stop(ctx context.Context) error {
	s.mu.Lock()
	for v := range s.visits {
		v.cancel(errDraining())
	}
	s.mu.Unlock()
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return errors.New("connections to sandboxes did not end")
	}
}

// markDone closes done, once. The caller holds mu.
func (s *streams) markDone() {
	select {
	case <-s.done:
	default:
		close(s.done)
	}
}

// count is how many visits are open.
func (s *streams) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.visits)
}

// cutOf gives the reason why a context was ended by us, nil when it was not.
func cutOf(ctx context.Context) *errCut {
	var cut *errCut
	if errors.As(context.Cause(ctx), &cut) {
		return cut
	}
	return nil
}
