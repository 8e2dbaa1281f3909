package fsm

import (
	"time"

	"github.com/hashicorp/go-memdb"
)

// maxResourceFactor bounds remote_runtime_resource_factor. The settings take any
// integer, as upstream does, so it is clamped where it is used.
const maxResourceFactor = 64

// SandboxCreateBody creates a sandbox for Command.UserID. Apply resolves the
// spec and the user's settings into the template: with docker the settings'
// runtime image, else their base image, takes the place of the spec's; CPU and
// memory are multiplied by remote_runtime_resource_factor, clamped to 1..64. An
// id or key that is taken is CodeConflict: the proposer draws others. Over a
// limit it is CodeLimit, and nothing is left behind.
type SandboxCreateBody struct {
	ID string `json:"id"`
	// SpecID "" means the default: the spec with the lowest position. Unknown
	// is CodeNotFound "Sandbox Spec not found".
	SpecID  string    `json:"spec_id"`
	KeyRef  SecretRef `json:"key_ref,omitzero"`
	KeyHash string    `json:"key_hash,omitempty"`
	// Warm claims a member of the spec's warm pool (View.ClaimableMember)
	// instead: the sandbox has its id and its key, and ID, KeyRef and KeyHash
	// are empty. When there is none it is CodePoolEmpty, and the same command id
	// may be used again for one that is not warm.
	Warm bool `json:"warm,omitempty"`
}

// CommandType implements Body.
func (*SandboxCreateBody) CommandType() CommandType { return SandboxCreate }

// Validate implements Body.
func (b *SandboxCreateBody) Validate() error {
	var r rules
	r.text("spec_id", b.SpecID, maxName)
	if b.Warm {
		r.check(b.ID == "" && b.KeyRef.IsZero() && b.KeyHash == "", "a warm sandbox has an id and a key already")
		return r.result()
	}
	r.sandboxID("sandbox id", b.ID)
	r.check(!b.KeyRef.IsZero(), "key_ref is missing")
	r.ref("key_ref", b.KeyRef)
	r.hash("key_hash", b.KeyHash)
	return r.result()
}

func (t *transaction) applySandboxCreate(b *SandboxCreateBody) (Result, *Error) {
	s, err := t.createSandbox(t.cmd.UserID, b, nil)
	if err != nil {
		return Result{}, err
	}
	return Result{Sandbox: s}, nil
}

// createSandbox makes a sandbox a user's: a member of the pool, or a new one.
// promised as in start.
func (t *transaction) createSandbox(user string, b *SandboxCreateBody, promised *Coming) (*Sandbox, *Error) {
	spec, err := t.specOrDefault(b.SpecID)
	if err != nil {
		return nil, err
	}
	template := spec.Template.resolve(t.settingsOf(user))
	if b.Warm {
		return t.claim(user, spec, &template, promised)
	}
	if first[Sandbox](t.txn, tableSandboxes, indexID, []byte(b.ID)) != nil {
		return nil, Errorf(CodeConflict, "the sandbox id %s is taken", b.ID)
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

// keyTaken reports whether a sandbox has the key.
func keyTaken(txn *memdb.Txn, hash string) bool {
	return first[Sandbox](txn, tableSandboxes, indexKeyHash, []byte(hash)) != nil
}

// specOrDefault finds a spec; "" is the one with the lowest position.
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

// resolve gives the template a user's sandbox gets; settings may be nil.
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

// SandboxPauseBody asks for a pause; a second one changes nothing.
type SandboxPauseBody struct {
	ID string `json:"id"`
}

// CommandType implements Body.
func (*SandboxPauseBody) CommandType() CommandType { return SandboxPause }

// Validate implements Body.
func (b *SandboxPauseBody) Validate() error {
	var r rules
	r.lookedUp("sandbox id", b.ID)
	return r.result()
}

func (t *transaction) applySandboxPause(b *SandboxPauseBody) (Result, *Error) {
	s, err := t.ownSandbox(t.cmd.UserID, b.ID)
	if err != nil {
		return Result{}, err
	}
	if s.Desired != DesiredPaused || t.held(s) {
		s = t.desire(s, DesiredPaused, "")
	}
	return Result{Sandbox: s}, nil
}

// ownSandbox finds a user's sandbox that is not being deleted.
func (t *transaction) ownSandbox(user, id string) (*Sandbox, *Error) {
	s := first[Sandbox](t.txn, tableSandboxes, indexID, []byte(id))
	if s == nil || s.UserID != user || s.Desired == DesiredDeleted {
		return nil, Errorf(CodeNotFound, "Not Found")
	}
	return s, nil
}

// desire stores a new wish: the next generation. pausedBy is for a pause that
// the user did not ask for.
func (t *transaction) desire(old *Sandbox, d Desired, pausedBy string) *Sandbox {
	s := old.desiring(d, t.now)
	s.PausedBy, s.DesiredIndex = pausedBy, t.desiredIndex()
	put(t, tableSandboxes, old, s)
	return s
}

// desiredIndex is the DesiredIndex of a row whose Desired the command changes,
// and the CreatedIndex of a task.
func (t *transaction) desiredIndex() uint64 {
	if t.meta.History == nil {
		return 0
	}
	return t.index
}

// desiring gives the row with another wish.
func (s *Sandbox) desiring(d Desired, now time.Time) *Sandbox {
	next := *s
	next.Desired, next.DesiredAt, next.PausedBy = d, now, ""
	next.Generation++
	return &next
}

// resume makes a sandbox run, within the limits. promised as in start.
func (t *transaction) resume(old *Sandbox, promised *Coming) (*Sandbox, *Error) {
	s := old.desiring(DesiredRunning, t.now)
	s.DesiredIndex = t.desiredIndex()
	if err := t.start(old, s, promised); err != nil {
		return nil, err
	}
	return s, nil
}

// SandboxResumeBody asks for a resume; on a running or starting sandbox it
// changes nothing; a sandbox in ERROR is tried again. Over a limit it is
// CodeLimit.
type SandboxResumeBody struct {
	ID string `json:"id"`
}

// CommandType implements Body.
func (*SandboxResumeBody) CommandType() CommandType { return SandboxResume }

// Validate implements Body.
func (b *SandboxResumeBody) Validate() error {
	var r rules
	r.lookedUp("sandbox id", b.ID)
	return r.result()
}

func (t *transaction) applySandboxResume(b *SandboxResumeBody) (Result, *Error) {
	s, err := t.ownSandbox(t.cmd.UserID, b.ID)
	if err != nil {
		return Result{}, err
	}
	// State looks through an ERROR that a newer generation already answers.
	if s.Desired != DesiredRunning || s.State() == SandboxError || t.held(s) {
		if s, err = t.resume(s, nil); err != nil {
			return Result{}, err
		}
	}
	return Result{Sandbox: s}, nil
}

// SandboxDeleteBody asks for the end of a sandbox, from any state. From then
// on the API does not show it; the row goes with SandboxRemove.
type SandboxDeleteBody struct {
	ID string `json:"id"`
}

// CommandType implements Body.
func (*SandboxDeleteBody) CommandType() CommandType { return SandboxDelete }

// Validate implements Body.
func (b *SandboxDeleteBody) Validate() error {
	var r rules
	r.lookedUp("sandbox id", b.ID)
	return r.result()
}

func (t *transaction) applySandboxDelete(b *SandboxDeleteBody) (Result, *Error) {
	s, err := t.ownSandbox(t.cmd.UserID, b.ID)
	if err != nil {
		return Result{}, err
	}
	return Result{Sandbox: t.desire(s, DesiredDeleted, "")}, nil
}

// SandboxObserveBody carries the leader's observations, at most 1,000; Apply
// drops each whose Status.Generation is not the sandbox's, and unknown ids,
// without an error. Status.Since need not be filled: Apply keeps it while State
// stays the same and else takes Command.Time; nor need Status.LastActive. An observation that says nothing
// new changes nothing.
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

// Validate implements Body.
func (b *SandboxObserveBody) Validate() error {
	var r rules
	r.count("observations", len(b.Observations))
	for i := range b.Observations {
		o := &b.Observations[i]
		r.sandboxID("sandbox id", o.ID)
		r.check(o.Status.State.Known(), "unknown sandbox state %q", clip(string(o.Status.State)))
		r.text("reason", o.Status.Reason, maxName)
		r.words("detail", o.Status.Detail)
		r.text("workspace marker", o.Status.Workspace, maxName)
		r.text("proven", o.Status.Proven, maxName)
		if p := o.Status.Placement; p != nil {
			r.text("alloc_id", p.AllocID, maxName)
			r.text("node_id", p.NodeID, maxName)
			r.text("address", p.Address, maxName)
			r.text("workspace", p.Workspace, maxPath)
			r.ports("placement", p.Ports)
		}
	}
	return r.result()
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
		if status.Equal(&old.Status) {
			continue
		}
		if status.State != old.Status.State {
			status.Since = t.now
		}
		s := *old
		s.Status = status
		put(t, tableSandboxes, old, &s)
	}
	return Result{}, nil
}

// SandboxRemoveBody removes the row of a sandbox whose job, volume and secret
// are gone. Only a sandbox with DesiredDeleted is removed, any other is
// CodeConflict; one that is gone already is fine.
type SandboxRemoveBody struct {
	ID string `json:"id"`
}

// CommandType implements Body.
func (*SandboxRemoveBody) CommandType() CommandType { return SandboxRemove }

// Validate implements Body.
func (b *SandboxRemoveBody) Validate() error {
	var r rules
	r.sandboxID("sandbox id", b.ID)
	return r.result()
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
	if s.KeepWorkspace {
		t.noteOrphan(Orphan{Sandbox: s.ID, Kind: OrphanWorkspace, Reason: OrphanPolicy, Birth: s.Birth.String()})
	}
	return Result{}, nil
}
