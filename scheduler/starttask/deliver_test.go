package starttask

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent"
)

// queue adds a message to a task.
func (w *taskWorld) queue(task *fsm.StartTask, id, text string) {
	w.t.Helper()
	w.must("", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
	w.must(taskUser, &fsm.StartTaskQueueBody{ID: task.ID, Message: fsm.PendingMessage{
		ID: id, Message: fsm.Message{Role: "user", Content: []fsm.ContentBlock{{Type: "text", Text: text}}, Run: true},
	}})
}

// agentProgram builds the agent server.
func agentProgram(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "sandbox-agent")
	if err := local.BuildGo(t.Context(), "./cmd/sandbox-agent", bin); err != nil {
		t.Fatal(err)
	}
	return bin
}

// realAgents puts the sandboxes of w on a real agent server, the program bin. events returns the texts
// of a conversation's messages of the user.
func (w *taskWorld) realAgents(bin string) (client *agent.Client, events func(*fsm.StartTask) string) {
	w.t.Helper()
	w.dir = w.t.TempDir()
	cmd := exec.Command(bin, "--port", "0")
	cmd.Env = append(os.Environ(), "OH_CONVERSATIONS_PATH="+w.t.TempDir(), "OH_BASH_EVENTS_DIR="+w.t.TempDir())
	log, err := cmd.StderrPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	// Its conversations and commands end before their folders are removed.
	w.t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			w.t.Error(err)
		}
	})
	address := make(chan string, 1)
	go func() {
		for lines := bufio.NewScanner(log); lines.Scan(); {
			var line struct{ Msg, Address string }
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "serving" {
				address <- line.Address
			}
		}
		close(address)
	}()
	at, ok := <-address
	if !ok {
		w.t.Fatal("the agent server did not begin to serve")
	}
	_, port, err := net.SplitHostPort(at)
	if err != nil {
		w.t.Fatal(err)
	}
	if w.port, err = strconv.Atoi(port); err != nil {
		w.t.Fatal(err)
	}
	client = agent.New(agent.Config{})
	w.t.Cleanup(client.Close)
	return client, func(task *fsm.StartTask) string {
		w.t.Helper()
		body, err := client.Request(w.t.Context(), "http://"+at, "", "GET",
			"/api/conversations/"+agent.DashedID(task.ConversationID)+"/events/search?kind=MessageEvent&source=user", nil)
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
	bin := agentProgram(t)
	for n := 1; ; n++ {
		w := newTaskWorld(t)
		client, events := w.realAgents(bin)
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
		if found := events(task); got.Status != fsm.StartTaskReady || len(got.Pending) > 0 ||
			found != "hello, message 1, message 2, message 3" {
			t.Errorf("lost before step %d (%s): %s %q, %d wait, and the conversation has %s", n, lostAt, got.Status,
				got.Detail, len(got.Pending), found)
		}
	}
}

// TestStartTask_PendingMessages_Late: a message that comes while the task finishes is delivered, too.
// An agent server's refusal loses that message alone; one that is away is waited for.
func TestStartTask_PendingMessages_Late(t *testing.T) {
	w := newTaskWorld(t)
	task := w.task("1", nil)
	w.queue(task, strings.Repeat("a", 32), "one")
	failures := []error{
		&agent.Error{Op: "send", Kind: agent.ErrUnreachable},
		&agent.Error{Op: "send", Kind: agent.ErrRefused, Status: 413},
	}
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
	if got := strings.Join(w.agents.messages, ", "); !late ||
		got != agent.DashedID(strings.Repeat("a", 32))+" one, "+agent.DashedID(strings.Repeat("b", 32))+" two" {
		t.Errorf("the conversation has %s", got)
	}
}
