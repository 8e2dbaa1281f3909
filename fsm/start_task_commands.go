package fsm

// MaxDoneTasks is how many finished start tasks of one user are kept, and from VersionAccess on not
// more than maxDoneBytes. Those that ended first are dropped first.
const MaxDoneTasks = 1000

// StartTaskCreateBody accepts a conversation start for Command.UserID. It sets Result.StartTask. If
// the user already has an unfinished task or a conversation with the same ConversationID and Join
// is set (V0), it creates nothing, and Result.StartTask is the existing task, or nil for an
// existing conversation. Without Join that is CodeConflict. A failed task does not prevent a new
// one.
//
// The sandbox's start counts from here on, so that an accepted start can be carried out. A task
// that names no sandbox gets a member of the default spec's warm pool at once, or a reservation
// (StartTask.Reservation). A paused sandbox that it names is resumed. One that runs counts as a start
// of the minute. An unknown one, or another user's, is CodeNotFound "Sandbox not found: <id>".
// Exceeding a limit is CodeLimit, and then nothing changes.
//
// A parent must be a conversation of the same user (CodeNotFound "Parent conversation not found:
// <id>"). The stored request inherits the parent's sandbox, repository, branch, provider and model
// where it names none.
type StartTaskCreateBody struct {
	ID             string       `json:"id"`
	ConversationID string       `json:"conversation_id"`
	V0ID           string       `json:"v0_id,omitempty"`
	Join           bool         `json:"join,omitempty"`
	Request        StartRequest `json:"request"`
	// LLMProfile is the id of the LLM profile that the conversation uses, "" for the settings
	// (VersionProfiles). An unknown one is CodeNotFound.
	LLMProfile string `json:"llm_profile,omitempty"`
	// AgentProfile is the agent profile that the request was filled in from, nil for none.
	AgentProfile *LaunchedProfile `json:"agent_profile,omitempty"`
	Secrets      SecretRef        `json:"secrets"`
}

// CommandType implements Body.
func (*StartTaskCreateBody) CommandType() CommandType { return StartTaskCreate }

// check implements Body.
func (b *StartTaskCreateBody) check(r *rules) {
	r.id("start task id", b.ID)
	r.id("conversation_id", b.ConversationID)
	if b.V0ID != "" {
		r.name("v0_id", b.V0ID, maxID)
	}
	b.Request.check(r)
	r.lookedUp("llm_profile", b.LLMProfile)
	if b.AgentProfile != nil {
		r.lookedUp("agent_profile", b.AgentProfile.ID)
	}
	r.ref("secrets", b.Secrets)
}

func (t *transaction) applyStartTaskCreate(b *StartTaskCreateBody) (Result, *Error) {
	user := t.cmd.UserID
	if err := b.Request.fits(t.meta.ProtocolVersion); err != nil {
		return Result{}, err
	}
	if task, exists := t.conversationTaken(user, b); exists {
		if b.Join {
			return Result{StartTask: task}, nil
		}
		return Result{}, Errorf(CodeConflict, "the conversation id %s is in use", b.ConversationID)
	}
	if first[StartTask](t.txn, tableStartTasks, indexID, []byte(b.ID)) != nil {
		return Result{}, Errorf(CodeConflict, "the start task id %s is taken", b.ID)
	}
	request := b.Request
	if !t.meta.active(VersionAgents) {
		request.ACPServer = nil
	}
	if !t.meta.active(VersionProfiles) {
		request.ACPModel = nil
	}
	var parent *Conversation // whose endpoint of models the start takes
	named := valueOr(request.LLMModel, "") != ""
	if id := request.ParentConversationID; id != nil {
		parent = first[Conversation](t.txn, tableConversations, indexID, keyOf(user, *id))
		if parent == nil {
			return Result{}, Errorf(CodeNotFound, "Parent conversation not found: %s", *id)
		}
		if t.meta.active(VersionHistory) {
			request.dropEmpty()
		}
		request.inherit(parent)
		if named {
			parent = nil
		}
	}
	task := &StartTask{
		ID: b.ID, UserID: user, Status: StartTaskWorking,
		ConversationID: b.ConversationID, V0ID: b.V0ID,
		Request: request, LLM: t.endpointForStart(user, request.LLMModel, parent),
		Secrets: b.Secrets, CreatedAt: t.now, UpdatedAt: t.now,
		CreatedIndex: t.desiredIndex(),
	}
	if t.meta.active(VersionProfiles) {
		task.AgentProfile = b.AgentProfile
	}
	if b.LLMProfile != "" && t.meta.active(VersionProfiles) {
		var err *Error
		if task.LLM, err = t.endpointOfProfile(user, b.LLMProfile, valueOr(b.Request.LLMModel, "")); err != nil {
			return Result{}, err
		}
	}
	s, err := t.sandboxOfStart(user, valueOr(request.SandboxID, ""))
	if err != nil {
		return Result{}, err
	}
	if err := t.agentOfStart(user, &request, s); err != nil {
		return Result{}, err
	}
	if err := t.mayGrow(user, growthOf(&t.meta, nil, task)); err != nil {
		return Result{}, err
	}
	if err := t.startFor(task); err != nil {
		return Result{}, err
	}
	put(t, tableStartTasks, nil, task)
	return Result{StartTask: task}, nil
}

// startFor counts the start of a new task: the sandbox that it joins by its user's grouping, a member
// of the default spec's warm pool, which the task gets at once, the sandbox that will be created for
// it, or a paused one that it names.
func (t *transaction) startFor(task *StartTask) *Error {
	if id := valueOr(task.Request.SandboxID, ""); id != "" {
		s, err := t.sandboxOfStart(task.UserID, id)
		switch {
		case err != nil:
			return err
		case s != nil && s.Desired == DesiredPaused:
			_, err = t.resume(s, nil)
			return err
		}
		return t.makeRoom(t.demandOfRunning(task.UserID))
	}
	task.Grouped = t.grouping(task.UserID) != GroupNone
	if s := t.grouped(task.UserID); s != nil {
		task.SandboxID = s.ID
		return t.makeRoom(t.demandOfRunning(task.UserID))
	}
	if member := t.memberFor(task.UserID, &task.Request); member != nil {
		s := t.claimed(member, task.UserID)
		if err := t.start(member, s, nil); err != nil {
			return err
		}
		task.SandboxID = s.ID
		return nil
	}
	reservation := t.reserve(task.UserID)
	if err := t.makeRoom(reservation.demand(task.UserID)); err != nil {
		return err
	}
	task.Reservation = reservation
	return nil
}

// sandboxOfStart finds the sandbox that a start names, nil for none. Below VersionAccess a missing
// one is nil too, and the task reports it.
func (t *transaction) sandboxOfStart(user, id string) (*Sandbox, *Error) {
	if id == "" {
		return nil, nil
	}
	s, err := t.ownSandbox(user, id)
	if err != nil && t.meta.active(VersionAccess) {
		return nil, Errorf(CodeNotFound, "Sandbox not found: %s", id)
	}
	return s, nil
}

// demandOfRunning is what a start in a sandbox that runs needs: a start of the minute. Below
// VersionAccess it needs nothing.
func (t *transaction) demandOfRunning(user string) demand {
	return demand{user: user, noted: !t.meta.active(VersionAccess)}
}

// memberFor finds the member of a warm pool that a start gets, nil when there is none. It is also
// nil for a start that chooses its conversation's id, because older programs gave its sandbox that
// id. The leader claims a member for such a start (StartTaskBind).
func (t *transaction) memberFor(user string, q *StartRequest) *Sandbox {
	spec, err := t.specOrDefault("")
	if err != nil || q.ConversationID != nil {
		return nil
	}
	template := spec.Template.resolve(t.settingsOf(user))
	return claimable(&t.meta, t.txn, spec, &template, nil)
}

// conversationTaken finds the conversation, or the unfinished task for it, that a creation would
// duplicate. The task is nil when it is a conversation.
func (t *transaction) conversationTaken(user string, b *StartTaskCreateBody) (*StartTask, bool) {
	if first[Conversation](t.txn, tableConversations, indexID, keyOf(user, b.ConversationID)) != nil ||
		conversationByV0ID(t.txn, user, b.V0ID) != nil {
		return nil, true
	}
	for task := range withPrefix[StartTask](t.txn, tableStartTasks, indexConversation, prefixOf(user, b.ConversationID)) {
		if !task.Done() {
			return task, true
		}
	}
	return nil, false
}

// dropEmpty replaces empty texts that a child may inherit with nil, which means the same.
func (q *StartRequest) dropEmpty() {
	for _, text := range []**string{&q.SandboxID, &q.SelectedRepository, &q.SelectedBranch, &q.LLMModel} {
		if *text != nil && **text == "" {
			*text = nil
		}
	}
}

// inherit fills unset fields of a request from the parent (API.md, "Conversations: start").
func (q *StartRequest) inherit(parent *Conversation) {
	if parent.SandboxID != "" {
		q.SandboxID = firstOf(q.SandboxID, &parent.SandboxID)
	}
	q.SelectedRepository = firstOf(q.SelectedRepository, parent.SelectedRepository)
	q.SelectedBranch = firstOf(q.SelectedBranch, parent.SelectedBranch)
	q.GitProvider = firstOf(q.GitProvider, parent.GitProvider)
	q.LLMModel = firstOf(q.LLMModel, parent.LLMModel)
}

// openTask finds a task that has not ended.
func (t *transaction) openTask(id string) (*StartTask, *Error) {
	task := first[StartTask](t.txn, tableStartTasks, indexID, []byte(id))
	if task == nil {
		return nil, Errorf(CodeNotFound, "start task not found: %s", id)
	}
	if task.Done() {
		return nil, Errorf(CodeConflict, "the start task %s is %s already", id, task.Status)
	}
	return task, nil
}

// StartTaskBindBody assigns a sandbox to a task and moves the task from WORKING to
// WAITING_FOR_SANDBOX, in one command, so that no second sandbox is created for it. It sets
// Result.StartTask.
//
// With Create the same command creates the sandbox. An id that is taken is CodeConflict: the
// proposer picks another. With Create.Warm SandboxID is empty, and the task's SandboxID names the
// claimed member. Without Create SandboxID names an existing sandbox of the same user, which is
// resumed if it is paused (CodeNotFound "Sandbox not found: <id>" if there is none).
//
// The sandbox takes over the task's reservation. Exceeding a limit is CodeLimit, and the task stays
// as it is; this happens only without a reservation or when the sandbox needs more than it. A task
// that is already bound is not changed. An unknown task is CodeNotFound, a finished one
// CodeConflict.
type StartTaskBindBody struct {
	ID        string             `json:"id"`
	SandboxID string             `json:"sandbox_id"`
	Create    *SandboxCreateBody `json:"create,omitempty"`
}

// CommandType implements Body.
func (*StartTaskBindBody) CommandType() CommandType { return StartTaskBind }

// check implements Body.
func (b *StartTaskBindBody) check(r *rules) {
	r.id("start task id", b.ID)
	if b.Create == nil || !b.Create.Warm {
		r.lookedUp("sandbox_id", b.SandboxID)
	}
	if b.Create != nil {
		r.check(b.Create.ID == b.SandboxID, "sandbox_id and create.id differ")
		b.Create.check(r)
	}
}

func (t *transaction) applyStartTaskBind(b *StartTaskBindBody) (Result, *Error) {
	old, err := t.openTask(b.ID)
	if err != nil {
		return Result{}, err
	}
	if old.SandboxID != "" {
		return Result{StartTask: old}, nil
	}
	s, err := t.sandboxFor(old, b)
	if err != nil {
		return Result{}, err
	}
	task := *old
	task.SandboxID, task.Reservation = s.ID, nil
	task.Status = StartTaskWaitingForSandbox
	task.UpdatedAt = t.now
	put(t, tableStartTasks, old, &task)
	return Result{StartTask: &task}, nil
}

// sandboxFor creates, claims or resumes the sandbox of a task.
func (t *transaction) sandboxFor(task *StartTask, b *StartTaskBindBody) (*Sandbox, *Error) {
	if b.Create != nil {
		return t.createSandbox(task.UserID, b.Create, task.Reservation)
	}
	s, err := t.ownSandbox(task.UserID, b.SandboxID)
	if err != nil {
		return nil, Errorf(CodeNotFound, "Sandbox not found: %s", b.SandboxID)
	}
	if s.Desired == DesiredPaused {
		return t.resume(s, task.Reservation)
	}
	return s, nil
}

// StartTaskAdvanceBody moves an unfinished task forward. Going backwards, and any progress of a task
// without a sandbox, is CodeConflict. It can't set READY or ERROR. The same status again sets a new
// Detail. An empty AgentServerURL keeps the stored one. It sets Result.StartTask.
type StartTaskAdvanceBody struct {
	ID             string          `json:"id"`
	Status         StartTaskStatus `json:"status"`
	Detail         string          `json:"detail,omitempty"`
	AgentServerURL string          `json:"agent_server_url,omitempty"`
	// Delivered is the id of the task's first pending message, which the agent server has: it no longer
	// waits. Another id changes nothing.
	Delivered string `json:"delivered,omitempty"`
	// SetupSkipped: the task goes on without the files that it asks about (StartTaskAskBody).
	SetupSkipped bool `json:"setup_skipped,omitempty"`
}

// CommandType implements Body.
func (*StartTaskAdvanceBody) CommandType() CommandType { return StartTaskAdvance }

// check implements Body.
func (b *StartTaskAdvanceBody) check(r *rules) {
	r.id("start task id", b.ID)
	rank := b.Status.rank()
	r.check(rank > 0 && rank < StartTaskReady.rank(), "a start task can't advance to %q", clip(string(b.Status)))
	r.words("detail", b.Detail)
	r.text("agent_server_url", b.AgentServerURL, MaxPath)
	r.text("delivered", b.Delivered, maxID)
}

func (t *transaction) applyStartTaskAdvance(b *StartTaskAdvanceBody) (Result, *Error) {
	old, err := t.openTask(b.ID)
	if err != nil {
		return Result{}, err
	}
	if b.Status.rank() < old.Status.rank() {
		return Result{}, Errorf(CodeConflict, "the start task %s is %s and can't go back to %s", b.ID, old.Status, b.Status)
	}
	if old.SandboxID == "" && b.Status != StartTaskWorking {
		return Result{}, Errorf(CodeConflict, "the start task %s has no sandbox yet", b.ID)
	}
	task := *old
	task.Status, task.Detail = b.Status, cleanWords(b.Detail)
	task.Pending = old.delivered(b.Delivered)
	if b.AgentServerURL != "" {
		task.AgentServerURL = b.AgentServerURL
	}
	if b.SetupSkipped && old.Setup != nil {
		setup := *old.Setup
		setup.Skipped, task.Setup = true, &setup
	}
	task.UpdatedAt = t.now
	put(t, tableStartTasks, old, &task)
	return Result{StartTask: &task}, nil
}

// StartTaskFinishBody makes a task READY and creates its conversation, in one command, and releases
// the task's secrets. Apply fills the conversation's UserID, V0ID, SandboxID, CreatedAt and
// UpdatedAt. Its ID must be the task's. From protocol version 3 on a parent that does not exist is
// removed. A task that is not bound, is in ERROR, or has pending messages is CodeConflict. Finishing a READY task again
// changes nothing.
type StartTaskFinishBody struct {
	ID           string       `json:"id"`
	Conversation Conversation `json:"conversation"`
}

// CommandType implements Body.
func (*StartTaskFinishBody) CommandType() CommandType { return StartTaskFinish }

// check implements Body.
func (b *StartTaskFinishBody) check(r *rules) {
	r.id("start task id", b.ID)
	b.Conversation.check(r)
}

func (t *transaction) applyStartTaskFinish(b *StartTaskFinishBody) (Result, *Error) {
	if task := first[StartTask](t.txn, tableStartTasks, indexID, []byte(b.ID)); task != nil &&
		task.Status == StartTaskReady {
		return Result{StartTask: task}, nil
	}
	old, err := t.openTask(b.ID)
	if err != nil {
		return Result{}, err
	}
	if old.SandboxID == "" {
		return Result{}, Errorf(CodeConflict, "the start task %s has no sandbox yet", b.ID)
	}
	if len(old.Pending) > 0 {
		return Result{}, Errorf(CodeConflict, "%d messages wait for the conversation of the start task %s",
			len(old.Pending), b.ID)
	}
	if b.Conversation.ID != old.ConversationID {
		return Result{}, Errorf(CodeInvalid, "the start task %s is for the conversation %s, not %s",
			b.ID, old.ConversationID, b.Conversation.ID)
	}
	c := b.Conversation
	c.AutoTitle = c.AutoTitle && t.meta.active(VersionModels)
	c.UserID, c.V0ID, c.SandboxID, c.LLM = old.UserID, old.V0ID, old.SandboxID, old.LLM
	c.AgentProfile = old.AgentProfile
	c.CreatedAt, c.UpdatedAt = t.now, t.now
	if t.meta.active(VersionHistory) {
		t.leaveParent(&c)
	}
	if first[Conversation](t.txn, tableConversations, indexID, keyOf(c.UserID, c.ID)) != nil {
		return Result{}, Errorf(CodeConflict, "the conversation %s exists already", c.ID)
	}
	put(t, tableConversations, nil, &c)
	return Result{StartTask: t.endTask(old, StartTaskReady, "")}, nil
}

// leaveParent clears a parent that does not exist: no listing would show the conversation.
func (t *transaction) leaveParent(c *Conversation) {
	if c.ParentID != nil && first[Conversation](t.txn, tableConversations, indexID, keyOf(c.UserID, *c.ParentID)) == nil {
		c.ParentID = nil
	}
}

// endTask stores the end of a task and drops the user's oldest finished tasks. From VersionAccess on
// the texts for the agent leave the state.
func (t *transaction) endTask(old *StartTask, status StartTaskStatus, detail string) *StartTask {
	task := *old
	task.Status, task.Detail, task.Secrets, task.Reservation = status, cleanWords(detail), SecretRef{}, nil
	task.UpdatedAt, task.Pending = t.now, nil
	bounded := t.meta.active(VersionAccess)
	if bounded {
		task.Request = task.Request.withoutBodies()
	}
	put(t, tableStartTasks, old, &task)
	u := t.store.usageOf(task.UserID)
	u.doneTasks++
	for u.doneTasks > MaxDoneTasks || bounded && u.doneTasks > 1 && usageOf(t.txn, task.UserID).doneBytes > maxDoneBytes {
		drop(t, tableStartTasks, firstWithPrefix[StartTask](t.txn, tableStartTasks, indexDone, prefixOf(task.UserID)))
		u.doneTasks--
	}
	return &task
}

// StartTaskFailBody ends an unfinished task in ERROR and releases its secrets. Detail is shown to
// the user and must not be empty. The proposer removes secrets from it. A finished task is
// CodeConflict.
type StartTaskFailBody struct {
	ID     string `json:"id"`
	Detail string `json:"detail"`
}

// CommandType implements Body.
func (*StartTaskFailBody) CommandType() CommandType { return StartTaskFail }

// check implements Body.
func (b *StartTaskFailBody) check(r *rules) {
	r.id("start task id", b.ID)
	r.check(b.Detail != "", "a start task does not fail without a detail")
	r.words("detail", b.Detail)
}

func (t *transaction) applyStartTaskFail(b *StartTaskFailBody) (Result, *Error) {
	old, err := t.openTask(b.ID)
	if err != nil {
		return Result{}, err
	}
	return Result{StartTask: t.endTask(old, StartTaskError, b.Detail)}, nil
}
