package fsm

import (
	"fmt"
	"strings"
	"testing"
)

// TestStartTaskQueue_Bounds: ten messages wait, with a MiB of content, and count for their user's
// state until they are delivered or the task ends.
func TestStartTaskQueue_Bounds(t *testing.T) {
	t.Parallel()
	f := newFixture(t).open()
	f.sandbox("ada", "sb")
	queue := func(task, id, text string) *StartTaskQueueBody {
		return &StartTaskQueueBody{ID: task, Message: PendingMessage{ID: id, Message: Message{
			Role: "user", Run: true, Content: []ContentBlock{{Type: BlockText, Text: text}},
		}}}
	}
	f.do("ada", &StartTaskCreateBody{ID: "t1", ConversationID: "c1", Request: StartRequest{SandboxID: ptr("sb")}})
	_ = f.fails(CodeProtocol, "ada", queue("t1", "m", "x"))
	f.do("", &ProtocolRaiseBody{Version: ProtocolVersion})
	was := f.store.View().Usage("ada").StateBytes
	for i := range MaxPending {
		f.do("ada", queue("t1", fmt.Sprint("m", i), strings.Repeat("x", 1000)))
	}
	if err := f.fails(CodeLimit, "ada", queue("t1", "m10", "x")); err.Limit != LimitPending || err.RetryAfter == 0 {
		t.Errorf("the eleventh: %+v", err)
	}
	if grown := f.store.View().Usage("ada").StateBytes - was; grown < MaxPending*1000 {
		t.Errorf("the messages count for %d bytes", grown)
	}
	f.do("", &StartTaskFailBody{ID: "t1", Detail: "no"})
	if task := f.store.View().StartTask("ada", "t1"); len(task.Pending) > 0 {
		t.Errorf("a failed task keeps %d messages", len(task.Pending))
	}
	f.do("ada", &StartTaskCreateBody{ID: "t2", ConversationID: "c2", Request: StartRequest{SandboxID: ptr("sb")}})
	f.do("ada", queue("t2", "m", strings.Repeat("x", maxPendingBytes)))
	_ = f.fails(CodeLimit, "ada", queue("t2", "n", "x"))
}
