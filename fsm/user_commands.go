package fsm

// UserConfigureBody sets a user's own policy and limits, both as a whole; nil
// takes them away. An operator's command. A user in whose name no key was ever
// issued is CodeNotFound. The answer is Result.User.
type UserConfigureBody struct {
	UserID string  `json:"user_id"`
	Policy *Policy `json:"policy,omitempty"`
	Limits *Limits `json:"limits,omitempty"`
}

// CommandType implements Body.
func (*UserConfigureBody) CommandType() CommandType { return UserConfigure }

// Validate implements Body.
func (b *UserConfigureBody) Validate() error {
	var r rules
	r.lookedUp("user_id", b.UserID)
	of := "user " + clip(b.UserID)
	if b.Policy != nil {
		r.policy(of, *b.Policy)
	}
	if b.Limits != nil {
		r.limits(of, *b.Limits)
	}
	return r.result()
}

func (t *transaction) applyUserConfigure(b *UserConfigureBody) (Result, *Error) {
	old := first[User](t.txn, tableUsers, indexID, []byte(b.UserID))
	if old == nil {
		return Result{}, Errorf(CodeNotFound, "User not found")
	}
	u := *old
	u.Policy, u.Limits = b.Policy, b.Limits
	put(t, tableUsers, old, &u)
	t.changed = true // deadlines move
	return Result{User: &u}, nil
}
