package fsm

import (
	"time"

	"github.com/hashicorp/go-memdb"
)

// maxResourceFactor bounds remote_runtime_resource_factor. The settings accept any integer, as
// upstream does, so the factor is clamped when it is used.
const maxResourceFactor = 64

// SandboxCreateBody creates a sandbox for Command.UserID. Apply resolves the spec and the user's
// settings into the template. With docker the settings' runtime image, else their base image,
// replaces the spec's. CPU and memory are multiplied by remote_runtime_resource_factor, clamped to
// 1..64.
//
// An id or key that is taken is CodeConflict: the proposer draws another. From protocol version 3
// on this includes an id that a conversation or an orphan still names. Exceeding a limit is
// CodeLimit, and then nothing changes.
type SandboxCreateBody struct {
	ID string `json:"id"`
	// SpecID "" means the default: the spec with the lowest position. An unknown id is CodeNotFound
	// "Sandbox Spec not found".
	SpecID  string    `json:"spec_id"`
	KeyRef  SecretRef `json:"key_ref,omitzero"`
	KeyHash string    `json:"key_hash,omitempty"`
	// Warm claims a member of the spec's warm pool (View.ClaimableMember) instead. The sandbox keeps
	// the member's id and key, so ID, KeyRef and KeyHash are empty. Without a member it is
	// CodePoolEmpty, and the same command id may be used again without Warm.
	Warm bool `json:"warm,omitempty"`
}

// CommandType implements Body.
func (*SandboxCreateBody) CommandType() CommandType { return SandboxCreate }

// check implements Body.
func (b *SandboxCreateBody) check(r *rules) {
	r.text("spec_id", b.SpecID, MaxName)
	if b.Warm {
		r.check(b.ID == "" && b.KeyRef.IsZero() && b.KeyHash == "", "a warm sandbox has an id and a key already")
		return
	}
	r.sandboxID("sandbox id", b.ID)
	r.check(!b.KeyRef.IsZero(), "key_ref is missing")
	r.ref("key_ref", b.KeyRef)
	r.hash("key_hash", b.KeyHash)
}

func (t *transaction) applySandboxCreate(b *SandboxCreateBody) (Result, *Error) {
	s, err := t.createSandbox(t.cmd.UserID, b, nil)
	if err != nil {
		return Result{}, err
	}
	return Result{Sandbox: s}, nil
}

// createSandbox gives a user a sandbox: a member of the pool, or a new one. promised is as in
// start.
func (t *transaction) createSandbox(user string, b *SandboxCreateBody, promised *Reservation) (*Sandbox, *Error) {
	spec, err := t.specOrDefault(b.SpecID)
	if err != nil {
		return nil, err
	}
	template := spec.Template.resolve(t.settingsOf(user))
	if b.Warm {
		return t.claim(user, spec, &template, promised)
	}
	if err := t.mayName(b.ID); err != nil {
		return nil, err
	}
	if keyTaken(t.txn, b.KeyHash) {
		return nil, Errorf(CodeConflict, "the sandbox's key is taken: draw another")
	}
	s := &Sandbox{
		ID: b.ID, UserID: user, SpecID: spec.ID, CreatedAt: t.now, Template: template,
		KeyRef: b.KeyRef, KeyHash: b.KeyHash,
		Desired: DesiredRunning, Generation: 1, DesiredAt: t.now,
		DesiredIndex: t.desiredIndex(), Birth: t.birth(),
		Status: SandboxStatus{State: SandboxStarting, Since: t.now},
	}
	if err := t.start(nil, s, promised); err != nil {
		return nil, err
	}
	return s, nil
}

// mayName refuses an id that a sandbox has, or is known to have had: a late message to the old
// sandbox would reach the new one. Proposers draw ids at random, so this is a second safeguard. It
// checks only what has an index.
func (t *transaction) mayName(id string) *Error {
	if first[Sandbox](t.txn, tableSandboxes, indexID, []byte(id)) != nil {
		return Errorf(CodeConflict, "the sandbox id %s is taken", id)
	}
	if !t.meta.active(VersionHistory) {
		return nil
	}
	used := firstWithPrefix[Conversation](t.txn, tableConversations, indexSandbox, prefixOf(id)) != nil
	for _, kind := range []string{OrphanJob, OrphanWorkspace} {
		used = used || first[Orphan](t.txn, tableOrphans, indexID, orphanKey(kind, id)) != nil
	}
	if used {
		return Errorf(CodeConflict, "the sandbox id %s was a former sandbox's: draw another", id)
	}
	return nil
}

// keyTaken reports whether a sandbox has the key.
func keyTaken(txn *memdb.Txn, hash string) bool {
	return first[Sandbox](txn, tableSandboxes, indexKeyHash, []byte(hash)) != nil
}

// specOrDefault finds a spec. "" is the one with the lowest position.
func (t *transaction) specOrDefault(id string) (*Spec, *Error) {
	def := firstWithPrefix[Spec](t.txn, tableSpecs, indexPosition, nil)
	if def == nil {
		return nil, Errorf(CodeNotFound, "there is no sandbox spec yet: the operator must run `bivouac specs apply <file>`")
	}
	if id == "" {
		return def, nil
	}
	if s := first[Spec](t.txn, tableSpecs, indexID, []byte(id)); s != nil {
		return s, nil
	}
	return nil, errSpecNotFound()
}

// resolve returns the template for a user's sandbox. settings may be nil.
func (p Template) resolve(settings *Settings) Template {
	if settings == nil {
		return p
	}
	v := &settings.Values
	if p.Driver == DriverDocker {
		for _, image := range []*string{v.SandboxRuntimeContainerImage, v.SandboxBaseContainerImage} {
			if image != nil && *image != "" {
				p.Image = *image
				break
			}
		}
	}
	if f := v.RemoteRuntimeResourceFactor; f != nil {
		factor := int(min(max(*f, 1), maxResourceFactor))
		p.CPU *= factor
		p.Memory *= factor
	}
	return p
}

// MaxStopAfter bounds SandboxPauseBody.StopAfter.
const MaxStopAfter = time.Minute

// SandboxPauseBody asks for a pause. Pausing twice changes nothing, but that a pause without StopAfter
// stops the job now.
type SandboxPauseBody struct {
	ID string `json:"id"`
	// StopAfter is how long the job runs on for a resume (VersionStops), 0 for not at all.
	StopAfter time.Duration `json:"stop_after,omitempty"`
	// Operator: the command is an operator's, for any user's sandbox.
	Operator bool `json:"operator,omitempty"`
}

// CommandType implements Body.
func (*SandboxPauseBody) CommandType() CommandType { return SandboxPause }

// check implements Body.
func (b *SandboxPauseBody) check(r *rules) {
	r.lookedUp("sandbox id", b.ID)
	r.check(b.StopAfter >= 0 && b.StopAfter <= MaxStopAfter, "a pause stops the job within %s", MaxStopAfter)
}

func (t *transaction) applySandboxPause(b *SandboxPauseBody) (Result, *Error) {
	s, err := t.meantSandbox(b.ID, b.Operator)
	if err != nil {
		return Result{}, err
	}
	switch {
	case s.Desired != DesiredPaused || t.held(s):
		old := s
		s = old.withDesired(DesiredPaused, t.now)
		s.DesiredIndex = t.desiredIndex()
		if b.StopAfter > 0 && t.meta.active(VersionStops) {
			s.StopAt = t.now.Add(b.StopAfter)
		}
		put(t, tableSandboxes, old, s)
	case b.StopAfter == 0 && s.StopAt.After(t.now):
		s = t.stopNow(s)
	}
	return Result{Sandbox: s}, nil
}

// stopNow has a paused sandbox whose job runs on stop it at once, and count no more.
func (t *transaction) stopNow(old *Sandbox) *Sandbox {
	s := new(*old)
	s.DesiredAt, s.StopAt = t.now, t.now
	put(t, tableSandboxes, old, s)
	return s
}

// ownSandbox finds a user's sandbox that is not being deleted.
func (t *transaction) ownSandbox(user, id string) (*Sandbox, *Error) {
	s := first[Sandbox](t.txn, tableSandboxes, indexID, []byte(id))
	if s == nil || s.UserID != user || s.Desired == DesiredDeleted {
		return nil, Errorf(CodeNotFound, "Not Found")
	}
	return s, nil
}

// desire stores a new desired state with the next generation. pausedBy is the reason for a pause
// that the user did not ask for.
func (t *transaction) desire(old *Sandbox, d Desired, pausedBy string) *Sandbox {
	s := old.withDesired(d, t.now)
	s.PausedBy, s.DesiredIndex = pausedBy, t.desiredIndex()
	put(t, tableSandboxes, old, s)
	return s
}

// desiredIndex returns the DesiredIndex of a row whose Desired the command changes, and the
// CreatedIndex of a task.
func (t *transaction) desiredIndex() uint64 {
	if !t.meta.active(VersionHistory) {
		return 0
	}
	return t.index
}

// withDesired returns a copy of the row with another desired state.
func (s *Sandbox) withDesired(d Desired, now time.Time) *Sandbox {
	next := *s
	next.Desired, next.DesiredAt, next.PausedBy, next.StopAt = d, now, "", time.Time{}
	next.Generation++
	return &next
}

// resume sets a sandbox to run, within the limits. promised is as in start.
func (t *transaction) resume(old *Sandbox, promised *Reservation) (*Sandbox, *Error) {
	s := old.withDesired(DesiredRunning, t.now)
	s.DesiredIndex = t.desiredIndex()
	if err := t.start(old, s, promised); err != nil {
		return nil, err
	}
	return s, nil
}

// SandboxResumeBody asks for a resume. It changes nothing on a running or starting sandbox. It
// retries a sandbox in ERROR. Exceeding a limit is CodeLimit.
type SandboxResumeBody struct {
	ID string `json:"id"`
	// Operator: the command is an operator's, for any user's sandbox.
	Operator bool `json:"operator,omitempty"`
}

// CommandType implements Body.
func (*SandboxResumeBody) CommandType() CommandType { return SandboxResume }

// check implements Body.
func (b *SandboxResumeBody) check(r *rules) {
	r.lookedUp("sandbox id", b.ID)
}

func (t *transaction) applySandboxResume(b *SandboxResumeBody) (Result, *Error) {
	s, err := t.meantSandbox(b.ID, b.Operator)
	if err != nil {
		return Result{}, err
	}
	// State does not return an ERROR that is older than the current generation.
	if s.Desired != DesiredRunning || s.State() == SandboxError || t.held(s) {
		if s, err = t.resume(s, nil); err != nil {
			return Result{}, err
		}
	}
	return Result{Sandbox: s}, nil
}

// SandboxDeleteBody asks to delete a sandbox, in any state. From then on the API does not show it.
// SandboxRemove removes the row.
type SandboxDeleteBody struct {
	ID string `json:"id"`
	// Operator: the command is an operator's, for any user's sandbox.
	Operator bool `json:"operator,omitempty"`
}

// CommandType implements Body.
func (*SandboxDeleteBody) CommandType() CommandType { return SandboxDelete }

// check implements Body.
func (b *SandboxDeleteBody) check(r *rules) {
	r.lookedUp("sandbox id", b.ID)
}

func (t *transaction) applySandboxDelete(b *SandboxDeleteBody) (Result, *Error) {
	s, err := t.meantSandbox(b.ID, b.Operator)
	if err != nil {
		return Result{}, err
	}
	return Result{Sandbox: t.desire(s, DesiredDeleted, "")}, nil
}

// SandboxObserveBody carries the leader's observations, at most 1,000. Apply skips unknown ids, and
// each observation whose Status.Generation is not the sandbox's, without an error. Apply ignores
// Status.Since and Status.LastActive: it sets Since to Command.Time when State changes. An
// observation without news changes nothing.
type SandboxObserveBody struct {
	Observations []Observation `json:"observations"`
}

// Observation is one sandbox's new status.
type Observation struct {
	ID     string        `json:"id"`
	Status SandboxStatus `json:"status"`
}

// CommandType implements Body.
func (*SandboxObserveBody) CommandType() CommandType { return SandboxObserve }

// check implements Body.
func (b *SandboxObserveBody) check(r *rules) {
	r.count("observations", len(b.Observations))
	for i := range b.Observations {
		o := &b.Observations[i]
		r.sandboxID("sandbox id", o.ID)
		r.check(o.Status.State.Known(), "unknown sandbox state %q", clip(string(o.Status.State)))
		r.text("reason", o.Status.Reason, MaxName)
		r.words("detail", o.Status.Detail)
		r.text("workspace marker", o.Status.Workspace, MaxName)
		r.text("proven", o.Status.Proven, MaxName)
		if p := o.Status.Placement; p != nil {
			r.text("alloc_id", p.AllocID, MaxName)
			r.text("node_id", p.NodeID, MaxName)
			r.text("address", p.Address, MaxName)
			r.text("workspace", p.Workspace, MaxPath)
			r.ports("placement", p.Ports)
		}
	}
}

func (t *transaction) applySandboxObserve(b *SandboxObserveBody) (Result, *Error) {
	for i := range b.Observations {
		o := &b.Observations[i]
		old := first[Sandbox](t.txn, tableSandboxes, indexID, []byte(o.ID))
		if old == nil || o.Status.Generation != old.Generation {
			continue
		}
		status := o.Status
		status.Since, status.LastActive = old.Status.Since, old.Status.LastActive
		status.Detail = cleanWords(status.Detail)
		status.Challenged = (status.Challenged || old.Status.Challenged) && t.meta.active(VersionRotate)
		if status.Equal(&old.Status) {
			continue
		}
		if status.State != old.Status.State {
			status.Since = t.now
		}
		s := *old
		s.Status, s.FormerKeyRef = status, SecretRef{}
		put(t, tableSandboxes, old, &s)
	}
	return Result{}, nil
}

// SandboxRemoveBody removes the row of a sandbox whose job, volume and secret are gone. A sandbox
// without DesiredDeleted is CodeConflict. An unknown sandbox is not an error.
type SandboxRemoveBody struct {
	ID string `json:"id"`
}

// CommandType implements Body.
func (*SandboxRemoveBody) CommandType() CommandType { return SandboxRemove }

// check implements Body.
func (b *SandboxRemoveBody) check(r *rules) {
	r.sandboxID("sandbox id", b.ID)
}

func (t *transaction) applySandboxRemove(b *SandboxRemoveBody) (Result, *Error) {
	s := first[Sandbox](t.txn, tableSandboxes, indexID, []byte(b.ID))
	if s == nil {
		return Result{}, nil
	}
	if s.Desired != DesiredDeleted {
		return Result{}, Errorf(CodeConflict, "the sandbox %s is not being deleted", b.ID)
	}
	drop(t, tableSandboxes, s)
	o := Orphan{Sandbox: s.ID, Kind: OrphanWorkspace, Reason: OrphanPolicy, Birth: s.Birth.String()}
	if t.meta.active(VersionRoom) {
		o.Owner = s.UserID
		t.drainForget(s.ID)
	}
	if s.KeepWorkspace {
		t.noteOrphan(o)
	}
	return Result{}, nil
}
