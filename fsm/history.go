package fsm

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The history lets a leader tell its own past from another one: that of a newer state whose disks
// were lost, of a copy of this cluster, or of another cluster on the same Nomad and Vault. Each
// thing outside the log carries its birth, and the state records every term with a nonce.

const (
	// maxTerms bounds the terms that are kept. A birth in a forgotten term is outside the history.
	maxTerms = 16384
	// maxParents bounds the former histories that are kept.
	maxParents = 64
	// maxAdopted bounds the ranges that hold releases have adopted.
	maxAdopted = 1024
)

// Birth records in which history and when a thing outside the log was created: a Nomad job, a
// volume, an entry of the secret store. The zero Birth says nothing: the cluster was below protocol
// version 3.
type Birth struct {
	// Cluster is View.ClusterID.
	Cluster string `json:"cluster"`
	// Nonce is the term's.
	Nonce string `json:"nonce"`
	// Index is a Raft log index of that term.
	Index uint64 `json:"index"`
}

// IsZero reports whether the birth says nothing.
func (b Birth) IsZero() bool { return b == Birth{} }

// String returns the text in Nomad's and Vault's metadata, "cluster/nonce/index", or "" for the
// zero Birth.
func (b Birth) String() string {
	if b.IsZero() {
		return ""
	}
	return b.Cluster + "/" + b.Nonce + "/" + strconv.FormatUint(b.Index, 10)
}

// ParseBirth reads what Birth.String wrote. ok is false for any other text, ""
// included.
func ParseBirth(text string) (b Birth, ok bool) {
	parts := strings.Split(text, "/")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" {
		return Birth{}, false
	}
	index, err := strconv.ParseUint(parts[2], 10, 64)
	if err != nil {
		return Birth{}, false
	}
	return Birth{Cluster: parts[0], Nonce: parts[1], Index: index}, true
}

// TermRecord is one term of the history. Its commands have the indexes Index to Last. A term ends
// with its last command and not where the next begins: between them are entries without a command,
// where another copy of the log may have a command of this term.
type TermRecord struct {
	Term  uint64 `json:"term"`
	Nonce string `json:"nonce"`
	Index uint64 `json:"index"`
	// Last is 0 for the newest term.
	Last uint64    `json:"last,omitempty"`
	Time time.Time `json:"time"`
}

// History identifies one line of states of a cluster. Recovery, a restore and the release of a hold
// each begin a new one.
type History struct {
	ID string `json:"id"`
	// Epoch grows with every history that was ever begun. The first is 1; later ones are at least the
	// Unix time in seconds.
	Epoch int64 `json:"epoch"`
	// Parents are the ids of the histories before this one, newest first.
	Parents []string `json:"parents,omitempty"`
}

// Adopted is a range of another history that an operator accepted: births with the nonce and an
// index up to Index count as this history's.
type Adopted struct {
	Nonce string `json:"nonce"`
	Index uint64 `json:"index"`
}

// history is the part of the state that records the past. A stored one is never changed.
type history struct {
	History
	Terms   []TermRecord `json:"terms"`
	Adopted []Adopted    `json:"adopted,omitempty"`
	// Marked names the stores to which a mark was ever written.
	Marked []string `json:"marked,omitempty"`
	// Noted says how far those marks have advanced, in this history only.
	Noted []MarkNoted `json:"noted,omitempty"`
	// Hold is nil while there is none. Released is the index at which the last one ended.
	Hold     *Hold     `json:"hold,omitempty"`
	Released uint64    `json:"released,omitempty"`
	Removals []removal `json:"removals,omitempty"`
	Brakes   []Brake   `json:"brakes,omitempty"`
}

// nonceOf derives a nonce or a history's id from a command id, which is random.
func nonceOf(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:8])
}

// beginHistory starts the history when the protocol version rises to VersionHistory. Every sandbox
// gets the raise as its birth, because what exists already belongs to this history.
func (t *transaction) beginHistory() {
	nonce := nonceOf(t.cmd.ID)
	t.meta.History = &history{
		History: History{ID: nonce, Epoch: 1},
		Terms:   []TermRecord{{Term: t.meta.Term, Nonce: nonce, Index: t.index, Time: t.now}},
	}
	var older []*Sandbox
	for s := range withPrefix[Sandbox](t.txn, tableSandboxes, indexID, nil) {
		older = append(older, s)
	}
	for _, old := range older {
		s := *old
		s.Birth = t.birth()
		put(t, tableSandboxes, old, &s)
	}
}

// openTerm records a leader's term.
func (t *transaction) openTerm(b *TermOpenBody) {
	h := t.meta.History
	if h == nil {
		return
	}
	nonce := b.Nonce
	if nonce == "" {
		nonce = nonceOf(t.cmd.ID)
	}
	next := *h
	terms := h.Terms
	if len(terms) >= maxTerms {
		// The first stays: sandboxes older than the history have its nonce.
		terms = append(slices.Clone(terms[:1]), terms[len(terms)-maxTerms+2:]...)
	}
	next.Terms = slices.Clone(terms)
	next.Terms[len(terms)-1].Last = t.meta.LastCommand
	next.Terms = append(next.Terms, TermRecord{Term: b.Term, Nonce: nonce, Index: t.index, Time: t.now})
	t.meta.History = &next
}

// birth returns the birth of what the current command creates.
func (t *transaction) birth() Birth {
	return bornAt(&t.meta, t.index)
}

func bornAt(m *meta, index uint64) Birth {
	if m.History == nil {
		return Birth{}
	}
	return Birth{Cluster: m.ClusterID, Nonce: m.History.Terms[len(m.History.Terms)-1].Nonce, Index: index}
}

// Birth returns the birth of a thing that a caller with this view creates now. It is zero below
// protocol version 3.
func (v *View) Birth() Birth { return bornAt(&v.meta, v.meta.LastCommand) }

// History returns the identity of this cluster's history. It is zero below protocol version 3.
func (v *View) History() History {
	if v.meta.History == nil {
		return History{}
	}
	return v.meta.History.History
}

// Terms returns the terms of the history, oldest first. Callers must not change it.
func (v *View) Terms() []TermRecord {
	if v.meta.History == nil {
		return nil
	}
	return v.meta.History.Terms
}

// Contains reports whether a birth lies in this view's history: one of its terms has the nonce and
// a command at the index or after it, or an operator adopted the birth. The zero Birth lies in
// none.
func (v *View) Contains(b Birth) bool {
	h := v.meta.History
	if h == nil || b.IsZero() || b.Cluster != v.meta.ClusterID {
		return false
	}
	// The last term that began at or before the index.
	i, _ := slices.BinarySearchFunc(h.Terms, b.Index, func(r TermRecord, index uint64) int {
		if r.Index <= index {
			return -1
		}
		return 1
	})
	if i > 0 && h.Terms[i-1].Nonce == b.Nonce {
		last := cmp.Or(h.Terms[i-1].Last, v.meta.LastCommand)
		if b.Index <= last {
			return true
		}
	}
	return slices.ContainsFunc(h.Adopted, func(a Adopted) bool { return a.Nonce == b.Nonce && b.Index <= a.Index })
}

// succeed begins a new history after this one. id is random; at is the time of the change.
func (h *history) succeed(id string, at time.Time) *history {
	next := *h
	parents := append([]string{h.ID}, h.Parents...)
	// The marks in the stores are the former history's, so none is behind yet.
	next.Noted = nil
	next.History = History{
		ID: nonceOf(id), Epoch: max(h.Epoch+1, at.Unix()), Parents: parents[:min(len(parents), maxParents)],
	}
	return &next
}
