package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"bivouac.dev/bivouac/httpapi/client"
)

// lossyAgent is an agent server behind a node that takes the first accept, loses its answer, and says
// nothing more on the sockets of before. The agent asks about a second action then.
type lossyAgent struct {
	t *testing.T

	mu      sync.Mutex
	events  []string
	sockets int
	accepts int
	printed strings.Builder
	unseen  bool // an action was accepted before it was shown
}

// Write keeps what the follower prints.
func (a *lossyAgent) Write(b []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.printed.Write(b)
}

// add appends events. The caller holds mu.
func (a *lossyAgent) add(events ...map[string]any) {
	for _, e := range events {
		e["id"], e["timestamp"] = string(rune('a'+len(a.events))), "2026-01-01T00:00:0"+string(rune('0'+len(a.events)))
		text, err := json.Marshal(e)
		if err != nil {
			a.t.Error(err)
		}
		a.events = append(a.events, string(text))
	}
}

func stateEvent(status string) map[string]any {
	return map[string]any{"kind": "ConversationStateUpdateEvent", "key": "execution_status", "value": status}
}

func actionEvent(command string) map[string]any {
	return map[string]any{
		"kind": "ActionEvent", "thought": []any{}, "tool_name": "terminal", "tool_call_id": command,
		"tool_call": map[string]string{"arguments": "{}"}, "action": map[string]string{"command": command},
	}
}

// ServeHTTP implements http.Handler.
func (a *lossyAgent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.HasSuffix(r.URL.Path, "/sockets/events/c"):
		a.socket(w, r)
	case strings.HasSuffix(r.URL.Path, "/respond_to_confirmation"):
		a.accept(w)
	case strings.HasSuffix(r.URL.Path, "/events/search"):
		a.mu.Lock()
		defer a.mu.Unlock()
		_, _ = w.Write([]byte(`{"items":[` + a.events[len(a.events)-1] + `],"next_page_id":null}`))
	case strings.HasSuffix(r.URL.Path, "/agent_final_response"):
		_, _ = w.Write([]byte(`{"response":"done"}`))
	default:
		http.NotFound(w, r)
	}
}

func (a *lossyAgent) accept(w http.ResponseWriter) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.accepts++; a.accepts > 1 {
		a.unseen = a.unseen || !strings.Contains(a.printed.String(), "$ second")
		a.add(stateEvent(statusRunning), stateEvent(statusFinished))
		return
	}
	a.add(stateEvent(statusRunning), map[string]any{
		"kind": "ObservationEvent", "tool_name": "terminal", "tool_call_id": "first", "action_id": "a",
		"observation": map[string]any{"content": []any{}},
	}, actionEvent("second"), stateEvent(statusWaiting))
	w.WriteHeader(http.StatusBadGateway)
}

func (a *lossyAgent) socket(w http.ResponseWriter, r *http.Request) {
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer func() { _ = conn.CloseNow() }()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	ctx := conn.CloseRead(r.Context())
	a.mu.Lock()
	a.sockets++
	first := a.sockets == 1
	a.mu.Unlock()
	for sent := 0; ctx.Err() == nil; <-tick.C {
		a.mu.Lock()
		events, lost := a.events, a.accepts < 2
		a.mu.Unlock()
		if first && lost {
			events = events[:2]
		}
		for ; sent < len(events); sent++ {
			_ = conn.Write(ctx, websocket.MessageText, []byte(events[sent]))
		}
	}
}

// TestRun_AcceptIsSentOnce: an accept whose answer is lost is not sent again for what the agent asks
// next: that is shown, and asked about, first.
func TestRun_AcceptIsSentOnce(t *testing.T) {
	a := &lossyAgent{t: t}
	a.add(actionEvent("first"), stateEvent(statusWaiting))
	server := httptest.NewServer(a)
	defer server.Close()
	p := &program{stdin: strings.NewReader(""), stdout: a, stderr: a, getenv: func(string) string { return "" }}
	f := p.newFollower(&client.Client{Address: server.URL, Key: "k", HTTP: &http.Client{Timeout: time.Minute}},
		runFlags{confirm: confirmAccept})
	f.conversation, f.sandbox, f.reached = "c", "s", true
	var err error
	end := f.begin(t.Context())
	err = f.follow(mark{})
	end(&err)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil || a.accepts != 2 || a.unseen {
		t.Errorf("%v, %d accepts, one of an action that was not shown: %v\n%s", err, a.accepts, a.unseen, a.printed.String())
	}
}
