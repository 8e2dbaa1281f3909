package fsm

// ConversationUpdateBody changes a conversation of Command.UserID (PATCH
// /api/v1/app-conversations/{id}; API.md, "Conversations: change"). The members named in Set take
// the values given here, and nil clears one; the others stay. An unknown conversation is
// CodeNotFound. It sets Result.Conversation.
type ConversationUpdateBody struct {
	ID string `json:"id"`
	// Automatic means that no user gives the title: it changes nothing if a user gave the present one.
	// It counts from VersionModels on.
	Automatic bool `json:"automatic,omitempty"`
	// Set names members by their JSON names.
	Set                []string      `json:"set"`
	Title              *string       `json:"title,omitempty"`
	Public             *bool         `json:"public,omitempty"`
	SelectedRepository *string       `json:"selected_repository,omitempty"`
	SelectedBranch     *string       `json:"selected_branch,omitempty"`
	GitProvider        *ProviderType `json:"git_provider,omitempty"`
}

// CommandType implements Body.
func (*ConversationUpdateBody) CommandType() CommandType { return ConversationUpdate }

// check implements Body.
func (b *ConversationUpdateBody) check(r *rules) {
	r.lookedUp("conversation id", b.ID)
	r.check(len(b.Set) <= 5, "set names a member twice")
	for _, name := range b.Set {
		r.check(b.change(&Conversation{}, name), "a conversation's %q can't be changed", clip(name))
	}
	if r.err == nil {
		c := Conversation{
			ID: "x", Title: b.Title, SelectedRepository: b.SelectedRepository, SelectedBranch: b.SelectedBranch,
			GitProvider: b.GitProvider,
		}
		c.check(r)
	}
}

// change sets one member of a conversation. It returns false for an unknown name.
func (b *ConversationUpdateBody) change(c *Conversation, name string) bool {
	switch name {
	case "title":
		c.Title = b.Title
	case "public":
		c.Public = b.Public
	case "selected_repository":
		c.SelectedRepository = b.SelectedRepository
	case "selected_branch":
		c.SelectedBranch = b.SelectedBranch
	case "git_provider":
		c.GitProvider = b.GitProvider
	default:
		return false
	}
	return true
}

func (t *transaction) applyConversationUpdate(b *ConversationUpdateBody) (Result, *Error) {
	old := first[Conversation](t.txn, tableConversations, indexID, keyOf(t.cmd.UserID, b.ID))
	if old == nil {
		return Result{}, errConversationNotFound()
	}
	automatic := b.Automatic && t.meta.active(VersionModels)
	if automatic && !old.AutoTitle {
		return Result{Conversation: old}, nil
	}
	c := *old
	git := false
	for _, name := range b.Set {
		b.change(&c, name)
		git = git || name != "title" && name != "public"
		c.AutoTitle = c.AutoTitle && (name != "title" || automatic)
	}
	if git && c.SelectedRepository == nil && (c.SelectedBranch != nil || c.GitProvider != nil) {
		return Result{}, Errorf(CodeInvalid, "a branch and a git provider need a repository")
	}
	if err := t.mayGrow(c.UserID, growthOf(&t.meta, old, &c)); err != nil {
		return Result{}, err
	}
	c.UpdatedAt = t.now
	put(t, tableConversations, old, &c)
	return Result{Conversation: &c}, nil
}

// ConversationDeleteBody removes a conversation of Command.UserID, its sub-conversations, and the
// finished start tasks of all of them. Unfinished starts of sub-conversations end in ERROR. With
// DeleteSandbox their sandboxes are deleted too, except those that a conversation or an unfinished
// start task still needs. An unknown conversation is CodeNotFound. It sets Result.Conversation, and
// Result.Sandbox when it deletes the sandbox of the conversation itself.
//
// Below protocol version 3 starts of sub-conversations continue, their sandboxes and those of
// sub-conversations stay, and a start that only names a sandbox does not need it.
type ConversationDeleteBody struct {
	ID            string `json:"id"`
	DeleteSandbox bool   `json:"delete_sandbox,omitempty"`
	// Owner, in an operator's command, is the user whose conversation it is; "" is Command.UserID.
	Owner string `json:"owner,omitempty"`
}

// CommandType implements Body.
func (*ConversationDeleteBody) CommandType() CommandType { return ConversationDelete }

// check implements Body.
func (b *ConversationDeleteBody) check(r *rules) {
	r.lookedUp("conversation id", b.ID)
	if r.access {
		r.lookedUp("owner", b.Owner)
	}
}

func (t *transaction) applyConversationDelete(b *ConversationDeleteBody) (Result, *Error) {
	user := t.cmd.UserID
	if b.Owner != "" && t.meta.active(VersionAccess) {
		if err := t.operators(); err != nil {
			return Result{}, err
		}
		user = b.Owner
	}
	c := first[Conversation](t.txn, tableConversations, indexID, keyOf(user, b.ID))
	if c == nil {
		return Result{}, errConversationNotFound()
	}
	// A child can have children, and colliding ids may form a cycle: a conversation that is removed is
	// not found again.
	todo, sandboxes, gone := []*Conversation{c}, []string{c.SandboxID}, map[string]bool{}
	for len(todo) > 0 {
		next := todo[0]
		todo = todo[1:]
		if first[Conversation](t.txn, tableConversations, indexID, keyOf(user, next.ID)) == nil {
			continue
		}
		t.dropConversation(next)
		gone[next.ID] = true
		sandboxes = append(sandboxes, next.SandboxID)
		todo = append(todo,
			collect(withPrefix[Conversation](t.txn, tableConversations, indexParent, prefixOf(user, next.ID)))...)
	}
	if t.meta.active(VersionHistory) {
		sandboxes = append(sandboxes, t.endChildStarts(user, gone)...)
	} else {
		sandboxes = sandboxes[:1]
	}
	result := Result{Conversation: c}
	if !b.DeleteSandbox {
		return result, nil
	}
	for _, id := range sandboxes {
		s, err := t.ownSandbox(user, id)
		if err != nil || t.needed(s) {
			continue
		}
		if s = t.desire(s, DesiredDeleted, ""); id == c.SandboxID {
			result.Sandbox = s
		}
	}
	return result, nil
}

// endChildStarts ends the unfinished starts whose parent is gone. It returns the sandboxes that
// were created for them, without those that a start names.
func (t *transaction) endChildStarts(user string, gone map[string]bool) (sandboxes []string) {
	for _, task := range collect(withPrefix[StartTask](t.txn, tableStartTasks, indexOpen, nil)) {
		parent := task.Request.ParentConversationID
		if task.UserID != user || parent == nil || !gone[*parent] {
			continue
		}
		if valueOr(task.Request.SandboxID, "") == "" && task.SandboxID != "" {
			sandboxes = append(sandboxes, task.SandboxID)
		}
		t.endTask(task, StartTaskError, "The parent conversation was deleted.")
	}
	return sandboxes
}

// dropConversation removes one conversation and its finished start tasks.
func (t *transaction) dropConversation(c *Conversation) {
	drop(t, tableConversations, c)
	t.dropEvents(c)
	for _, task := range collect(withPrefix[StartTask](t.txn, tableStartTasks, indexConversation,
		prefixOf(c.UserID, c.ID))) {
		if task.Done() {
			drop(t, tableStartTasks, task)
			t.store.usageOf(task.UserID).doneTasks--
		}
	}
}

// needed reports whether a conversation or an unfinished start task uses the sandbox, or such a
// task is going to.
func (t *transaction) needed(s *Sandbox) bool {
	if firstWithPrefix[Conversation](t.txn, tableConversations, indexSandbox, prefixOf(s.ID)) != nil {
		return true
	}
	return t.starting(s)
}

// starting reports whether an unfinished start task uses the sandbox or is going to.
func (t *transaction) starting(s *Sandbox) bool {
	for task := range withPrefix[StartTask](t.txn, tableStartTasks, indexOpen, nil) {
		named := task.SandboxID == "" && task.UserID == s.UserID && t.meta.active(VersionHistory) &&
			valueOr(task.Request.SandboxID, "") == s.ID
		if task.SandboxID == s.ID || named {
			return true
		}
	}
	return false
}

// errConversationNotFound is the error for an unknown conversation
// (API.md, "Conversations: delete").
func errConversationNotFound() *Error { return Errorf(CodeNotFound, "Conversation not found") }
