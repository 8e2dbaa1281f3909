package agentserver

import (
	"encoding/json"
	"strings"
	"testing"

	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// TestHooks_OfTheCreateRequest: what the create request forbids is forbidden after a restart, too, and
// hooks that can't be read are refused.
func TestHooks_OfTheCreateRequest(t *testing.T) {
	dir, data := brokenRepository(t), t.TempDir()
	m := modeltest.New(t, script(dir))
	create := func(hooks string) string {
		b, err := json.Marshal(map[string]any{
			"conversation_id": convID, "workspace": map[string]any{"working_dir": dir}, "hook_config": json.RawMessage(hooks),
			"agent_settings": map[string]any{"agent_kind": "openhands", "llm": map[string]any{
				"model": "openai/scripted", "api_key": modelKey, "base_url": m.BaseURL()}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	s := serveAt(t, data, nativeEngine)
	if got := s.want(422, "POST", "/api/conversations",
		create(`{"before_lunch":[]}`)); !strings.Contains(got, "before_lunch") {
		t.Errorf("the refusal is %s", got)
	}
	s.want(201, "POST", "/api/conversations",
		create(`{"PreToolUse":[{"matcher":"file_editor","hooks":[{"command":"echo not here >&2; exit 2"}]}]}`))
	s.s.close()

	s = serveAt(t, data, nativeEngine)
	s.want(200, "POST", convPath+"/events", `{"content":"fix the greeting","run":true}`)
	if got := s.settled(convID); got != "finished" {
		t.Fatalf("status %s: %q", got, s.kinds(convID))
	}
	if got := fileText(t, dir+"/greet.sh"); got != "echo helo\n" {
		t.Errorf("greet.sh is %q", got)
	}
	got := s.want(200, "GET", convPath+"/events/search?kind=UserRejectObservation", "")
	if !strings.Contains(got, `"rejection_source":"hook"`) || !strings.Contains(got, "not here") {
		t.Errorf("rejections: %s", got)
	}
	if got := s.want(200, "GET", convPath+"/events/search?kind=HookExecutionEvent",
		""); strings.Count(got, `"blocked":true`) != 1 {
		t.Errorf("hooks: %s", got)
	}
}

// TestCreate_RefusesWhatThisServerHasNot: tools of the client and a worktree are not taken and dropped.
func TestCreate_RefusesWhatThisServerHasNot(t *testing.T) {
	s := newServer(t)
	with := func(member string) string {
		return strings.TrimSuffix(createBody(t, convUID), "}") + "," + member + "}"
	}
	for member, says := range map[string]string{
		`"client_tools":[{"name":"CANARY"}]`: "client_tools are not supported",
		`"worktree":true`:                    "a worktree of its own is not supported",
	} {
		if got := s.want(422, "POST", "/api/conversations", with(member)); !strings.Contains(got, says) ||
			strings.Contains(got, "CANARY") {
			t.Errorf("%s: %s", member, got)
		}
	}
	s.want(201, "POST", "/api/conversations",
		with(`"plugins":[],"client_tools":null,"worktree":false,"tool_module_qualnames":{"a":"b"}`))
}
