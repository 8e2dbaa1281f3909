package scheduler

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sync/errgroup"

	"bivouac.dev/bivouac/fsm"
)

// loop is one term's reconciliation. Everything it learns goes into tracks
// under mu, and the sandbox into the queue; a worker then plans from scratch.
type loop struct {
	s       *Scheduler
	log     *slog.Logger
	started time.Time
	queue   *queue
	reports *reporter
	// backend and vault guard the marks in what runs the sandboxes and in the
	// secret store.
	backend, vault *ward
	relist         chan struct{}
	probers        sync.WaitGroup
	gate           *gate

	mu     sync.Mutex
	tracks map[string]*track
	// known is set by the first listing, which closes listed.
	known  bool
	listed chan struct{}
	away   *Failure
	// heard counts what Watch reported, to tell what a listing may not
	// overwrite.
	heard uint64
	// released is when a hold ended in this term.
	released time.Time
	// eager counts the probers of sandboxes that are starting.
	eager int
	// removals bounds the workers that remove.
	removals *removalLine
}

// track is what the loop knows of one sandbox beyond the store.
type track struct {
	observed Observed
	// heard is loop.heard when observed came from Watch, 0 from a listing.
	heard         uint64
	unplacedSince time.Time
	failedSince   time.Time
	// progressAt is when observed last told of progress.
	progressAt time.Time
	// orphanSince is since when observed has had no sandbox.
	orphanSince time.Time
	// grantedAt is when the removal of an orphan was granted.
	grantedAt time.Time
	// settle is set after a step until the backend shows it.
	settle *settling
	// attempted is the generation a Start was accepted for; failed why one for
	// generation failedFor can't work.
	attempted uint64
	failed    *Failure
	failedFor uint64
	// away is why the last step could not reach the backend.
	away      *Failure
	retry     *backoff.ExponentialBackOff
	notBefore time.Time
	// patience counts the removals in a row that failed because a client is away.
	patience int

	// fresh: the row came in this term, and no start was tried.
	fresh    bool
	farewell *farewell
	probe    ProbeResult
	prober   *prober
	starting bool
	placed   bool
}

// settling remembers the picture a step was taken from.
type settling struct {
	from  Observed
	until time.Time
}

func newLoop(s *Scheduler, log *slog.Logger, backend, vault *ward) *loop {
	return &loop{
		s: s, log: log, started: time.Now(), queue: newQueue(), reports: newReporter(s, log), backend: backend, vault: vault,
		listed: make(chan struct{}), relist: make(chan struct{}, 1), removals: newRemovalLine(s.cfg.Workers),
		gate: newGate(s.cfg.ProbesAtOnce), tracks: map[string]*track{},
	}
}

func (l *loop) run(ctx context.Context) error {
	clusterID, ok := l.clusterID(ctx)
	if !ok {
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	defer l.probers.Wait()
	g.Go(func() error { <-ctx.Done(); l.queue.close(); return nil })
	g.Go(func() error { return l.reports.run(ctx) })
	g.Go(func() error { return l.followStore(ctx) })
	g.Go(func() error { return l.followBackend(ctx, clusterID) })
	g.Go(func() error { return l.list(ctx, clusterID) })
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

// clusterID waits until the cluster has its id: the term's first command gives
// it.
func (l *loop) clusterID(ctx context.Context) (string, bool) {
	for {
		v := l.s.store.View()
		if id := v.ClusterID(); id != "" {
			return id, true
		}
		if !sleep(ctx, 10*time.Millisecond) {
			return "", false
		}
	}
}

// followStore queues each sandbox whose row changed, and all when a hold began
// or ended. Rows are never modified, so another pointer is another row.
func (l *loop) followStore(ctx context.Context) error {
	var last map[string]*fsm.Sandbox
	held := l.s.store.View().Hold() != nil
	orphans := map[string]*fsm.Orphan{}
	for {
		v := l.s.store.View()
		if now := v.Hold() != nil; now != held {
			held = now
			l.holdChanged(held)
		}
		orphans = l.followOrphans(v, orphans)
		now := make(map[string]*fsm.Sandbox, len(last))
		for sb := range v.AllSandboxes() {
			now[sb.ID] = sb
			if last[sb.ID] == sb {
				continue
			}
			if last != nil && last[sb.ID] == nil {
				// The first view of a term has everything a former leader could
				// act on.
				l.fresh(sb.ID)
			}
			l.queue.add(sb.ID)
		}
		for id := range last {
			if now[id] == nil {
				l.queue.add(id)
			}
		}
		last = now
		select {
		case <-ctx.Done():
			return nil
		case <-v.Changed():
		}
	}
}

// followOrphans queues what the records of orphans are about, where they changed.
func (l *loop) followOrphans(v *fsm.View, last map[string]*fsm.Orphan) map[string]*fsm.Orphan {
	now := map[string]*fsm.Orphan{}
	for _, o := range v.Orphans() {
		now[o.Kind+"/"+o.Sandbox] = o
		if last[o.Kind+"/"+o.Sandbox] != o {
			l.queue.add(o.Sandbox)
		}
	}
	return now
}

// holdChanged has everything looked at, because a hold began or ended.
func (l *loop) holdChanged(held bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !held {
		l.released = time.Now()
		l.log.Warn("the hold is over")
		l.backend.soon()
		l.listSoon()
	}
	for id := range l.tracks {
		l.queue.add(id)
	}
	for sb := range l.s.store.View().AllSandboxes() {
		l.queue.add(sb.ID)
	}
}

func (l *loop) fresh(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trackLocked(id).fresh = true
}

// followBackend watches the backend; when the stream breaks it has everything
// listed and watches again.
func (l *loop) followBackend(ctx context.Context, clusterID string) error {
	retry := newBackoff(l.s.cfg.BackoffMin, min(l.s.cfg.BackoffMax, awayPause))
	for ctx.Err() == nil {
		begin := time.Now()
		err := l.s.runner.Watch(ctx, clusterID, l.hear)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(begin) > l.s.cfg.BackoffMax {
			retry.Reset()
		}
		l.log.Warn("the backend's event stream broke", "error", err)
		l.listSoon()
		if !sleep(ctx, retry.NextBackOff()) {
			return nil
		}
	}
	return nil
}

// hear takes one picture from the event stream, unless it is of an older job
// than the one known.
func (l *loop) hear(o Observed) {
	if o.SandboxID == "" {
		return
	}
	l.mu.Lock()
	t := l.trackLocked(o.SandboxID)
	if now := t.observed; now.Exists && o.Exists && o.ModifyIndex < now.ModifyIndex {
		l.mu.Unlock()
		return
	}
	l.heard++
	t.heard = l.heard
	changed := t.setObserved(o)
	l.mu.Unlock()
	if changed {
		l.queue.add(o.SandboxID)
	}
}

func (l *loop) listSoon() {
	select {
	case l.relist <- struct{}{}:
	default:
	}
}

// awayPause bounds the pause between two tries to reach a backend that is away:
// every sandbox that waits for it goes on as soon as one listing works.
const awayPause = 2 * time.Second

// list lists everything when the term begins, when asked to, and at a period.
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
	heard := l.heard
	l.mu.Unlock()
	before := l.s.store.View()
	callCtx, cancel := context.WithTimeout(ctx, l.s.cfg.CallTimeout)
	defer cancel()
	jobs, err := l.s.runner.List(callCtx, clusterID)
	if err == nil {
		err = l.judge(ctx, before, jobs, heard)
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
		due = l.takeListing(jobs, heard)
	}
	l.mu.Unlock()
	for _, id := range due {
		l.queue.add(id)
	}
	if err != nil {
		return err
	}
	seconds(l.s.metrics.pass.WithLabelValues("listing"), begin)
	return l.forgetOrphans(ctx, jobs)
}

// judge makes sure, before anything is done by a listing, that it is of the
// backend that this history knows: else there is a hold when it returns. While
// the mark can't be read, only what users asked for is done (planUnsure).
func (l *loop) judge(ctx context.Context, before *fsm.View, jobs []Observed, heard uint64) error {
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
		l.backend.tell(err)
	}
	gone := l.vanished(before, jobs, heard)
	return l.s.hold(ctx, l.log, func(v *fsm.View) []fsm.Finding {
		return append(strangers(v, jobs), gone(v)...)
	})
}

// takeListing makes the tracks agree with a listing begun when heard events
// had been heard, and returns the sandboxes that must be looked at. What the
// stream said later stands.
func (l *loop) takeListing(jobs []Observed, heard uint64) (due []string) {
	first, wasAway := !l.known, l.away != nil
	l.known, l.away = true, nil
	if first {
		close(l.listed)
	}
	seen := make(map[string]bool, len(jobs))
	for _, o := range jobs {
		seen[o.SandboxID] = true
		t := l.trackLocked(o.SandboxID)
		if t.heard <= heard && (t.setObserved(o) || o.Workspace) {
			due = append(due, o.SandboxID)
		}
	}
	for id, t := range l.tracks {
		if wasAway {
			t.notBefore, t.away = time.Time{}, nil
			t.retry.Reset()
		}
		if !seen[id] && t.heard <= heard && t.setObserved(Observed{SandboxID: id}) || first || wasAway && t.starting {
			due = append(due, id)
		}
	}
	if first {
		for sb := range l.s.store.View().AllSandboxes() {
			due = append(due, sb.ID)
		}
	}
	return due
}

// orphansAgain has the orphans looked at when they may be removed and could not
// be before.
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

func (l *loop) trackLocked(id string) *track {
	t := l.tracks[id]
	if t == nil {
		t = &track{
			observed: Observed{SandboxID: id}, retry: newBackoff(l.s.cfg.BackoffMin, l.s.cfg.BackoffMax),
		}
		l.tracks[id] = t
	}
	return t
}

// setObserved takes a new picture and reports whether it differs.
func (t *track) setObserved(o Observed) bool {
	same := observedEqual(t.observed, o)
	if t.patience > 0 && (o.Live != t.observed.Live || o.Client != t.observed.Client) {
		// What was waited for may be over.
		t.patience, t.notBefore = 0, time.Time{}
		t.retry.Reset()
	}
	if progresses(t.observed) || progresses(o) {
		t.progressAt = time.Now()
	}
	t.observed = o
	if unplaced := o.Waiting != nil && o.Waiting.Reason == fsm.ReasonNoCapacity; !unplaced {
		t.unplacedSince = time.Time{}
	} else if t.unplacedSince.IsZero() {
		t.unplacedSince = time.Now()
	}
	if o.Failure == nil {
		t.failedSince = time.Time{}
	} else if t.failedSince.IsZero() {
		t.failedSince = time.Now()
	}
	if t.settle != nil && settled(t.settle.from, o) {
		t.settle = nil
	}
	return !same
}

// progresses reports whether the backend is at work on what is waited for.
func progresses(o Observed) bool { return o.Waiting != nil && o.Waiting.Progress }

// settled reports whether the backend's picture has moved on since a step.
func settled(from, now Observed) bool {
	return from.Exists != now.Exists || from.Stopped != now.Stopped || from.ModifyIndex != now.ModifyIndex
}

func observedEqual(a, b Observed) bool {
	if !a.Placement.Equal(b.Placement) || !failureEqual(a.Failure, b.Failure) ||
		!failureEqual(a.Waiting, b.Waiting) {
		return false
	}
	a.Placement, a.Failure, a.Waiting = nil, nil, nil
	b.Placement, b.Failure, b.Waiting = nil, nil, nil
	return a == b
}

func failureEqual(a, b *Failure) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

func newBackoff(lo, hi time.Duration) *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = lo, hi
	b.Reset()
	return b
}

// awayFailure says that the backend can't be asked.
func awayFailure(err error) *Failure {
	reason := fsm.ReasonScheduler
	if fsm.CodeOf(err) == fsm.CodeSecretStore {
		reason = fsm.ReasonSecretStore
	}
	return &Failure{Reason: reason, Detail: err.Error()}
}
