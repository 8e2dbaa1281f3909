package agentserver

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/acptest"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/conversation"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/scheduler/agent"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// programVariable makes the test's binary the agent server.
const programVariable = "BIVOUAC_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programVariable) != "" {
		os.Unsetenv(programVariable)
		os.Exit(Main(context.Background(), []string{"--port", "0"}, os.Environ(), os.Stdout, os.Stderr))
	}
	acptest.Main()
	os.Exit(m.Run())
}

// killable is an agent server in a process of its own, that is killed and started again.
type killable struct {
	*server
	data, work, home string
	environ          []string // more of the next start
	cmd              *exec.Cmd
}

func newKillable(t *testing.T) *killable {
	t.Helper()
	k := &killable{server: &server{t: t}, data: t.TempDir(), work: t.TempDir(), home: t.TempDir()}
	k.start()
	t.Cleanup(func() { k.kill(); endOrphans(k.data, nil) })
	return k
}

// start starts the server and waits until it serves.
func (k *killable) start() {
	k.t.Helper()
	self, err := os.Executable()
	if err != nil {
		k.t.Fatal(err)
	}
	k.cmd = exec.Command(self)
	k.cmd.Env = append(os.Environ(), programVariable+"=1", "OH_CONVERSATIONS_PATH="+k.data,
		"OH_SESSION_API_KEYS_0="+testKey,
		"OH_SECRET_KEY=SEALCANARY", "HOME="+k.home, "KILLABLE="+k.data)
	k.cmd.Env = append(k.cmd.Env, k.environ...)
	stderr, err := k.cmd.StderrPipe()
	if err != nil {
		k.t.Fatal(err)
	}
	if err := k.cmd.Start(); err != nil {
		k.t.Fatal(err)
	}
	sc := bufio.NewScanner(stderr)
	for sc.Scan() {
		var line struct{ Msg, Address string }
		if json.Unmarshal(sc.Bytes(), &line) == nil && line.Msg == "serving" {
			k.url = "http://" + strings.Replace(line.Address, "[::]", "127.0.0.1", 1)
			go func() {
				for sc.Scan() { //nolint:revive // the pipe is kept empty
				}
			}()
			return
		}
	}
	k.t.Fatal("the server did not begin to serve")
}

func (k *killable) kill() {
	_ = k.cmd.Process.Kill()
	_ = k.cmd.Wait()
}

// converse makes a conversation with more settings.
func (k *killable) converse(m *modeltest.Server, policy, message string, more map[string]any) {
	k.t.Helper()
	k.server.converse(k.work, m, more, map[string]any{
		"confirmation_policy": map[string]string{"kind": policy}, "initial_message": map[string]any{"content": message},
	})
}

func (k *killable) status() string {
	k.t.Helper()
	return decodeJSON[conversation.Info](k.t, k.want(200, "GET", convPath, "")).ExecutionStatus
}

// history is all events, as they are.
func (k *killable) history() []json.RawMessage {
	k.t.Helper()
	return decodeJSON[agent.Page[json.RawMessage]](k.t, k.want(200, "GET", convPath+"/events/search?limit=100", "")).Items
}

// results counts the results of each tool call.
func (k *killable) results() map[string]int {
	k.t.Helper()
	n := map[string]int{}
	for _, raw := range k.history() {
		e, err := event.Decode(raw)
		if err != nil {
			k.t.Fatal(err)
		}
		switch e := e.(type) {
		case *event.Action:
			n[e.ToolCallID] += 0
		case *event.Observation:
			n[e.ToolCallID]++
		case *event.AgentError:
			n[e.ToolCallID]++
		case *event.UserReject:
			n[e.ToolCallID]++
		}
	}
	return n
}

// processes are the command lines of what the server has started, and its own.
func (k *killable) processes() []string {
	var list []string
	environs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range environs {
		if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), "KILLABLE="+k.data) {
			line, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
			list = append(list, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return list
}

// TestKill_EveryStep kills the server in each step of a turn and starts it again on the same folder:
// the events before are read as they were, each tool call gets one result, the run goes on by itself
// unless the server is told not to, and ends with a model that refuses any other history.
func TestKill_EveryStep(t *testing.T) {
	touch := func(file string) modeltest.Call {
		return modeltest.Tool("terminal", map[string]any{"command": "echo x >> " + file})
	}
	hang := modeltest.Tool("terminal", map[string]any{"command": "echo x >> hanging; sleep 600"})
	for name, c := range map[string]struct {
		policy string
		first  func(hold <-chan struct{}) modeltest.Answer
		begun  func(k *killable, m *modeltest.Server) bool
		waits  bool
		errors int // results that say that a restart came between
	}{
		"before the answer": {"NeverConfirm",
			func(hold <-chan struct{}) modeltest.Answer { return modeltest.Answer{Text: "late", Hold: hold} },
			func(_ *killable, m *modeltest.Server) bool { return asked(m) > 0 }, false, 0},
		"in the answer": {"NeverConfirm",
			func(<-chan struct{}) modeltest.Answer {
				return modeltest.Answer{
					Text:  strings.Repeat("long ", 500),
					Fault: &modeltest.Fault{Kind: modeltest.SlowChunks, DelayMS: 50},
				}
			},
			func(_ *killable, m *modeltest.Server) bool { return asked(m) > 0 }, false, 0},
		"in a tool": {"NeverConfirm",
			func(<-chan struct{}) modeltest.Answer { return modeltest.Calls(hang) },
			func(k *killable, _ *modeltest.Server) bool { return exists(k.work + "/hanging") }, false, 1},
		"between two tools": {"NeverConfirm",
			func(<-chan struct{}) modeltest.Answer { return modeltest.Calls(touch("one"), hang, touch("two")) },
			func(k *killable, _ *modeltest.Server) bool { return exists(k.work + "/hanging") }, false, 2},
		"while it waits": {"AlwaysConfirm",
			func(<-chan struct{}) modeltest.Answer { return modeltest.Calls(touch("one"), touch("two")) },
			func(k *killable, _ *modeltest.Server) bool { return k.status() == "waiting_for_confirmation" },
			true, 0},
	} {
		for _, goesOn := range []bool{true, false} {
			t.Run(name+map[bool]string{false: ", and told to end runs"}[goesOn], func(t *testing.T) {
				t.Parallel()
				hold := make(chan struct{})
				defer close(hold)
				m := modeltest.New(t, &modeltest.Script{Key: modelKey, Stories: []*modeltest.Story{
					{When: modeltest.When{System: "Write a title"}, Answers: []modeltest.Answer{modeltest.Text("A title")}},
					{Answers: []modeltest.Answer{c.first(hold), modeltest.Text("Done.")}, InOrder: true},
				}})
				k := newKillable(t)
				k.converse(m, c.policy, "go", nil)
				k.until("the step", func() bool { return c.begun(k, m) })
				before := k.history()
				k.kill()
				k.environ = map[bool][]string{false: {"BIVOUAC_RESUME_RUNS=0"}}[goesOn]
				k.start()
				switch {
				case c.waits:
					k.restarted(before, "waiting_for_confirmation", c.errors)
					k.want(200, "POST", convPath+"/events/respond_to_confirmation", `{"accept":true}`)
				case !goesOn:
					k.restarted(before, "error", c.errors)
					k.want(200, "POST", convPath+"/run", "")
				}
				k.until("the end", func() bool { return k.status() == "finished" })
				failures := 0
				for _, e := range k.history()[len(before):] {
					failures += strings.Count(string(e), `"ServerRestarted"`)
				}
				if want := map[bool]int{true: 1}[!goesOn && !c.waits]; failures != want {
					t.Errorf("%d ends of the run, want %d", failures, want)
				}
				for id, n := range k.results() {
					if n != 1 {
						t.Errorf("%d results of %s", n, id)
					}
				}
				for file, times := range map[string]string{"one": "x\n", "hanging": "x\n"} {
					if b, err := os.ReadFile(filepath.Join(k.work, file)); err == nil && string(b) != times {
						t.Errorf("%s was made with %q", file, b)
					}
				}
			})
		}
	}
}

// restarted checks what a start of the server has added to the events, and that the next adds nothing.
func (k *killable) restarted(before []json.RawMessage, status string, errors int) {
	k.t.Helper()
	after := k.history()
	if len(after) < len(before) || !slices.EqualFunc(before, after[:len(before)],
		func(a, b json.RawMessage) bool { return string(a) == string(b) }) {
		k.t.Fatalf("the events were\n%s\nand are\n%s", before, after)
	}
	if got := k.status(); got != status {
		k.t.Errorf("status %s, want %s", got, status)
	}
	n := 0
	for _, e := range after[len(before):] {
		n += strings.Count(string(e), "A restart occurred while this tool was in progress")
	}
	if n != errors {
		k.t.Errorf("%d results of a restart, want %d: %s", n, errors, after[len(before):])
	}
	k.kill() // a second restart adds nothing
	k.start()
	if again := k.history(); len(again) != len(after) {
		k.t.Errorf("after a second restart there are %d events, not %d", len(again), len(after))
	}
}

// TestKill_GoesOnTwice kills the server again and again in a call that never has a result: the run
// goes on by itself twice, then its end is told. A person's run begins anew.
func TestKill_GoesOnTwice(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	defer close(hold)
	m := modeltest.New(t, &modeltest.Script{Key: modelKey, Stories: []*modeltest.Story{
		{When: modeltest.When{System: "Write a title"}, Answers: []modeltest.Answer{modeltest.Text("A title")}},
		{Answers: []modeltest.Answer{{Text: "never", Hold: hold}}},
	}})
	k := newKillable(t)
	k.converse(m, "NeverConfirm", "go", nil)
	for n := 1; n <= 3; n++ {
		k.until("the call", func() bool { return asked(m) == n })
		k.kill()
		k.start()
	}
	if got := k.status(); got != "error" || asked(m) != 3 {
		t.Errorf("after three kills it is %s, and the model was asked %d times", got, asked(m))
	}
	if h := k.history(); !strings.Contains(string(h[len(h)-2]), "stopped several times") {
		t.Errorf("the end is %s", h[len(h)-2:])
	}
	k.want(200, "POST", convPath+"/run", "")
	k.until("the call of a person's run", func() bool { return asked(m) == 4 })
	k.kill()
	k.start()
	k.until("the call after it", func() bool { return asked(m) == 5 })
}

// TestKill_AfterAPause kills the server in a tool, after a pause was asked for: a person's holds, a
// drain's ends with the start of the next server.
func TestKill_AfterAPause(t *testing.T) {
	for name, c := range map[string]struct{ calls, status string }{
		"a person's":               {"pause", "paused"},
		"a drain's":                {"pause?resume=true", "finished"},
		"a drain's after a person": {"pause pause?resume=true", "paused"},
		"a person's after a drain": {"pause?resume=true pause", "paused"},
		"a drain's in the end":     {"pause?resume=true interrupt?resume=true", "finished"},
		"a person's in the end":    {"pause interrupt", "paused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := modeltest.New(t, &modeltest.Script{Key: modelKey, Stories: []*modeltest.Story{
				{When: modeltest.When{System: "Write a title"}, Answers: []modeltest.Answer{modeltest.Text("A title")}},
				{Answers: []modeltest.Answer{
					modeltest.Calls(modeltest.Tool("terminal", map[string]any{"command": "echo x > begun; sleep 600"})),
					modeltest.Text("Done."),
				}, InOrder: true},
			}})
			k := newKillable(t)
			k.converse(m, "NeverConfirm", "go", nil)
			k.until("the tool", func() bool { return exists(k.work + "/begun") })
			for call := range strings.FieldsSeq(c.calls) {
				k.want(200, "POST", convPath+"/"+call, "")
			}
			if strings.Contains(c.calls, "interrupt") {
				k.until("the interrupt", func() bool { return k.status() == "paused" })
				k.want(204, "POST", "/api/conversations/prepare-for-sandbox-pause", "")
				if got := k.status(); got != "paused" {
					t.Errorf("before the stop it is %s", got)
				}
			}
			k.kill()
			k.start()
			k.until("the end", func() bool { return k.status() == c.status })
			if n := asked(m); (n == 2) != (c.status == "finished") {
				t.Errorf("the model was asked %d times", n)
			}
			if c.status == "paused" {
				k.want(200, "POST", convPath+"/run", "")
				k.until("the end of a person's run", func() bool { return k.status() == "finished" })
			}
			for id, n := range k.results() {
				if n != 1 {
					t.Errorf("%d results of %s", n, id)
				}
			}
		})
	}
}

// asked is how many requests with tools a model had.
func asked(m *modeltest.Server) int {
	n := 0
	for _, r := range m.Requests() {
		if len(r.Tools) > 0 {
			n++
		}
	}
	return n
}

// TestKill_LeavesNothing kills the server while a command and an agent work, with processes that
// have left their session. The next server of the folder ends them all.
func TestKill_LeavesNothing(t *testing.T) {
	daemon := "setsid sh -c 'trap \"\" HUP; while :; do echo x >> ticks; sleep 0.05; " +
		"done' >/dev/null 2>&1 </dev/null & sleep 600"
	m := modeltest.New(t, modeltest.Turns(modeltest.Calls(modeltest.Tool("terminal", map[string]any{"command": daemon}))))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, settings := range map[string]map[string]any{
		"native": nil,
		"acp": {
			"agent_kind":  "acp",
			"acp_server":  "custom",
			"acp_command": []string{self},
			"acp_env":     map[string]string{acptest.Env: acptest.Fine},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKillable(t)
			k.converse(m, "NeverConfirm", acptest.Children, settings)
			k.until("the processes", func() bool { return len(k.processes()) >= 3 })
			k.kill()
			k.environ = []string{"BIVOUAC_RESUME_RUNS=0"}
			k.start()
			if left := k.processes(); len(left) != 1 {
				t.Errorf("beside the new server there are %q", left)
			}
			if got := k.status(); got != "error" {
				t.Errorf("status %s", got)
			}
		})
	}
}

// TestKill_OutputCostsNoMemory prints 100 MB to the terminal of a server of its own.
func TestKill_OutputCostsNoMemory(t *testing.T) {
	m := modeltest.New(t, &modeltest.Script{Key: modelKey, Stories: []*modeltest.Story{
		{When: modeltest.When{User: "print"}, Answers: []modeltest.Answer{
			modeltest.Calls(modeltest.Tool("terminal",
				map[string]any{"command": "yes 0123456789 | head -c 100000000; echo the end"})), modeltest.Text("Printed.")}},
		{
			Answers: []modeltest.Answer{
				modeltest.Calls(modeltest.Tool("terminal", map[string]any{"command": "true"})),
				modeltest.Text("Hello."),
			},
		},
	}})
	k := newKillable(t)
	k.converse(m, "NeverConfirm", "hello", nil)
	k.until("the first answer", func() bool { return k.status() == "finished" })
	before := k.peak()
	k.want(200, "POST", convPath+"/events", `{"content":"print it","run":true}`)
	k.until("the answer", func() bool {
		return k.status() == "finished" && strings.Contains(k.want(200, "GET", convPath+"/agent_final_response", ""),
			"Printed.")
	})
	if got := k.want(200, "GET", convPath+"/events/search?kind=ObservationEvent", ""); !strings.Contains(got, "the end") {
		t.Error("the end of the output is missing")
	}
	if grown := k.peak() - before; grown > 64<<10 {
		t.Errorf("100 MB of output cost %d KiB of memory", grown)
	}
}

// peak is the most memory that the server had, in KiB.
func (k *killable) peak() int {
	k.t.Helper()
	b, err := os.ReadFile("/proc/" + strconv.Itoa(k.cmd.Process.Pid) + "/status")
	if err != nil {
		k.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		k.t.Fatal(err)
	}
	return n
}
