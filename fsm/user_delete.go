package fsm

// UserDeleteBody removes a user with everything that is the user's: API keys, settings, providers,
// profiles, secrets, conversations, start tasks, answers about repositories and sessions at once,
// sandboxes as sandbox.delete does, with their workspaces. What lost clients still have of them, and
// the workspaces of sandboxes that a policy deleted, are removed as soon as the limits of removals
// allow.
// What an Idempotency-Key was answered is forgotten, below VersionRoom within ClientResultTTL. An
// operator proposes it. An unknown user is CodeNotFound, the proposer's own user CodeConflict. It
// sets Result.User.
type UserDeleteBody struct {
	UserID string `json:"user_id"`
}

// CommandType implements Body.
func (*UserDeleteBody) CommandType() CommandType { return UserDelete }

// check implements Body.
func (b *UserDeleteBody) check(r *rules) { r.lookedUp("user_id", b.UserID) }

func (t *transaction) applyUserDelete(b *UserDeleteBody) (Result, *Error) {
	old := first[User](t.txn, tableUsers, indexID, []byte(b.UserID))
	switch {
	case old == nil:
		return Result{}, Errorf(CodeNotFound, "User not found")
	case b.UserID == t.cmd.UserID:
		return Result{}, Errorf(CodeConflict, "an operator can't delete the user of the key that is used: "+
			"use another operator's key")
	}
	user, mine := b.UserID, prefixOf(b.UserID)
	for _, s := range collect(withPrefix[Sandbox](t.txn, tableSandboxes, indexCreated, mine)) {
		t.desire(s, DesiredDeleted, "")
	}
	for _, task := range collect(withPrefix[StartTask](t.txn, tableStartTasks, indexCreated, mine)) {
		if task.Done() {
			t.store.usageOf(user).doneTasks--
		}
		drop(t, tableStartTasks, task)
	}
	for _, c := range collect(withPrefix[Conversation](t.txn, tableConversations, indexID, mine)) {
		drop(t, tableConversations, c)
		t.dropEvents(c)
	}
	dropAll[Provider](t, tableProviders, indexID, mine)
	dropAll[Profile](t, tableProfiles, indexID, mine)
	dropAll[CustomSecret](t, tableCustomSecrets, indexID, mine)
	dropAll[Setup](t, tableSetups, indexID, mine)
	dropAll[recentStart](t, tableRecentStarts, indexID, mine)
	dropAll[APIKey](t, tableAPIKeys, indexUser, mine)
	t.endSessions(user, 0)
	if settings := first[Settings](t.txn, tableSettings, indexID, []byte(user)); settings != nil {
		drop(t, tableSettings, settings)
		t.settings[user] = nil
	}
	if t.meta.active(VersionRoom) {
		t.forgetUser(user)
		t.purgeOrphans(user)
		t.keepNoWorkspaces(user)
		dropAll[replacedSecret](t, tableReplaced, indexID, mine)
	}
	drop(t, tableUsers, old)
	t.changed()
	t.keys = t.index
	return Result{User: old}, nil
}

// keepNoWorkspaces lets the policies' deletions that are under way take a user's workspaces, too.
func (t *transaction) keepNoWorkspaces(user string) {
	for _, old := range collect(t.view().AllSandboxes()) {
		if old.UserID == user && old.KeepWorkspace {
			s := *old
			s.KeepWorkspace = false
			put(t, tableSandboxes, old, &s)
		}
	}
}

// dropAll drops the rows whose key in an index has a prefix.
func dropAll[T any](t *transaction, table, index string, prefix []byte) {
	for _, row := range collect(withPrefix[T](t.txn, table, index, prefix)) {
		drop(t, table, row)
	}
}

// SecretsOf returns the references of a user's settings, providers, profiles, custom secrets and start tasks,
// and of the key of the user's events.
func (v *View) SecretsOf(userID string) []SecretRef {
	var refs []SecretRef
	add := func(row referrer) {
		for _, r := range row.secretRefs() {
			if !r.IsZero() {
				refs = append(refs, r)
			}
		}
	}
	if s := v.Settings(userID); s != nil {
		add(s)
	}
	for _, p := range v.Providers(userID) {
		add(p)
	}
	for _, kind := range []ProfileKind{ProfileLLM, ProfileAgent} {
		for _, p := range v.Profiles(userID, kind) {
			add(p)
		}
	}
	for _, c := range v.CustomSecrets(userID) {
		add(c)
	}
	for _, task := range v.startTasks(userID) {
		add(task)
	}
	if u := v.User(userID); u != nil {
		add(u)
	}
	return refs
}
