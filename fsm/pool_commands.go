package fsm

import "github.com/hashicorp/go-memdb"

// SpecPoolBody sets the size of a spec's warm pool. An unknown spec is CodeNotFound "Sandbox Spec
// not found".
type SpecPoolBody struct {
	ID   string `json:"id"`
	Size int    `json:"size"`
}

// CommandType implements Body.
func (*SpecPoolBody) CommandType() CommandType { return SpecPool }

// check implements Body.
func (b *SpecPoolBody) check(r *rules) {
	r.name("id", b.ID, MaxName)
	r.poolSize(b.ID, b.Size)
}

// poolSize checks the size of a spec's pool.
func (r *rules) poolSize(spec string, size int) {
	r.check(size >= 0 && size <= maxList, "spec %s: the pool's size must be between 0 and %d", clip(spec), maxList)
}

func (t *transaction) applySpecPool(b *SpecPoolBody) (Result, *Error) {
	old := first[Spec](t.txn, tableSpecs, indexID, []byte(b.ID))
	switch {
	case old == nil:
		return Result{}, errSpecNotFound()
	case old.Pool == b.Size:
		return Result{}, nil
	}
	s := *old
	s.Pool = b.Size
	put(t, tableSpecs, old, &s)
	return Result{}, nil
}

// PoolAddBody adds a member to a spec's warm pool: a sandbox without a user, with the spec's
// current template. The leader proposes it. An unknown spec is CodeNotFound. An id or key that is
// taken (as for SandboxCreateBody), or a full pool, is CodeConflict. Exceeding the installation's
// CPU or memory is CodeLimit. Members with an older template do not count towards the pool's size.
// It sets Result.Sandbox.
type PoolAddBody struct {
	ID     string `json:"id"`
	SpecID string `json:"spec_id"`
	// InitRef and InitHash as in Sandbox.
	InitRef  SecretRef `json:"init_ref"`
	InitHash string    `json:"init_hash,omitempty"`
	// KeyRef and KeyHash are Sandbox.WarmKeyRef and WarmKeyHash.
	KeyRef  SecretRef `json:"key_ref"`
	KeyHash string    `json:"key_hash"`
}

// CommandType implements Body.
func (*PoolAddBody) CommandType() CommandType { return PoolAdd }

// check implements Body.
func (b *PoolAddBody) check(r *rules) {
	r.sandboxID("sandbox id", b.ID)
	r.name("spec_id", b.SpecID, MaxName)
	r.check(!b.InitRef.IsZero(), "init_ref is missing")
	r.ref("init_ref", b.InitRef)
	if b.InitHash != "" {
		r.hash("init_hash", b.InitHash)
	}
	r.check(!b.KeyRef.IsZero(), "key_ref is missing")
	r.ref("key_ref", b.KeyRef)
	r.hash("key_hash", b.KeyHash)
}

func (t *transaction) applyPoolAdd(b *PoolAddBody) (Result, *Error) {
	spec := first[Spec](t.txn, tableSpecs, indexID, []byte(b.SpecID))
	if spec == nil {
		return Result{}, errSpecNotFound()
	}
	if err := t.mayName(b.ID); err != nil {
		return Result{}, err
	}
	if keyTaken(t.txn, b.KeyHash) {
		return Result{}, Errorf(CodeConflict, "the sandbox's key is taken: draw another")
	}
	s := &Sandbox{
		ID: b.ID, SpecID: spec.ID, Pool: spec.ID, CreatedAt: t.now,
		Template: spec.Template, TemplateHash: spec.Template.Hash(), InitRef: b.InitRef, InitHash: b.InitHash,
		WarmKeyRef: b.KeyRef, WarmKeyHash: b.KeyHash,
		Desired: DesiredRunning, Generation: 1, DesiredAt: t.now,
		DesiredIndex: t.desiredIndex(), Birth: t.birth(),
		Status: SandboxStatus{State: SandboxStarting, Since: t.now},
	}
	members := 0
	for m := range withPrefix[Sandbox](t.txn, tableSandboxes, indexPool, prefixOf(spec.ID)) {
		if m.TemplateHash == s.TemplateHash {
			members++
		}
	}
	if members >= spec.Pool {
		return Result{}, Errorf(CodeConflict, "the pool of the spec %s has its %d members already", spec.ID, spec.Pool)
	}
	if err := exceeded(LimitOfInstallation, t.meta.Installation.Overall, usageOf(t.txn, ""),
		t.demandOf(nil, s, nil).theirs); err != nil {
		return Result{}, err
	}
	put(t, tableSandboxes, nil, s)
	return Result{Sandbox: s}, nil
}

// PoolDropBody ends a member of a warm pool. The leader proposes it. It does nothing, without an
// error, to a member that was claimed, is being deleted or is unknown. Result.Sandbox is set only
// when the member was dropped. SandboxRemove removes the row.
type PoolDropBody struct {
	ID string `json:"id"`
	// Reason explains the command to readers of the log.
	Reason string `json:"reason"`
}

// CommandType implements Body.
func (*PoolDropBody) CommandType() CommandType { return PoolDrop }

// check implements Body.
func (b *PoolDropBody) check(r *rules) {
	r.sandboxID("sandbox id", b.ID)
	r.text("reason", b.Reason, MaxName)
}

func (t *transaction) applyPoolDrop(b *PoolDropBody) (Result, *Error) {
	s := first[Sandbox](t.txn, tableSandboxes, indexID, []byte(b.ID))
	if s == nil || !s.Member() || s.Desired == DesiredDeleted {
		return Result{}, nil
	}
	return Result{Sandbox: t.desire(s, DesiredDeleted, "")}, nil
}

// ready reports whether the sandbox is a member of a pool that can be claimed, judged by its row
// alone. A member from an older program has no key to hand over.
func (s *Sandbox) ready() bool {
	return s.Member() && !s.WarmKeyRef.IsZero() && s.Desired == DesiredRunning &&
		s.Status.State == SandboxRunning && s.Status.Generation == s.Generation
}

// claim gives a member of a pool to a user. promised is as in start.
func (t *transaction) claim(user string, spec *Spec, resolved *Template, promised *Reservation) (*Sandbox, *Error) {
	member := claimable(&t.meta, t.txn, spec, resolved, nil)
	if member == nil {
		return nil, Errorf(CodePoolEmpty, "the warm pool of the spec %s has no member to give", spec.ID)
	}
	s := t.claimed(member, user)
	if err := t.start(member, s, promised); err != nil {
		return nil, err
	}
	return s, nil
}

// claimable finds the first member of a spec's pool that has exactly the wanted template and can be
// claimed. It returns nil when there is none. From VersionDrainedMembers on a member whose Nomad
// client is being drained is none: its job is being stopped, and so would the user's sandbox.
func claimable(m *meta, txn *memdb.Txn, spec *Spec, resolved *Template, skip func(id string) bool) *Sandbox {
	hash := ""
	for s := range withPrefix[Sandbox](txn, tableSandboxes, indexPool, prefixOf(spec.ID)) {
		if m.active(VersionDrainedMembers) && s.Status.Reason == ReasonClient {
			continue
		}
		if !s.ready() || keyTaken(txn, s.WarmKeyHash) || skip != nil && skip(s.ID) {
			continue
		}
		if hash == "" {
			hash = resolved.Hash()
		}
		if s.TemplateHash == hash {
			return s
		}
	}
	return nil
}

// claimed returns a member's row with a user as its owner. The new generation makes it STARTING
// until the leader has bound the key. The running job does not have the key, so it is no version to
// revert to.
func (t *transaction) claimed(member *Sandbox, user string) *Sandbox {
	s := member.withDesired(DesiredRunning, t.now)
	s.DesiredIndex = t.desiredIndex()
	s.UserID, s.CreatedAt, s.Claimed = user, t.now, true
	s.KeyRef, s.KeyHash = member.WarmKeyRef, member.WarmKeyHash
	s.WarmKeyRef, s.WarmKeyHash = SecretRef{}, ""
	s.Status.Since = t.now
	s.Status.Job.Registered = false
	return s
}

// PoolMembers lists the members of a spec's warm pool by id, outdated ones too. "" lists those of
// all specs. Members being deleted are left out.
func (v *View) PoolMembers(specID string) []*Sandbox {
	var prefix []byte
	if specID != "" {
		prefix = prefixOf(specID)
	}
	return collect(withPrefix[Sandbox](v.txn, tableSandboxes, indexPool, prefix))
}

// ClaimableMember finds the member of a spec's warm pool that a start by the user would claim: it
// is running, and its template is the one that the spec and the user's settings resolve to. specID
// "" is the default spec. skip, which may be nil, excludes members. nil when there is none.
func (v *View) ClaimableMember(specID, userID string, skip func(id string) bool) *Sandbox {
	spec := v.Spec(specID)
	if specID == "" {
		spec = firstWithPrefix[Spec](v.txn, tableSpecs, indexPosition, nil)
	}
	if spec == nil {
		return nil
	}
	resolved := spec.Template.resolve(v.Settings(userID))
	return claimable(&v.meta, v.txn, spec, &resolved, skip)
}
