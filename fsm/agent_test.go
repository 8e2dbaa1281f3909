package fsm

import (
	"strings"
	"testing"
)

// TestAgents_Version: below VersionAgents Apply behaves as older nodes do, which do not know agents,
// and whoever asks for one is refused before.
func TestAgents_Version(t *testing.T) {
	t.Parallel()
	f := newFixture(t).open()
	f.do("", &ProtocolRaiseBody{Version: VersionAgents - 1})
	spec := dockerSpec("py")
	spec.Agents = []Agent{{ID: "opencode"}}
	spec.Template.Isolation = IsolationStandard
	f.do("", &SpecApplyBody{Specs: []Spec{spec}})
	start := StartRequest{ACPServer: ptr("opencode")}
	put := &SettingsPutBody{Values: SettingsValues{ACPServer: ptr("opencode"), AgentKind: ptr(AgentACP)}}
	v := f.store.View()
	for what, err := range map[string]*Error{
		"start": v.StartAdmission("ada", &start, f.now), "settings": v.SettingsAdmission("ada", put, f.now),
		"grouping": v.SettingsAdmission("ada",
			&SettingsPutBody{Values: SettingsValues{SandboxGroupingStrategy: ptr(GroupAny)}}, f.now),
	} {
		if err == nil || err.Code != CodeProtocol || !strings.Contains(err.Message, "protocol version 8") {
			t.Errorf("%s: %v", what, err)
		}
	}
	same := SettingsValues{
		AgentKind:               ptr(AgentOpenHands),
		SandboxGroupingStrategy: ptr(GroupNone),
		GitFullClone:            ptr(false),
		ACPServer:               ptr(""),
	}
	if err := v.SettingsAdmission("ada", &SettingsPutBody{Values: same}, f.now); err != nil {
		t.Errorf("values as below the version: %v", err)
	}
	f.do("ada", put)
	task := f.do("ada", &StartTaskCreateBody{ID: "t1", ConversationID: "c1", Request: start}).StartTask
	v = f.store.View()
	if v.Spec("py").Agents != nil || v.Settings("ada").Values.ACPServer != nil || task.Request.ACPServer != nil {
		t.Error("an agent is kept below its version")
	}
	f.do("", &ProtocolRaiseBody{Version: VersionAgents})
	f.do("", &SpecApplyBody{Specs: []Spec{spec}})
	f.do("ada", put)
	if v = f.store.View(); v.StartAdmission("ada", &start, f.now) != nil || v.SettingsAdmission("ada", put, f.now) != nil {
		t.Error("an agent is refused at its version")
	}
}

// TestAgentChoice: the request's choice wins over the user's, and the built-in agent has an id too.
func TestAgentChoice(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ request, kind, server, want string }{
		{"", "", "", "openhands "},
		{"", "openhands", "codex", "openhands "},
		{"", "", "codex", "acp codex"},
		{"", "acp", "codex", "acp codex"},
		{"", "acp", "", "acp custom"},
		{"", "acp", "openhands", "openhands "},
		{"opencode", "openhands", "codex", "acp opencode"},
		{"openhands", "acp", "codex", "openhands "},
	} {
		set := &Settings{Values: SettingsValues{AgentKind: ptr(c.kind), ACPServer: ptr(c.server)}}
		if kind, id := AgentChoice(&StartRequest{ACPServer: ptr(c.request)}, set); kind+" "+id != c.want {
			t.Errorf("%+v: %s %s", c, kind, id)
		}
	}
	if kind, _ := AgentChoice(&StartRequest{}, nil); kind != AgentOpenHands {
		t.Errorf("without settings: %s", kind)
	}
}
