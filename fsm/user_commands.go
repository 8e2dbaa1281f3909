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
	if u.Limits != nil && !t.meta.active(VersionAccess) { // older nodes do not keep it
		l := *u.Limits
		l.StateBytes = 0
		u.Limits = &l
	}
	put(t, tableUsers, old, &u)
	t.changed = true // deadlines move
	return Result{User: &u}, nil
}
