package proxy

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/response"
)

// endError is the proxy's reason for ending a stream.
type endError struct {
	reason string
	// crowded is set if a newer client took the place.
	crowded bool
}

// Error implements error.
func (e *endError) Error() string { return e.reason }

// The reasons for ending a stream.
func errMoved() *endError    { return &endError{reason: "the sandbox was paused, deleted or moved"} }
func errRevoked() *endError  { return &endError{reason: "the key is no longer valid"} }
func errStale() *endError    { return &endError{reason: "this node has no leader"} }
func errUnshared() *endError { return &endError{reason: "the share was revoked, or it has ended"} }
func errDraining() *endError { return &endError{reason: "this node is stopping"} }
func errGaveWay() *endError {
	return &endError{reason: "a newer client has no key yet either", crowded: true}
}

// recheckInterval is how often open sessions are checked for what no change of the state announces:
// a key that expires, and a node that has no leader.
const recheckInterval = 2 * time.Second

// sessions tracks every proxied request and ends those whose sandbox has stopped or moved. One
// goroutine watches each sandbox with sessions.
type sessions struct {
	cluster Cluster
	// maxSessions and maxFollowers apply to one sandbox.
	maxSessions, maxFollowers int
	// maxStale is how long after the last contact with a leader sessions go on.
	maxStale time.Duration

	mu       sync.Mutex
	watches  map[watchKey]*watch
	open     map[*Session]struct{}
	followed map[string]int // by sandbox id
	draining bool
	// done is closed when the last session ends while draining.
	done chan struct{}
}

// watchKey identifies one run of a sandbox at one place.
type watchKey struct {
	id         string
	generation uint64
	alloc      string
	address    string
}

// watch is the goroutine that waits for the end of a run.
type watch struct {
	sessions int
	// open are the sessions. sessions.mu guards it.
	open map[*Session]struct{}
	// shared are those authorised by a share, likewise.
	shared map[*Session]grant
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// Session is one request or stream to a sandbox.
type Session struct {
	// ctx ends with the request, or with an *endError as its cause.
	ctx    context.Context
	cancel context.CancelCauseFunc
	// lasting is set for streams, which a drain ends so that their clients reconnect to another
	// node. sessions.mu guards it.
	lasting bool
	// upgraded is set for connections that a drain leaves alone, likewise.
	upgraded bool
	end      func()
	// user and credential are the owner and what authorised the session.
	user       string
	credential fsm.Credential
}

func newSessions(c Cluster, cfg Config) *sessions {
	return &sessions{
		cluster: c, maxSessions: cfg.MaxSessions, maxFollowers: cfg.MaxFollowers, maxStale: cfg.MaxStale,
		watches: map[watchKey]*watch{},
		open:    map[*Session]struct{}{}, followed: map[string]int{}, done: make(chan struct{}),
	}
}

// begin starts a session with a sandbox that served at a log index. The caller must call end.
func (s *sessions) begin(ctx context.Context, g grant, index uint64) (*Session, error) {
	v, err := s.beginTo(ctx, g, index)
	if err != nil {
		return nil, err
	}
	// The watch sees revocations from now on; this checks for one before.
	if now, err := s.cluster.View(ctx, cluster.Stale); err == nil && now.Index() >= index &&
		!now.Good(v.user, v.credential, time.Now()) {
		v.end()
		return nil, response.Unauthorized()
	}
	return v, nil
}

func (s *sessions) beginTo(ctx context.Context, g grant, index uint64) (*Session, error) {
	row := g.row
	place := row.Status.Placement
	key := watchKey{id: row.ID, generation: row.Generation, alloc: place.AllocID, address: place.Address}
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.watches[key]
	if w == nil {
		w = &watch{open: map[*Session]struct{}{}, shared: map[*Session]grant{}}
		w.ctx, w.cancel = context.WithCancelCause(context.Background())
		s.watches[key] = w
		go s.watch(w, row, index)
	}
	if w.sessions >= s.maxSessions {
		return nil, errCrowded()
	}
	v := s.add(ctx)
	v.user, v.credential = row.UserID, g.credential
	w.sessions++
	w.open[v] = struct{}{}
	if g.share != "" {
		w.shared[v] = g
	}
	unlink := context.AfterFunc(w.ctx, func() { v.cancel(context.Cause(w.ctx)) })
	v.end = sync.OnceFunc(func() {
		unlink()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.remove(v)
		delete(w.open, v)
		delete(w.shared, v)
		if w.sessions--; w.sessions == 0 {
			w.cancel(context.Canceled)
			delete(s.watches, key)
		}
	})
	return v, nil
}

// enroll starts a session without a sandbox. The caller must call end.
func (s *sessions) enroll(ctx context.Context) *Session {
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

// follow starts a session that follows a sandbox's log. The caller must call end.
func (s *sessions) follow(ctx context.Context, id string) (*Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.draining:
		return nil, errStopping()
	case s.followed[id] >= s.maxFollowers:
		return nil, errCrowded()
	}
	s.followed[id]++
	v := s.add(ctx)
	v.lasting = true
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
	return &response.HTTPError{
		Status:     http.StatusServiceUnavailable,
		Text:       "Too many connections to this sandbox",
		RetryAfter: time.Second,
	}
}

// add and remove maintain the set of open sessions. The caller holds mu.
func (s *sessions) add(ctx context.Context) *Session {
	v := &Session{}
	v.ctx, v.cancel = context.WithCancelCause(ctx)
	s.open[v] = struct{}{}
	return v
}

func (s *sessions) remove(v *Session) {
	v.cancel(context.Canceled)
	delete(s.open, v)
	if s.draining && len(s.open) == 0 {
		s.markDone()
	}
}

// watch cancels w when the sandbox's run has ended or the node has been without a leader for too
// long, and ends sessions whose key is no longer good. For the end of the run it ignores views older
// than index.
func (s *sessions) watch(w *watch, row *fsm.Sandbox, index uint64) {
	again := time.NewTicker(recheckInterval)
	defer again.Stop()
	keys, due := uint64(0), false
	for {
		if s.isStale() {
			w.cancel(errStale())
			return
		}
		v, err := s.cluster.View(w.ctx, cluster.Stale)
		if err == nil && (due || v.KeysRevoked() != keys) {
			keys, due = v.KeysRevoked(), false
			s.endRevoked(w, v)
		}
		if err == nil && v.Index() >= index && isOver(v.SandboxAny(row.ID), row) {
			w.cancel(errMoved())
			return
		}
		if err == nil && v.Index() >= index {
			s.endUnshared(w, v.SandboxAny(row.ID))
		}
		var changed <-chan struct{}
		if err == nil {
			changed = v.Changed()
		}
		select {
		case <-changed:
		case <-again.C:
			due = true
		case <-w.ctx.Done():
			return
		}
	}
}

// isStale reports whether this node has been without a leader for too long to know who may act.
func (s *sessions) isStale() bool {
	return time.Since(s.cluster.Status().LastContact) > s.maxStale
}

// endRevoked ends the sessions whose key is no longer good.
func (s *sessions) endRevoked(w *watch, v *fsm.View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for session := range w.open {
		if !v.Good(session.user, session.credential, time.Now()) {
			session.cancel(errRevoked())
		}
	}
}

// endUnshared ends the sessions whose share was revoked or has ended.
func (s *sessions) endUnshared(w *watch, now *fsm.Sandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for session, g := range w.shared {
		if g.row = now; g.shared() == nil {
			session.cancel(errUnshared())
		}
	}
}

// isOver reports whether the run of then has ended. A sandbox that only fails a health check keeps
// its connections.
func isOver(now, then *fsm.Sandbox) bool {
	if now == nil || now.Desired != fsm.DesiredRunning || now.Generation != then.Generation ||
		now.KeyHash != then.KeyHash {
		return true
	}
	return !now.Status.Placement.Equal(then.Status.Placement)
}

// last marks a session as a stream. It returns false if the node is draining.
func (s *sessions) last(v *Session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return false
	}
	v.lasting = true
	return true
}

// upgrade marks a session as a connection that no reason can be told to. It returns false if the
// node is draining.
func (s *sessions) upgrade(v *Session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	v.upgraded = !s.draining
	return v.upgraded
}

// drain ends every stream but upgraded connections and accepts no new ones.
func (s *sessions) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	if len(s.open) == 0 {
		s.markDone()
	}
	for v := range s.open {
		if v.lasting {
			v.cancel(errDraining())
		}
	}
}

// stop ends every session and waits for them until ctx ends. It counts the upgraded connections
// among them. Call drain first.
func (s *sessions) stop(ctx context.Context) (cut int, err error) {
	s.mu.Lock()
	for v := range s.open {
		if v.upgraded {
			cut++
		}
		v.cancel(errDraining())
	}
	s.mu.Unlock()
	select {
	case <-s.done:
		return cut, nil
	case <-ctx.Done():
		return cut, errors.New("connections to sandboxes did not end")
	}
}

// markDone closes done once. The caller holds mu.
func (s *sessions) markDone() {
	select {
	case <-s.done:
	default:
		close(s.done)
	}
}

// endOf returns the proxy's reason for ending a context, nil if it did not.
func endOf(ctx context.Context) *endError {
	var cut *endError
	if errors.As(context.Cause(ctx), &cut) {
		return cut
	}
	return nil
}
