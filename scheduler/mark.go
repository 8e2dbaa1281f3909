package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// NewerHistoryError ends a term: a store's mark says that the cluster continued elsewhere, in a
// history that began after this node's.
type NewerHistoryError struct {
	// Store is the one that has the mark, as fsm names it, and Place where that is.
	Store, Place string
	Mark         fsm.Mark
}

// Error implements error.
func (e *NewerHistoryError) Error() string {
	return fmt.Sprintf("the mark in %s is of the history %s of %s, which began after this node's: "+
		"the cluster went on elsewhere; see bivouac runbook hold",
		e.Place, e.Mark.History, e.Mark.Time.Format(time.RFC3339))
}

// placeOf returns where a store is, for messages.
func (s *Scheduler) placeOf(store string) string {
	if store == fsm.StoreVault {
		return cmp.Or(s.cfg.SecretPlace, "the secret store")
	}
	return "the backend of the sandboxes"
}

// markGuard reads and writes the mark in one store, for one term. The leader removes nothing from
// the store on its own unless the mark is ours.
type markGuard struct {
	s     *Scheduler
	log   *slog.Logger
	store string
	marks Marks
	kick  chan struct{}

	mu sync.Mutex
	// ours: the mark was read and is in this history, or there never was one.
	ours bool
	// last is the latest mark of ours that was read or written in this term; nil for none.
	last *fsm.Mark
	// noted is when the mark was last recorded in the Raft log in this term.
	noted time.Time
	// lastError is the last error that was logged.
	lastError string
}

const (
	// markSoon is how soon after a step the mark is written.
	markSoon = time.Second
	// markNotes is how often in a term the newest mark is recorded in the Raft log.
	markNotes = 10 * time.Minute
	// markTimeout bounds a read of a mark, because a listing waits for it.
	markTimeout = 5 * time.Second
)

// unreadableError says that a mark could not be read, for a reason that may be temporary.
type unreadableError struct{ err error }

// Error implements error.
func (e *unreadableError) Error() string { return "reading the mark: " + e.err.Error() }

// Unwrap returns the cause.
func (e *unreadableError) Unwrap() error { return e.err }

func newMarkGuard(s *Scheduler, log *slog.Logger, store string, marks Marks) *markGuard {
	return &markGuard{s: s, log: log, store: store, marks: marks, kick: make(chan struct{}, 1)}
}

// mayRemove reports whether the mark allows the leader to remove things from the store on its
// own.
func (g *markGuard) mayRemove() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ours
}

// sure reports whether the mark allows what the leader does on its own. Below protocol version 3
// there is no mark.
func (g *markGuard) sure() bool { return g.mayRemove() || g.s.store.View().Birth().IsZero() }

func (g *markGuard) set(ours bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ours = ours
}

// saw keeps the newest mark of ours: a mark that is read later may not be older.
func (g *markGuard) saw(m *fsm.Mark) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.last == nil || g.last.History != m.History || g.last.Index < m.Index {
		g.last = m
	}
}

// known is what this term knows of the marks that were written: those recorded in the Raft log,
// and the newest one seen since, because not every mark is recorded.
type known struct {
	view *fsm.View
	last *fsm.Mark
}

func (g *markGuard) known(v *fsm.View) known {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.last != nil && g.last.History == v.History().ID {
		return known{v, g.last}
	}
	return known{view: v}
}

// verdict judges a mark that was read after before was known and before now. Whether a mark is
// late or lost depends on what was known before the read, since another write may run beside it.
// Whether it is of this history depends on what is known now.
func (g *markGuard) verdict(before known, now *fsm.View, m *fsm.Mark) fsm.MarkVerdict {
	if m == nil {
		if before.last != nil {
			return fsm.MarkLost
		}
		return before.view.JudgeMark(g.store, nil)
	}
	verdict := now.JudgeMark(g.store, m)
	late := before.view.JudgeMark(g.store, m) == fsm.MarkBehind || before.last != nil && m.Before(*before.last)
	switch {
	case verdict == fsm.MarkOurs && late:
		return fsm.MarkBehind
	case verdict == fsm.MarkBehind && !late:
		return fsm.MarkOurs
	}
	return verdict
}

// soon requests a write of the mark within a second.
func (g *markGuard) soon() {
	select {
	case g.kick <- struct{}{}:
	default:
	}
}

// run writes the mark until ctx ends: at once, every MarkInterval, and soon after each request.
// The first is written as soon as the cluster keeps marks: before it a loss can't be noticed.
func (g *markGuard) run(ctx context.Context) error {
	for {
		if v := g.s.store.View(); v.Birth().IsZero() {
			if !awaitChange(ctx, v, time.Time{}, nil) {
				return nil
			}
			continue
		}
		pause := g.s.cfg.MarkInterval
		err := g.write(ctx)
		var newer *NewerHistoryError
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &newer):
			return newer
		case err != nil:
			pause = min(pause, awayPause)
		}
		g.logOnce(err)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		case <-g.kick:
			timer.Stop()
			if !sleep(ctx, markSoon*9/10) {
				return nil
			}
		}
	}
}

// logOnce logs the same error with the mark only once.
func (g *markGuard) logOnce(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	g.mu.Lock()
	news := text != g.lastError
	g.lastError = text
	g.mu.Unlock()
	if news && err != nil {
		g.log.Warn("the mark can't be read or written; nothing is removed there until it can; see bivouac runbook hold",
			"reason", g.s.placeOf(g.store), "error", err)
	}
}

// found is a mark as it was read, with the number for the next write.
type found struct {
	mark *fsm.Mark
	cas  uint64
}

func (g *markGuard) read(ctx context.Context) (found, error) {
	ctx, cancel := context.WithTimeout(ctx, min(markTimeout, g.s.cfg.CallTimeout))
	defer cancel()
	mark, cas, ok, err := g.marks.ReadMark(ctx)
	if err != nil || !ok {
		return found{cas: cas}, err
	}
	return found{&mark, cas}, nil
}

// judge reads the mark and acts on the verdict: it begins a hold or ends the term. For an
// unreadable mark it returns an *unreadableError; for a missing permission it begins a hold and
// returns an error with a *Denied. Below protocol version 3 it does nothing.
func (g *markGuard) judge(ctx context.Context) (found, error) {
	if g.s.store.View().Birth().IsZero() {
		g.set(false)
		return found{}, nil
	}
	f, verdict, err := g.look(ctx)
	if denied := (*Denied)(nil); errors.As(err, &denied) {
		g.set(false)
		if held := g.s.hold(ctx, g.log, func(*fsm.View) []fsm.Finding {
			return []fsm.Finding{{Kind: fsm.FindingMarkDenied, Store: g.store, ID: denied.Path, Detail: denied.Error()}}
		}); held != nil {
			return found{}, held
		}
		return found{}, err
	}
	if err != nil {
		g.set(false)
		return found{}, err
	}
	g.set(verdict == fsm.MarkOurs || verdict == fsm.MarkAbsent)
	switch verdict {
	case fsm.MarkOurs:
		g.saw(f.mark)
		return f, nil
	case fsm.MarkAbsent:
		return f, nil
	case fsm.MarkNewer:
		return found{}, &NewerHistoryError{Store: g.store, Place: g.s.placeOf(g.store), Mark: *f.mark}
	}
	return f, g.s.hold(ctx, g.log, func(v *fsm.View) []fsm.Finding {
		if again := g.verdict(g.known(v), v, f.mark); again != verdict {
			return nil
		}
		return []fsm.Finding{g.finding(verdict, f.mark)}
	})
}

// look reads and judges the mark. A verdict against this history needs the fence first: a mark of
// a later leader proves nothing to a deposed one. An older mark is read twice, because a replica
// of the store may answer with what it had a moment ago.
func (g *markGuard) look(ctx context.Context) (found, fsm.MarkVerdict, error) {
	for fenced := false; ; fenced = true {
		before := g.known(g.s.store.View())
		f, err := g.read(ctx)
		switch {
		case err != nil && !fenced:
			return found{}, "", &unreadableError{err}
		case err != nil:
			return found{}, "", fmt.Errorf("reading the mark, which spoke against this history, again: %w", err)
		}
		verdict := g.verdict(before, g.s.store.View(), f.mark)
		if fenced || verdict == fsm.MarkOurs || verdict == fsm.MarkAbsent {
			return f, verdict, nil
		}
		if err := g.s.fence(ctx); err != nil {
			return found{}, "", err
		}
		if verdict == fsm.MarkBehind && !sleep(ctx, markSoon) {
			return found{}, "", ctx.Err()
		}
	}
}

// finding describes a verdict in words.
func (g *markGuard) finding(verdict fsm.MarkVerdict, m *fsm.Mark) fsm.Finding {
	f := fsm.Finding{Kind: fsm.FindingMarkAhead, Store: g.store}
	switch verdict {
	case fsm.MarkLost:
		f.Kind = fsm.FindingMarkLost
		f.Detail = "the mark in " + g.s.placeOf(g.store) + " is gone: it was emptied or is another one"
		return f
	case fsm.MarkForeign:
		f.Kind, f.ID = fsm.FindingMarkForeign, m.Cluster
		f.Detail = "the mark in " + g.s.placeOf(g.store) + " is that of another cluster: give this one a place of its own"
		return f
	}
	if verdict == fsm.MarkBehind {
		f.Kind = fsm.FindingMarkBehind
		f.Detail = fmt.Sprintf("the mark in %s is that of %s, and a later one was written: its data went back in time",
			g.s.placeOf(g.store), m.Time.Format(time.RFC3339))
		return f
	}
	f.ID, f.Birth = m.Nonce, fsm.Birth{Cluster: m.Cluster, Nonce: m.Nonce, Index: m.Index}.String()
	f.Detail = fmt.Sprintf("the mark in %s of %s is not in this history: this state is older than what was done there",
		g.s.placeOf(g.store), m.Time.Format(time.RFC3339))
	return f
}

// write moves the mark forward. It never replaces a mark that is not ours.
func (g *markGuard) write(ctx context.Context) error {
	f, err := g.judge(ctx)
	if err != nil || !g.mayRemove() {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, g.s.cfg.CallTimeout)
	defer cancel()
	v := g.s.store.View()
	mark, ok := v.Mark(time.Now())
	if !ok {
		return nil
	}
	if err := g.marks.WriteMark(ctx, mark, f.cas); err != nil {
		g.set(false)
		return fmt.Errorf("writing the mark: %w", err)
	}
	g.saw(&mark)
	g.mu.Lock()
	due := g.noted.IsZero() || time.Since(g.noted) >= markNotes || !v.Marked(g.store)
	g.mu.Unlock()
	if !due {
		return nil
	}
	// Only a written mark is recorded: a later leader takes an older one in the store for a loss.
	if _, err = g.s.cluster.Propose(ctx,
		command(&fsm.MarkNoteBody{Store: g.store, History: mark.History, Index: mark.Index})); err == nil {
		g.mu.Lock()
		g.noted = time.Now()
		g.mu.Unlock()
	}
	return err
}

// CheckMarks reads the marks of the backend and the secret store. A *NewerHistoryError forbids
// this node to lead; another error says that a mark could not be read. It changes nothing, and
// any node may call it.
func (s *Scheduler) CheckMarks(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.CallTimeout)
	defer cancel()
	for store, marks := range map[string]Marks{fsm.StoreNomad: s.runner, fsm.StoreVault: s.cfg.SecretMarks} {
		v := s.store.View()
		if marks == nil || v.Birth().IsZero() {
			continue
		}
		mark, _, ok, err := marks.ReadMark(ctx)
		switch {
		case err != nil:
			return err
		case ok && v.JudgeMark(store, &mark) == fsm.MarkNewer:
			return &NewerHistoryError{Store: store, Place: s.placeOf(store), Mark: mark}
		}
	}
	return nil
}
