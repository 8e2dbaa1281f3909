package httpapi

import (
	"strconv"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
)

func TestPendingMessages(t *testing.T) {
	h := newHarness(t).withSpec()
	h.starting()
	of := func(id string) string { return strings.ReplaceAll(pathPending, ":conversation_id", id) }
	var first struct {
		ID       string
		Queued   bool
		Position int
	}
	h.do(h.alice, "POST", of("task-"+startingTask), oneMessage).want(t, 201).json(t, &first)
	if len(first.ID) != 32 || !first.Queued || first.Position != 1 {
		t.Errorf("%+v", first)
	}
	for i := 2; i <= fsm.MaxPending; i++ {
		id := startingConversation
		if i == 3 {
			id = strings.ToUpper(id)
		}
		var got struct{ Position int }
		h.do(h.alice, "POST", of(id), oneMessage).want(t, 201).json(t, &got)
		if got.Position != i {
			t.Errorf("position %d, not %d", got.Position, i)
		}
	}
	var limit struct{ Limit string }
	h.do(h.alice, "POST", of(startingConversation), oneMessage).want(t, 429).json(t, &limit)
	if limit.Limit != fsm.LimitPending {
		t.Errorf("limit %q", limit.Limit)
	}
	if !strings.Contains(string(description), strconv.Quote(limit.Limit)) {
		t.Errorf("the description lacks the limit %q", limit.Limit)
	}
	task := h.cluster.store.View().StartTask("alice", startingTask)
	if m := task.Pending[0]; m.ID != first.ID || m.Message.Content[0].Text != "go on" || !m.Message.Run ||
		len(task.Pending) != fsm.MaxPending {
		t.Errorf("what waits is %+v", task.Pending)
	}
	for body, want := range map[string]int{
		`{"content":[]}`:                 400,
		`{"content":"x"}`:                400,
		`{}`:                             422,
		`{"content":[{"type":"video"}]}`: 422,
		`{"content":[{"text":"a"}],"role":"system"}`: 422,
	} {
		h.do(h.alice, "POST", of("task-"+startingTask), body).want(t, want)
	}
	h.do(h.alice, "POST", of("task-x"), oneMessage).want(t, 422)
	h.do(h.alice, "POST", of("task-"+startingConversation), oneMessage).want(t, 404)
	h.do(h.bob, "POST", of("task-"+startingTask), oneMessage).want(t, 404).is(t, `{"detail":"Conversation not found"}`)
	h.do(h.bob, "POST", of(startingConversation), oneMessage).want(t, 404)
	h.apply("", &fsm.StartTaskFailBody{ID: startingTask, Detail: "no"})
	h.do(h.alice, "POST", of("task-"+startingTask), oneMessage).want(t, 409)
	ready := h.conversation("alice", h.createSandbox(h.alice))
	h.do(h.alice, "POST", of(ready), oneMessage).want(t, 409).is(t,
		`{"detail":"The conversation is ready: use send-message."}`)
}
