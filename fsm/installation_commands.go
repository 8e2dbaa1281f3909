package fsm

// InstallationConfigureBody replaces the installation's configuration. The first leader proposes
// its own configuration; later ones come from an operator. Lowering a limit stops nothing that
// runs.
type InstallationConfigureBody struct {
	Installation Installation `json:"installation"`
}

// CommandType implements Body.
func (*InstallationConfigureBody) CommandType() CommandType { return InstallationConfigure }

// check implements Body.
func (b *InstallationConfigureBody) check(r *rules) {
	r.policy("the installation", b.Installation.Policy)
	r.limits("the installation's users", b.Installation.PerUser)
	r.limits("the installation", b.Installation.Overall)
	switch b.Installation.OnLimit {
	case "", OnLimitRefuse, OnLimitPauseOldest:
	default:
		r.check(false, "unknown on_limit %q: use %q or %q", clip(string(b.Installation.OnLimit)), OnLimitRefuse, OnLimitPauseOldest)
	}
}

func (t *transaction) applyInstallationConfigure(b *InstallationConfigureBody) (Result, *Error) {
	if !t.meta.Configured || t.meta.Installation != b.Installation {
		t.meta.Configured, t.meta.Installation = true, b.Installation
		t.changed = true // deadlines move
	}
	return Result{}, nil
}
