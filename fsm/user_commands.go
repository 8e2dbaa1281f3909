package fsm

// UserConfigureBody sets a user's own policy and limits, each as a whole; nil removes them. An
// operator proposes it. A user without any key ever issued is CodeNotFound. It sets Result.User.
type UserConfigureBody struct {
	UserID string  `json:"user_id"`
	Policy *Policy `json:"policy,omitempty"`
	Limits *Limits `json:"limits,omitempty"`
}

// CommandType implements Body.
func (*UserConfigureBody) CommandType() CommandType { return UserConfigure }

// check implements Body.
func (b *UserConfigureBody) check(r *rules) {
	r.lookedUp("user_id", b.UserID)
	of := "user " + clip(b.UserID)
	if b.Policy != nil {
		r.policy(of, *b.Policy)
	}
	if b.Limits != nil {
		r.limits(of, *b.Limits)
	}
}

func (t *transaction) applyUserConfigure(b *UserConfigureBody) (Result, *Error) {
	old := first[User](t.txn, tableUsers, indexID, []byte(b.UserID))
	if old == nil {
		return Result{}, Errorf(CodeNotFound, "User not found")
	}
	u := *old
	u.Policy, u.Limits = b.Policy, b.Limits
	if u.Limits != nil {
		u.Limits = new(u.Limits.keptAt(&t.meta))
	}
	put(t, tableUsers, old, &u)
	t.changed().Policies = true
	return Result{User: &u}, nil
}

// UserDisableBody locks a user out: no key of the user or of the user's sandboxes is valid, and
// every command for the user is refused. Open start tasks fail, running sandboxes are paused, and
// nothing is deleted. An operator proposes it. An unknown user is CodeNotFound, the proposer's own
// user CodeConflict. It sets Result.User.
type UserDisableBody struct {
	UserID string `json:"user_id"`
}

// CommandType implements Body.
func (*UserDisableBody) CommandType() CommandType { return UserDisable }

// check implements Body.
func (b *UserDisableBody) check(r *rules) { r.lookedUp("user_id", b.UserID) }

func (t *transaction) applyUserDisable(b *UserDisableBody) (Result, *Error) {
	old := first[User](t.txn, tableUsers, indexID, []byte(b.UserID))
	switch {
	case old == nil:
		return Result{}, Errorf(CodeNotFound, "User not found")
	case b.UserID == t.cmd.UserID:
		return Result{}, Errorf(CodeConflict, "an operator can't disable the user of the key that is used: "+
			"use another operator's key")
	}
	u := *old
	if u.DisabledAt == nil {
		now := t.now
		u.DisabledAt = &now
		put(t, tableUsers, old, &u)
		t.changed()
		t.keys = t.index // proxies close the user's streams
	}
	t.endSessions(b.UserID, 0)
	t.stopAll(b.UserID)
	return Result{User: &u}, nil
}

// stopAll fails a user's open start tasks and pauses the user's running sandboxes.
func (t *transaction) stopAll(user string) {
	for _, task := range collect(withPrefix[StartTask](t.txn, tableStartTasks, indexOpen, nil)) {
		if task.UserID == user {
			t.endTask(task, StartTaskError, "the user is disabled")
		}
	}
	for _, s := range collect(withPrefix[Sandbox](t.txn, tableSandboxes, indexRunning, prefixOf(user))) {
		t.desire(s, DesiredPaused, PausedByDisabled)
	}
}

// UserEnableBody ends what user.disable began. Sandboxes stay paused until they are resumed. An
// unknown user is CodeNotFound. A user who is not disabled stays as it is. It sets Result.User.
type UserEnableBody struct {
	UserID string `json:"user_id"`
}

// CommandType implements Body.
func (*UserEnableBody) CommandType() CommandType { return UserEnable }

// check implements Body.
func (b *UserEnableBody) check(r *rules) { r.lookedUp("user_id", b.UserID) }

func (t *transaction) applyUserEnable(b *UserEnableBody) (Result, *Error) {
	old := first[User](t.txn, tableUsers, indexID, []byte(b.UserID))
	switch {
	case old == nil:
		return Result{}, Errorf(CodeNotFound, "User not found")
	case old.DisabledAt == nil:
		return Result{User: old}, nil
	}
	u := *old
	u.DisabledAt = nil
	put(t, tableUsers, old, &u)
	return Result{User: &u}, nil
}
