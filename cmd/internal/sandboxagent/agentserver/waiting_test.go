package agentserver

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/acptest"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/conversation"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// TestWaiting_HoldsNoSlot lets ten conversations of ACP agents wait for their users: the sandbox is idle,
// and an eleventh works. After a pause of the sandbox and a restart they wait again, and an acceptance
// carries out the call that was asked about, once.
func TestWaiting_HoldsNoSlot(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, work := t.TempDir(), t.TempDir()
	environ := inherits("HOME=" + t.TempDir())
	serve := func() *server {
		return serveAt(t, data, func(c *config.Config) { nativeEngine(c); environ(c) })
	}
	s := serve()
	id := func(n int) string { return fmt.Sprintf("%032x", n) }
	create := func(n int, policy, message string) {
		b, err := json.Marshal(map[string]any{
			"conversation_id": id(n), "workspace": map[string]any{"working_dir": filepath.Join(work, id(n))},
			"agent_settings": map[string]any{"agent_kind": "acp", "acp_server": "custom", "acp_command": []string{self},
				"acp_env": map[string]string{acptest.Env: acptest.Fine}},
			"confirmation_policy": map[string]string{"kind": policy}, "initial_message": map[string]any{"content": message},
		})
		if err != nil {
			t.Fatal(err)
		}
		s.want(201, "POST", "/api/conversations", string(b))
	}
	status := func(n int) string {
		return decodeJSON[conversation.Info](t, s.want(200, "GET", "/api/conversations/"+id(n), "")).ExecutionStatus
	}
	const waiting = 10
	for n := range waiting {
		create(n+1, "AlwaysConfirm", acptest.Work)
	}
	for n := range waiting {
		s.until("the question", func() bool { return status(n+1) == "waiting_for_confirmation" })
	}
	s.age()
	if idle := s.idleTime(); idle < 3000 {
		t.Errorf("who waits for a user is idle for %d s", idle)
	}
	create(waiting+1, "NeverConfirm", "hello")
	s.until("the eleventh", func() bool { return status(waiting+1) == "finished" })

	s.want(204, "POST", "/api/conversations/prepare-for-sandbox-pause", "")
	s.http.Close()
	s.s.close()
	s = serve()
	for n := range waiting {
		if got := status(n + 1); got != "waiting_for_confirmation" {
			t.Errorf("conversation %d is %s after the pause", n+1, got)
		}
	}
	s.want(200, "POST", "/api/conversations/"+id(1)+"/events/respond_to_confirmation", `{"accept":true}`)
	s.want(409, "POST", "/api/conversations/"+id(1)+"/events/respond_to_confirmation", `{"accept":true}`)
	s.until("the accepted call", func() bool { return status(1) == "finished" })
	if !exists(filepath.Join(work, id(1), "done.txt")) || exists(filepath.Join(work, id(2), "done.txt")) {
		t.Error("not the accepted call was carried out")
	}
	if asked := strings.Count(strings.Join(s.kinds(id(1)), " "), "waiting_for_confirmation"); asked != 1 {
		t.Errorf("the user was asked %d times: %q", asked, s.kinds(id(1)))
	}
	s.want(200, "POST", "/api/conversations/"+id(2)+"/events/respond_to_confirmation", `{"accept":false}`)
	if got := s.settled(id(2)); got != "idle" || exists(filepath.Join(work, id(2), "done.txt")) {
		t.Errorf("a rejected call: %s", got)
	}
}

// TestWaiting_AMessageIsReadOnce sends a message while the agent works. The next call reads it; where
// there is none, another run does, and its request ends with the message.
func TestWaiting_AMessageIsReadOnce(t *testing.T) {
	for name, c := range map[string]struct {
		last  bool // the message comes in the last call
		calls int
	}{"before the last call": {false, 2}, "in the last call": {true, 3}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hold := make(chan struct{})
			call := modeltest.Calls(modeltest.Tool("terminal", map[string]any{"command": "true"}))
			answers := []modeltest.Answer{call, modeltest.Text("Done."), modeltest.Text("More is done.")}
			answers[map[bool]int{true: 1}[c.last]].Hold = hold
			m := modeltest.New(t, &modeltest.Script{Key: modelKey, Stories: []*modeltest.Story{
				{When: modeltest.When{System: "Write a title"}, Answers: []modeltest.Answer{modeltest.Text("A title")}},
				{Answers: answers, InOrder: true},
			}})
			s := serveAt(t, t.TempDir(), nativeEngine)
			s.converse(t.TempDir(), m, nil, nil)
			s.until("the call", func() bool { return asked(m) == 1+map[bool]int{true: 1}[c.last] })
			s.want(200, "POST", convPath+"/events", `{"content":"and more","run":true}`)
			close(hold)
			if got := s.settled(convID); got != "finished" || asked(m) != c.calls {
				t.Errorf("%s after %d calls, want %d: %q", got, asked(m), c.calls, s.kinds(convID))
			}
			var last modeltest.Request
			for _, r := range m.Requests() {
				if len(r.Tools) > 0 {
					last = r
				}
			}
			if n := strings.Count(string(last.Body), "and more"); n != 1 {
				t.Errorf("the last request has the message %d times", n)
			}
			ends := last.Messages[len(last.Messages)-1]
			if c.last && (ends.Role != "user" || ends.Text != "and more") {
				t.Errorf("the last request ends with %+v", ends)
			}
		})
	}
}

// TestWaiting_ARunAfterAPause asks for a run while a pause waits for the end of the step.
func TestWaiting_ARunAfterAPause(t *testing.T) {
	for name, ask := range map[string]func(s *server){
		"a message": func(s *server) { s.want(200, "POST", convPath+"/events", `{"content":"go on","run":true}`) },
		"a run":     func(s *server) { s.want(200, "POST", convPath+"/run", "") },
	} {
		t.Run(name, func(t *testing.T) {
			step := make(chan struct{})
			s := serveAt(t, t.TempDir(), stepping(nil, holding(step)))
			s.want(201, "POST", "/api/conversations", createBody(t, convUID))
			<-step
			s.want(200, "POST", convPath+"/pause", "")
			ask(s)
			step <- struct{}{}
			s.settled(convID)
			if got := s.settled(convID); got != "finished" {
				t.Errorf("status %s: %q", got, s.kinds(convID))
			}
			if !slices.Contains(s.kinds(convID), event.KindPause) {
				t.Errorf("the pause is not told: %q", s.kinds(convID))
			}
		})
	}
}

// TestMessage_IDs sends messages with ids over a socket, and with the id of an event that is none.
func TestMessage_IDs(t *testing.T) {
	s := newServer(t)
	s.begun()
	conn := s.subscribe(convID, "", withKey())
	frameOf(t, conn) // the state
	const id = "0b9f2c7d-e1a2-4b3f-9c7d-5e6f7a8b9c0d"
	events, err := s.s.conversations.Get(convID).Events()
	if err != nil {
		t.Fatal(err)
	}
	taken := events[len(events)-1].Envelope().ID
	s.want(409, "POST", convPath+"/events", `{"content":"hello","id":"`+taken+`"}`)
	for _, frame := range []string{
		`{"content":"once","id":"` + id + `"}`, `{"content":"once","id":"` + id + `"}`, `{"content":"x","id":"x"}`,
		`{"content":"x","id":"` + taken + `"}`,
	} {
		if err := conn.Write(t.Context(), websocket.MessageText, []byte(frame)); err != nil {
			t.Fatal(err)
		}
	}
	messages, refused := 0, 0
	for refused < 2 || messages < 1 { // refusals may come before the message
		switch e := next(t, conn); e.Kind {
		case event.KindMessage:
			messages++
			if e.ID != id {
				t.Errorf("the message's id is %s", e.ID)
			}
		case event.KindServerError:
			refused++
		}
	}
	if events, err = s.s.conversations.Get(convID).Events(); err != nil {
		t.Fatal(err)
	}
	kept := 0
	for _, e := range events {
		if e.Envelope().ID == id {
			kept++
		}
	}
	if messages != 1 || kept != 1 {
		t.Errorf("%d messages, of which %d are kept", messages, kept)
	}
}
