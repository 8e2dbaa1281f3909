package event

import (
	"encoding/json"
	"reflect"
	"testing"
)

// TestDecode_EveryKind writes an event of each kind and reads it back as its type.
func TestDecode_EveryKind(t *testing.T) {
	names := []string{
		KindSystemPrompt, KindMessage, KindAction, KindObservation, KindUserReject, KindAgentError,
		KindConversationError, KindStateUpdate, KindPause, KindInterrupt, KindCondensationRequest,
		KindCondensation, KindACPToolCall, KindStreamingDelta, KindHookExecution, KindServerError,
	}
	for _, kind := range names {
		e := kinds(kind)
		if e == nil || KindOf(e) != kind {
			t.Fatalf("%s is not known", kind)
		}
		h := e.Envelope()
		h.Kind, h.ID, h.Source, h.Timestamp = kind, "an-id", SourceAgent, "2026-01-02T03:04:05.000000"
		if a, ok := e.(*Action); ok {
			a.Action = json.RawMessage(`null`)
		}
		if u, ok := e.(*StateUpdate); ok {
			u.Value = json.RawMessage(`"idle"`)
		}
		if o, ok := e.(*Observation); ok {
			o.Observation = json.RawMessage(`{"kind":"ThinkObservation"}`)
		}
		b, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(b)
		if err != nil || !reflect.DeepEqual(got, e) {
			t.Errorf("%s: %v\n%s\ngot  %#v\nwant %#v", kind, err, b, got, e)
		}
	}
	raw := `{"kind":"NewerEvent","id":"i","timestamp":"t","source":"hook","member":1}`
	e, err := Decode([]byte(raw))
	b, _ := json.Marshal(e)
	if err != nil || string(b) != raw {
		t.Errorf("an unknown kind became %s, %v", b, err)
	}
}

// TestOpenActions_IDsThatRepeat pairs results with the open action before them, as models that
// count their calls anew in each answer need it.
func TestOpenActions_IDsThatRepeat(t *testing.T) {
	act := func(id, call string) Event {
		return &Action{Head: Head{ID: id}, ToolCallID: call, Action: json.RawMessage(`{"kind":"ThinkAction"}`)}
	}
	result := func(call string) Event { return &Observation{ToolCallID: call} }
	invalid := &Action{Head: Head{ID: "x"}, ToolCallID: "x", Action: json.RawMessage("null")}
	for name, c := range map[string]struct {
		events []Event
		open   []string
	}{
		"none":     {[]Event{act("a", "0"), result("0")}, nil},
		"repeated": {[]Event{act("a", "0"), result("0"), act("b", "0")}, []string{"b"}},
		"rejected": {[]Event{act("a", "0"), act("b", "1"), &UserReject{ToolCallID: "1"}}, []string{"a"}},
		"failed":   {[]Event{act("a", "0"), &AgentError{ToolCallID: "0"}, invalid}, nil},
	} {
		var got []string
		for _, a := range OpenActions(c.events) {
			got = append(got, a.ID)
		}
		if !reflect.DeepEqual(got, c.open) {
			t.Errorf("%s: open are %v, want %v", name, got, c.open)
		}
	}
}
