package fsm

// SandboxAcceptWorkspaceBody accepts the workspace of a sandbox that is in ERROR because of it. The
// next resume then writes the marker instead of checking it. The owner can accept a workspace whose
// marker is missing or damaged. An operator can do so for any sandbox, and also when the marker is
// another sandbox's. A sandbox that is not in ERROR for its workspace is CodeConflict.
type SandboxAcceptWorkspaceBody struct {
	ID string `json:"id"`
	// Operator: Command.UserID is an operator and need not be the owner.
	Operator bool `json:"operator,omitempty"`
}

// CommandType implements Body.
func (*SandboxAcceptWorkspaceBody) CommandType() CommandType { return SandboxAcceptWorkspace }

// check implements Body.
func (b *SandboxAcceptWorkspaceBody) check(r *rules) {
	r.lookedUp("sandbox id", b.ID)
}

func (t *transaction) applySandboxAcceptWorkspace(b *SandboxAcceptWorkspaceBody) (Result, *Error) {
	old := first[Sandbox](t.txn, tableSandboxes, indexID, []byte(b.ID))
	if old == nil || old.Desired == DesiredDeleted || old.UserID != t.cmd.UserID && !b.Operator {
		return Result{}, Errorf(CodeNotFound, "Not Found")
	}
	if old.State() != SandboxError || old.Status.Reason != ReasonWorkspace {
		return Result{}, Errorf(CodeConflict,
			"the workspace of the sandbox %s is not in question: only one that is in ERROR for its workspace can be accepted",
			old.ID)
	}
	if old.Acceptance > old.Status.Acceptance && (old.AcceptForeign || !b.Operator) {
		return Result{Sandbox: old}, nil
	}
	s := *old
	s.Acceptance, s.AcceptForeign = old.Status.Acceptance+1, b.Operator
	put(t, tableSandboxes, old, &s)
	return Result{Sandbox: &s}, nil
}

// Accepted reports whether the workspace was accepted and no leader has written the marker since.
// foreign reports whether this covers another sandbox's marker too.
func (s *Sandbox) Accepted() (accepted, foreign bool) {
	accepted = s.Acceptance > s.Status.Acceptance
	return accepted, accepted && s.AcceptForeign
}
