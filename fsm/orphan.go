package fsm

import (
	"time"

	"github.com/hashicorp/go-memdb"
)

// The kinds and reasons of orphans.
const (
	OrphanJob       = "job"
	OrphanWorkspace = "workspace"
	// OrphanLost is the kind and the reason of what a lost client still has of a sandbox that came back
	// from its copy: it may be the only holder of what was written after the copy.
	OrphanLost = "lost"

	// OrphanUnowned: it was created in this history and no sandbox owns it.
	OrphanUnowned = "unowned"
	// OrphanPolicy: a policy deleted its sandbox, and the workspace is kept for a while.
	OrphanPolicy = "policy"
	// OrphanStranger: its birth lies in no history that this cluster knows. The leader removes it only
	// on an operator's request.
	OrphanStranger = "stranger"
)

// LostRetention is how long what a lost client still has is kept.
const LostRetention = 30 * 24 * time.Hour

// Orphan is a job or a workspace of this cluster in Nomad that no sandbox owns, or with OrphanLost a
// volume on a client that was lost.
type Orphan struct {
	// Sandbox is the id in the name of the job or the workspace.
	Sandbox string `json:"sandbox"`
	// Kind is OrphanJob or OrphanWorkspace, Reason one of the reasons above.
	Kind   string `json:"kind"`
	Reason string `json:"reason"`
	// Birth is its birth, as text; "" for none.
	Birth string `json:"birth,omitempty"`
	// Since is when it was first found to be an orphan.
	Since time.Time `json:"since"`
	// Delete: an operator has asked to delete it.
	Delete bool `json:"delete,omitempty"`
	// Owner is the sandbox's user, with OrphanLost and OrphanPolicy. Client, Volume and Bytes are those of
	// OrphanLost: Nomad's ids, and the content of the copy that the sandbox came back from. ID is then the
	// volume's.
	Owner  string `json:"owner,omitempty"`
	Client string `json:"client,omitempty"`
	Volume string `json:"volume,omitempty"`
	Bytes  int64  `json:"bytes,omitempty"`
	// SpecID is the spec of the sandbox that had an OrphanLost.
	SpecID string `json:"spec_id,omitempty"`
	// Purged: the owner was deleted. The retention is over, and Owner is "", because another user may get
	// the name.
	Purged bool `json:"purged,omitempty"`
}

// ID names the orphan among those of its kind: the sandbox's id, or the volume's with OrphanLost.
func (o *Orphan) ID() string {
	if o.Kind == OrphanLost {
		return o.Volume
	}
	return o.Sandbox
}

func orphanTable() *memdb.TableSchema {
	return newTable(tableOrphans, newIndex(indexID, func(o *Orphan) []byte { return orphanKey(o.Kind, o.ID()) }))
}

// RetainedUntil returns when the retention of an OrphanLost is over.
func (o *Orphan) RetainedUntil(retention time.Duration) time.Time {
	if o.Delete || o.Purged {
		return o.Since
	}
	return o.Since.Add(retention)
}

// noteLost records what a lost client still has of a sandbox. The record outlives the sandbox.
func (t *transaction) noteLost(s *Sandbox, client, volume string) {
	o := &Orphan{
		Sandbox: s.ID, Kind: OrphanLost, Reason: OrphanLost, Birth: s.Birth.String(), Since: t.now,
		Owner: s.UserID, Client: client, Volume: volume, SpecID: s.SpecID,
	}
	if s.Copy != nil {
		o.Bytes = s.Copy.Bytes
	}
	put(t, tableOrphans, first[Orphan](t.txn, tableOrphans, indexID, orphanKey(OrphanLost, volume)), o)
}

// purgeOrphans ends the retention of what is kept of a user who is deleted.
func (t *transaction) purgeOrphans(user string) {
	for _, old := range t.view().Orphans() {
		if old.Owner == user {
			o := *old
			o.Owner, o.Purged = "", true
			put(t, tableOrphans, old, &o)
		}
	}
}

// Lost lists what lost clients still have, by volume.
func (v *View) Lost() []*Orphan {
	return collect(withPrefix[Orphan](v.txn, tableOrphans, indexID, prefixOf(OrphanLost)))
}

// LostOf lists the volumes that are on record as what lost clients still have of a sandbox.
func (v *View) LostOf(sandbox string) (volumes []string) {
	for o := range withPrefix[Orphan](v.txn, tableOrphans, indexID, prefixOf(OrphanLost)) {
		if o.Sandbox == sandbox {
			volumes = append(volumes, o.Volume)
		}
	}
	return volumes
}

func orphanKey(kind, sandbox string) []byte {
	if kind == "" || sandbox == "" {
		return nil
	}
	return keyOf(kind, sandbox)
}

// Orphan finds an orphan, or returns nil.
func (v *View) Orphan(kind, sandbox string) *Orphan {
	return first[Orphan](v.txn, tableOrphans, indexID, orphanKey(kind, sandbox))
}

// Orphans lists all orphans, jobs first, by sandbox id.
func (v *View) Orphans() []*Orphan {
	return collect(withPrefix[Orphan](v.txn, tableOrphans, indexID, nil))
}

// orphan checks the key of an orphan that the leader found.
func (r *rules) orphan(kind, sandbox string) {
	r.check(kind == OrphanJob || kind == OrphanWorkspace, "unknown kind of orphan %q", clip(kind))
	r.sandboxID("sandbox id", sandbox)
}

// OrphanNoteBody records orphans, at most 1,000. The leader proposes it. A known orphan with the
// same birth keeps its Since and Delete. One whose sandbox exists is skipped.
type OrphanNoteBody struct {
	Orphans []Orphan `json:"orphans"`
}

// CommandType implements Body.
func (*OrphanNoteBody) CommandType() CommandType { return OrphanNote }

// check implements Body.
func (b *OrphanNoteBody) check(r *rules) {
	r.count("orphans", len(b.Orphans))
	for i := range b.Orphans {
		o := &b.Orphans[i]
		r.orphan(o.Kind, o.Sandbox)
		r.check(o.Reason == OrphanUnowned || o.Reason == OrphanPolicy || o.Reason == OrphanStranger,
			"unknown reason of an orphan %q", clip(o.Reason))
		r.text("birth", o.Birth, MaxPath)
	}
}

func (t *transaction) applyOrphanNote(b *OrphanNoteBody) (Result, *Error) {
	for i := range b.Orphans {
		t.noteOrphan(b.Orphans[i])
	}
	return Result{}, nil
}

func (t *transaction) noteOrphan(o Orphan) {
	if first[Sandbox](t.txn, tableSandboxes, indexID, []byte(o.Sandbox)) != nil {
		return
	}
	o.Since, o.Delete = t.now, false
	old := first[Orphan](t.txn, tableOrphans, indexID, orphanKey(o.Kind, o.Sandbox))
	if old != nil && old.Is(o.Birth) {
		o.Delete, o.Birth = old.Delete, old.Birth
		o.Owner, o.Purged = old.Owner, old.Purged
		// A stranger's time starts again when the history contains its birth.
		if old.Reason != OrphanStranger || o.Reason == OrphanStranger {
			o.Since = old.Since
		}
		if old.Reason == OrphanPolicy {
			o.Reason = old.Reason
		}
		if *old == o {
			return
		}
	}
	put(t, tableOrphans, old, &o)
}

// Is reports whether a thing with this birth is the recorded orphan. The workspace of a sandbox
// older than the history carries no birth.
func (o *Orphan) Is(birth string) bool {
	return o.Birth == birth || birth == "" && o.Reason == OrphanPolicy
}

// knownOrphan checks the key of an orphan on record.
func (r *rules) knownOrphan(kind, id string) {
	if kind == OrphanLost {
		r.check(id != "", "an orphan has an id")
		r.text("volume", id, MaxName)
		return
	}
	r.orphan(kind, id)
}

// OrphanDeleteBody asks to delete an orphan. Sandbox is its ID. An operator proposes it. An unknown orphan is
// CodeNotFound.
type OrphanDeleteBody struct {
	Kind    string `json:"kind"`
	Sandbox string `json:"sandbox"`
}

// CommandType implements Body.
func (*OrphanDeleteBody) CommandType() CommandType { return OrphanDelete }

// check implements Body.
func (b *OrphanDeleteBody) check(r *rules) {
	r.knownOrphan(b.Kind, b.Sandbox)
}

func (t *transaction) applyOrphanDelete(b *OrphanDeleteBody) (Result, *Error) {
	old := first[Orphan](t.txn, tableOrphans, indexID, orphanKey(b.Kind, b.Sandbox))
	if old == nil {
		return Result{}, Errorf(CodeNotFound, "there is no orphaned %s of a sandbox %s", b.Kind, b.Sandbox)
	}
	if b.Kind == OrphanLost {
		if id := t.view().restoring(old.Volume); id != "" {
			return Result{}, Errorf(CodeConflict, "the sandbox %s is being restored from it: wait until it runs, "+
				"or delete that sandbox first", id)
		}
	}
	if !old.Delete {
		o := *old
		o.Delete = true
		put(t, tableOrphans, old, &o)
	}
	return Result{}, nil
}

// OrphanForgetBody removes the records of orphans that are gone or belong to a sandbox again, by
// their IDs. The leader proposes it. Unknown ones are not an error.
type OrphanForgetBody struct {
	Kind      string   `json:"kind"`
	Sandboxes []string `json:"sandboxes"`
}

// CommandType implements Body.
func (*OrphanForgetBody) CommandType() CommandType { return OrphanForget }

// check implements Body.
func (b *OrphanForgetBody) check(r *rules) {
	r.count("sandboxes", len(b.Sandboxes))
	for _, id := range b.Sandboxes {
		r.knownOrphan(b.Kind, id)
	}
}

func (t *transaction) applyOrphanForget(b *OrphanForgetBody) (Result, *Error) {
	for _, id := range b.Sandboxes {
		if o := first[Orphan](t.txn, tableOrphans, indexID, orphanKey(b.Kind, id)); o != nil {
			drop(t, tableOrphans, o)
		}
	}
	return Result{}, nil
}
