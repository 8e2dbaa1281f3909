package fsm

// InstallationConfigureBody replaces the installation's configuration. The first
// leader proposes its own; later ones are an operator's. What runs over a
// lowered limit goes on.
type InstallationConfigureBody struct {
	Installation Installation `json:"installation"`
}

// CommandType implements Body.
func (*InstallationConfigureBody) CommandType() CommandType { return InstallationConfigure }

// Validate implements Body.
func (b *InstallationConfigureBody) Validate() error {
	var r rules
	r.policy("the installation", b.Installation.Policy)
	r.limits("the installation's users", b.Installation.PerUser)
	r.limits("the installation", b.Installation.Overall)
	switch b.Installation.OnLimit {
	case "", OnLimitRefuse, OnLimitPauseOldest:
	default:
		r.check(false, "unknown on_limit %q: use %q or %q", clip(string(b.Installation.OnLimit)), OnLimitRefuse, OnLimitPauseOldest)
	}
	return r.result()
}

func (t *transaction) applyInstallationConfigure(b *InstallationConfigureBody) (Result, *Error) {
	t.meta.Configured = true
	if t.meta.Installation != b.Installation {
		t.meta.Installation = b.Installation
		t.changed = true // deadlines move
	}
	return Result{}, nil
}
