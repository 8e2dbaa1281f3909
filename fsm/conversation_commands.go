package fsm

// ConversationUpdateBody changes a conversation of Command.UserID (PATCH
// /api/v1/app-conversations/{id}, api-contract.md B.2): the members named in
// Set take the values here, nil clearing them; the others stay. Unknown is
// CodeNotFound. The answer is Result.Conversation.
type ConversationUpdateBody struct {
	ID string `json:"id"`
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

// Validate implements Body.
func (b *ConversationUpdateBody) Validate() error {
	var r rules
	r.lookedUp("conversation id", b.ID)
	r.check(len(b.Set) <= 5, "set names a member twice")
	for _, name := range b.Set {
		r.check(b.change(&Conversation{}, name), "a conversation's %q can't be changed", clip(name))
	}
	if r.err == nil {
		c := Conversation{
			ID: "x", Title: b.Title, SelectedRepository: b.SelectedRepository, SelectedBranch: b.SelectedBranch, GitProvider: b.GitProvider,
		}
		c.check(&r)
	}
	return r.result()
}

// change sets one member of a conversation; false when there is none of that
// name.
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
	c := *old
	git := false
	for _, name := range b.Set {
		b.change(&c, name)
		git = git || name != "title" && name != "public"
	}
	if git && c.SelectedRepository == nil && (c.SelectedBranch != nil || c.GitProvider != nil) {
		return Result{}, Errorf(CodeInvalid, "a branch and a git provider need a repository")
	}
	c.UpdatedAt = t.now
	put(t, tableConversations, old, &c)
	return Result{Conversation: &c}, nil
}

// ConversationDeleteBody removes a conversation of Command.UserID with its
// sub-conversations and the ended start tasks of all of them; unfinished starts of
// sub-conversations end in ERROR. With DeleteSandbox their sandboxes go too, each
// unless a conversation or an unfinished start task still needs it. Unknown is
// CodeNotFound. The answer is Result.Conversation, and Result.Sandbox when that of
// the conversation itself is being deleted now.
//
// Below protocol version 3 starts of sub-conversations go on, their sandboxes and
// those of sub-conversations stay, and a start that only names a sandbox does not
// need it.
type ConversationDeleteBody struct {
	ID            string `json:"id"`
	DeleteSandbox bool   `json:"delete_sandbox,omitempty"`
}

// CommandType implements Body.
func (*ConversationDeleteBody) CommandType() CommandType { return ConversationDelete }

// Validate implements Body.
func (b *ConversationDeleteBody) Validate() error {
	var r rules
	r.lookedUp("conversation id", b.ID)
	return r.result()
}

func (t *transaction) applyConversationDelete(b *ConversationDeleteBody) (Result, *Error) {
	user := t.cmd.UserID
	c := first[Conversation](t.txn, tableConversations, indexID, keyOf(user, b.ID))
	if c == nil {
		return Result{}, errConversationNotFound()
	}
	// A child can have children, and a clash of ids may have closed a circle:
	// what is dropped is not found again.
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
		todo = append(todo, collect(withPrefix[Conversation](t.txn, tableConversations, indexParent, prefixOf(user, next.ID)))...)
	}
	if t.knowsChildren() {
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

// knowsChildren reports whether the cluster is at the protocol version from which
// a conversation's children and their starts never outlive it.
func (t *transaction) knowsChildren() bool { return t.meta.ProtocolVersion >= historyVersion }

// endChildStarts ends the unfinished starts whose parent is gone, and gives the
// sandboxes that were made for them. A sandbox that a start names was not.
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

// dropConversation removes one conversation and its ended start tasks.
func (t *transaction) dropConversation(c *Conversation) {
	drop(t, tableConversations, c)
	for _, task := range collect(withPrefix[StartTask](t.txn, tableStartTasks, indexConversation, prefixOf(c.UserID, c.ID))) {
		if task.Done() {
			drop(t, tableStartTasks, task)
			t.store.usageOf(task.UserID).doneTasks--
		}
	}
}

// needed reports whether a conversation or an unfinished start task has the
// sandbox, or such a task is going to.
func (t *transaction) needed(s *Sandbox) bool {
	if firstWithPrefix[Conversation](t.txn, tableConversations, indexSandbox, prefixOf(s.ID)) != nil {
		return true
	}
	for task := range withPrefix[StartTask](t.txn, tableStartTasks, indexOpen, nil) {
		named := task.SandboxID == "" && task.UserID == s.UserID && t.knowsChildren() && valueOr(task.Request.SandboxID, "") == s.ID
		if task.SandboxID == s.ID || named {
			return true
		}
	}
	return false
}

// errConversationNotFound is the answer for an unknown conversation
// (api-contract.md B.2).
func errConversationNotFound() *Error { return Errorf(CodeNotFound, "Conversation not found") }
