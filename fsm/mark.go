package fsm

import (
	"slices"
	"time"
)

// The stores that hold marks, for JudgeMark and mark.note.
const (
	StoreNomad = "nomad"
	StoreVault = "vault"
)

// Mark is what a leader writes to a store outside the log. It tells every later leader how far the
// history had advanced: in Nomad for changes to Nomad, in the secret store for changes there. It
// only moves forward.
type Mark struct {
	Cluster string `json:"cluster"`
	// History and Epoch are History.ID and History.Epoch.
	History string    `json:"history"`
	Epoch   int64     `json:"epoch"`
	Nonce   string    `json:"nonce"`
	Index   uint64    `json:"index"`
	Time    time.Time `json:"time"`
}

// MarkVerdict is what a mark in a store means to the node that reads it.
type MarkVerdict string

// The verdicts.
const (
	// MarkOurs lies in this history. The leader moves it forward.
	MarkOurs MarkVerdict = "ours"
	// MarkAbsent was never written. The leader writes the first one.
	MarkAbsent MarkVerdict = "absent"
	// MarkLost was written and is gone: the store was emptied or replaced.
	MarkLost MarkVerdict = "lost"
	// MarkBehind is of this history, but a later one was written: the store was set back.
	MarkBehind MarkVerdict = "behind"
	// MarkAhead is this cluster's but lies outside this history: the state is older than changes that
	// were made in the store.
	MarkAhead MarkVerdict = "ahead"
	// MarkNewer is of a history of this cluster that began after this one. This node must not lead.
	MarkNewer MarkVerdict = "newer"
	// MarkForeign is another cluster's. A leader must not write next to it.
	MarkForeign MarkVerdict = "foreign"
)

// Mark returns the mark that a leader writes now. ok is false below protocol version 3.
func (v *View) Mark(now time.Time) (m Mark, ok bool) {
	b := v.Birth()
	if b.IsZero() {
		return Mark{}, false
	}
	h := v.meta.History
	return Mark{
		Cluster: b.Cluster, History: h.ID, Epoch: h.Epoch, Nonce: b.Nonce, Index: b.Index,
		Time: now.UTC().Truncate(time.Second),
	}, true
}

// JudgeMark interprets the mark that was found in a store, nil for none. It must not be called
// below protocol version 3.
func (v *View) JudgeMark(store string, found *Mark) MarkVerdict {
	h := v.meta.History
	switch {
	case found == nil && slices.Contains(h.Marked, store):
		return MarkLost
	case found == nil:
		return MarkAbsent
	case found.Cluster != v.meta.ClusterID:
		return MarkForeign
	case found.Epoch <= h.Epoch && v.Contains(Birth{found.Cluster, found.Nonce, found.Index}),
		// A mark of a parent: what it covers and this state lacks was judged when this history began.
		slices.Contains(h.Parents, found.History):
		if i := h.noted(store); i >= 0 && found.Before(Mark{History: h.ID, Index: h.Noted[i].Index}) {
			return MarkBehind
		}
		return MarkOurs
	case found.History != h.ID && found.Epoch > h.Epoch:
		return MarkNewer
	}
	return MarkAhead
}

// Before reports whether the mark is older than later, which is a mark of the current history.
// Within a history indexes grow; a mark of a former history is older than all of them.
func (m Mark) Before(later Mark) bool {
	return m.History != later.History || m.Index < later.Index
}

// Marked reports whether a mark was ever written to a store.
func (v *View) Marked(store string) bool {
	return v.meta.History != nil && slices.Contains(v.meta.History.Marked, store)
}

// MarkNoted is how far the mark in a store has advanced, according to the log. The mark in the
// store may be later. It is earlier only if the store was set back.
type MarkNoted struct {
	Store string `json:"store"`
	Index uint64 `json:"index"`
}

// noted returns the store's position in Noted, -1 for none.
func (h *history) noted(store string) int {
	return slices.IndexFunc(h.Noted, func(n MarkNoted) bool { return n.Store == store })
}

// MarkNoteBody records that a mark was written to a store, so that every later leader notices its
// loss or an older mark in its place. The leader proposes it. It changes nothing when History is
// not "" and no longer the cluster's.
type MarkNoteBody struct {
	Store string `json:"store"`
	// History and Index are those of the mark that was written.
	History string `json:"history,omitempty"`
	Index   uint64 `json:"index,omitempty"`
}

// CommandType implements Body.
func (*MarkNoteBody) CommandType() CommandType { return MarkNote }

// check implements Body.
func (b *MarkNoteBody) check(r *rules) {
	r.store(b.Store)
	r.text("history", b.History, MaxName)
	r.check(b.Index == 0 || b.History != "", "a mark's index needs its history")
}

// store checks the name of a store.
func (r *rules) store(name string) {
	r.check(name == StoreNomad || name == StoreVault, "unknown store %q", clip(name))
}

func (t *transaction) applyMarkNote(b *MarkNoteBody) (Result, *Error) {
	h := t.meta.History
	if b.History != "" && b.History != h.ID {
		return Result{}, nil
	}
	next := *h
	if !slices.Contains(h.Marked, b.Store) {
		next.Marked = append(slices.Clip(h.Marked), b.Store)
		t.meta.History = &next
	}
	switch i := h.noted(b.Store); {
	case b.Index == 0:
	case i < 0:
		next.Noted = append(slices.Clip(h.Noted), MarkNoted{b.Store, b.Index})
		t.meta.History = &next
	case h.Noted[i].Index < b.Index:
		next.Noted = slices.Clone(h.Noted)
		next.Noted[i].Index = b.Index
		t.meta.History = &next
	}
	return Result{}, nil
}
