package starttask

import (
	"encoding/json"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/llmtoken"
	"bivouac.dev/bivouac/scheduler/agent"
)

// access runs a task of a user with a model key and returns it with the llm that its sandbox gets.
func (w *taskWorld) access(edit func(*Runner)) (*fsm.StartTask, agent.LLM) {
	w.t.Helper()
	w.everything()
	task := w.task("1", nil)
	w.run(edit)
	task = w.done(task.ID)
	if task.Status != fsm.StartTaskReady {
		w.t.Fatalf("task %+v", task)
	}
	var got struct {
		AgentSettings struct {
			LLM struct {
				Model   string `json:"model"`
				APIKey  string `json:"api_key"`
				BaseURL string `json:"base_url"`
				API     string `json:"api"`
				UsageID string `json:"usage_id"`
				agent.ModelSettings
			} `json:"llm"`
		} `json:"agent_settings"`
	}
	if err := json.Unmarshal([]byte(w.agents.bodies[0]), &got); err != nil {
		w.t.Fatal(err)
	}
	return task, agent.LLM(got.AgentSettings.LLM)
}

func withAPI(r *Runner) { r.cfg.APIURLs = []string{"http://10.0.0.1:8440/", "http://10.0.0.2:8440"} }

func TestStartTask_NoModelKeyEntersASandboxThatReachesTheGateway(t *testing.T) {
	w := newTaskWorld(t)
	w.must("", &fsm.ProtocolRaiseBody{Version: fsm.VersionModels})
	task, got := w.access(withAPI)
	row := w.store.View().SandboxAny(task.SandboxID)
	entry, err := w.secrets.Read(t.Context(), row.KeyRef)
	if err != nil {
		t.Fatal(err)
	}
	want := agent.LLM{
		Model:   got.Model,
		UsageID: "agent",
		BaseURL: "http://10.0.0.1:8440/llm/v1",
		APIKey:  llmtoken.New(entry[fsm.MemberKey], row, task.ConversationID),
	}
	if got != want || got.Model == "" {
		t.Errorf("the sandbox got %+v, want %+v", got, want)
	}
	if body := w.agents.bodies[0]; strings.Contains(body, "LLMCANARY") || strings.Contains(body, "https://llm") {
		t.Errorf("the model's key or address is in %s", body)
	}
}

// The agent can't tell it from the gateway's address.
func TestStartTask_SaysInWhichAPITheModelIsAsked(t *testing.T) {
	for base, want := range map[string]string{"https://llm/v1/messages": "messages", "https://llm/v1": ""} {
		w := newTaskWorld(t)
		w.must("", &fsm.ProtocolRaiseBody{Version: fsm.VersionModels})
		w.base = base
		if _, got := w.access(withAPI); got.API != want || got.BaseURL != "http://10.0.0.1:8440/llm/v1" {
			t.Errorf("%s: the sandbox got %+v, want the API %q", base, got, want)
		}
	}
}

func TestStartTask_TheOwnersKeyIsHandedOverWhereThereIsNoGateway(t *testing.T) {
	for name, world := range map[string]func(w *taskWorld) func(*Runner){
		"no api_urls": func(w *taskWorld) func(*Runner) {
			w.must("", &fsm.ProtocolRaiseBody{Version: fsm.VersionModels})
			return nil
		},
		"an earlier protocol": func(w *taskWorld) func(*Runner) {
			w.must("", &fsm.ProtocolRaiseBody{Version: fsm.VersionModels - 1})
			return withAPI
		},
		"llm { gateway = false }": func(w *taskWorld) func(*Runner) {
			w.must("", &fsm.ProtocolRaiseBody{Version: fsm.VersionModels})
			w.must("", &fsm.InstallationConfigureBody{Installation: fsm.Installation{LLM: fsm.LLM{Direct: true}}})
			return withAPI
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTaskWorld(t)
			_, got := w.access(world(w))
			if want := (agent.LLM{
				Model:   got.Model,
				UsageID: "agent",
				BaseURL: "https://llm",
				APIKey:  "LLMCANARY",
			}); got != want {
				t.Errorf("the sandbox got %+v, want %+v", got, want)
			}
		})
	}
}

// TestStartTask_SaysWhatTheOperatorSaysOfTheModel: the longest name that matches counts.
func TestStartTask_SaysWhatTheOperatorSaysOfTheModel(t *testing.T) {
	w := newTaskWorld(t)
	w.must("", &fsm.ProtocolRaiseBody{Version: fsm.VersionServers})
	window, cold := int64(32768), 0.0
	w.must("", &fsm.InstallationConfigureBody{Installation: fsm.Installation{LLM: fsm.LLM{Profiles: []fsm.ModelProfile{
		{Model: "*", ModelSettings: fsm.ModelSettings{Timeout: new(int64(9))}},
		{Model: "m/*", ModelSettings: fsm.ModelSettings{
			MaxInputTokens: &window, Temperature: &cold, DisableVision: new(true),
		}},
	}}}})
	_, got := w.access(withAPI)
	if got.MaxInputTokens == nil || *got.MaxInputTokens != window || *got.Temperature != 0 || !*got.DisableVision ||
		got.Timeout != nil {
		t.Errorf("%s: the sandbox got %+v", got.Model, got.ModelSettings)
	}
}
