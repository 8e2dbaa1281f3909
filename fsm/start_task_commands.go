package fsm

// MaxDoneTasks is how many ended start tasks of one user are kept; the ones that
// ended first go first.
const MaxDoneTasks = 1000

// StartTaskCreateBody accepts a conversation start for Command.UserID. Apply
// answers with the task. When the user already has an unfinished task or a
// conversation under the same ConversationID and Join is set (V0), nothing is
// created and Result.StartTask is the existing task, or nil with the
// conversation existing; without Join that is CodeConflict. A failed task does
// not stand in the way of a new one.
//
// The start of its sandbox counts from here on, so that what is accepted can be
// carried out: a task that names no sandbox gets a member of the default spec's
// warm pool at once, or has one coming (StartTask.Coming); a paused one that it
// names is resumed. Over a limit it is
// CodeLimit, and nothing is left behind.
//
// A parent must be a conversation of the same user (CodeNotFound "Parent
// conversation not found: <id>"); the stored request inherits its sandbox,
// repository, branch, provider and model where it names none.
type StartTaskCreateBody struct {
	ID             string       `json:"id"`
	ConversationID string       `json:"conversation_id"`
	V0ID           string       `json:"v0_id,omitempty"`
	Join           bool         `json:"join,omitempty"`
	Request        StartRequest `json:"request"`
	Secrets        SecretRef    `json:"secrets"`
}

// CommandType implements Body.
func (*StartTaskCreateBody) CommandType() CommandType { return StartTaskCreate }

// Validate implements Body.
func (b *StartTaskCreateBody) Validate() error {
	var r rules
	r.id("start task id", b.ID)
	r.id("conversation_id", b.ConversationID)
	if b.V0ID != "" {
		r.name("v0_id", b.V0ID, maxID)
	}
	b.Request.check(&r)
	r.ref("secrets", b.Secrets)
	return r.result()
}

func (t *transaction) applyStartTaskCreate(b *StartTaskCreateBody) (Result, *Error) {
	user := t.cmd.UserID
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
	if id := request.ParentConversationID; id != nil {
		parent := first[Conversation](t.txn, tableConversations, indexID, keyOf(user, *id))
		if parent == nil {
			return Result{}, Errorf(CodeNotFound, "Parent conversation not found: %s", *id)
		}
		if t.knowsChildren() {
			request.dropEmpty()
		}
		request.inherit(parent)
	}
	task := &StartTask{
		ID: b.ID, UserID: user, Status: StartTaskWorking,
		ConversationID: b.ConversationID, V0ID: b.V0ID,
		Request: request, Secrets: b.Secrets, CreatedAt: t.now, UpdatedAt: t.now,
		CreatedIndex: t.desiredIndex(),
	}
	if err := t.startFor(task); err != nil {
		return Result{}, err
	}
	put(t, tableStartTasks, nil, task)
	return Result{StartTask: task}, nil
}

// startFor makes the start that a new task stands for count: that of a member
// of the default spec's warm pool, which the task gets at once, of the sandbox
// that will be made for it, or of a paused one it names.
func (t *transaction) startFor(task *StartTask) *Error {
	if id := task.Request.SandboxID; id != nil && *id != "" {
		if s, err := t.ownSandbox(task.UserID, *id); err == nil && s.Desired == DesiredPaused {
			_, err = t.resume(s, nil)
			return err
		}
		return nil // it runs, or the task will say that it is not there
	}
	if member := t.memberFor(task.UserID, &task.Request); member != nil {
		s := t.claimed(member, task.UserID)
		if err := t.start(member, s, nil); err != nil {
			return err
		}
		task.SandboxID = s.ID
		return nil
	}
	coming := t.promise(task.UserID)
	if err := t.makeRoom(coming.demand(task.UserID)); err != nil {
		return err
	}
	task.Coming = coming
	return nil
}

// memberFor finds the member of a warm pool that a start gets; nil when there is
// none, or the sandbox is to have the conversation's id.
func (t *transaction) memberFor(user string, q *StartRequest) *Sandbox {
	spec, err := t.specOrDefault("")
	if err != nil || q.ConversationID != nil {
		return nil
	}
	template := spec.Template.resolve(t.settingsOf(user))
	return claimable(t.txn, spec, &template, nil)
}

// conversationTaken looks for the conversation, or an unfinished task for it,
// that a creation would double. The task is nil when it is a conversation.
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

// dropEmpty makes of an empty text that a child may inherit what it means: none.
func (q *StartRequest) dropEmpty() {
	for _, text := range []**string{&q.SandboxID, &q.SelectedRepository, &q.SelectedBranch, &q.LLMModel} {
		if *text != nil && **text == "" {
			*text = nil
		}
	}
}

// inherit fills from the parent what a request leaves open (api-contract.md
// A.5).
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

// StartTaskBindBody gives a task its sandbox and moves it from WORKING to
// WAITING_FOR_SANDBOX, in one command, so that no second sandbox can be made
// for it. With Create set the sandbox is created by the same command; without,
// SandboxID names an existing one of the same user, which is resumed if it is
// paused (CodeNotFound "Sandbox not found: <id>" otherwise). A Create whose id
// is taken is CodeConflict: the proposer picks another; with Create.Warm
// SandboxID is empty and the task's tells which it became. What the task had coming is
// no longer; over a limit, which only a sandbox can be that was not promised, or
// asks for more than that, it is CodeLimit and the task stays as it is. A task that is bound already is left alone. The
// answer is Result.StartTask. An unknown task is
// CodeNotFound, one that has ended CodeConflict.
type StartTaskBindBody struct {
	ID        string             `json:"id"`
	SandboxID string             `json:"sandbox_id"`
	Create    *SandboxCreateBody `json:"create,omitempty"`
}

// CommandType implements Body.
func (*StartTaskBindBody) CommandType() CommandType { return StartTaskBind }

// Validate implements Body.
func (b *StartTaskBindBody) Validate() error {
	var r rules
	r.id("start task id", b.ID)
	if b.Create == nil || !b.Create.Warm {
		r.lookedUp("sandbox_id", b.SandboxID)
	}
	if b.Create != nil {
		r.check(b.Create.ID == b.SandboxID, "sandbox_id and create.id differ")
		if err := b.Create.Validate(); err != nil && r.err == nil {
			return err
		}
	}
	return r.result()
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
	task.SandboxID, task.Coming = s.ID, nil
	task.Status = StartTaskWaitingForSandbox
	task.UpdatedAt = t.now
	put(t, tableStartTasks, old, &task)
	return Result{StartTask: &task}, nil
}

// sandboxFor makes, claims or wakes the sandbox of a task.
func (t *transaction) sandboxFor(task *StartTask, b *StartTaskBindBody) (*Sandbox, *Error) {
	if b.Create != nil {
		return t.createSandbox(task.UserID, b.Create, task.Coming)
	}
	s, err := t.ownSandbox(task.UserID, b.SandboxID)
	if err != nil {
		return nil, Errorf(CodeNotFound, "Sandbox not found: %s", b.SandboxID)
	}
	if s.Desired == DesiredPaused {
		return t.resume(s, task.Coming)
	}
	return s, nil
}

// StartTaskAdvanceBody moves an unfinished task forward; going backwards, and
// anything before StartTaskBind, is CodeConflict. READY and ERROR are not
// reached by it. The same status again sets a new Detail; an empty
// AgentServerURL keeps the stored one.
type StartTaskAdvanceBody struct {
	ID             string          `json:"id"`
	Status         StartTaskStatus `json:"status"`
	Detail         string          `json:"detail,omitempty"`
	AgentServerURL string          `json:"agent_server_url,omitempty"`
}

// CommandType implements Body.
func (*StartTaskAdvanceBody) CommandType() CommandType { return StartTaskAdvance }

// Validate implements Body.
func (b *StartTaskAdvanceBody) Validate() error {
	var r rules
	r.id("start task id", b.ID)
	rank := b.Status.rank()
	r.check(rank > 0 && rank < StartTaskReady.rank(), "a start task can't advance to %q", clip(string(b.Status)))
	r.words("detail", b.Detail)
	r.text("agent_server_url", b.AgentServerURL, maxPath)
	return r.result()
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
	if b.AgentServerURL != "" {
		task.AgentServerURL = b.AgentServerURL
	}
	task.UpdatedAt = t.now
	put(t, tableStartTasks, old, &task)
	return Result{StartTask: &task}, nil
}

// StartTaskFinishBody makes a task READY and its conversation exist, in one
// command, and lets go of the task's secrets. Conversation's UserID, V0ID,
// SandboxID, CreatedAt and UpdatedAt are filled by Apply, its ID must be the
// task's; a parent that is not there is left out (from protocol version 3 on). A task that is not bound, or is in ERROR, is CodeConflict. Finishing a READY task
// again changes nothing.
type StartTaskFinishBody struct {
	ID           string       `json:"id"`
	Conversation Conversation `json:"conversation"`
}

// CommandType implements Body.
func (*StartTaskFinishBody) CommandType() CommandType { return StartTaskFinish }

// Validate implements Body.
func (b *StartTaskFinishBody) Validate() error {
	var r rules
	r.id("start task id", b.ID)
	b.Conversation.check(&r)
	return r.result()
}

func (t *transaction) applyStartTaskFinish(b *StartTaskFinishBody) (Result, *Error) {
	if task := first[StartTask](t.txn, tableStartTasks, indexID, []byte(b.ID)); task != nil && task.Status == StartTaskReady {
		return Result{StartTask: task}, nil
	}
	old, err := t.openTask(b.ID)
	if err != nil {
		return Result{}, err
	}
	if old.SandboxID == "" {
		return Result{}, Errorf(CodeConflict, "the start task %s has no sandbox yet", b.ID)
	}
	if b.Conversation.ID != old.ConversationID {
		return Result{}, Errorf(CodeInvalid, "the start task %s is for the conversation %s, not %s",
			b.ID, old.ConversationID, b.Conversation.ID)
	}
	c := b.Conversation
	c.UserID, c.V0ID, c.SandboxID = old.UserID, old.V0ID, old.SandboxID
	c.CreatedAt, c.UpdatedAt = t.now, t.now
	if t.knowsChildren() {
		t.leaveParent(&c)
	}
	if first[Conversation](t.txn, tableConversations, indexID, keyOf(c.UserID, c.ID)) != nil {
		return Result{}, Errorf(CodeConflict, "the conversation %s exists already", c.ID)
	}
	put(t, tableConversations, nil, &c)
	return Result{StartTask: t.endTask(old, StartTaskReady, "")}, nil
}

// leaveParent makes a conversation one of its own whose parent is not there: else
// no listing would show it.
func (t *transaction) leaveParent(c *Conversation) {
	if c.ParentID != nil && first[Conversation](t.txn, tableConversations, indexID, keyOf(c.UserID, *c.ParentID)) == nil {
		c.ParentID = nil
	}
}

// endTask stores the end of a task and forgets the user's oldest ended ones.
func (t *transaction) endTask(old *StartTask, status StartTaskStatus, detail string) *StartTask {
	task := *old
	task.Status, task.Detail, task.Secrets, task.Coming = status, cleanWords(detail), SecretRef{}, nil
	task.UpdatedAt = t.now
	put(t, tableStartTasks, old, &task)
	u := t.store.usageOf(task.UserID)
	u.doneTasks++
	for u.doneTasks > MaxDoneTasks {
		drop(t, tableStartTasks, firstWithPrefix[StartTask](t.txn, tableStartTasks, indexDone, prefixOf(task.UserID)))
		u.doneTasks--
	}
	return &task
}

// StartTaskFailBody ends an unfinished task in ERROR and lets go of its
// secrets. Detail is shown to the user and can't be empty; secrets are scrubbed
// from it by the proposer. A task that has ended is CodeConflict.
type StartTaskFailBody struct {
	ID     string `json:"id"`
	Detail string `json:"detail"`
}

// CommandType implements Body.
func (*StartTaskFailBody) CommandType() CommandType { return StartTaskFail }

// Validate implements Body.
func (b *StartTaskFailBody) Validate() error {
	var r rules
	r.id("start task id", b.ID)
	r.check(b.Detail != "", "a start task does not fail without a detail")
	r.words("detail", b.Detail)
	return r.result()
}

func (t *transaction) applyStartTaskFail(b *StartTaskFailBody) (Result, *Error) {
	old, err := t.openTask(b.ID)
	if err != nil {
		return Result{}, err
	}
	return Result{StartTask: t.endTask(old, StartTaskError, b.Detail)}, nil
}
