package httpapi

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"bivouac.dev/bivouac/fsm"
)

const agentTemplate = `"template":{"driver":"raw_exec","isolation":"none","command":"/bin/agent",` +
	`"working_dir":"project","cpu":1,"memory":16,"ports":{"AGENT_SERVER":0}}`

// withAgents returns a harness with a spec that has agents.
func withAgents(t *testing.T, members string) *harness {
	t.Helper()
	h := newHarness(t)
	h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.VersionAgents})
	h.applyAgents(t, members)
	return h
}

func (h *harness) applyAgents(t *testing.T, members string) {
	t.Helper()
	h.do(h.root, "POST", "/api/v1/operator/specs",
		`{"specs":[{"id":"py",`+members+`,`+agentTemplate+`}],"replace":true}`).want(t, 200)
}

// TestSettings_Agent: a user chooses an agent that a spec has, a client that does not know these
// settings keeps them, and one that is gone can be replaced.
func TestSettings_Agent(t *testing.T) {
	h := withAgents(t, `"agents":[{"id":"opencode"},{"id":"codex","model":"m"}]`)
	show := func(want map[string]any) {
		t.Helper()
		var got map[string]any
		h.do(h.alice, "GET", "/api/settings", "").want(t, 200).json(t, &got)
		for k, v := range want {
			if !cmp.Equal(got[k], v) {
				t.Errorf("%s is %v, want %v", k, got[k], v)
			}
		}
	}
	h.do(h.alice, "POST", "/api/settings",
		`{"agent_kind":"acp","acp_server":"codex","acp_model":"o",`+
			`"sandbox_grouping_strategy":"ADD_TO_ANY","git_full_clone":true}`).want(t, 200)
	h.do(h.alice, "POST", "/api/settings", `{"language":"de"}`).want(t, 200)
	show(map[string]any{"agent_kind": "acp", "acp_server": "codex", "acp_command": nil, "acp_model": "o",
		"sandbox_grouping_strategy": "ADD_TO_ANY", "git_full_clone": true, "language": "de"})

	h.applyAgents(t, `"agents":[{"id":"opencode"}]`)
	h.do(h.alice, "POST", "/api/v1/app-conversations", `{}`).want(t, 422).contains(t,
		`the sandbox spec py has no agent \"codex\": it has opencode`)
	h.do(h.alice, "POST", "/api/settings", `{"language":"fr"}`).want(t, 200)
	show(map[string]any{"acp_server": "codex", "language": "fr"})
	h.do(h.alice, "POST", "/api/settings", `{"acp_server":"opencode"}`).want(t, 200)
	h.do(h.alice, "POST", "/api/v1/app-conversations", `{}`).want(t, 200)
	h.do(h.alice, "POST", "/api/v1/app-conversations", `{"acp_server":"openhands"}`).want(t, 200)
	h.do(h.alice, "POST", "/api/settings", `{"agent_kind":"openhands","acp_server":""}`).want(t, 200)
	show(map[string]any{"agent_kind": "openhands", "acp_server": ""})
}

// TestSettings_AgentRefused: each refusal says what there is or what to do.
func TestSettings_AgentRefused(t *testing.T) {
	h := withAgents(t, `"agents":[{"id":"opencode"},{"id":"codex"}]`)
	for body, want := range map[string]string{
		`{"acp_server":"goose"}`: `no sandbox spec has the agent ` +
			`\"goose\": there are codex, opencode`,
		`{"agent_kind":"acp"}`: `agent_kind \"acp\" needs ` +
			`acp_server: there are codex, opencode`,
		`{"agent_kind":"acp","acp_command":["x","acp"]}`: `no sandbox spec ` +
			`allows agent commands of users`,
		`{"acp_server":"custom"}`:                    `needs acp_command`,
		`{"acp_server":"codex","acp_command":["x"]}`: `leave one of them out`,
		`{"acp_server":"../../etc/passwd"}`:          `at most 63 of A-Z a-z 0-9`,
		`{"acp_server":"custom","acp_command":["x","{{llm-model}}"]}`: `there is no ` +
			`placeholder {{llm-model}}`,
		`{"acp_server":"custom","acp_command":[""]}`: `begins with the program`,
		`{"acp_command":"x acp"}`:                    `valid list`,
		`{"agent_kind":"llm"}`:                       `Input should be 'openhands' or 'acp'`,
		`{"sandbox_grouping_strategy":"ALL"}`:        `Input should be 'NO_GROUPING', 'GROUP_BY_NEWEST'`,
		`{"git_full_clone":"maybe"}`:                 `valid boolean`,
		`{"acp_server":"goose","secrets_store":{"custom_secrets":{"A":{"secret":"1"}}}}`: `no sandbox spec has the agent`,
	} {
		h.do(h.alice, "POST", "/api/settings", body).want(t, 422).contains(t, want)
	}
	if h.secrets.last("users/alice/custom/A") != nil {
		t.Error("a secret of refused settings is written")
	}
	h.do(h.alice, "POST", "/api/v1/app-conversations", `{"acp_server":"goose"}`).want(t, 422).contains(t,
		`has no agent \"goose\": it has opencode, codex`)
	h.do(h.alice, "POST", "/api/v1/app-conversations", `{"acp_server":"custom"}`).want(t, 422).contains(t,
		`allows no agent commands of users`)
	h.do(h.alice, "POST", "/api/v1/app-conversations", `{"acp_server":"../x"}`).want(t, 422).contains(t, `at most 63 of`)
	h.do(h.alice, "POST", "/api/v1/app-conversations",
		`{"acp_server":"codex","acp_command":["x"]}`).want(t, 422).contains(t, `a start takes no command`)

	h.applyAgents(t, `"allow_agent_command":true`)
	h.do(h.alice, "POST", "/api/settings", `{"acp_server":"custom","acp_command":["x","acp"]}`).want(t, 200)
	h.do(h.alice, "POST", "/api/v1/app-conversations", `{}`).want(t, 200)
}

// TestSettings_AgentVersion: below version 8 nodes would drop an agent silently.
func TestSettings_AgentVersion(t *testing.T) {
	h := newHarness(t)
	h.do(h.alice, "POST", "/api/settings", `{"acp_server":"codex"}`).want(t, 409).contains(t, "needs protocol version 8")
	h.do(h.alice, "POST", "/api/settings",
		`{"agent_kind":"openhands","sandbox_grouping_strategy":"NO_GROUPING"}`).want(t, 200)
	h.do(h.alice, "POST", "/api/v1/app-conversations", `{"acp_server":"codex"}`).want(t, 409).contains(t,
		"needs protocol version 8")
}

// TestOperator_SpecAgents: an operator's mistake is refused when the spec is applied.
func TestOperator_SpecAgents(t *testing.T) {
	h := withAgents(t,
		`"agents":[{"id":"opencode"},{"id":"mine","command":"my","args":["{{llm_model}}"],`+
			`"env_from_secret":{"K":"MY_KEY"}}],"allow_agent_command":true`)
	h.do(h.root, "GET", "/api/v1/operator/specs", "").want(t, 200).contains(t,
		`"agents":[{"id":"opencode"},{"id":"mine","command":"my","args":["{{llm_model}}"],`+
			`"env_from_secret":{"K":"MY_KEY"}}],"allow_agent_command":true`)
	for agents, want := range map[string]string{
		`[{"id":"mine"}]`:                                       `the agent \"mine\" needs a command: only opencode, codex`,
		`[{"id":"codex","args":["{{llm_mode}}"]}]`:              `there is no placeholder {{llm_mode}}`,
		`[{"id":"codex","env":{"A":"{{key}}"}}]`:                `there is no placeholder {{key}}`,
		`[{"id":"a/b","command":"x"}]`:                          `bad agent id`,
		`[{"id":"codex"},{"id":"codex"}]`:                       `is there twice`,
		`[{"id":"codex","args":"x"}]`:                           `can't be a string`,
		`[{"id":"x","command":"x","env":{"A B":"c"}}]`:          `is not the name of a variable`,
		`[{"id":"x","command":"x","env_from_secret":{"A":""}}]`: `needs the name of a secret of the user`,
	} {
		h.do(h.root, "POST", "/api/v1/operator/specs",
			`{"specs":[{"id":"py","agents":`+agents+`,`+agentTemplate+`}]}`).want(t, 422).contains(t, want)
	}
	if ids := slices.Collect(func(yield func(string) bool) {
		for _, a := range h.cluster.store.View().Spec("py").Agents {
			yield(a.ID)
		}
	}); !slices.Equal(ids, []string{"opencode", "mine"}) {
		t.Errorf("a refused spec is stored: %v", ids)
	}
}

// TestWebClientConfig: the agents of all specs are there for everybody, without what only an operator
// should see.
func TestWebClientConfig(t *testing.T) {
	h := newHarness(t)
	h.do("", "GET", "/api/v1/web-client/config", "").want(t, 200).contains(t, `"enable_acp":false`).contains(t,
		`"acp_providers":[]`)
	h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.VersionAgents})
	h.do(h.root, "POST", "/api/v1/operator/specs", `{"specs":[
	  {"id":"py","agents":[{"id":"opencode"},{"id":"mine","command":"my-agent","args":["ARGCANARY"],
	  "env":{"A":"ENVCANARY"},
	    "env_from_secret":{"B":"SECRETCANARY"},"model":"big"}],`+agentTemplate+`},
	  {"id":"js","agents":[{"id":"mine","command":"other"},{"id":"codex",
	  "display_name":"Our Codex"}],`+agentTemplate+`}]}`).want(t, 200)
	if res := h.do("", "GET", "/api/v1/web-client/config",
		"").want(t, 200).golden(t, "web_client_config"); strings.Contains(string(res.body), "CANARY") {
		t.Errorf("body %s", res.body)
	}
}

// contains checks that the body has a text.
func (r reply) contains(t *testing.T, want string) reply {
	t.Helper()
	if !strings.Contains(string(r.body), want) {
		t.Errorf("body %s, want %s in it", r.body, want)
	}
	return r
}
