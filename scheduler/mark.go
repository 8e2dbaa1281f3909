package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// NewerHistoryError ends a term: a store's mark says that the cluster has gone
// on elsewhere, in a history that began after this node's.
type NewerHistoryError struct {
	// Store is the one whose mark it is, as fsm names it.
	Store string
	Mark  fsm.Mark
}

// Error implements error.
func (e *NewerHistoryError) Error() string {
	return fmt.Sprintf("the mark in %s is of the history %s of %s, which began after this node's: the cluster went on elsewhere; see ops/runbooks/hold.md",
		storeName(e.Store), e.Mark.History, e.Mark.Time.Format(time.RFC3339))
}

// storeName is how people call a store.
func storeName(store string) string {
	if store == fsm.StoreVault {
		return "the secret store"
	}
	return "the backend of the sandboxes"
}

// ward is a leader's care for the mark in one store, for one term. Nothing is
// removed from the store of the leader's own accord unless the mark is ours.
type ward struct {
	s     *Scheduler
	log   *slog.Logger
	store string
	marks Marks
	kick  chan struct{}

	mu sync.Mutex
	// ours: the mark was read and lies in this history, or never was one.
	ours bool
	// last is the latest mark of ours that was read or written in this term; nil
	// for none.
	last *fsm.Mark
	// noted is when the log was told of it last in this term.
	noted time.Time
	// told is the last trouble that was logged.
	told string
}

const (
	// markSoon is how soon after a step the mark says so, and how often it is
	// looked whether the cluster keeps marks yet.
	markSoon = time.Second
	// markNotes is how often in a term the log is told how far a mark has come.
	markNotes = 10 * time.Minute
	// markPatience bounds a reading of a mark: a listing waits for it.
	markPatience = 5 * time.Second
)

// unreadableError says that a mark could not be read, for a reason that may pass.
type unreadableError struct{ err error }

// Error implements error.
func (e *unreadableError) Error() string { return "reading the mark: " + e.err.Error() }

// Unwrap gives the cause.
func (e *unreadableError) Unwrap() error { return e.err }

func newWard(s *Scheduler, log *slog.Logger, store string, marks Marks) *ward {
	return &ward{s: s, log: log, store: store, marks: marks, kick: make(chan struct{}, 1)}
}

// mayRemove reports whether the leader may remove things from the store of its
// own accord, as far as the mark goes.
func (w *ward) mayRemove() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ours
}

// sure reports whether the mark says nothing against what the leader does of its
// own accord. Below protocol version 3 there is none.
func (w *ward) sure() bool { return w.mayRemove() || w.s.store.View().Birth().IsZero() }

func (w *ward) set(ours bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ours = ours
}

// saw keeps a mark that is ours: what is found later may not be older.
func (w *ward) saw(m *fsm.Mark) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last == nil || w.last.History != m.History || w.last.Index < m.Index {
		w.last = m
	}
}

// known is what this term knows of the marks that were written: what the log was
// told, and the newest one seen since, for the log is not told of every mark.
type known struct {
	view *fsm.View
	last *fsm.Mark
}

func (w *ward) known(v *fsm.View) known {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last != nil && w.last.History == v.History().ID {
		return known{v, w.last}
	}
	return known{view: v}
}

// verdict judges a mark that was read after before was known and before now. A
// mark is late or lost by what was known first: what is written beside the reading
// makes neither. It is of this history by what is known now.
func (w *ward) verdict(before known, now *fsm.View, m *fsm.Mark) fsm.MarkVerdict {
	if m == nil {
		if before.last != nil {
			return fsm.MarkLost
		}
		return before.view.JudgeMark(w.store, nil)
	}
	verdict := now.JudgeMark(w.store, m)
	late := before.view.JudgeMark(w.store, m) == fsm.MarkBehind || before.last != nil && m.Before(*before.last)
	switch {
	case verdict == fsm.MarkOurs && late:
		return fsm.MarkBehind
	case verdict == fsm.MarkBehind && !late:
		return fsm.MarkOurs
	}
	return verdict
}

// soon has the mark written within a second.
func (w *ward) soon() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// run writes the mark until ctx ends: at once, at a period, and soon after the
// steps that kick it.
func (w *ward) run(ctx context.Context) error {
	for {
		pause := w.s.cfg.MarkInterval
		err := w.write(ctx)
		var newer *NewerHistoryError
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &newer):
			return newer
		case err != nil:
			pause = min(pause, awayPause)
		case w.s.store.View().Birth().IsZero():
			pause = markSoon
		}
		w.tell(err)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		case <-w.kick:
			timer.Stop()
			if !sleep(ctx, markSoon*9/10) {
				return nil
			}
		}
	}
}

// tell logs trouble with the mark once.
func (w *ward) tell(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	w.mu.Lock()
	news := text != w.told
	w.told = text
	w.mu.Unlock()
	if news && err != nil {
		w.log.Warn("the mark can't be read or written; nothing is removed there until it can", "reason", storeName(w.store), "error", err)
	}
}

// found is a mark as it was read.
type found struct {
	mark *fsm.Mark
	cas  uint64
}

func (w *ward) read(ctx context.Context) (found, error) {
	ctx, cancel := context.WithTimeout(ctx, min(markPatience, w.s.cfg.CallTimeout))
	defer cancel()
	mark, cas, ok, err := w.marks.ReadMark(ctx)
	if err != nil || !ok {
		return found{cas: cas}, err
	}
	return found{&mark, cas}, nil
}

// judge reads the mark and acts on what it means: a hold, or the term's end. A
// mark that could not be read is an *unreadableError, or a *Denied and a hold. It
// does nothing below protocol version 3.
func (w *ward) judge(ctx context.Context) (found, error) {
	if w.s.store.View().Birth().IsZero() {
		w.set(false)
		return found{}, nil
	}
	f, verdict, err := w.look(ctx)
	if denied := (*Denied)(nil); errors.As(err, &denied) {
		w.set(false)
		if held := w.s.hold(ctx, w.log, func(*fsm.View) []fsm.Finding {
			return []fsm.Finding{{Kind: fsm.FindingMarkDenied, Store: w.store, ID: denied.Path, Detail: denied.Error()}}
		}); held != nil {
			return found{}, held
		}
		return found{}, err
	}
	if err != nil {
		w.set(false)
		return found{}, err
	}
	w.set(verdict == fsm.MarkOurs || verdict == fsm.MarkAbsent)
	switch verdict {
	case fsm.MarkOurs:
		w.saw(f.mark)
		return f, nil
	case fsm.MarkAbsent:
		return f, nil
	case fsm.MarkNewer:
		return found{}, &NewerHistoryError{Store: w.store, Mark: *f.mark}
	}
	return f, w.s.hold(ctx, w.log, func(v *fsm.View) []fsm.Finding {
		if again := w.verdict(w.known(v), v, f.mark); again != verdict {
			return nil
		}
		return []fsm.Finding{w.finding(verdict, f.mark)}
	})
}

// look reads and judges. A verdict against this history is given only after the
// fence: what a later leader wrote is no sign to a deposed one. An older mark is
// looked at twice: a store's replica may answer with what it had a moment ago.
func (w *ward) look(ctx context.Context) (found, fsm.MarkVerdict, error) {
	for fenced := false; ; fenced = true {
		before := w.known(w.s.store.View())
		f, err := w.read(ctx)
		switch {
		case err != nil && !fenced:
			return found{}, "", &unreadableError{err}
		case err != nil:
			return found{}, "", fmt.Errorf("reading the mark, which spoke against this history, again: %w", err)
		}
		verdict := w.verdict(before, w.s.store.View(), f.mark)
		if fenced || verdict == fsm.MarkOurs || verdict == fsm.MarkAbsent {
			return f, verdict, nil
		}
		if err := w.s.fence(ctx); err != nil {
			return found{}, "", err
		}
		if verdict == fsm.MarkBehind && !sleep(ctx, markSoon) {
			return found{}, "", ctx.Err()
		}
	}
}

// finding says what a mark means in words.
func (w *ward) finding(verdict fsm.MarkVerdict, m *fsm.Mark) fsm.Finding {
	f := fsm.Finding{Kind: fsm.FindingMarkAhead, Store: w.store}
	switch verdict {
	case fsm.MarkLost:
		f.Kind = fsm.FindingMarkLost
		f.Detail = "the mark in " + storeName(w.store) + " is gone: it was emptied or is another one"
		return f
	case fsm.MarkForeign:
		f.Kind, f.ID = fsm.FindingMarkForeign, m.Cluster
		f.Detail = "the mark in " + storeName(w.store) + " is that of another cluster: give this one a place of its own"
		return f
	}
	if verdict == fsm.MarkBehind {
		f.Kind = fsm.FindingMarkBehind
		f.Detail = fmt.Sprintf("the mark in %s is that of %s, and a later one was written: its data went back in time",
			storeName(w.store), m.Time.Format(time.RFC3339))
		return f
	}
	f.ID, f.Birth = m.Nonce, fsm.Birth{Cluster: m.Cluster, Nonce: m.Nonce, Index: m.Index}.String()
	f.Detail = fmt.Sprintf("the mark in %s of %s is not in this history: this state is older than what was done there",
		storeName(w.store), m.Time.Format(time.RFC3339))
	return f
}

// write moves the mark forward. A mark that is not ours stays.
func (w *ward) write(ctx context.Context) error {
	f, err := w.judge(ctx)
	if err != nil || !w.mayRemove() {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, w.s.cfg.CallTimeout)
	defer cancel()
	v := w.s.store.View()
	mark, ok := v.Mark(time.Now())
	if !ok {
		return nil
	}
	if err := w.marks.WriteMark(ctx, mark, f.cas); err != nil {
		w.set(false)
		return fmt.Errorf("writing the mark: %w", err)
	}
	w.saw(&mark)
	w.mu.Lock()
	due := w.noted.IsZero() || time.Since(w.noted) >= markNotes || !v.Marked(w.store)
	w.mu.Unlock()
	if !due {
		return nil
	}
	// Only what was written is noted: a later leader takes less for a loss.
	if _, err = w.s.cluster.Propose(ctx, command(&fsm.MarkNoteBody{Store: w.store, History: mark.History, Index: mark.Index})); err == nil {
		w.mu.Lock()
		w.noted = time.Now()
		w.mu.Unlock()
	}
	return err
}

// CheckMarks reads the marks and is nil when none of them forbids this node to
// lead. It changes nothing; any node may call it.
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
			return &NewerHistoryError{Store: store, Mark: mark}
		}
	}
	return nil
}
