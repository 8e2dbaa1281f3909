package fsm

// SandboxRotateKeyBody replaces the sandbox's own key. The old one is valid nowhere from then on,
// and neither is what is derived from it: cookies, passes, codes and shares. A sandbox that should
// run is stopped and started with the new key; any other has it from its next start on. A key that
// is taken is CodeConflict: the proposer draws another. It sets Result.Sandbox.
type SandboxRotateKeyBody struct {
	ID string `json:"id"`
	// KeyRef is a new version of the sandbox's entry (SandboxKeyPath). The entry's other members are
	// those of the version before.
	KeyRef  SecretRef `json:"key_ref"`
	KeyHash string    `json:"key_hash"`
	// Operator: the command is an operator's, for any user's sandbox.
	Operator bool `json:"operator,omitempty"`
}

// CommandType implements Body.
func (*SandboxRotateKeyBody) CommandType() CommandType { return SandboxRotateKey }

// check implements Body.
func (b *SandboxRotateKeyBody) check(r *rules) {
	r.lookedUp("sandbox id", b.ID)
	r.check(!b.KeyRef.IsZero(), "key_ref is missing")
	r.ref("key_ref", b.KeyRef)
	r.hash("key_hash", b.KeyHash)
}

func (t *transaction) applySandboxRotateKey(b *SandboxRotateKeyBody) (Result, *Error) {
	old, err := t.meantSandbox(b.ID, b.Operator)
	if err != nil {
		return Result{}, err
	}
	if keyTaken(t.txn, b.KeyHash) {
		return Result{}, Errorf(CodeConflict, "the sandbox's key is taken: draw another")
	}
	s := *old
	if s.FormerKeyRef.IsZero() && s.Status.State == SandboxRunning {
		s.FormerKeyRef = s.KeyRef
	}
	s.KeyRef, s.KeyHash = b.KeyRef, b.KeyHash
	s.Rotations++
	s.Generation++
	if s.DesiredIndex = t.desiredIndex(); s.Desired == DesiredRunning {
		s.DesiredAt = t.now
	}
	// The versions of the job that ran have the old key.
	s.Status.Job.Registered = false
	s.Shares, s.Redeemed = nil, nil
	put(t, tableSandboxes, old, &s)
	t.changed()
	t.keys = t.index // proxies close the streams of the old key
	return Result{Sandbox: &s}, nil
}

// AgentKey names the key that the sandbox's agent server accepts: while another one replaces it, the former.
func (s *Sandbox) AgentKey() SecretRef {
	if !s.FormerKeyRef.IsZero() {
		return s.FormerKeyRef
	}
	return s.KeyRef
}
