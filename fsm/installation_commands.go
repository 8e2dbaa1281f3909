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
	in := b.Installation
	if !t.meta.active(VersionAccess) { // older nodes do not keep it
		in.PerUser.StateBytes, in.Overall.StateBytes = 0, 0
	}
	if !t.meta.Configured || t.meta.Installation != in {
		t.meta.Configured, t.meta.Installation = true, in
		t.changed = true // deadlines move
	}
	return Result{}, nil
}
