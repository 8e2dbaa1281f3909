package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

// TestShown_Events: what people see of each kind of event, of the native engine and of ACP agents.
func TestShown_Events(t *testing.T) {
	action := func(tool, action string) string {
		return `{"kind":"ActionEvent","thought":[],"tool_name":"` + tool + `","action":` + action +
			`,"tool_call":{"arguments":"{\"q\":1}"}}`
	}
	observed := func(tool, rest string) string {
		return `{"kind":"ObservationEvent","tool_name":"` + tool + `","observation":{` + rest + `}}`
	}
	output := func(text string) string { return `"content":[{"type":"text","text":"` + text + `"}]` }
	for _, c := range []struct{ event, want string }{
		{`{"kind":"MessageEvent","source":"user","llm_message":{"content":[{"type":"text","text":"a\nb"}]}}`, "> a\n> b"},
		{`{"kind":"MessageEvent","source":"agent","llm_message":{"content":[{"type":"text","text":"a"}]}}`, "a"},
		{`{"kind":"MessageEvent","source":"environment","llm_message":{"content":[{"type":"text","text":"a"}]}}`, ""},
		{action("terminal", `{"command":"ls\npwd"}`), "$ ls\n  pwd"},
		{action("terminal", `{"command":"C-c","is_input":true}`), "$ < C-c"},
		{action("file_editor", `{"command":"create","path":"/a"}`), "file_editor: create /a"},
		{action("think", `{"thought":"hm"}`), "hm"},
		{action("finish", `{"message":"done"}`), ""},
		{action("fetch", `{"data":{}}`), `fetch {"q":1}`},
		{action("terminal", `null`), `terminal {"q":1}`},
		{observed("terminal", output(`a\r\nb\n`)+`,"exit_code":0`), "  a\n  b"},
		{observed("terminal", output("")+`,"exit_code":2`), "  exit 2"},
		{observed("terminal", output(strings.Repeat(`x\n`, 14))+`,"exit_code":-1`),
			"  ... 2 lines" + strings.Repeat("\n  x", 12)},
		{observed("file_editor", output("the file")), ""},
		{observed("file_editor", output("no such file")+`,"is_error":true`), "  no such file"},
		{`{"kind":"UserRejectObservation","rejection_reason":"no"}`, "rejected: no"},
		{`{"kind":"AgentErrorEvent","tool_name":"fetch","error":"bad"}`, "fetch: bad"},
		{`{"kind":"ConversationErrorEvent","code":"DiskFull","detail":"full"}`, "error DiskFull: full"},
		{`{"kind":"ServerErrorEvent","code":"InvalidFrame","detail":"no"}`, "error InvalidFrame: no"},
		{`{"kind":"Condensation"}`, "the conversation's history was shortened"},
		{`{"kind":"HookExecutionEvent","blocked":true,"reason":"never"}`, "a hook forbids it: never"},
		{`{"kind":"HookExecutionEvent"}`, ""},
		{`{"kind":"ACPToolCallEvent","tool_call_id":"1","title":"Read a"}`, "* Read a"},
		{`{"kind":"ACPToolCallEvent","tool_call_id":"1","title":"Read a","status":"completed"}`, ""},
		{`{"kind":"ACPToolCallEvent","tool_call_id":"1","title":"Read a","status":"failed"}`, "failed: Read a"},
		{`{"kind":"ConversationStateUpdateEvent","key":"stats","value":{}}`, ""},
		{`{"kind":"AnEventOfTheFuture"}`, ""},
	} {
		e, err := event.Decode([]byte(c.event))
		if err != nil {
			t.Fatal(err)
		}
		s := transcript{calls: map[string]bool{}}
		if strings.Contains(c.event, `"status":`) {
			s.calls["1"] = true
		}
		if got := s.text(e); got != c.want {
			t.Errorf("%s is shown as %q, want %q", c.event, got, c.want)
		}
	}
	var s transcript
	for _, part := range []string{"one\ntw", "o", " ", "words\n"} {
		s.text(&event.StreamingDelta{Content: &part})
	}
	if s.activity() != "two words" {
		t.Errorf("the live line is %q", s.activity())
	}
	for range 3 * shownDelta {
		s.text(&event.StreamingDelta{Content: new("é")})
	}
	if len(s.delta) > shownDelta || strings.Trim(s.delta, "é") != "" {
		t.Errorf("a line without an end is kept with %d bytes", len(s.delta))
	}
	var waits transcript
	waits.text(&event.StateUpdate{Key: event.KeyModelQueue, Value: []byte("3")})
	if waits.activity() != "waits for the model's server, place 3 in the queue" {
		t.Errorf("the live line is %q", waits.activity())
	}
	if s = (transcript{doing: "$ ls\n  pwd"}); s.activity() != "$ ls" {
		t.Errorf("the live line is %q", s.activity())
	}
}

// TestShown_PartsAreDrawnNowAndThen: the parts of an answer do not draw the live line each.
func TestShown_PartsAreDrawnNowAndThen(t *testing.T) {
	var out bytes.Buffer
	f := (&program{stdout: &out}).newFollower(nil, runFlags{})
	f.out.width = func() int { return 80 }
	take := func(drawn time.Time, part string) (written int) {
		out.Reset()
		f.drawn = drawn
		if err := f.take(arrival{event: &event.StreamingDelta{Content: &part}}); err != nil {
			t.Fatal(err)
		}
		return out.Len()
	}
	if take(time.Time{}, "one") == 0 {
		t.Error("the first part is not shown")
	}
	if n := take(time.Now().Add(time.Hour), "two"); n > 0 {
		t.Errorf("a part that follows at once writes %d bytes", n)
	}
	if take(time.Time{}, "three"); !strings.Contains(out.String(), "onetwothree") {
		t.Errorf("the line is %q", out.String())
	}
}
