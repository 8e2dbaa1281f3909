package fsm

import "fmt"

// The bounds of the messages that wait for one conversation: their number and the bytes of their
// content.
const (
	MaxPending      = 10
	maxPendingBytes = 1 << 20
)

// LimitPending is the Error.Limit of MaxPending and of the bytes.
const LimitPending = LimitOfUser + "pending_messages"

// PendingMessage is a message that waits until its task's conversation is in its sandbox.
type PendingMessage struct {
	// ID is 32 hex digits. The message's event has it as its id, so that a repeated delivery adds
	// nothing.
	ID      string  `json:"id"`
	Message Message `json:"message"`
}

// bytes is the size of the message's content.
func (m *PendingMessage) bytes() (n int) {
	for i := range m.Message.Content {
		n += len(m.Message.Content[i].Text)
		for _, u := range m.Message.Content[i].ImageURLs {
			n += len(u)
		}
	}
	return n
}

// StartTaskQueueBody adds a message to an unfinished task of Command.UserID. It waits until the
// conversation is in its sandbox (StartTaskAdvanceBody.Delivered). More than MaxPending messages, and
// more content than fits, is CodeLimit; a task that has ended CodeConflict; one of another user
// CodeNotFound. It sets Result.StartTask, whose pending messages have no content.
type StartTaskQueueBody struct {
	ID      string         `json:"id"`
	Message PendingMessage `json:"message"`
}

// CommandType implements Body.
func (*StartTaskQueueBody) CommandType() CommandType { return StartTaskQueue }

// check implements Body.
func (b *StartTaskQueueBody) check(r *rules) {
	r.lookedUp("start task id", b.ID)
	r.id("message id", b.Message.ID)
	r.check(len(b.Message.Message.Content) > 0, "a message needs content")
	b.Message.Message.check(r)
}

func (t *transaction) applyStartTaskQueue(b *StartTaskQueueBody) (Result, *Error) {
	old, err := t.openTask(b.ID)
	if err != nil || old.UserID != t.cmd.UserID {
		if owner := first[StartTask](t.txn, tableStartTasks, indexID, []byte(b.ID)); owner != nil &&
			owner.UserID == t.cmd.UserID {
			return Result{}, err
		}
		return Result{}, Errorf(CodeNotFound, "start task not found: %s", b.ID)
	}
	bytes := b.Message.bytes()
	for i := range old.Pending {
		if old.Pending[i].ID == b.Message.ID {
			return Result{}, Errorf(CodeConflict, "the message %s waits already", b.Message.ID)
		}
		bytes += old.Pending[i].bytes()
	}
	if len(old.Pending) >= MaxPending || bytes > maxPendingBytes {
		return Result{}, &Error{Code: CodeLimit, RetryAfter: limitRetry, Limit: LimitPending, Message: fmt.Sprintf(
			"%d messages wait already, at most %d with %d bytes may: send the others when the conversation is ready",
			len(old.Pending), MaxPending, maxPendingBytes)}
	}
	task := *old
	task.Pending = append(append([]PendingMessage(nil), old.Pending...), b.Message)
	task.UpdatedAt = t.now
	if err := t.mayGrow(task.UserID, growthOf(&t.meta, old, &task)); err != nil {
		return Result{}, err
	}
	put(t, tableStartTasks, old, &task)
	return Result{StartTask: task.withoutContent()}, nil
}

// withoutContent returns the task as a result has it: with the ids of its messages only.
func (t *StartTask) withoutContent() *StartTask {
	short := *t
	short.Pending = make([]PendingMessage, len(t.Pending))
	for i := range t.Pending {
		short.Pending[i].ID = t.Pending[i].ID
	}
	return &short
}

// delivered returns the messages without the first one if that is id's.
func (t *StartTask) delivered(id string) []PendingMessage {
	if id == "" || len(t.Pending) == 0 || t.Pending[0].ID != id {
		return t.Pending
	}
	return append([]PendingMessage(nil), t.Pending[1:]...)
}
