package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent/bash"
)

// TestConversationFiles lists what a command in the sandbox prints, as a bare list of relative paths.
func TestConversationFiles(t *testing.T) {
	h := newHarness(t).withSpec()
	sb := h.createSandbox(h.alice)
	id := h.conversation("alice", sb)
	at := "/api/v1/app-conversations/" + id + "/files"
	h.do(h.alice, "GET", at, "").want(t, 200).is(t, `[]`)
	h.observe(sb, running())
	h.do(h.alice, "GET", at, "").want(t, 200).is(t, `["a.md","b/\u0000.go","b/x.go"]`)
	h.do(h.bob, "GET", at, "").want(t, 404)
	h.do(h.alice, "GET", at+"?path=project", "").want(t, 422)
	var asked []string
	h.agents.call = func(_ context.Context, _, _ string, q AgentRequest) ([]byte, error) {
		asked = append(asked, q.Path+" "+string(q.Body))
		if q.Method == "POST" {
			return []byte(`{"id":"b-1"}`), nil
		}
		if len(asked) == 2 { // it has not ended yet
			return []byte(`{"items":[{"stdout":"./early.go\n","exit_code":null}]}`), nil
		}
		return []byte(`{"items":[{"stdout":"./early.go\n","exit_code":null},{"order":1,"stdout":null,"exit_code":1}]}`), nil
	}
	h.do(h.alice, "GET", at+"?path=/workspace/project/it's%3B%20rm", "").want(t, 200).is(t, `["early.go"]`)
	if len(asked) != 3 || !strings.Contains(asked[0], `"cwd":"/workspace/project/it's; rm"`) ||
		strings.Count(asked[0], "rm") != 1 {
		t.Errorf("the agent server was asked %q", asked)
	}
	h.agents.call = func(context.Context, string, string, AgentRequest) ([]byte, error) {
		return nil, &AgentError{Status: 503, Cause: errors.New("too many")}
	}
	h.do(h.alice, "GET", at, "").want(t, 502)
	h.apply("alice", &fsm.SandboxPauseBody{ID: sb})
	h.observe(sb, fsm.SandboxStatus{State: fsm.SandboxPaused})
	h.do(h.alice, "GET", at, "").want(t, 200).is(t, `[]`)
}

// TestConversationFiles_LongListing reads a listing to its end, which is on the second page.
func TestConversationFiles_LongListing(t *testing.T) {
	h := newHarness(t).withSpec()
	sb := h.createSandbox(h.alice)
	id := h.conversation("alice", sb)
	h.observe(sb, running())
	const outputs = 101
	h.agents.call = func(_ context.Context, _, _ string, q AgentRequest) ([]byte, error) {
		u, err := url.Parse(q.Path)
		if err != nil || q.Method == "POST" {
			return []byte(`{"id":"b-1"}`), err
		}
		first := 0
		if after := u.Query().Get("order__gt"); after != "" {
			n, err := strconv.Atoi(after)
			if err != nil {
				return nil, err
			}
			first = n + 1
		}
		var page bash.Page
		for i := first; i < min(first+100, outputs); i++ {
			one := bash.Output{Order: i, Stdout: ptr("./" + strconv.Itoa(i) + "\n")}
			if i == outputs-1 {
				one.ExitCode = new(int)
			}
			page.Items = append(page.Items, one)
		}
		return json.Marshal(page)
	}
	var files []string
	h.do(h.alice, "GET", "/api/v1/app-conversations/"+id+"/files", "").want(t, 200).json(t, &files)
	if len(files) != outputs {
		t.Errorf("%d files of %d", len(files), outputs)
	}
}
