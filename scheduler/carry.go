package scheduler

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// carriers copies the workspaces into the store of copies and moves them between clients, for one
// term. What is due follows from the state and the loop's observations, so the next leader goes on.
type carriers struct {
	s         *Scheduler
	l         *loop
	log       *slog.Logger
	clusterID string
	carrier   Carrier
	work      sync.WaitGroup
	// copying and moving bound how many are under way.
	copying, moving *line
	// at has the sandboxes of each client, and homeOf the client of each sandbox. The rounds use them.
	at     map[string]map[string]bool
	homeOf map[string]string
	news   chan struct{}

	mu sync.Mutex
	// agenda says when to look at a sandbox next.
	agenda *agenda
	// busy ends what is under way for a sandbox.
	busy map[string]context.CancelFunc
	// next is when a sandbox is tried again after a failure, and failures counts those in a row.
	next     map[string]time.Time
	failures map[string]int
	// moveTries counts the failed tries of a move from a drained client.
	moveTries map[string]int
	damage    *damage
	// dropped are the volumes whose former ones were looked for in this term.
	dropped map[string]bool
}

// carryPause is the least time between two rounds, and carryRound the most while a drain goes on: what
// it asks of the state may be refused.
const carryPause, carryRound = 500 * time.Millisecond, 5 * time.Second

// At most so many workspaces are copied or moved at a time: all goes through the leader.
const copiesAtOnce, movesAtOnce = 2, 2

func newCarriers(s *Scheduler, l *loop, clusterID string, carrier Carrier) *carriers {
	return &carriers{
		s: s, l: l, log: l.log, clusterID: clusterID, carrier: carrier, agenda: newAgenda(), news: make(chan struct{}, 1),
		copying: newLine(copiesAtOnce), moving: newLine(movesAtOnce), at: map[string]map[string]bool{},
		homeOf: map[string]string{},
		busy:   map[string]context.CancelFunc{}, next: map[string]time.Time{}, failures: map[string]int{},
		moveTries: map[string]int{},
		damage:    newDamage(s.metrics.carry.damaged),
		dropped:   map[string]bool{},
	}
}

// run copies and moves until ctx ends.
func (c *carriers) run(ctx context.Context) error {
	defer c.damage.stop()
	defer c.work.Wait()
	select {
	case <-c.l.listed:
	case <-ctx.Done():
		return nil
	}
	c.work.Go(func() { c.endLost(ctx) })
	done := c.endLeft(ctx)
	c.work.Go(func() {
		for sleep(ctx, c.pauseAfterLeft(done)) {
			done = c.endLeft(ctx)
		}
	})
	if c.s.cfg.Copies != nil {
		c.work.Go(func() { c.sweep(ctx) })
		c.work.Go(func() { c.checkAll(ctx) })
	}
	for {
		v := c.s.store.View()
		at := time.Now().Add(carryRound)
		if v.Active(fsm.VersionClients) && v.Hold() == nil {
			at = c.round(ctx)
		}
		if !sleep(ctx, carryPause) || !awaitChange(ctx, v, at, c.news) {
			return nil
		}
	}
}

// due makes the sandbox due: its row, its observation or what is under way for it changed.
func (c *carriers) due(id string) {
	c.mu.Lock()
	c.agenda.set(id, time.Time{})
	c.mu.Unlock()
	select {
	case c.news <- struct{}{}:
	default:
	}
}

func (c *carriers) later(id string, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.agenda.set(id, at)
}

// round begins what is due and has room. It returns when something is due next without a change; zero
// for never.
func (c *carriers) round(ctx context.Context) time.Time {
	now := time.Now()
	c.mu.Lock()
	ids := c.agenda.take(now)
	c.mu.Unlock()
	v := c.s.store.View() // what made an id due is in it
	c.endDeleted(v)
	for _, l := range []*line{c.copying, c.moving} {
		for id := l.pop(); id != ""; id = l.pop() {
			c.look(ctx, v, id, now)
		}
	}
	for _, id := range ids {
		c.look(ctx, v, id, now)
	}
	c.chooseFirst(ctx, v)
	c.leaveErrors(ctx, v)
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.agenda.next()
	if again := now.Add(carryRound); drainsGoOn(v) && (!ok || again.Before(at)) {
		return again
	}
	return at
}

// look begins what is due for one sandbox, or says when to look again.
func (c *carriers) look(ctx context.Context, v *fsm.View, id string, now time.Time) {
	sb, o := v.SandboxAny(id), c.l.observedOf(id)
	home := homeOf(sb, o)
	c.place(id, home, sb != nil)
	if sb == nil || sb.Member() || sb.Desired == fsm.DesiredDeleted || !c.free(id, now) {
		return
	}
	mark := v.ClientMark(home)
	switch {
	case sb.Move != nil && sb.Move.Orphan != "":
		if restores(v, sb, o) {
			c.begin(ctx, sb, c.moving, func(ctx context.Context) error { return c.restore(ctx, sb) })
		}
	case sb.Move != nil && (mark == "" || mark == fsm.ClientDraining && !drains(v, home, sb)):
		c.begin(ctx, sb, nil, func(ctx context.Context) error { return c.giveUp(ctx, sb) })
	case moves(v, sb, o, mark):
		c.begin(ctx, sb, c.moving, func(ctx context.Context) error { return c.move(ctx, sb, home, mark) })
	case sb.Home != nil && mark == "" && sb.Status.State == fsm.SandboxRunning && !c.wasDropped(sb.Home.Volume):
		c.begin(ctx, sb, nil, func(ctx context.Context) error { return c.dropFormer(ctx, sb) })
	default:
		at, ok := c.copyAt(sb, o, mark, now)
		switch {
		case ok && now.Before(at):
			c.later(id, at)
		case ok:
			c.begin(ctx, sb, c.copying, func(ctx context.Context) error { return c.copyOf(ctx, sb) })
		}
	}
}

// free reports whether nothing is under way for the sandbox, and its pause after a failure is over.
// The end of either makes it due.
func (c *carriers) free(id string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if next := c.next[id]; now.Before(next) {
		c.agenda.set(id, next)
		return false
	}
	return c.busy[id] == nil
}

// place notes which client has the sandbox's workspace; there is false for a sandbox without a row.
func (c *carriers) place(id, home string, there bool) {
	if was, known := c.homeOf[id]; known && (was != home || !there) {
		delete(c.homeOf, id)
		if delete(c.at[was], id); len(c.at[was]) == 0 {
			delete(c.at, was)
		}
	}
	if !there || home == "" {
		return
	}
	c.homeOf[id] = home
	if c.at[home] == nil {
		c.at[home] = map[string]bool{}
	}
	c.at[home][id] = true
}

// endDeleted ends what is under way for sandboxes that are being deleted: it keeps their workspaces.
func (c *carriers) endDeleted(v *fsm.View) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, cancel := range c.busy {
		if sb := v.SandboxAny(id); sb == nil || sb.Desired == fsm.DesiredDeleted {
			cancel()
		}
	}
}

// begin does the work beside the others. It waits in line for a place; nil needs none.
func (c *carriers) begin(ctx context.Context, sb *fsm.Sandbox, places *line, fn func(context.Context) error) {
	if places != nil && !places.enter(sb.ID) {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	c.mu.Lock()
	c.busy[sb.ID] = cancel
	c.mu.Unlock()
	c.work.Go(func() {
		defer cancel()
		err := fn(ctx)
		if places != nil {
			places.leave()
		}
		defer c.due(sb.ID)
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.busy, sb.ID)
		delete(c.next, sb.ID)
		if err == nil || c.gone(sb.ID, err) || ctx.Err() != nil {
			delete(c.failures, sb.ID)
			return
		}
		n := c.failures[sb.ID]
		c.failures[sb.ID] = n + 1
		c.next[sb.ID] = time.Now().Add(jitter(min(c.s.cfg.BackoffMax<<min(n, 6), 5*time.Minute)))
	})
}

// gone reports whether work for a sandbox failed because the state has it no more. What else is not
// found is a failure: a key in the secret store, an object.
func (c *carriers) gone(id string, err error) bool {
	sb := c.s.store.View().SandboxAny(id)
	return fsm.CodeOf(err) == fsm.CodeNotFound && (sb == nil || sb.Desired == fsm.DesiredDeleted)
}

// homeOf returns the client that has the sandbox's workspace, "" when it is not known.
func homeOf(sb *fsm.Sandbox, o Observed) string {
	switch {
	case sb != nil && sb.Home != nil:
		return sb.Home.Client
	case o.Home != "":
		return o.Home
	}
	return o.NodeID
}

func (l *loop) observedOf(id string) Observed {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.tracks[id]; t != nil {
		return t.observed
	}
	return Observed{SandboxID: id}
}

// moves reports whether the sandbox's workspace is to be moved now: nothing of it runs, and its
// client is drained, or is lost while the sandbox should run.
func moves(v *fsm.View, sb *fsm.Sandbox, o Observed, mark string) bool {
	o = withMarks(v, sb, o)
	if o.Foreign || o.Exists && !o.Stopped || o.Live > 0 || v.Held(sb) {
		return false
	}
	switch mark {
	case fsm.ClientDraining:
		if !drains(v, homeOf(sb, o), sb) {
			return false
		}
		return sb.Status.State == fsm.SandboxPaused && sb.Status.Generation == sb.Generation || movableInError(sb) ||
			sb.Move != nil
	case fsm.ClientLost:
		return sb.Desired == fsm.DesiredRunning && sb.State() == fsm.SandboxStarting && (sb.Copy != nil || !ran(sb.Status))
	}
	return false
}

// copyAt returns when a copy is due: of a paused workspace that was used since the last copy, and of a
// running one after the interval.
func (c *carriers) copyAt(sb *fsm.Sandbox, o Observed, mark string, now time.Time) (at time.Time, ok bool) {
	st := sb.Status
	if c.s.cfg.Copies == nil || st.Workspace == "" || mark == fsm.ClientLost || sb.Move != nil ||
		o.Client == ClientAwayNow || st.Generation != sb.Generation {
		return at, false
	}
	switch st.State {
	case fsm.SandboxPaused:
		return at, !copiedAtRest(sb, now) || c.damage.has(sb)
	case fsm.SandboxRunning:
		last := st.Since
		if sb.Copy != nil {
			last = sb.Copy.At
		}
		if last.After(now) { // it is of a leader whose clock was ahead
			return at, c.s.cfg.CopyInterval > 0
		}
		return last.Add(c.s.cfg.CopyInterval), c.s.cfg.CopyInterval > 0
	case fsm.SandboxStarting, fsm.SandboxError, fsm.SandboxMissing:
	}
	return at, false
}

// copiedAtRest reports whether the copy of a paused workspace has what was written before the pause.
// The generation says it: clocks of two leaders may differ. A copy from below fsm.VersionCopies has none,
// and a pause by the client, which no user asked for, is of the generation that ran and wrote.
func copiedAtRest(sb *fsm.Sandbox, now time.Time) bool {
	switch {
	case sb.Copy == nil:
		return false
	case sb.Copy.Generation != 0 && sb.Status.Reason != fsm.ReasonClient:
		return sb.Copy.Generation == sb.Generation
	}
	return !sb.Copy.At.Before(sb.Status.Since) && !sb.Copy.At.After(now)
}

// jobFor returns the sandbox's job and its present workspace.
func (c *carriers) jobFor(
	ctx context.Context,
	sb *fsm.Sandbox,
) (job Job, now Workspace, others []Workspace, err error) {
	v := c.s.store.View()
	job = jobOf(c.clusterID, sb.ID, sb, c.l.observedOf(sb.ID), false, v)
	list, err := c.carrier.ListWorkspaces(ctx, job)
	for _, w := range list {
		if w.Current {
			now = w
		} else {
			others = append(others, w)
		}
	}
	return job, now, others, err
}

// copyOf copies one workspace, records the copy, and deletes what no kept copy needs.
func (c *carriers) copyOf(ctx context.Context, sb *fsm.Sandbox) (err error) {
	begin := time.Now()
	log, m := c.log.With("sandbox", sb.ID), c.s.metrics.carry
	defer func() {
		if err != nil && ctx.Err() == nil && !c.gone(sb.ID, err) {
			m.copies.WithLabelValues("failed").Inc()
			log.Warn("copying a workspace failed", "error", err)
		}
		if err != nil {
			c.dropDeleted(ctx, sb.ID)
		}
	}()
	job, w, _, err := c.jobFor(ctx, sb)
	if err != nil {
		return err
	}
	if w.ID == "" {
		return errors.New("the workspace is gone from its client")
	}
	if err := c.mayBegin(ctx, sb); err != nil {
		return err
	}
	made, uploaded, gone, err := c.s.cfg.Copies.Save(ctx, c.clusterID, sb.ID, sb.Copy,
		func(ctx context.Context, known io.Reader, out io.Writer) error {
			return c.carrier.Export(ctx, job, w, known, out)
		})
	if err != nil {
		return err
	}
	made.At = begin
	if c.s.store.View().Active(fsm.VersionCopies) {
		made.Generation = sb.Generation
	}
	body := &fsm.SandboxCopiedBody{ID: sb.ID, Copy: made}
	if sb.Copy != nil {
		body.Base = sb.Copy.ID
	}
	if _, err := c.s.cluster.Propose(ctx, command(body)); err != nil {
		return err
	}
	m.copies.WithLabelValues("ok").Inc()
	m.copied.Add(float64(uploaded))
	c.damage.end(sb.ID)
	if gone > 0 {
		m.gone.Add(float64(gone))
		log.Warn("the store of copies has lost objects of the last copy; the new copy has all (bivouac runbook copies)",
			"count", gone)
	}
	seconds(m.copyTime, begin)
	log.Info("workspace copied", "count", made.Files, "bytes", uploaded, "duration", time.Since(begin))
	if err := c.s.cfg.Copies.Collect(ctx, c.clusterID, sb.ID, made, c.s.cfg.CopyRetain); err != nil && ctx.Err() == nil {
		log.Warn("deleting old copies of a workspace failed; the next copy tries again", "error", err)
	}
	return nil
}
