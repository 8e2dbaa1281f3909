package agentserver

import (
	"bufio"
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

// head are the members that each event has. The first event, which a conversation has from the start, has
// no parent.
const head = "id kind parent_id source timestamp "

// kindMembers are upstream's members of each kind, and those that are null in the event made here.
func kindMembers() map[string]struct {
	e              event.Event
	members, nulls string
} {
	action := event.ToolCall{ID: "c", Name: "terminal", Arguments: "{}", Origin: "completion"}
	return map[string]struct {
		e              event.Event
		members, nulls string
	}{
		event.KindSystemPrompt: {&event.SystemPrompt{SystemPrompt: event.NewText("be")},
			"system_prompt tools dynamic_context", "dynamic_context"},
		event.KindMessage: {&event.Message{LLMMessage: event.LLMMessage{Role: "user"}},
			"llm_message llm_response_id activated_skills extended_content sender critic_result",
			"llm_response_id sender critic_result"},
		event.KindAction: {
			&event.Action{ToolCall: action, ToolName: "terminal", ToolCallID: "c", SecurityRisk: "UNKNOWN"},
			"thought reasoning_content thinking_blocks responses_reasoning_item action tool_name tool_call_id tool_call " +
				"llm_response_id security_risk summary critic_result",
			"reasoning_content responses_reasoning_item action summary critic_result",
		},
		event.KindObservation: {&event.Observation{Observation: []byte(`{"kind":"ThinkObservation"}`)},
			"tool_name tool_call_id action_id observation extended_content", ""},
		event.KindUserReject: {&event.UserReject{},
			"tool_name tool_call_id action_id rejection_reason rejection_source", ""},
		event.KindAgentError:          {&event.AgentError{}, "tool_name tool_call_id error classification", ""},
		event.KindConversationError:   {&event.ConversationError{Code: "c"}, "code detail classification", ""},
		event.KindStateUpdate:         {&event.StateUpdate{Key: "tags", Value: []byte("null")}, "key value", "value"},
		event.KindPause:               {&event.Pause{}, "", ""},
		event.KindInterrupt:           {&event.Interrupt{}, "", ""},
		event.KindCondensationRequest: {&event.CondensationRequest{}, "", ""},
		event.KindCondensation: {&event.Condensation{},
			"forgotten_event_ids summary summary_offset llm_response_id", "summary summary_offset"},
		event.KindACPToolCall: {&event.ACPToolCall{},
			"tool_call_id title status tool_kind raw_input raw_output content is_error",
			"status tool_kind raw_input raw_output content"},
		event.KindHookExecution: {&event.HookExecution{},
			"hook_event_type hook_command success exit_code blocked stdout stderr tool_name reason additional_context error " +
				"action_id message_id hook_input",
			"tool_name reason additional_context error action_id message_id hook_input"},
		// These two are sent and not stored.
		event.KindStreamingDelta: {&event.StreamingDelta{}, "content reasoning_content", "content reasoning_content"},
		event.KindServerError:    {&event.ServerError{}, "code detail", ""},
	}
}

// TestEvents_Members: each kind has all of upstream's members, those without a value as null, on disk
// and in each answer, and lacks the null ones in the frames of a socket.
func TestEvents_Members(t *testing.T) {
	dir := t.TempDir()
	for kind, c := range kindMembers() {
		t.Run(kind, func(t *testing.T) {
			s := serveAt(t, filepath.Join(dir, kind), nil)
			s.want(201, "POST", "/api/conversations", withoutMessage(t))
			conv := s.s.conversations.Get(convID)
			live := s.subscribe(convID, "", withKey())
			if e := frameOf(t, live); e.Key != "full_state" {
				t.Fatalf("the first frame is %+v", e)
			}
			all := strings.Fields(head + c.members)
			nulls := strings.Fields(c.nulls)
			sent := without(all, nulls)
			if kind == event.KindStreamingDelta || kind == event.KindServerError {
				conv.Send(c.e)
				members(t, "a frame", rawFrame(t, live), without(sent, []string{"parent_id"}), nil)
				return
			}
			if err := conv.Append(c.e); err != nil {
				t.Fatal(err)
			}
			id := c.e.Envelope().ID
			members(t, "a live frame", rawFrame(t, live), sent, nil)
			again := s.subscribe(convID, "?resend_mode=all", withKey())
			_ = frameOf(t, again) // the whole state
			first := rawFrame(t, again)
			members(t, "the first frame", first, strings.Fields("id key kind source timestamp value"), nil)
			members(t, "a frame that is sent again", rawFrame(t, again), sent, nil)
			page := decodeJSON[struct{ Items []json.RawMessage }](t,
				s.want(200, "GET", convPath+"/events/search?kind="+kind, ""))
			members(t, "the search", page.Items[len(page.Items)-1], all, nulls)
			members(t, "one", []byte(s.want(200, "GET", convPath+"/events/"+id, "")), all, nulls)
			batch := decodeJSON[[]json.RawMessage](t, s.want(200, "GET", convPath+"/events", `["`+id+`"]`))
			members(t, "the batch", batch[0], all, nulls)
			members(t, "the file", stored(t, filepath.Join(dir, kind), id), all, nulls)
			id = decodeJSON[eventSeen](t, string(first)).ID
			members(t, "the first event in the file", stored(t, filepath.Join(dir, kind), id),
				strings.Fields(head+"key value"), []string{"parent_id"})
		})
	}
}

// withoutMessage is a request for a conversation that has no events yet.
func withoutMessage(t *testing.T) string {
	t.Helper()
	body := decodeJSON[map[string]any](t, createBody(t, convUID))
	delete(body, "initial_message")
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func without(list, names []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(names, s) })
}

// rawFrame reads one frame as it is.
func rawFrame(t *testing.T, conn *websocket.Conn) []byte {
	t.Helper()
	_, b, err := conn.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// members checks the members of an event, and which of them are null.
func members(t *testing.T, where string, raw []byte, all, nulls []string) {
	t.Helper()
	got := decodeJSON[map[string]json.RawMessage](t, string(raw))
	names := slices.Sorted(maps.Keys(got))
	slices.Sort(all)
	if !slices.Equal(names, all) {
		t.Errorf("%s has %v, want %v", where, names, all)
	}
	for name, v := range got {
		if null := string(v) == "null"; null != slices.Contains(nulls, name) {
			t.Errorf("%s: %s is %s", where, name, v)
		}
	}
}

// stored is the line of an event in the file.
func stored(t *testing.T, dir, id string) []byte {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*", "events.jsonl"))
	if err != nil || len(files) != 1 {
		t.Fatalf("the files are %v, %v", files, err)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		if bytes.Contains(lines.Bytes(), []byte(id)) {
			return slices.Clone(lines.Bytes())
		}
	}
	t.Fatalf("%s is not in the file", id)
	return nil
}

// TestEvents_ValuesOfAnyType: what is in a value of any type is the same everywhere, null or not. A page
// ends where the budget of a task is missing.
func TestEvents_ValuesOfAnyType(t *testing.T) {
	dir := t.TempDir()
	s := serveAt(t, dir, nil)
	s.want(201, "POST", "/api/conversations", withoutMessage(t))
	live := s.subscribe(convID, "", withKey())
	_ = frameOf(t, live)
	metrics := `{"usage_to_metrics":{"agent":{"model_name":"","accumulated_cost":0,"max_budget_per_task":null,` +
		`"accumulated_token_usage":{"model":"","prompt_tokens":0,"completion_tokens":0,"cache_read_tokens":0,` +
		`"cache_write_tokens":0,"reasoning_tokens":0,"context_window":0,"per_turn_token":0,"response_id":""}}}}`
	stats, err := json.Marshal(event.Stats{UsageToMetrics: map[string]event.Metrics{"agent": {}}})
	if err != nil || string(stats) != metrics {
		t.Fatalf("the stats are %s, %v", stats, err)
	}
	given := `{"a":null,"b":[null,{"c":null}]}`
	conv := s.s.conversations.Get(convID)
	mcp := json.RawMessage(`{"kind":"MCPToolAction","data":` + given + `,"note":null}`)
	for _, c := range []struct {
		e    event.Event
		want string
	}{
		{&event.StateUpdate{Key: "stats", Value: stats}, `"value":` + metrics},
		{&event.ACPToolCall{RawInput: event.Any(given), Content: event.Any("[" + given + "]")},
			`"raw_input":` + given + `,"content":[` + given + `],`},
		{&event.HookExecution{HookInput: event.Any(given)}, `"hook_input":` + given},
		{&event.Action{Action: mcp}, `"action":{"kind":"MCPToolAction","data":` + given + `},`},
	} {
		if err := conv.Append(c.e); err != nil {
			t.Fatal(err)
		}
		if frame := string(rawFrame(t, live)); !strings.Contains(frame, c.want) {
			t.Errorf("the frame is\n%s, want in it\n%s", frame, c.want)
		}
	}
	state := s.subscribe(convID, "", withKey())
	if frame := string(rawFrame(t, state)); !strings.Contains(frame, `"max_budget_per_task":null`) {
		t.Errorf("the whole state is %s", frame)
	}
	if info := s.want(200, "GET", convPath, ""); strings.Count(info, `"max_budget_per_task":null`) != 2 {
		t.Errorf("the conversation is %s", info)
	}
}

// TestEvents_OfAnOlderServer: what an older server stored without its null members has them in answers.
func TestEvents_OfAnOlderServer(t *testing.T) {
	dir := t.TempDir()
	s := serveAt(t, dir, nil)
	s.want(201, "POST", "/api/conversations", withoutMessage(t))
	s.s.close()
	lines := `{"kind":"PauseEvent","id":"a","timestamp":"2026-01-02T03:04:05.000000","source":"user"}` + "\n" +
		`{"kind":"ConversationStateUpdateEvent","id":"b","timestamp":"2026-01-02T03:04:06.000000",` +
		`"source":"environment","parent_id":"a","key":"stats","value":{"usage_to_metrics":{"agent":{"model_name":"m",` +
		`"accumulated_cost":1,"accumulated_token_usage":{"model":"m","prompt_tokens":1}}}}}` + "\n"
	files, err := filepath.Glob(filepath.Join(dir, "*", "events.jsonl"))
	if err != nil || len(files) != 1 {
		t.Fatalf("the files are %v, %v", files, err)
	}
	if err := os.WriteFile(files[0], []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	s = serveAt(t, dir, nil)
	if got := s.want(200, "GET", convPath+"/events/a", ""); !strings.Contains(got, `"parent_id":null`) {
		t.Errorf("the first event is %s", got)
	}
	if got := s.want(200, "GET", convPath+"/events/b", ""); !strings.Contains(got, `"max_budget_per_task":null`) {
		t.Errorf("the stats are %s", got)
	}
}
