package fsm

import (
	"slices"
	"time"
)

// maxFindings bounds the findings that a hold keeps.
const maxFindings = 100

// Hold stops everything that a leader does on its own initiative, because the state may be older
// than what Nomad and Vault hold, or they may be another cluster's. An operator ends it.
type Hold struct {
	// Index is the log index at which the hold began. The leader still does what users request after
	// it.
	Index    uint64    `json:"index"`
	Since    time.Time `json:"since"`
	Findings []Finding `json:"findings"`
	// More counts the findings beyond those that are kept.
	More int `json:"more,omitempty"`
}

// The kinds of findings.
const (
	FindingMarkAhead   = "mark_ahead"   // a store's mark lies outside this history
	FindingMarkLost    = "mark_lost"    // a store's mark is gone
	FindingMarkBehind  = "mark_behind"  // a store's mark is older than one that was written there
	FindingMarkForeign = "mark_foreign" // a store's mark is another cluster's
	FindingMarkDenied  = "mark_denied"  // a store refuses to read or write the mark
	FindingStranger    = "stranger"     // a thing of this cluster, born outside this history
	FindingVanished    = "vanished"     // many jobs disappeared at once
	FindingRestored    = "restored"     // the state comes from a backup
	FindingRecovered   = "recovered"    // the state comes from one surviving disk
)

// Finding is one cause of a hold.
type Finding struct {
	// Kind is one of the Finding constants.
	Kind string `json:"kind"`
	// Store is StoreNomad or StoreVault, "" for neither. ID names the thing.
	Store string `json:"store,omitempty"`
	ID    string `json:"id,omitempty"`
	// Birth is the thing's birth, as text.
	Birth string `json:"birth,omitempty"`
	// Detail describes the finding for the operator.
	Detail string `json:"detail"`
}

// about reports whether two findings are about the same thing.
func (f Finding) about(o Finding) bool { return f.Kind == o.Kind && f.Store == o.Store && f.ID == o.ID }

// Hold returns the hold, or nil while there is none.
func (v *View) Hold() *Hold {
	if v.meta.History == nil {
		return nil
	}
	return v.meta.History.Hold
}

// Adoptable returns the ranges that a release of the hold adopts: for each term outside the
// history, the highest index among the findings and the orphans.
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

// HeldTask reports whether a leader must not work on a start task: there is a hold, and the task is
// older than it.
func (v *View) HeldTask(t *StartTask) bool {
	h := v.Hold()
	return h != nil && t.CreatedIndex <= h.Index
}

// Held reports whether a leader must leave a sandbox as it is: there is a hold, and the user has
// requested nothing since it began.
func (v *View) Held(s *Sandbox) bool {
	h := v.Hold()
	return h != nil && s.DesiredIndex <= h.Index
}

// held is View.Held for the transaction. A request during a hold counts as new, even if it repeats
// the state desired before the hold.
func (t *transaction) held(s *Sandbox) bool {
	h := t.meta.History
	return h != nil && h.Hold != nil && s.DesiredIndex <= h.Hold.Index
}

// HoldBeginBody begins a hold, or adds findings to the current one. The leader proposes it. At is
// the index of the view that the findings are based on: if a hold was released since, they do not
// begin another.
type HoldBeginBody struct {
	At       uint64    `json:"at"`
	Findings []Finding `json:"findings"`
}

// CommandType implements Body.
func (*HoldBeginBody) CommandType() CommandType { return HoldBegin }

// check implements Body.
func (b *HoldBeginBody) check(r *rules) {
	r.check(len(b.Findings) > 0, "a hold needs a finding")
	r.count("findings", len(b.Findings))
	for i := range b.Findings {
		f := &b.Findings[i]
		r.name("kind", f.Kind, MaxName)
		if f.Store != "" {
			r.store(f.Store)
		}
		r.text("id", f.ID, MaxPath)
		r.text("birth", f.Birth, MaxPath)
		r.text("detail", f.Detail, MaxPath)
	}
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
		t.changed()
	}
	return Result{}, nil
}

// HoldReleaseBody ends the hold. An operator proposes it. It begins a new history, whose marks
// override those in the stores, and adopts the births of the findings: from then on those things
// are this cluster's, and one without a row is an orphan. Without a hold it is CodeConflict.
type HoldReleaseBody struct {
	Adopt []Adopted `json:"adopt,omitempty"`
}

// CommandType implements Body.
func (*HoldReleaseBody) CommandType() CommandType { return HoldRelease }

// check implements Body.
func (b *HoldReleaseBody) check(r *rules) {
	r.count("adopted ranges", len(b.Adopt))
	for _, a := range b.Adopt {
		r.id("nonce", a.Nonce)
	}
}

func (t *transaction) applyHoldRelease(b *HoldReleaseBody) (Result, *Error) {
	if t.meta.History.Hold == nil {
		return Result{}, Errorf(CodeConflict, "there is no hold to release")
	}
	next := t.meta.History.succeed(t.cmd.ID, t.now)
	next.Hold, next.Released = nil, t.index
	next.Marked = nil // a lost mark is written again
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
	t.changed()
	return Result{}, nil
}

// SandboxAdoptBody adopts what Nomad runs during a hold: a sandbox whose row says paused but whose
// job runs becomes desired running. The leader proposes it. It does nothing, without an error, when
// the row has another generation, when there is no hold, or when the user has requested something
// since the hold began.
type SandboxAdoptBody struct {
	ID         string `json:"id"`
	Generation uint64 `json:"generation"`
}

// CommandType implements Body.
func (*SandboxAdoptBody) CommandType() CommandType { return SandboxAdopt }

// check implements Body.
func (b *SandboxAdoptBody) check(r *rules) {
	r.sandboxID("sandbox id", b.ID)
}

func (t *transaction) applySandboxAdopt(b *SandboxAdoptBody) (Result, *Error) {
	old := first[Sandbox](t.txn, tableSandboxes, indexID, []byte(b.ID))
	hold := t.meta.History.Hold
	if old == nil || hold == nil || old.Generation != b.Generation || old.Desired != DesiredPaused ||
		old.DesiredIndex > hold.Index {
		return Result{}, nil
	}
	s := old.withDesired(DesiredRunning, t.now)
	put(t, tableSandboxes, old, s)
	return Result{Sandbox: s}, nil
}
