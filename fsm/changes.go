package fsm

import "sync"

// Changes says what differs between two Views, of what View.Changed reports.
type Changes struct {
	// Sandboxes are the ids of those whose row, or whose record as an orphan, was written; some twice.
	Sandboxes []string
	// Policies: what decides the deadlines of other sandboxes was written.
	Policies bool
	// All: the state was replaced, so any row may differ.
	All bool
}

// epoch is the Views between two changes. Each names the next one, so that a View keeps alive what
// changed after it, and no View that came after it.
type epoch struct {
	// began is what changed at its beginning. room is what began.Sandboxes grows from.
	began Changes
	room  [2]string

	// mu guards the rest. next is nil in the newest epoch, and ended nil until somebody waits for it.
	mu    sync.Mutex
	next  *epoch
	ended chan struct{}
}

// wrote notes that a sandbox changed.
func (e *epoch) wrote(sandbox string) {
	if e.began.Sandboxes == nil {
		e.began.Sandboxes = e.room[:0]
	}
	e.began.Sandboxes = append(e.began.Sandboxes, sandbox)
}

// done returns the channel that is closed when the epoch ends.
func (e *epoch) done() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended == nil {
		e.ended = make(chan struct{})
		if e.next != nil {
			close(e.ended)
		}
	}
	return e.ended
}

// end makes next the newest epoch while publish makes its first View visible.
func (e *epoch) end(next *epoch, publish func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	publish()
	e.next = next
	if e.ended != nil {
		close(e.ended)
	}
}

func (e *epoch) after() *epoch {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.next
}

// Changed returns a channel that is closed as soon as something the scheduler or the proxies depend
// on differs from this View: sandboxes, start tasks, specs, policies, orphans, holds, marks of
// clients, revocations.
// A change of a sandbox's LastActive alone does not count, because it only postpones deadlines.
func (v *View) Changed() <-chan struct{} { return v.epoch.done() }

// ChangesSince returns what changed after an older View of the same store, at the cost of what
// changed and not of what there is. A View that is not older, or nil, is Changes.All.
func (v *View) ChangesSince(older *View) (c Changes) {
	if older == nil {
		return Changes{All: true}
	}
	for e := older.epoch; e != v.epoch; {
		if e = e.after(); e == nil {
			return Changes{All: true}
		}
		c.Sandboxes = append(c.Sandboxes, e.began.Sandboxes...)
		c.Policies = c.Policies || e.began.Policies
		c.All = c.All || e.began.All
	}
	return c
}
