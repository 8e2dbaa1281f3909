package fsm

import (
	"slices"
	"time"
)

// maxFindings bounds what a hold remembers of its causes.
const maxFindings = 100

// Hold stops every act that a leader would do of its own accord: the state may
// be older than the world, or the world another one. An operator ends it.
type Hold struct {
	// Index is the log index at which it began: what users ask for after it is
	// done.
	Index    uint64    `json:"index"`
	Since    time.Time `json:"since"`
	Findings []Finding `json:"findings"`
	// More counts findings beyond those that are kept.
	More int `json:"more,omitempty"`
}

// The kinds of findings.
const (
	FindingMarkAhead   = "mark_ahead"   // a store's mark lies outside this history
	FindingMarkLost    = "mark_lost"    // a store's mark is gone
	FindingMarkBehind  = "mark_behind"  // a store's mark is older than one that was written there
	FindingMarkForeign = "mark_foreign" // a store's mark is another cluster's
	FindingMarkDenied  = "mark_denied"  // a store refuses to give or take the mark
	FindingStranger    = "stranger"     // a thing of this cluster, born outside this history
	FindingVanished    = "vanished"     // many jobs are gone at once
	FindingRestored    = "restored"     // the state comes from a backup
	FindingRecovered   = "recovered"    // the state comes from one surviving disk
)

// Finding is one cause of a hold.
type Finding struct {
	// Kind is one of the Finding constants.
	Kind string `json:"kind"`
	// Store is StoreNomad or StoreVault, "" for neither; ID names the thing.
	Store string `json:"store,omitempty"`
	ID    string `json:"id,omitempty"`
	// Birth is the thing's, as text.
	Birth string `json:"birth,omitempty"`
	// Detail says what was found, in words.
	Detail string `json:"detail"`
}

// about reports whether two findings are about the same thing.
func (f Finding) about(o Finding) bool { return f.Kind == o.Kind && f.Store == o.Store && f.ID == o.ID }

// Hold gives the hold, nil while there is none.
func (v *View) Hold() *Hold {
	if v.meta.History == nil {
		return nil
	}
	return v.meta.History.Hold
}

// Adoptable gives the ranges that a release of the hold adopts: of each term
// outside the history the highest index that was found, in the findings and in
// the orphans.
func (v *View) Adoptable() []Adopted {
	h := v.Hold()
	if h == nil {
		return nil
	}
	var texts []string
	for _, f := range h.Findings {
		texts = append(texts, f.Birth)
	}
	for _, o := range v.Orphans() {
		if o.Reason == OrphanStranger {
			texts = append(texts, o.Birth)
		}
	}
	var ranges []Adopted
	for _, text := range texts {
		b, ok := ParseBirth(text)
		if !ok || b.Cluster != v.ClusterID() || v.Contains(b) {
			continue
		}
		i := slices.IndexFunc(ranges, func(a Adopted) bool { return a.Nonce == b.Nonce })
		if i < 0 {
			ranges = append(ranges, Adopted{Nonce: b.Nonce, Index: b.Index})
		} else {
			ranges[i].Index = max(ranges[i].Index, b.Index)
		}
	}
	return ranges
}

// HeldTask reports whether a leader must leave a start task alone: there is a
// hold, and the task is older.
func (v *View) HeldTask(t *StartTask) bool {
	h := v.Hold()
	return h != nil && t.CreatedIndex <= h.Index
}

// Held reports whether a leader must leave a sandbox as it is: there is a hold,
// and its user has asked for nothing since it began.
func (v *View) Held(s *Sandbox) bool {
	h := v.Hold()
	return h != nil && s.DesiredIndex <= h.Index
}

// held is View.Held for the transaction: what the user asks for now is a new
// wish, even where it is the one of before the hold.
func (t *transaction) held(s *Sandbox) bool {
	h := t.meta.History
	return h != nil && h.Hold != nil && s.DesiredIndex <= h.Hold.Index
}

// HoldBeginBody begins a hold, or adds findings to the one there is. The
// leader's. At is the index of the view that the findings were judged by: a hold
// that was released since is not begun again by them.
type HoldBeginBody struct {
	At       uint64    `json:"at"`
	Findings []Finding `json:"findings"`
}

// CommandType implements Body.
func (*HoldBeginBody) CommandType() CommandType { return HoldBegin }

// Validate implements Body.
func (b *HoldBeginBody) Validate() error {
	var r rules
	r.check(len(b.Findings) > 0, "a hold needs a finding")
	r.count("findings", len(b.Findings))
	for i := range b.Findings {
		f := &b.Findings[i]
		r.name("kind", f.Kind, maxName)
		if f.Store != "" {
			r.store(f.Store)
		}
		r.text("id", f.ID, maxPath)
		r.text("birth", f.Birth, maxPath)
		r.text("detail", f.Detail, maxPath)
	}
	return r.result()
}

func (t *transaction) applyHoldBegin(b *HoldBeginBody) (Result, *Error) {
	h := t.meta.History
	if b.At < h.Released {
		return Result{}, nil
	}
	hold := Hold{Index: t.index, Since: t.now}
	if h.Hold != nil {
		hold = *h.Hold
	}
	changed := h.Hold == nil
	for _, f := range b.Findings {
		switch known := slices.ContainsFunc(hold.Findings, f.about); {
		case known:
		case len(hold.Findings) >= maxFindings:
			hold.More++
			changed = true
		default:
			hold.Findings = append(slices.Clip(hold.Findings), f)
			changed = true
		}
	}
	if changed {
		next := *h
		next.Hold = &hold
		t.meta.History = &next
		t.changed = true
	}
	return Result{}, nil
}

// HoldReleaseBody ends the hold. The operator's. It begins a new history, whose
// marks override those that were found, and adopts the births of what was found:
// from then on that is this cluster's, and without a row it is an orphan. Without
// a hold it is CodeConflict.
type HoldReleaseBody struct {
	Adopt []Adopted `json:"adopt,omitempty"`
}

// CommandType implements Body.
func (*HoldReleaseBody) CommandType() CommandType { return HoldRelease }

// Validate implements Body.
func (b *HoldReleaseBody) Validate() error {
	var r rules
	r.count("adopted ranges", len(b.Adopt))
	for _, a := range b.Adopt {
		r.id("nonce", a.Nonce)
	}
	return r.result()
}

func (t *transaction) applyHoldRelease(b *HoldReleaseBody) (Result, *Error) {
	if t.meta.History.Hold == nil {
		return Result{}, Errorf(CodeConflict, "there is no hold to release")
	}
	next := t.meta.History.succeed(t.cmd.ID, t.now)
	next.Hold, next.Released = nil, t.index
	next.Marked = nil // a mark that was lost is written anew
	adopted := slices.Clone(next.Adopted)
	for _, a := range b.Adopt {
		i := slices.IndexFunc(adopted, func(o Adopted) bool { return o.Nonce == a.Nonce })
		if i < 0 {
			adopted = append(adopted, a)
		} else {
			adopted[i].Index = max(adopted[i].Index, a.Index)
		}
	}
	next.Adopted = adopted[max(0, len(adopted)-maxAdopted):]
	t.meta.History = next
	t.changed = true
	return Result{}, nil
}

// SandboxAdoptBody takes over what Nomad runs while there is a hold: a sandbox
// whose row wants it paused, and whose job runs, is to run. The leader's. It is
// dropped, without an error, when the row is another generation's, when there is
// no hold, or when its user asked for something since the hold began.
type SandboxAdoptBody struct {
	ID         string `json:"id"`
	Generation uint64 `json:"generation"`
}

// CommandType implements Body.
func (*SandboxAdoptBody) CommandType() CommandType { return SandboxAdopt }

// Validate implements Body.
func (b *SandboxAdoptBody) Validate() error {
	var r rules
	r.sandboxID("sandbox id", b.ID)
	return r.result()
}

func (t *transaction) applySandboxAdopt(b *SandboxAdoptBody) (Result, *Error) {
	old := first[Sandbox](t.txn, tableSandboxes, indexID, []byte(b.ID))
	hold := t.meta.History.Hold
	if old == nil || hold == nil || old.Generation != b.Generation || old.Desired != DesiredPaused || old.DesiredIndex > hold.Index {
		return Result{}, nil
	}
	s := old.desiring(DesiredRunning, t.now)
	put(t, tableSandboxes, old, s)
	return Result{Sandbox: s}, nil
}
