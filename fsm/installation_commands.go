package fsm

// InstallationConfigureBody replaces the installation's configuration, for an operator or with that
// of a leader's file. Lowering a limit stops nothing that runs.
type InstallationConfigureBody struct {
	Installation Installation `json:"installation"`
	// Seed marks the file of a leader: it sets only what was never set. Below VersionConfig the leader
	// proposes it only where nothing was.
	Seed bool `json:"seed,omitempty"`
	// CheckIndex, if not nil, must be View.ConfigIndex; else the command is CodeConflict. It needs
	// VersionConfig.
	CheckIndex *uint64 `json:"check_index,omitempty"`
}

// CommandType implements Body.
func (*InstallationConfigureBody) CommandType() CommandType { return InstallationConfigure }

// check implements Body.
func (b *InstallationConfigureBody) check(r *rules) {
	r.policy("the installation", b.Installation.Policy)
	r.limits("the installation's users", b.Installation.PerUser)
	r.limits("the installation", b.Installation.Overall)
	r.check(b.Installation.Overall.EventBytes == 0, "the installation: event_bytes is a limit of users")
	r.shared(b.Installation)
	switch b.Installation.OnLimit {
	case "", OnLimitRefuse, OnLimitPauseOldest:
	default:
		r.check(false, "unknown on_limit %q: use %q or %q", clip(string(b.Installation.OnLimit)), OnLimitRefuse,
			OnLimitPauseOldest)
	}
}

func (t *transaction) applyInstallationConfigure(b *InstallationConfigureBody) (Result, *Error) {
	in := b.Installation.plain()
	in.PerUser, in.Overall = in.PerUser.keptAt(&t.meta), in.Overall.keptAt(&t.meta)
	if !t.meta.active(VersionModels) {
		in.LLM = LLM{}
	}
	if !t.meta.active(VersionServers) {
		in.LLM.Servers, in.LLM.Profiles = nil, nil
	}
	if !t.meta.active(VersionConfig) { // likewise
		in.Git, in.CORS = Git{}, CORS{}
		if !t.meta.Configured || !t.meta.Installation.Equal(in) {
			t.meta.Configured, t.meta.Installation = true, in
			t.changed().Policies = true
		}
		return Result{}, nil
	}
	is := t.meta.ConfigIndex
	switch {
	case b.Seed && is > 0:
		return Result{}, nil
	case b.Seed && t.meta.configured(): // policies and limits are older than the rest
		git, cors, llm := in.Git, in.CORS, in.LLM
		in = t.meta.Installation
		in.Git, in.CORS, in.LLM = git, cors, llm
	case b.CheckIndex != nil && *b.CheckIndex != is:
		return Result{}, Errorf(CodeConflict,
			"the configuration's index is %d, not %d: somebody has changed it; read it again", is, *b.CheckIndex)
	}
	if is == 0 || !t.meta.Installation.Equal(in) {
		t.meta.Configured, t.meta.Installation, t.meta.ConfigIndex = true, in, t.index
		t.changed().Policies = true
	}
	return Result{}, nil
}
