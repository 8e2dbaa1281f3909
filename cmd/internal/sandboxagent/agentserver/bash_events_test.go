package agentserver

import (
	"context"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/socket"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/scheduler/agent"
)

// bashEventBody has the members of a BashCommand, a BashOutput and a BashError.
type bashEventBody struct {
	agent.BashOutput
	Command string `json:"command"`
	Code    string `json:"code"`
	Detail  string `json:"detail"`
}

func (s *server) bashSearch(query string) agent.Page[bashEventBody] {
	s.t.Helper()
	return decodeJSON[agent.Page[bashEventBody]](s.t, s.want(200, "GET", "/api/bash/bash_events/search"+query, ""))
}

func TestBashEvents_SearchWithoutACommandListsAll(t *testing.T) {
	s := newServer(t)
	s.run(`{"command":"echo one"}`)
	s.run(`{"command":"echo two >&2"}`)
	all := s.bashSearch("")
	kinds := []string{}
	for _, e := range all.Items {
		kinds = append(kinds, e.Kind)
	}
	want := []string{"BashCommand", "BashOutput", "BashOutput", "BashCommand", "BashOutput", "BashOutput"}
	if !slices.Equal(kinds, want) {
		t.Fatalf("%v, want %v", kinds, want)
	}
	if all.Items[0].Command != "echo one" || *all.Items[1].Stdout != "one\n" || *all.Items[4].Stderr != "two\n" {
		t.Errorf("%+v", all.Items)
	}
	for query, n := range map[string]int{
		"?kind__eq=BashCommand": 2, "?kind__eq=BashOutput": 4, "?command_id__eq=" + all.Items[0].ID: 2,
		"?command_id__eq=" + decode.Dashed(all.Items[0].ID): 2, "?order__gt=0": 4,
		"?timestamp__gte=" + url.QueryEscape(all.Items[3].Timestamp): 3,
		"?timestamp__lt=" + url.QueryEscape(all.Items[3].Timestamp):  3,
		"?command_id__eq=" + strings.Repeat("0", 32):                 0,
	} {
		if got := s.bashSearch(query); len(got.Items) != n {
			t.Errorf("%s: %d events, want %d", query, len(got.Items), n)
		}
	}
	first := s.bashSearch("?sort_order=TIMESTAMP_DESC&limit=4")
	rest := s.bashSearch("?sort_order=TIMESTAMP_DESC&limit=4&page_id=" + *first.NextPageID)
	back := slices.Concat(first.Items, rest.Items)
	slices.Reverse(back)
	if len(back) != 6 || rest.NextPageID != nil || back[0].ID != all.Items[0].ID || back[5].ID != all.Items[5].ID {
		t.Errorf("pages: %+v", back)
	}
	for _, query := range []string{
		"?kind__eq=X",
		"?sort_order=X",
		"?timestamp__gte=X",
		"?order__gt=X",
		"?limit=101",
		"?command_id__eq=X",
	} {
		s.want(422, "GET", "/api/bash/bash_events/search"+query, "")
	}
}

func TestBashEvents_TimesHaveAZone(t *testing.T) {
	s := newServer(t)
	s.run(`{"command":"echo one"}`)
	for _, e := range s.bashSearch("").Items {
		if _, err := time.Parse(time.RFC3339Nano, e.Timestamp); err != nil {
			t.Errorf("%s: %v", e.Kind, err)
		}
	}
}

func TestBashEvents_GetBatchAndDelete(t *testing.T) {
	s := newServer(t)
	s.run(`{"command":"echo one"}`)
	running := decodeJSON[agent.BashCommand](t,
		s.want(200, "POST", "/api/bash/start_bash_command", `{"command":"sleep 60"}`))
	all := s.bashSearch("").Items
	got := decodeJSON[bashEventBody](t, s.want(200, "GET", "/api/bash/bash_events/"+decode.Dashed(all[1].ID), ""))
	if got.ID != all[1].ID || *got.Stdout != "one\n" {
		t.Errorf("%+v", got)
	}
	s.want(404, "GET", "/api/bash/bash_events/"+strings.Repeat("0", 32), "")
	ids, _ := json.Marshal([]string{all[2].ID, "unknown", all[0].ID})
	batch := decodeJSON[[]*bashEventBody](t, s.want(200, "GET", "/api/bash/bash_events/", string(ids)))
	if len(batch) != 3 || batch[0].ID != all[2].ID || batch[1] != nil || batch[2].Command != "echo one" {
		t.Errorf("%+v", batch)
	}
	s.want(422, "GET", "/api/bash/bash_events/", `{}`)
	if text := s.want(200, "DELETE", "/api/bash/bash_events", ""); text != `{"cleared_count":3}` {
		t.Error(text)
	}
	left := s.bashSearch("").Items
	if len(left) != 1 || left[0].ID != running.ID {
		t.Errorf("%+v", left)
	}
	s.want(404, "GET", "/api/bash/bash_events/"+all[0].ID, "")
}

// A deleted command is unknown after a restart too: it is not one that the restart ended.
func TestBashEvents_DeletedStaysDeletedAfterARestart(t *testing.T) {
	dir := t.TempDir()
	keep := func(c *config.Config) { c.BashEventsDir = dir }
	s := serveAt(t, t.TempDir(), keep)
	s.run(`{"command":"true"}`)
	id := s.bashSearch("").Items[0].ID
	s.want(200, "DELETE", "/api/bash/bash_events", "")
	s.run(`{"command":"true"}`)
	kept := s.bashSearch("").Items[0].ID
	again := serveAt(t, t.TempDir(), keep)
	if n := len(again.bashSearch("?command_id__eq=" + id).Items); n != 0 {
		t.Errorf("%d events of a deleted command", n)
	}
	if n := len(again.bashSearch("?command_id__eq=" + kept).Items); n != 1 {
		t.Errorf("%d events of a command before the restart", n)
	}
}

func (s *server) bashSocket(query string) *websocket.Conn {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(s.url, "http")+"/sockets/bash-events"+query, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.CloseNow() })
	return conn
}

// nextBash reads frames until one satisfies the condition.
func nextBash(t *testing.T, conn *websocket.Conn, until func(bashEventBody) bool) (seen []bashEventBody) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for {
		_, b, err := conn.Read(ctx)
		if err != nil {
			t.Fatal(err)
		}
		e := decodeJSON[bashEventBody](t, string(b))
		if seen = append(seen, e); until(e) {
			return seen
		}
	}
}

func TestBashSocket_CommandsAndOutput(t *testing.T) {
	s := newServer(t)
	s.run(`{"command":"echo before"}`)
	conn := s.bashSocket("?session_api_key=" + testKey)
	write := func(text string) {
		if err := conn.Write(t.Context(), websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	ended := func(e bashEventBody) bool { return e.ExitCode != nil }
	write(`{"type":"auth","session_api_key":"` + testKey + `"}`) // is ignored
	write(`{"command":"echo here; exit 3"}`)
	seen := nextBash(t, conn, ended)
	if seen[0].Kind != "BashCommand" || seen[0].Command != "echo here; exit 3" || *seen[1].Stdout != "here\n" ||
		*seen[len(seen)-1].ExitCode != 3 {
		t.Errorf("%+v", seen)
	}
	// Output of a running command arrives before its end.
	started := decodeJSON[agent.BashCommand](t,
		s.want(200, "POST", "/api/bash/start_bash_command", `{"command":"echo early; sleep 60"}`))
	seen = nextBash(t, conn, func(e bashEventBody) bool { return e.Stdout != nil })
	if seen[0].ID != started.ID || *seen[1].Stdout != "early\n" {
		t.Errorf("%+v", seen)
	}
	for _, frame := range []string{
		`[`,
		`[]`,
		`{"command":1}`,
		`{"command":"x","cwd":"relative"}`,
		`{"command":"x","timeout":-1}`,
	} {
		write(frame)
		if e := nextBash(t, conn, func(bashEventBody) bool { return true })[0]; e.Kind != "BashError" || e.Code == "" ||
			e.Detail == "" {
			t.Errorf("%s: %+v", frame, e)
		}
	}
	all := s.bashSocket("?resend_mode=all")
	if err := all.Write(t.Context(), websocket.MessageText,
		[]byte(`{"type":"auth","session_api_key":"`+testKey+`"}`)); err != nil {
		t.Fatal(err)
	}
	if seen := nextBash(t, all, ended); *seen[1].Stdout != "before\n" {
		t.Errorf("%+v", seen)
	}
	if code := closeCode(t, s.bashSocket("?session_api_key=x")); code != socket.Unauthorized {
		t.Errorf("close code %d", code)
	}
}
