package starttask

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent"
)

// withAgents gives the default spec agents.
func (w *taskWorld) withAgents(free bool, agents ...fsm.Agent) {
	w.t.Helper()
	if w.store.View().ProtocolVersion() < fsm.VersionAgents {
		w.must("", &fsm.ProtocolRaiseBody{Version: fsm.VersionAgents})
	}
	spec := *w.store.View().Spec("local")
	spec.Agents, spec.AllowAgentCommand, spec.Template.Isolation = agents, free, fsm.IsolationNone
	w.must("", &fsm.SpecApplyBody{Specs: []fsm.Spec{spec}})
}

// TestStartTask_Agent: what the agent server is told for each way to choose an agent.
func TestStartTask_Agent(t *testing.T) {
	mine := fsm.Agent{
		ID: "mine", Command: "my-agent", Args: []string{"acp"}, Env: map[string]string{"HOME_OF": "{{data_dir}}"},
		EnvFromSecret: map[string]string{"LICENCE": "MINE"}, SessionMode: "auto", Model: "own",
	}
	const llm = `"llm":{"model":"m/stored","api_key":"LLMCANARY","base_url":"https://llm","usage_id":"agent"}`
	for name, c := range map[string]struct {
		values  fsm.SettingsValues
		request fsm.StartRequest
		want    string
		looked  string
	}{
		"preset by settings": {
			values: fsm.SettingsValues{AgentKind: ptr(fsm.AgentACP), ACPServer: ptr("opencode"), ACPModel: ptr("big")},
			want:   `{"agent_kind":"acp","acp_server":"opencode","acp_model":"big",` + llm + `}`,
			looked: "command -v -- 'opencode'",
		},
		"own agent by request": {
			values:  fsm.SettingsValues{AgentKind: ptr(fsm.AgentOpenHands)},
			request: fsm.StartRequest{ACPServer: ptr("mine")},
			want: `{"agent_kind":"acp","acp_server":"mine","acp_command":["my-agent"],"acp_args":["acp"],` +
				`"acp_env":{"HOME_OF":"{{data_dir}}"},` +
				`"acp_session_mode":"auto","acp_model":"own",` + llm + `}`,
			looked: "command -v -- 'my-agent'",
		},
		"own command": {
			values: fsm.SettingsValues{AgentKind: ptr(fsm.AgentACP), ACPCommand: ptr([]string{"bin/it's", "--acp"})},
			want:   `{"agent_kind":"acp","acp_server":"custom","acp_command":["bin/it's","--acp"],` + llm + `}`,
			looked: `command -v -- 'bin/it'\''s'`,
		},
		"a profile's model": {
			values:  fsm.SettingsValues{ACPServer: ptr("mine"), ACPModel: ptr("big")},
			request: fsm.StartRequest{ACPServer: ptr("opencode"), ACPModel: ptr("small"), AgentProfileID: ptr("p2")},
			want:    `{"agent_kind":"acp","acp_server":"opencode","acp_model":"small",` + llm + `}`,
			looked:  "command -v -- 'opencode'",
		},
		"a model of the start": {
			values:  fsm.SettingsValues{ACPServer: ptr("mine"), ACPModel: ptr("big")},
			request: fsm.StartRequest{LLMModel: ptr("m/stored")},
			want: `{"agent_kind":"acp","acp_server":"mine","acp_command":["my-agent"],"acp_args":["acp"],` +
				`"acp_env":{"HOME_OF":"{{data_dir}}"},` +
				`"acp_session_mode":"auto",` + llm + `}`,
			looked: "command -v -- 'my-agent'",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTaskWorld(t)
			w.must("", &fsm.ProtocolRaiseBody{Version: fsm.VersionProfiles})
			w.withAgents(true, fsm.Agent{ID: "opencode"}, mine)
			c.values.LLMModel, c.values.LLMBaseURL, c.values.EnableDefaultCondenser = ptr("m/stored"), ptr("https://llm"), true
			key, custom := w.secret("users/ada/settings/llm_api_key", "value",
				"LLMCANARY"), w.secret("users/ada/custom/MINE", "value", "MINECANARY")
			w.must(taskUser,
				&fsm.SettingsPutBody{
					Values:        c.values,
					LLMAPIKey:     &key,
					CustomSecrets: []fsm.CustomSecret{{Name: "MINE", Ref: custom}},
				})
			task := w.task("1", func(b *fsm.StartTaskCreateBody) { b.Request = c.request })
			w.run(nil)
			if got := w.done(task.ID); got.Status != fsm.StartTaskReady {
				t.Fatalf("task %s %q", got.Status, got.Detail)
			}
			var got struct {
				Settings map[string]any          `json:"agent_settings"`
				Secrets  map[string]agent.Secret `json:"secrets"`
				Tags     map[string]string       `json:"tags"`
			}
			var want map[string]any
			if json.Unmarshal([]byte(w.agents.bodies[0]), &got) != nil || json.Unmarshal([]byte(c.want), &want) != nil {
				t.Fatal(w.agents.bodies[0])
			}
			if d := cmp.Diff(want, got.Settings); d != "" {
				t.Errorf("agent_settings (-want +got):\n%s", d)
			}
			id := want["acp_server"].(string)
			if _, licensed := got.Secrets["LICENCE"]; licensed != (id == "mine") || got.Tags["acpserver"] != id {
				t.Errorf("secrets and tags of %s: %s", id, w.agents.bodies[0])
			}
			row := w.store.View().Conversation(taskUser, task.ConversationID)
			if row.AgentKind != fsm.AgentACP || row.Tags["acpserver"] != id {
				t.Errorf("row %+v", row)
			}
			if w.agents.commands[0] != c.looked {
				t.Errorf("looked by %q, want %q", w.agents.commands[0], c.looked)
			}
		})
	}
}

// TestStartTask_AgentFailures: a start whose agent can't run ends with what is missing, and what to do.
func TestStartTask_AgentFailures(t *testing.T) {
	absent := agent.Output{ExitCode: 127, Stderr: "sh: opencode: not found"}
	for name, c := range map[string]struct {
		world   func(*taskWorld)
		request string
		want    string
	}{
		"not installed": {world: func(w *taskWorld) { w.agents.exit = absent }, request: "opencode",
			want: `The agent opencode is not in this sandbox: it has no program "opencode". ` +
				`Install it in what the sandbox spec local runs, or choose another agent (it has opencode, licensed).`},
		"lost by its spec": {world: func(w *taskWorld) { w.withAgents(false, fsm.Agent{ID: "codex"}) }, request: "opencode",
			want: `the sandbox spec local has no agent "opencode": it has codex`},
		"no secret": {
			request: "licensed",
			want:    "the agent licensed of the sandbox spec local needs the secret ABSENT for its variable KEY: store it in",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTaskWorld(t)
			w.withAgents(false, fsm.Agent{ID: "opencode"},
				fsm.Agent{ID: "licensed", Command: "x", EnvFromSecret: map[string]string{"KEY": "ABSENT"}})
			task := w.task("1", func(b *fsm.StartTaskCreateBody) { b.Request.ACPServer = ptr(c.request) })
			if c.world != nil {
				c.world(w)
			}
			w.run(nil)
			if got := w.done(task.ID); got.Status != fsm.StartTaskError || !strings.Contains(got.Detail, c.want) {
				t.Errorf("task %s %q, want %q", got.Status, got.Detail, c.want)
			}
			if n := w.agents.conversations(); n != 0 {
				t.Errorf("%d conversations", n)
			}
		})
	}
}

// TestStartTask_AgentWithoutBash: an agent server without commands can't be asked for the program.
func TestStartTask_AgentWithoutBash(t *testing.T) {
	w := newTaskWorld(t)
	w.withAgents(false, fsm.Agent{ID: "opencode"})
	w.agents.bash = &agent.Error{Kind: agent.ErrRefused, Status: 404}
	task := w.task("1", func(b *fsm.StartTaskCreateBody) { b.Request.ACPServer = ptr("opencode") })
	w.run(nil)
	if got := w.done(task.ID); got.Status != fsm.StartTaskReady {
		t.Errorf("task %s %q", got.Status, got.Detail)
	}
}

// TestStartTask_LLMProfile: without the gateway the sandbox gets the key of the profile that the start
// names, not the settings'.
func TestStartTask_LLMProfile(t *testing.T) {
	w := newTaskWorld(t)
	w.must("", &fsm.ProtocolRaiseBody{Version: fsm.VersionProfiles})
	own, profile := w.secret("users/ada/settings/llm_api_key", "value", "LLMCANARY"),
		w.secret(fsm.ProfileKeyPath(taskUser, "p1"), "value", "PROFILECANARY")
	w.must(taskUser, &fsm.SettingsPutBody{Values: fsm.SettingsValues{LLMModel: ptr("m/stored")}, LLMAPIKey: &own})
	w.must(taskUser, &fsm.ProfilePutBody{Profile: fsm.Profile{
		Kind: fsm.ProfileLLM, Name: "fast", ID: "p1", Model: "m/fast", BaseURL: "https://fast", Key: profile,
	}})
	task := w.task("1", func(b *fsm.StartTaskCreateBody) { b.LLMProfile = "p1" })
	w.run(nil)
	if got := w.done(task.ID); got.Status != fsm.StartTaskReady {
		t.Fatalf("task %s %q", got.Status, got.Detail)
	}
	want := agent.LLM{Model: "m/fast", BaseURL: "https://fast", APIKey: "PROFILECANARY", UsageID: "agent"}
	if d := cmp.Diff(want, w.agents.created[agent.DashedID(task.ConversationID)].AgentSettings.LLM); d != "" {
		t.Error(d)
	}
}
