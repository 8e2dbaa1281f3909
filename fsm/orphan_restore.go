package fsm

// OrphanRestoreBody makes a sandbox of an OrphanLost, for its owner: the leader fills a new workspace
// from the volume and starts it. The orphan stays on record, unchanged, until it is deleted. An operator
// proposes it. The template is the former sandbox's if that exists, else its spec's, else the default
// spec's. An unknown orphan is CodeNotFound, one that is being removed or restored CodeConflict, and the
// owner's limits are those of any start. It sets Result.Sandbox.
type OrphanRestoreBody struct {
	Volume string `json:"volume"`
	// ID, KeyRef and KeyHash are the new sandbox's, as in SandboxCreateBody.
	ID      string    `json:"id"`
	KeyRef  SecretRef `json:"key_ref"`
	KeyHash string    `json:"key_hash"`
}

// CommandType implements Body.
func (*OrphanRestoreBody) CommandType() CommandType { return OrphanRestore }

// check implements Body.
func (b *OrphanRestoreBody) check(r *rules) {
	r.knownOrphan(OrphanLost, b.Volume)
	r.sandboxID("sandbox id", b.ID)
	r.check(!b.KeyRef.IsZero(), "key_ref is missing")
	r.ref("key_ref", b.KeyRef)
	r.hash("key_hash", b.KeyHash)
}

func (t *transaction) applyOrphanRestore(b *OrphanRestoreBody) (Result, *Error) {
	o, s, err := t.restored(b.Volume)
	if err != nil {
		return Result{}, err
	}
	if err := t.mayName(b.ID); err != nil {
		return Result{}, err
	}
	if keyTaken(t.txn, b.KeyHash) {
		return Result{}, Errorf(CodeConflict, "the sandbox's key is taken: draw another")
	}
	s.ID, s.KeyRef, s.KeyHash = b.ID, b.KeyRef, b.KeyHash
	s.Birth, s.DesiredIndex = t.birth(), t.desiredIndex()
	s.Moves, s.Move = 1, &Move{Attempt: 1, From: o.Client, At: t.now, Orphan: o.Volume}
	if err := t.start(nil, s, nil); err != nil {
		return Result{}, err
	}
	return Result{Sandbox: s}, nil
}

// restored returns an OrphanLost and the sandbox that would be made of it, without an id and a key.
func (t *transaction) restored(volume string) (*Orphan, *Sandbox, *Error) {
	o := t.view().Orphan(OrphanLost, volume)
	switch {
	case o == nil:
		return nil, nil, Errorf(CodeNotFound, "there is no orphaned volume %s of a lost client", clip(volume))
	case !t.now.Before(o.RetainedUntil(LostRetention)):
		return nil, nil, Errorf(CodeConflict, "the volume %s is being removed", volume)
	}
	if id := t.view().restoring(volume); id != "" {
		return nil, nil, Errorf(CodeConflict, "the sandbox %s is already being restored from it", id)
	}
	s := &Sandbox{
		UserID: o.Owner, CreatedAt: t.now, Desired: DesiredRunning, Generation: 1, DesiredAt: t.now,
		Status: SandboxStatus{State: SandboxStarting, Since: t.now},
	}
	if former := t.view().SandboxAny(o.Sandbox); former != nil && former.UserID == o.Owner {
		s.SpecID, s.Template = former.SpecID, former.Template
		return o, s, nil
	}
	spec := first[Spec](t.txn, tableSpecs, indexID, []byte(o.SpecID))
	if spec == nil {
		var err *Error
		if spec, err = t.specOrDefault(""); err != nil {
			return nil, nil, err
		}
	}
	s.SpecID, s.Template = spec.ID, spec.Template.resolve(t.settingsOf(o.Owner))
	return o, s, nil
}

// restoring returns the sandbox that is being restored from a volume, "" for none.
func (v *View) restoring(volume string) string {
	for s := range v.AllSandboxes() {
		if s.restoredFrom() == volume && s.Desired != DesiredDeleted {
			return s.ID
		}
	}
	return ""
}

// Restoring reports whether a sandbox is being restored from a volume.
func (v *View) Restoring(volume string) bool { return v.restoring(volume) != "" }

func (s *Sandbox) restoredFrom() string {
	if s.Move == nil {
		return ""
	}
	return s.Move.Orphan
}
