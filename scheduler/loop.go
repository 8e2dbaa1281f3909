package scheduler

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sync/errgroup"

	"bivouac.dev/bivouac/fsm"
)

// loop is one term's reconciliation. Observations go into tracks under mu, and the sandbox's id
// into the queue; a worker then plans from the current state.
type loop struct {
	s       *Scheduler
	log     *slog.Logger
	started time.Time
	queue   *queue
	reports *reporter
	// backend and vault guard the marks in the backend and in the secret store.
	backend, vault *markGuard
	relist         chan struct{}
	probers        sync.WaitGroup
	gate           *gate
	// carriers is nil for a backend whose workspaces can't be copied.
	carriers *carriers

	mu     sync.Mutex
	tracks map[string]*track
	// known is set by the first listing, which closes listed.
	known  bool
	listed chan struct{}
	away   *Failure
	// seq counts the observations from Watch, and the removals. A listing does not overwrite
	// newer ones.
	seq uint64
	// released is when a hold ended in this term.
	released time.Time
	// eager counts the probers that probe at the fast pace; see prober.count.
	eager int
	// removals bounds the workers that remove.
	removals *removalLine
}

func newLoop(s *Scheduler, log *slog.Logger, backend, vault *markGuard) *loop {
	return &loop{
		s: s, log: log, started: time.Now(), queue: newQueue(), reports: newReporter(s, log), backend: backend, vault: vault,
		listed: make(chan struct{}), relist: make(chan struct{}, 1), removals: newRemovalLine(s.cfg.Workers),
		gate: newGate(s.cfg.ProbesAtOnce, s.cfg.ProbeTimeout), tracks: map[string]*track{},
	}
}

func (l *loop) run(ctx context.Context) error {
	clusterID, ok := l.clusterID(ctx)
	if !ok {
		return nil
	}
	if carrier, can := l.s.runner.(Carrier); can {
		l.carriers = newCarriers(l.s, l, clusterID, carrier)
	}
	g, ctx := errgroup.WithContext(ctx)
	defer l.probers.Wait()
	g.Go(func() error { <-ctx.Done(); l.queue.close(); return nil })
	g.Go(func() error { return l.reports.run(ctx) })
	g.Go(func() error { return l.followStore(ctx) })
	g.Go(func() error { return l.followBackend(ctx, clusterID) })
	g.Go(func() error { return l.list(ctx, clusterID) })
	if l.carriers != nil {
		g.Go(func() error { return l.carriers.run(ctx) })
	}
	if backend, can := l.s.runner.(CapacityReader); can {
		g.Go(func() error { return l.followCapacity(ctx, backend) })
	}
	for range l.s.cfg.Workers {
		g.Go(func() error {
			for {
				id, ok := l.queue.get()
				if !ok || ctx.Err() != nil {
					return nil
				}
				begin := time.Now()
				l.pass(ctx, clusterID, id)
				seconds(l.s.metrics.pass.WithLabelValues("sandbox"), begin)
				l.queue.done(id)
			}
		})
	}
	return g.Wait()
}

// clusterID waits until the cluster has its id, which the term's first command assigns.
func (l *loop) clusterID(ctx context.Context) (string, bool) {
	for {
		v := l.s.store.View()
		if id := v.ClusterID(); id != "" {
			return id, true
		}
		if !awaitChange(ctx, v, time.Time{}, nil) {
			return "", false
		}
	}
}

// followStore queues each sandbox whose row or orphan record changed, and all when a hold begins or
// ends or operators mark clients.
func (l *loop) followStore(ctx context.Context) error {
	var last *fsm.View
	held := l.s.store.View().Hold() != nil
	var marks []fsm.ClientMark
	for {
		v := l.s.store.View()
		if now := v.ClientMarks(); !slices.EqualFunc(now, marks, fsm.ClientMark.Equal) {
			marks = now
			l.queueAll()
		}
		if now := v.Hold() != nil; now != held {
			held = now
			l.holdChanged(held)
		}
		l.takeChanges(last, v)
		last = v
		if !awaitChange(ctx, v, time.Time{}, nil) {
			return nil
		}
	}
}

// takeChanges queues what changed between two views; last is nil for the term's first.
func (l *loop) takeChanges(last, v *fsm.View) {
	c := v.ChangesSince(last)
	if c.All {
		l.queueAll()
		for _, o := range v.Orphans() {
			l.due(o.Sandbox)
		}
		return
	}
	for _, id := range c.Sandboxes {
		if last.SandboxAny(id) == nil && v.SandboxAny(id) != nil {
			// The rows of a term's first view may have been started by a former leader.
			l.fresh(id)
		}
		l.due(id)
	}
}

// due has the sandbox looked at: its row or its observation changed.
func (l *loop) due(id string) {
	l.queue.add(id)
	if l.carriers != nil {
		l.carriers.due(id)
	}
}

// holdChanged queues everything, because a hold began or ended.
func (l *loop) holdChanged(held bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !held {
		l.released = time.Now()
		l.log.Warn("hold released")
		l.backend.soon()
		l.listSoon()
	}
	l.queueAllLocked()
}

func (l *loop) queueAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queueAllLocked()
}

func (l *loop) queueAllLocked() {
	for id := range l.tracks {
		l.due(id)
	}
	for sb := range l.s.store.View().AllSandboxes() {
		l.due(sb.ID)
	}
}

func (l *loop) fresh(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trackLocked(id).fresh = true
}

// followBackend watches the backend. When the stream breaks it requests a listing and watches
// again.
func (l *loop) followBackend(ctx context.Context, clusterID string) error {
	retry := newBackoff(l.s.cfg.BackoffMin, min(l.s.cfg.BackoffMax, awayPause))
	for ctx.Err() == nil {
		begin := time.Now()
		err := l.s.runner.Watch(ctx, clusterID, l.onEvent)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(begin) > l.s.cfg.BackoffMax {
			retry.Reset()
		}
		l.log.Warn("event stream failed, watching again", "error", err)
		l.listSoon()
		if !sleep(ctx, retry.NextBackOff()) {
			return nil
		}
	}
	return nil
}

// onEvent takes one observation from the event stream, unless it is of an older version of the job
// than the one known.
func (l *loop) onEvent(o Observed) {
	if o.SandboxID == "" {
		return
	}
	l.mu.Lock()
	t := l.trackLocked(o.SandboxID)
	if now := t.observed; now.Exists && o.Exists && o.ModifyIndex < now.ModifyIndex {
		l.mu.Unlock()
		return
	}
	l.seq++
	t.seq = l.seq
	changed := t.setObserved(o)
	l.mu.Unlock()
	if changed {
		l.due(o.SandboxID)
	}
}

func (l *loop) listSoon() {
	select {
	case l.relist <- struct{}{}:
	default:
	}
}

// awayPause bounds the pause between two tries to reach an unavailable backend. Every sandbox
// that waits for it continues as soon as one listing works.
const awayPause = 2 * time.Second

// list lists everything when the term begins, on request, and every ListInterval.
func (l *loop) list(ctx context.Context, clusterID string) error {
	retry := newBackoff(l.s.cfg.BackoffMin, min(l.s.cfg.BackoffMax, awayPause))
	for {
		pause := l.s.cfg.ListInterval
		if err := l.listOnce(ctx, clusterID); err != nil {
			var newer *NewerHistoryError
			switch {
			case ctx.Err() != nil:
				return nil
			case errors.As(err, &newer):
				return newer
			}
			l.log.Warn("listing jobs failed", "error", err)
			pause = retry.NextBackOff()
		} else {
			retry.Reset()
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		case <-l.relist:
			timer.Stop()
		}
	}
}

func (l *loop) listOnce(ctx context.Context, clusterID string) error {
	begin := time.Now()
	l.mu.Lock()
	seq := l.seq
	l.mu.Unlock()
	before := l.s.store.View()
	callCtx, cancel := context.WithTimeout(ctx, l.s.cfg.CallTimeout)
	defer cancel()
	jobs, err := l.s.runner.List(callCtx, clusterID)
	jobs = withoutLost(l.s.store.View(), jobs)
	if err == nil {
		err = l.judge(ctx, before, jobs, seq)
	}
	l.mu.Lock()
	var due []string
	if err != nil {
		l.away = awayFailure(err)
		for id, t := range l.tracks {
			if t.starting {
				due = append(due, id)
			}
		}
	} else {
		due = l.takeListing(jobs, seq)
	}
	l.mu.Unlock()
	for _, id := range due {
		l.due(id)
	}
	if err != nil {
		return err
	}
	seconds(l.s.metrics.pass.WithLabelValues("listing"), begin)
	return l.forgetOrphans(ctx, jobs)
}

// judge checks, before a listing is used, that it comes from the backend that this history knows.
// If not, there is a hold when it returns. While the mark can't be read, the scheduler does only
// what users asked for (planUnsure).
func (l *loop) judge(ctx context.Context, before *fsm.View, jobs []Observed, seq uint64) error {
	could := l.backend.mayRemove()
	defer l.orphansAgain(could)
	_, err := l.backend.judge(ctx)
	unreadable, denied := (*unreadableError)(nil), (*Denied)(nil)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil && !errors.As(err, &unreadable) && !errors.As(err, &denied):
		return err
	}
	if err != nil {
		l.backend.logOnce(err)
	}
	gone := l.vanished(before, jobs, seq)
	return l.s.hold(ctx, l.log, func(v *fsm.View) []fsm.Finding {
		return append(strangers(v, jobs), gone(v)...)
	})
}

// takeListing updates the tracks from a listing that began when seq events had been received,
// and returns the sandboxes to look at. Later events from the stream stay. What has no row, and is
// not listed, is forgotten.
func (l *loop) takeListing(jobs []Observed, seq uint64) (due []string) {
	first, wasAway := !l.known, l.away != nil
	l.known, l.away = true, nil
	if first {
		close(l.listed)
	}
	seen := make(map[string]bool, len(jobs))
	for _, o := range jobs {
		seen[o.SandboxID] = true
		t := l.trackLocked(o.SandboxID)
		if t.seq <= seq && (t.setObserved(o) || o.Workspace) {
			due = append(due, o.SandboxID)
		}
	}
	v := l.s.store.View()
	for id, t := range l.tracks {
		if wasAway {
			t.away = nil
			t.tryNow()
		}
		gone := !seen[id] && t.seq <= seq
		if gone && t.setObserved(Observed{SandboxID: id}) || first || wasAway && t.starting {
			due = append(due, id)
		} else if gone && t.prober == nil && v.SandboxAny(id) == nil {
			delete(l.tracks, id)
		}
	}
	if first {
		for sb := range v.AllSandboxes() {
			due = append(due, sb.ID)
		}
	}
	return due
}

// orphansAgain queues the orphans once they may be removed and could not be before.
func (l *loop) orphansAgain(could bool) {
	if could || !l.backend.mayRemove() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, t := range l.tracks {
		if orphaned(t.observed) {
			l.queue.add(id)
		}
	}
}

func newBackoff(lo, hi time.Duration) *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = lo, hi
	b.Reset()
	return b
}

// awayFailure says that the backend can't be reached.
func awayFailure(err error) *Failure {
	reason := fsm.ReasonScheduler
	if fsm.CodeOf(err) == fsm.CodeSecretStore {
		reason = fsm.ReasonSecretStore
	}
	return &Failure{Reason: reason, Detail: err.Error()}
}
