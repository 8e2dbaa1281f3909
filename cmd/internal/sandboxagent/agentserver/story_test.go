package agentserver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/conversation"
	"bivouac.dev/bivouac/scheduler/agent"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

const modelKey = "MODELKEYCANARY"

// worksOn makes a conversation on dir with the native engine and a scripted model.
func (s *server) worksOn(dir string, m *modeltest.Server, policy, message string) {
	s.t.Helper()
	s.converse(dir, m, nil, map[string]any{
		"confirmation_policy": map[string]string{"kind": policy},
		"secrets": map[string]any{
			"DEPLOY_TOKEN": map[string]string{"kind": "StaticSecret", "value": "DEPLOYCANARY"},
		},
		"initial_message": map[string]any{"content": message},
	})
}

// brokenRepository is a git repository with a failing test.
func brokenRepository(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "app")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"greet.sh": "echo helo\n", "test.sh": "[ \"$(sh greet.sh)\" = hello ] && echo passed || { echo failed; exit 1; }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("sh", "-c",
		"git init -q && git add . && git -c user.name=t -c user.email=t@example.org commit -qm first")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

// script is a model that mends the repository when it is asked to fix it.
func script(dir string) *modeltest.Script {
	edit := modeltest.Tool("file_editor",
		map[string]any{"command": "str_replace", "path": dir + "/greet.sh", "old_str": "helo", "new_str": "hello"})
	return &modeltest.Script{Key: modelKey, Stories: []*modeltest.Story{
		{When: modeltest.When{System: "Write a title"}, Answers: []modeltest.Answer{modeltest.Text("Mend the greeting")}},
		{When: modeltest.When{User: "fix"}, Answers: []modeltest.Answer{
			modeltest.Calls(modeltest.Tool("terminal", map[string]any{"command": "sh test.sh"})),
			modeltest.Calls(edit, modeltest.Tool("terminal", map[string]any{"command": "sh test.sh; echo $DEPLOY_TOKEN"})),
			modeltest.Calls(modeltest.Tool("finish", map[string]any{"message": "The test passes."})),
		}},
		{When: modeltest.When{User: "wait"}, Answers: []modeltest.Answer{
			modeltest.Calls(modeltest.Tool("terminal",
				map[string]any{"command": "touch started; sleep 600"})), modeltest.Text("I waited.")}},
		{When: modeltest.When{User: "again"}, Answers: []modeltest.Answer{modeltest.Text("It still passes.")}},
	}}
}

func fileText(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestStory_AnAgentMendsARepository runs the native engine, its tools and a model over HTTP: an edit,
// a test, an answer, a restart and another question.
func TestStory_AnAgentMendsARepository(t *testing.T) {
	dir, data := brokenRepository(t), t.TempDir()
	m := modeltest.New(t, script(dir))
	s := serveAt(t, data, nativeEngine)
	s.worksOn(dir, m, "NeverConfirm", "fix the greeting")
	if got := s.settled(convID); got != "finished" {
		t.Fatalf("status %s: %q", got, s.kinds(convID))
	}
	if got := fileText(t, dir+"/greet.sh"); got != "echo hello\n" {
		t.Errorf("greet.sh is %q", got)
	}
	got := s.want(200, "GET", convPath+"/events/search?kind=ObservationEvent", "")
	if !strings.Contains(got, "passed") || !strings.Contains(got, "failed") || strings.Contains(got, "DEPLOYCANARY") ||
		!strings.Contains(got, "secret-hidden") {
		t.Errorf("observations: %s", got)
	}
	if got := s.want(200, "GET", convPath+"/agent_final_response", ""); got != `{"response":"The test passes."}` {
		t.Errorf("the final response is %s", got)
	}
	i := decodeJSON[conversation.Info](t, s.want(200, "GET", convPath, ""))
	if i.Metrics == nil || i.Metrics.AccumulatedTokenUsage.PromptTokens == 0 {
		t.Errorf("metrics: %+v", i.Metrics)
	}
	s.until("the model's title", func() bool {
		return *decodeJSON[conversation.Info](t, s.want(200, "GET", convPath, "")).Title == "Mend the greeting"
	})
	first := s.want(200, "GET", convPath+"/events/search", "")
	s.want(204, "POST", "/api/conversations/prepare-for-sandbox-pause", "")
	s.s.close()

	s = serveAt(t, data, nativeEngine)
	if again := s.want(200, "GET", convPath+"/events/search", ""); again != first {
		t.Errorf("after a restart the events are\n%s\nwant\n%s", again, first)
	}
	s.want(200, "POST", convPath+"/events", `{"content":"and again?","run":true}`)
	if got := s.settled(convID); got != "finished" {
		t.Errorf("status %s: %q", got, s.kinds(convID))
	}
	if got := s.want(200, "GET", convPath+"/agent_final_response", ""); got != `{"response":"It still passes."}` {
		t.Errorf("the final response is %s", got)
	}
	// The model's key is in no file of the sandbox, and in no answer.
	searchDir(t, data)
	searchDir(t, dir)
	search(t, "the events", first)
	search(t, "the log", s.logs.String())
}

// TestStory_Confirmation approves one action, rejects one and interrupts one.
func TestStory_Confirmation(t *testing.T) {
	dir := brokenRepository(t)
	m := modeltest.New(t, script(dir))
	s := serveAt(t, t.TempDir(), nativeEngine)
	s.worksOn(dir, m, "AlwaysConfirm", "fix the greeting")
	answer := func(accept bool) string {
		if got := s.settled(convID); got != "waiting_for_confirmation" {
			t.Fatalf("status %s: %q", got, s.kinds(convID))
		}
		s.want(200, "POST", convPath+"/events/respond_to_confirmation",
			fmt.Sprintf(`{"accept":%v,"reason":"not that file"}`, accept))
		return s.settled(convID)
	}
	answer(true)
	if got := answer(false); got != "idle" {
		t.Errorf("after a rejection: %s", got)
	}
	if got := fileText(t, dir+"/greet.sh"); got != "echo helo\n" {
		t.Errorf("a rejected edit was made: %q", got)
	}
	if got := s.want(200, "GET", convPath+"/events/search?kind=UserRejectObservation",
		""); strings.Count(got, "not that file") != 2 {
		t.Errorf("rejections: %s", got)
	}
	s.want(200, "POST", convPath+"/confirmation_policy", `{"policy":{"kind":"NeverConfirm"}}`)
	s.want(200, "POST", convPath+"/events", `{"content":"wait for me","run":true}`)
	s.until("the command runs", func() bool { return exists(dir + "/started") })
	s.want(200, "POST", convPath+"/interrupt", "")
	if got := s.settled(convID); got != "paused" {
		t.Errorf("after an interrupt: %s", got)
	}
	page := decodeJSON[agent.Page[map[string]any]](t,
		s.want(200, "GET", convPath+"/events/search?kind=AgentErrorEvent", ""))
	if len(page.Items) != 1 {
		t.Errorf("errors: %v", page.Items)
	}
	s.want(200, "POST", convPath+"/run", "")
	if got := s.settled(convID); got != "finished" {
		t.Errorf("after the interrupt: %s, %q", got, s.kinds(convID))
	}
}

// until waits for a condition that another goroutine or process brings about.
func (s *server) until(what string, done func() bool) {
	s.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(5 * time.Minute); !done(); <-tick.C {
		if time.Now().After(deadline) {
			s.t.Fatal("waited in vain for: " + what)
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func nativeEngine(cfg *config.Config) { cfg.NewEngine = newEngine }

// TestStory_Operations asks beside the conversation, changes its model and its secrets, and does so
// again after a restart.
func TestStory_Operations(t *testing.T) {
	dir, data := brokenRepository(t), t.TempDir()
	other := modeltest.New(t, &modeltest.Script{Key: "OTHERKEYCANARY", Stories: []*modeltest.Story{
		{When: modeltest.When{User: "show", Tool: "terminal"}, Answers: []modeltest.Answer{
			modeltest.Calls(modeltest.Tool("terminal",
				map[string]any{"command": "[ ${#NEW_TOKEN} = 9 ] && echo it is there"})), modeltest.Text("Shown.")}},
		{Answers: []modeltest.Answer{modeltest.Text("another model")}},
	}})
	m := modeltest.New(t, &modeltest.Script{Key: modelKey, Stories: []*modeltest.Story{
		{When: modeltest.When{System: "Write a title"}, Answers: []modeltest.Answer{modeltest.Text("A title")}},
		{When: modeltest.When{User: "beside"}, Answers: []modeltest.Answer{modeltest.Text("An aside.")}},
		{Answers: []modeltest.Answer{modeltest.Text("Hello.")}},
	}})
	s := serveAt(t, data, nativeEngine)
	s.worksOn(dir, m, "NeverConfirm", "hello")
	s.settled(convID)
	before := s.want(200, "GET", convPath+"/events/count", "")
	if got := s.want(200, "POST", convPath+"/ask_agent", `{"question":"beside?"}`); got != `{"response":"An aside."}` {
		t.Errorf("the answer is %s", got)
	}
	if got := s.want(200, "POST", convPath+"/generate_title", `{"max_length":3}`); got != `{"title":"A t"}` {
		t.Errorf("the title is %s", got)
	}
	if after := s.want(200, "GET", convPath+"/events/count", ""); after != before {
		t.Errorf("%s events, before a side question %s", after, before)
	}
	s.want(422, "POST", convPath+"/switch_llm", `{}`)
	s.want(422, "POST", convPath+"/secrets", `{}`)
	s.want(422, "POST", convPath+"/confirmation_policy", `{"policy":{"kind":"SometimesConfirm"}}`)
	s.want(200, "POST", convPath+"/security_analyzer", `{"security_analyzer":{"kind":"LLMSecurityAnalyzer"}}`)
	s.want(200, "POST", convPath+"/security_analyzer", `{"security_analyzer":null}`)
	s.want(200, "POST", convPath+"/condense", "")
	s.want(200, "POST", convPath+"/secrets", `{"secrets":{"NEW_TOKEN":{"kind":"StaticSecret","value":"NEWCANARY"}}}`)
	s.want(200, "POST", convPath+"/switch_llm",
		`{"llm":{"model":"openai/other","api_key":"OTHERKEYCANARY","base_url":"`+other.BaseURL()+`","usage_id":"agent-2"}}`)
	for range 2 {
		s.want(200, "POST", convPath+"/events", `{"content":"show it","run":true}`)
		if got := s.settled(convID); got != "finished" {
			t.Fatalf("status %s: %q", got, s.kinds(convID))
		}
		if got := s.want(200, "GET", convPath+"/events/search?kind=ObservationEvent&sort_order=TIMESTAMP_DESC&limit=1",
			""); !strings.Contains(got, "it is there") {
			t.Errorf("the new secret is not there: %s", got)
		}
		i := decodeJSON[conversation.Info](t, s.want(200, "GET", convPath, ""))
		if i.Agent.LLM.Model != "openai/other" || strings.Join(i.SecretNames, " ") != "DEPLOY_TOKEN NEW_TOKEN" {
			t.Errorf("the conversation is %+v", i)
		}
		s.s.close()
		s = serveAt(t, data, nativeEngine)
	}
	m.Down()
	if status, body := s.send("POST", convPath+"/ask_agent", `{"question":"still there?"}`); status != 200 ||
		body != `{"response":"another model"}` {
		t.Errorf("the other model: %d %s", status, body)
	}
	other.Down()
	if status, body := s.send("POST", convPath+"/ask_agent", `{"question":"still there?"}`); status != 502 ||
		!strings.Contains(body, "LLMServiceUnavailableError") {
		t.Errorf("a model that is down: %d %s", status, body)
	}
	searchDir(t, data)
	search(t, "the log", s.logs.String())
}
