package acp

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// realAgent is an agent that a target of the Makefile installs, and the call by which its model
// writes a file.
type realAgent struct {
	id string
	// installed is the target's folder in the cache, and the word of BIVOUAC_TEST_REQUIRE.
	installed, program string
	write              func(path string) modeltest.Call
	// forgets says that a new process does not find the session: the history is told anew.
	forgets bool
	// goesOn says that the model is told of a rejection, and ends the turn; others end it themselves.
	goesOn bool
}

func realAgents() []realAgent {
	return []realAgent{
		{id: "opencode", installed: "tested", program: "opencode-linux-x64/bin/opencode",
			write: func(path string) modeltest.Call {
				return modeltest.Tool("write", map[string]any{"filePath": path, "content": "hello\n"})
			}},
		{id: "codex", installed: "tested", program: "@zed-industries/codex-acp-linux-x64/bin/codex-acp",
			write: func(path string) modeltest.Call {
				return modeltest.Tool("exec_command", map[string]any{"cmd": "echo hello > " + path})
			}},
		{id: "claude-code", installed: "all", goesOn: true, program: ".bin/claude-agent-acp",
			write: func(path string) modeltest.Call {
				return modeltest.Tool("Write", map[string]any{"file_path": path, "content": "hello\n"})
			}},
		{id: "gemini-cli", installed: "all", program: ".bin/gemini", forgets: true, goesOn: true,
			write: func(path string) modeltest.Call {
				return modeltest.Tool("write_file", map[string]any{"file_path": path, "content": "hello\n"})
			}},
		{id: "qwen-code", installed: "all", goesOn: true, program: ".bin/qwen", write: func(path string) modeltest.Call {
			return modeltest.Tool("write_file", map[string]any{"file_path": path, "content": "hello\n"})
		}},
	}
}

// real is one conversation with a real agent and a scripted model.
type real struct {
	*memory
	agent  realAgent
	setup  engine.Setup
	engine *Engine
	model  *modeltest.Server
	file   string
}

func newReal(t *testing.T, a realAgent, policy string) *real {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(cache, "bivouac/agents", a.installed, "node_modules", a.program)
	if _, err := os.Stat(program); err != nil {
		word := map[string]string{"tested": "agents", "all": "agents-all"}[a.installed]
		if slices.Contains(strings.Split(os.Getenv("BIVOUAC_TEST_REQUIRE"), ","), word) {
			t.Fatalf("%s is not installed, and BIVOUAC_TEST_REQUIRE names %s", program, word)
		}
		t.Skipf("%s is not installed: make %s", program, word)
	}
	dir := t.TempDir()
	r := &real{memory: newMemory(), agent: a, file: filepath.Join(dir, "work", "hello.txt")}
	for _, d := range []string{"work", "conversation", "home"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	r.model = modeltest.New(t, &modeltest.Script{Key: "sk-secret", Stories: []*modeltest.Story{
		{When: modeltest.When{Tool: "-"}, Answers: []modeltest.Answer{modeltest.Text("A title")}},
		{Answers: []modeltest.Answer{
			{Reasoning: "I write.", Calls: []modeltest.Call{a.write(r.file)}},
			{Text: "It is written.", Usage: &modeltest.Usage{Prompt: 120, Completion: 30}},
		}},
	}})
	preset, _ := PresetByID(a.id)
	r.setup = engine.Setup{
		ID: "c", Dir: filepath.Join(dir, "conversation"), WorkingDir: filepath.Join(dir, "work"),
		Logger:  slog.New(slog.DiscardHandler),
		Environ: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Join(dir, "home")},
		Agent: engine.Agent{Kind: "acp", LLM: engine.LLM{Model: "openai/m", APIKey: "sk-secret", BaseURL: r.model.BaseURL()},
			ACP: engine.ACP{Server: a.id, Command: append([]string{program}, preset.Args...)}},
	}
	_ = r.Append(engine.Update(engine.KeyConfirmationPolicy, engine.Policy{Kind: policy}))
	r.start(t)
	return r
}

// start makes an engine, as a server does that begins.
func (r *real) start(t *testing.T) {
	t.Helper()
	e, err := New(r.setup, r)
	if err != nil {
		t.Fatal(err)
	}
	r.engine = e
	t.Cleanup(func() { e.Close() })
}

func (r *real) written() bool {
	b, err := os.ReadFile(r.file)
	return err == nil && string(b) == "hello\n"
}

func (r *real) has(part string) bool {
	return slices.ContainsFunc(r.story(), func(s string) bool { return strings.Contains(s, part) })
}

// eachAgent runs a test with every real agent.
func eachAgent(t *testing.T, policy string, test func(*testing.T, *real)) {
	for _, a := range realAgents() {
		t.Run(a.id, func(t *testing.T) { test(t, newReal(t, a, policy)) })
	}
}

// A turn edits a file and ends with the finish action, and a new engine loads the session.
func TestReal_EditsAndLoads(t *testing.T) {
	eachAgent(t, "NeverConfirm", func(t *testing.T, r *real) {
		r.say("Write the file.")
		if o, err := r.engine.Step(t.Context()); err != nil || o != engine.Finished {
			t.Fatalf("%v %v, want finished; %q", o, err, r.story())
		}
		if !r.written() || !r.has("finish: ") || !r.has("It is written.") || !r.has("completed") {
			t.Errorf("the turn left %q, written %v", r.story(), r.written())
		}
		before := string(r.State(engine.KeyAgentState))
		if err := r.engine.Close(); err != nil {
			t.Fatal(err)
		}
		r.start(t)
		r.say("And again.")
		if o, err := r.engine.Step(t.Context()); err != nil || o != engine.Finished {
			t.Fatalf("%v %v, want finished; %q", o, err, r.story())
		}
		s := r.engine.session
		if strings.Contains(before, string(s.id)) == r.agent.forgets {
			t.Errorf("the session is %s, and it was %s; the agent forgets its sessions: %v", s.id, before, r.agent.forgets)
		}
		last := r.model.Requests()[len(r.model.Requests())-1]
		if !strings.Contains(string(last.Body), "Write the file.") {
			t.Error("the loaded session does not know the first message")
		}
	})
}

// A request for permission is asked once, and the answer decides.
func TestReal_Permission(t *testing.T) {
	for _, accept := range []bool{true, false} {
		t.Run(map[bool]string{true: "approved", false: "rejected"}[accept], func(t *testing.T) {
			eachAgent(t, "AlwaysConfirm", func(t *testing.T, r *real) {
				r.say("Write the file.")
				if o, err := r.engine.Step(t.Context()); err != nil || o != engine.Waiting || r.written() {
					t.Fatalf("%v %v, want a question; written %v; %q", o, err, r.written(), r.story())
				}
				if goesOn, err := r.engine.Respond(accept, "no"); !goesOn || err != nil {
					t.Fatalf("goes on %v, %v", goesOn, err)
				}
				o, err := r.engine.Step(t.Context())
				want := map[bool]engine.Outcome{true: engine.Finished, false: engine.Idle}[accept || r.agent.goesOn]
				if err != nil || o != want || r.written() != accept {
					t.Errorf("%v %v, want %v; written %v; %q", o, err, want, r.written(), r.story())
				}
			})
		})
	}
}

// An acceptance after a pause, which ends the agent, carries out the call that was asked about: once, and
// without another question. An agent that can't load its session says so.
func TestReal_PermissionAfterAPause(t *testing.T) {
	eachAgent(t, "AlwaysConfirm", func(t *testing.T, r *real) {
		r.say("Write the file.")
		if o, err := r.engine.Step(t.Context()); err != nil || o != engine.Waiting {
			t.Fatalf("%v %v, want a question; %q", o, err, r.story())
		}
		if err := r.engine.Close(); err != nil {
			t.Fatal(err)
		}
		r.start(t)
		if goesOn, err := r.engine.Respond(true, ""); goesOn || err != nil {
			t.Fatalf("goes on %v, %v", goesOn, err)
		}
		if o, err := r.engine.Step(t.Context()); err != nil || o != engine.Finished || !r.written() {
			t.Errorf("%v %v; written %v; %q", o, err, r.written(), r.story())
		}
		if r.has(lostSession) != r.agent.forgets {
			t.Errorf("the user is told of a lost session: %q", r.story())
		}
	})
}

// An interrupt ends the turn, and the next message is answered.
func TestReal_Interrupt(t *testing.T) {
	eachAgent(t, "NeverConfirm", func(t *testing.T, r *real) {
		hold := make(chan struct{})
		defer close(hold)
		asked := make(chan struct{}, 8)
		r.model.SetScript(&modeltest.Script{Func: func(q modeltest.Request) (modeltest.Answer, bool) {
			if len(q.Tools) == 0 {
				return modeltest.Text("A title"), true
			}
			// Some agents send both messages as one.
			if strings.Contains(q.LastUser(), "slow") && !strings.Contains(q.LastUser(), "now this") {
				asked <- struct{}{}
				return modeltest.Answer{Text: "late", Hold: hold}, true
			}
			return modeltest.Text("quick"), true
		}})
		r.say("slow please")
		ctx, interrupt := context.WithCancel(t.Context())
		done := step(ctx, r.engine)
		<-asked
		interrupt()
		if got := <-done; !errors.Is(got.err, context.Canceled) {
			t.Fatalf("%v %v, want canceled", got.outcome, got.err)
		}
		r.say("now this")
		if o, err := r.engine.Step(t.Context()); err != nil || o != engine.Finished || !r.has("quick") || r.has("late") {
			t.Errorf("%v %v; %q", o, err, r.story())
		}
	})
}
