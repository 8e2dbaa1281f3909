package starttask

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent"
	"bivouac.dev/bivouac/scheduler/agent/agentserver"
)

// queue adds a message to a task.
func (w *taskWorld) queue(task *fsm.StartTask, id, text string) {
	w.t.Helper()
	w.must("", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
	w.must(taskUser, &fsm.StartTaskQueueBody{ID: task.ID, Message: fsm.PendingMessage{
		ID: id, Message: fsm.Message{Role: "user", Content: []fsm.ContentBlock{{Type: "text", Text: text}}, Run: true},
	}})
}

// realAgents puts the sandboxes of w on a real agent server. events returns the texts of a
// conversation's messages of the user.
func (w *taskWorld) realAgents() (client *agent.Client, events func(*fsm.StartTask) string) {
	w.t.Helper()
	server, err := agentserver.New(agentserver.Config{ConversationsPath: w.t.TempDir(), BashEventsDir: w.t.TempDir()})
	if err != nil {
		w.t.Fatal(err)
	}
	w.dir = w.t.TempDir()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.port = ln.Addr().(*net.TCPAddr).Port
	// Its conversations and commands end before their folders are removed.
	ctx, stop := context.WithCancel(context.WithoutCancel(w.t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, ln) }()
	w.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	})
	client = agent.New(agent.Config{})
	w.t.Cleanup(client.Close)
	return client, func(task *fsm.StartTask) string {
		w.t.Helper()
		body, err := client.Request(w.t.Context(), "http://"+ln.Addr().String(), "", "GET", "/api/conversations/"+agent.DashedID(task.ConversationID)+"/events/search?kind=MessageEvent&source=user", nil)
		if err != nil {
			w.t.Fatal(err)
		}
		var page struct {
			Items []struct {
				Message struct {
					Content []struct{ Text string }
				} `json:"llm_message"`
			} `json:"items"`
		}
		if err := json.Unmarshal(body, &page); err != nil {
			w.t.Fatal(err)
		}
		var texts []string
		for _, e := range page.Items {
			texts = append(texts, e.Message.Content[0].Text)
		}
		return strings.Join(texts, ", ")
	}
}

// TestStartTask_PendingMessages_LeaderLostAtEveryStep: with a real agent server the messages that
// waited come once and in order, wherever the leader is lost.
func TestStartTask_PendingMessages_LeaderLostAtEveryStep(t *testing.T) {
	for n := 1; ; n++ {
		w := newTaskWorld(t)
		client, events := w.realAgents()
		w.client = client
		task := w.task("1", nil)
		for i := range 3 {
			w.queue(task, fmt.Sprintf("%032x", i+1), fmt.Sprint("message ", i+1))
		}
		lostAt := w.loseLeaderAt(n)
		if lostAt == "" {
			if n < 10 {
				t.Fatalf("only %d steps were seen", n-1)
			}
			return
		}
		w.run(nil)
		got := w.done(task.ID)
		if found := events(task); got.Status != fsm.StartTaskReady || len(got.Pending) > 0 || found != "hello, message 1, message 2, message 3" {
			t.Errorf("lost before step %d (%s): %s %q, %d wait, and the conversation has %s", n, lostAt, got.Status, got.Detail, len(got.Pending), found)
		}
	}
}

// TestStartTask_PendingMessages_Late: a message that comes while the task finishes is delivered, too.
// An agent server's refusal loses that message alone; one that is away is waited for.
func TestStartTask_PendingMessages_Late(t *testing.T) {
	w := newTaskWorld(t)
	task := w.task("1", nil)
	w.queue(task, strings.Repeat("a", 32), "one")
	failures := []error{&agent.Error{Op: "send", Kind: agent.ErrUnreachable}, &agent.Error{Op: "send", Kind: agent.ErrRefused, Status: 413}}
	late := false
	w.run(func(r *Runner) {
		r.step = func(_ context.Context, _ *fsm.StartTask, name string) {
			if name == "deliver message" && len(failures) > 0 {
				w.agents.mu.Lock()
				w.agents.fail, failures = failures[:1], failures[1:]
				w.agents.mu.Unlock()
			}
			if name == "finish" && !late {
				late = true
				w.queue(task, strings.Repeat("b", 32), "two")
			}
		}
	})
	if got := w.done(task.ID); got.Status != fsm.StartTaskReady {
		t.Fatalf("%+v", got)
	}
	if got := strings.Join(w.agents.messages, ", "); !late || got != agent.DashedID(strings.Repeat("a", 32))+" one, "+agent.DashedID(strings.Repeat("b", 32))+" two" {
		t.Errorf("the conversation has %s", got)
	}
}
