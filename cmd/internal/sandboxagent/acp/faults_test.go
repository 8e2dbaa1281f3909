package acp

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/acptest"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

func TestMain(m *testing.M) {
	acptest.Main()
	os.Exit(m.Run())
}

// fake is one conversation with the agent of acptest.
type fake struct {
	*memory
	t      *testing.T
	setup  engine.Setup
	engine *Engine
	log    string
}

func newFake(t *testing.T, faults, policy string) *fake {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	f := &fake{memory: newMemory(), t: t, log: filepath.Join(dir, "log")}
	for _, d := range []string{"work", "conversation", "home"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	f.setup = engine.Setup{
		ID: "c", Dir: filepath.Join(dir, "conversation"), WorkingDir: filepath.Join(dir, "work"),
		Logger: slog.New(slog.DiscardHandler),
		Environ: []string{
			"PATH=" + os.Getenv("PATH"),
			"HOME=" + filepath.Join(dir, "home"),
			acptest.Env + "=" + faults,
			acptest.LogEnv + "=" + f.log,
		},
		Agent: engine.Agent{Kind: "acp", ACP: engine.ACP{Server: "custom", Command: []string{self}}},
	}
	_ = f.Append(engine.Update(engine.KeyConfirmationPolicy, engine.Policy{Kind: policy}))
	f.start()
	// No process of the agent's outlives its engine.
	t.Cleanup(func() {
		if left := f.processes(); len(left) > 0 {
			t.Errorf("processes are left: %q", left)
		}
	})
	t.Cleanup(func() { f.engine.Close() })
	return f
}

// start makes an engine, as a server does that begins.
func (f *fake) start() {
	f.t.Helper()
	e, err := New(f.setup, f)
	if err != nil {
		f.t.Fatal(err)
	}
	e.retries, e.drainWait = []time.Duration{time.Millisecond}, 500*time.Millisecond
	f.engine = e
}

// processes are the command lines of what the agent has started, and its own.
func (f *fake) processes() []string {
	var list []string
	environs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range environs {
		b, err := os.ReadFile(path)
		if err == nil && bytes.Contains(b, []byte(acptest.LogEnv+"="+f.log)) {
			line, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
			list = append(list, string(line))
		}
	}
	return list
}

// received are the lines that the agent got.
func (f *fake) received() string {
	b, err := os.ReadFile(f.log)
	if err != nil {
		f.t.Fatal(err)
	}
	return string(b)
}

func (f *fake) tells(want ...string) {
	f.t.Helper()
	if got := f.story(); !slices.Equal(got, want) {
		f.t.Errorf("the story is\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// finishes says something and wants an answer.
func (f *fake) finishes(text string) {
	f.t.Helper()
	f.say(text)
	if o, err := f.engine.Step(f.t.Context()); err != nil || o != engine.Finished {
		f.t.Fatalf("%q ends with %v %v\n%q", text, o, err, f.story())
	}
}

// fails does a step that fails with the code, which clients know.
func (f *fake) fails(code string) *engine.Failure {
	f.t.Helper()
	_, err := f.engine.Step(f.t.Context())
	var failure *engine.Failure
	if !errors.As(err, &failure) || failure.Code != code || failure.Source != event.SourceAgent {
		f.t.Fatalf("the step fails with %v, want %s; %q", err, code, f.story())
	}
	if event.Classify(failure.Code).Kind == "unknown" {
		f.t.Errorf("the code %s is not classified", failure.Code)
	}
	return failure
}

// Each fault of an agent's start has its code and says what was wrong; the next try works.
func TestFaults_Start(t *testing.T) {
	for _, c := range []struct{ faults, code, detail string }{
		{acptest.Mute, codeStartup, "did not open a session within 1s"},
		{acptest.Exits, codeInit, "no such option: --acp"},
		{acptest.OldSpeech, codeInit, "speaks version 0"},
		{acptest.NoLogin, codeAuth, "asks for a login"},
	} {
		t.Run(c.faults, func(t *testing.T) {
			f := newFake(t, c.faults, "NeverConfirm")
			if c.faults == acptest.Mute {
				f.engine.setup.Agent.ACP.StartupTimeout = 1
			}
			f.say("hello")
			if failure := f.fails(c.code); !strings.Contains(failure.Detail, c.detail) {
				t.Errorf("the detail is %q, want %q", failure.Detail, c.detail)
			}
			f.tells("user: hello")
			if left := f.processes(); len(left) > 0 {
				t.Errorf("the agent that failed is left: %q", left)
			}
			f.setup.Environ = append(f.setup.Environ, acptest.Env+"="+acptest.Fine)
			f.start()
			if o, err := f.engine.Step(t.Context()); o != engine.Finished || err != nil {
				t.Errorf("the next try: %v %v", o, err)
			}
			f.tells("user: hello", "finish: You said: hello", "finished")
		})
	}
	f := newFake(t, acptest.Fine, "NeverConfirm")
	f.engine.preset.Command = "not-installed-anywhere"
	f.say("hello")
	if failure := f.fails(codeSpawn); !strings.Contains(failure.Detail, "not-installed-anywhere is not installed") {
		t.Error(failure.Detail)
	}
}

// Noise on stdout and 100 MB on stderr are no part of the protocol, and cost no memory.
func TestFaults_Noise(t *testing.T) {
	for _, faults := range []string{acptest.Noisy, acptest.Flood} {
		f := newFake(t, faults, "NeverConfirm")
		f.finishes("hello")
		f.finishes("again")
		f.tells("user: hello", "finish: You said: hello", "finished", "user: again", "finish: You said: again", "finished")
		said := f.engine.session.process.stderr
		said.mu.Lock()
		if n := cap(said.buf); n > 256<<10 {
			t.Errorf("%s: %d bytes of stderr are kept", faults, n)
		}
		said.mu.Unlock()
	}
}

// An agent that is killed in its turn is started again and loads its session. When that fails too,
// the turn has failed. A call has one end in each case.
func TestFaults_KilledInATurn(t *testing.T) {
	f := newFake(t, acptest.Fine, "NeverConfirm")
	f.finishes("hello")
	f.finishes(acptest.DieOnce)
	f.tells("user: hello", "finish: You said: hello", "finished", "user: dieonce",
		"call write done.txt in_progress", "call write done.txt failed", "finish: Alive.", "finished")
	if got := f.received(); strings.Count(got, `"session/load"`) != 1 || strings.Count(got, "was broken off") != 1 {
		t.Errorf("the agent got %s", got)
	}
	before := len(f.story())
	f.say(acptest.Die)
	if failure := f.fails(codePrompt); !strings.Contains(failure.Detail, "signal: killed") {
		t.Errorf("the detail is %q", failure.Detail)
	}
	want := []string{
		"user: die",
		"call write done.txt in_progress",
		"call write done.txt failed",
		"call write done.txt in_progress",
		"call write done.txt failed",
	}
	got := f.story()[before:]
	if !slices.Equal(got[:len(got)-1], want) || !strings.HasPrefix(got[len(got)-1],
		"agent: ACP error: The agent ended in its turn") {
		t.Errorf("the story is %q", got)
	}
	f.finishes("after it")
}

// An agent that is killed between two turns is started again and knows its session; one that can't
// load it is told what was said.
func TestFaults_KilledBetweenTurns(t *testing.T) {
	for _, faults := range []string{acptest.Fine, acptest.NoLoad} {
		f := newFake(t, faults, "NeverConfirm")
		f.finishes("the first question")
		s := f.engine.session
		if err := s.process.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		<-s.process.exited
		f.finishes("the second")
		f.tells("user: the first question", "finish: You said: the first question", "finished",
			"user: the second", "finish: You said: the second", "finished")
		got := f.received()
		last := got[strings.LastIndex(got, `"session/prompt"`):]
		told := strings.Contains(last, "This conversation began before") &&
			strings.Contains(last, "User: the first question") &&
			strings.Contains(last, "You: You said: the first question")
		if told != (faults == acptest.NoLoad) || strings.Count(last, "the second") != 1 {
			t.Errorf("%s: the last prompt is %s", faults, last)
		}
	}
}

// Updates of an unknown kind or type, of another session, or of 11 MiB cost neither the turn nor
// what follows. A line that can't be shortened ends the agent, with a reason.
func TestFaults_Updates(t *testing.T) {
	f := newFake(t, acptest.Fine, "NeverConfirm")
	f.finishes(acptest.Unknown)
	f.finishes(acptest.Long)
	f.tells("user: unknown", "finish: Known.", "finished",
		"user: long", "call write done.txt in_progress", "call write done.txt completed", "finish: Long.", "finished")
	events, _ := f.Events()
	for _, e := range events {
		if c, is := e.(*event.ACPToolCall); is && *c.Status == callCompleted {
			if n := len(c.RawOutput); n < maxEventText || n > 2*maxEventText ||
				!strings.Contains(string(c.RawOutput), `"after":"kept"`) {
				t.Errorf("%d bytes of output are stored", n)
			}
		}
	}
	f.say(acptest.TooLong)
	if failure := f.fails(codePrompt); !strings.Contains(failure.Detail, "no long strings to shorten") {
		t.Errorf("the detail is %q", failure.Detail)
	}
	f.finishes("after it")
}

// The reasons to stop: all but a refusal end the turn with what was said.
func TestFaults_StopReasons(t *testing.T) {
	f := newFake(t, acptest.Fine, "NeverConfirm")
	for _, reason := range []string{"end_turn", "max_tokens", "max_turn_requests", "cancelled", "of_the_future"} {
		f.finishes("stop " + reason)
	}
	f.say("stop refusal")
	if failure := f.fails(codeRefusal); failure.Detail != "Said." {
		t.Errorf("the detail is %q", failure.Detail)
	}
	f.say("fail -32000")
	_ = f.fails(codeAuth)
	f.say("fail -32602")
	if failure := f.fails(codePrompt); !strings.Contains(failure.Detail, "It failed.") {
		t.Errorf("the detail is %q", failure.Detail)
	}
	before := strings.Count(f.received(), `"session/prompt"`)
	f.say("fail -32603")
	_ = f.fails(codePrompt)
	if n := strings.Count(f.received(), `"session/prompt"`) - before; n != 2 {
		t.Errorf("an internal error is asked about %d times, want 2", n)
	}
	f.finishes("after it")
}

// Two requests for one call are one question; a request for another session is none.
func TestFaults_PermissionTwice(t *testing.T) {
	for accept, want := range map[bool][]string{
		true:  {"call write done.txt completed", "finish: other false, first true, second true", "finished"},
		false: {"call write done.txt failed", "finish: other false, first false, second false", "finished"},
	} {
		f := newFake(t, acptest.Fine, "AlwaysConfirm")
		f.say(acptest.Twice)
		if o, err := f.engine.Step(t.Context()); o != engine.Waiting || err != nil {
			t.Fatal(o, err)
		}
		if goesOn, err := f.engine.Respond(accept, "no"); !goesOn || err != nil {
			t.Fatal(goesOn, err)
		}
		if o, err := f.engine.Step(t.Context()); err != nil || o != engine.Finished {
			t.Fatalf("%v %v", o, err)
		}
		f.tells(append([]string{"user: twice", "call write done.txt pending"}, want...)...)
	}
}

// What becomes of a turn that waits for the user: an answer goes on with it, also a plain run; a message
// in its place cancels it; an agent that is gone, by itself or with its server, begins again and
// carries out the accepted call without another question, another call with one.
func TestFaults_Waits(t *testing.T) {
	const asked, pending = "user: work", "call write done.txt pending"
	done := []string{"call write done.txt completed", "finish: It is written.", "finished"}
	again := append([]string{"call write done.txt failed", "call write done.txt pending"}, done...)
	for name, c := range map[string]struct {
		faults string
		do     func(f *fake)
		ends   engine.Outcome
		tells  []string
	}{
		"accepted":    {acptest.Fine, func(f *fake) { f.respond(true, true) }, engine.Finished, done},
		"a plain run": {acptest.Fine, func(*fake) {}, engine.Finished, done},
		"rejected": {acptest.Fine, func(f *fake) { f.respond(false, true) }, engine.Idle,
			[]string{"call write done.txt failed"}},
		"a message": {acptest.Fine, func(f *fake) { f.respond(false, true); f.say("hello") }, engine.Finished,
			[]string{"user: hello", "call write done.txt failed", "finish: You said: hello", "finished"}},
		"a late message": {acptest.Fine, func(f *fake) { f.say("hello"); f.respond(true, true) }, engine.Finished,
			append([]string{"user: hello"}, done...)},
		"the agent died": {acptest.Fine, func(f *fake) {
			s := f.engine.session
			_ = s.process.cmd.Process.Kill()
			<-s.process.exited
			f.respond(true, true)
		}, engine.Finished, again},
		"a restart": {acptest.Fine, func(f *fake) { f.engine.Close(); f.start(); f.respond(true, false) },
			engine.Finished, again},
		"a restart, and the agent dies": {acptest.DiesOnce,
			func(f *fake) { f.engine.Close(); f.start(); f.respond(true, false) }, engine.Finished, again},
		"a restart of one that can't load": {acptest.NoLoad,
			func(f *fake) { f.engine.Close(); f.start(); f.respond(true, false) }, engine.Finished,
			append([]string{"call write done.txt failed", "agent: " + lostSession, "call write done.txt pending"}, done...)},
		"rejected after a restart": {acptest.Fine, func(f *fake) {
			f.engine.Close()
			f.start()
			f.respond(false, false)
			f.say("hello")
		}, engine.Finished, []string{"call write done.txt failed", "user: hello", "finish: You said: hello", "finished"}},
		"another call after a restart": {acptest.Fine + "," + acptest.Renames, func(f *fake) {
			f.engine.Close()
			f.start()
			f.respond(true, false)
		}, engine.Waiting, []string{"call write done.txt failed", "call write another.txt pending"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, c.faults, "AlwaysConfirm")
			f.say(acptest.Work)
			if o, err := f.engine.Step(t.Context()); o != engine.Waiting || err != nil {
				t.Fatal(o, err)
			}
			c.do(f)
			if o, err := f.engine.Step(t.Context()); o != c.ends || err != nil {
				t.Errorf("%v %v, want %v", o, err, c.ends)
			}
			f.tells(append([]string{asked, pending}, c.tells...)...)
			if _, err := os.Stat(filepath.Join(f.setup.WorkingDir, "done.txt")); (err == nil) !=
				slices.Contains(f.story(), "finish: It is written.") {
				t.Errorf("the call was carried out: %v", err == nil)
			}
		})
	}
}

// respond answers a question. A turn goes on with it if its agent is there.
func (f *fake) respond(accept, goesOn bool) {
	f.t.Helper()
	if got, err := f.engine.Respond(accept, "no"); got != goesOn || err != nil {
		f.t.Fatalf("goes on %v, %v", got, err)
	}
}

// An interrupt cancels the turn: what comes after it is no part of the next one. An agent that goes
// on is killed, and what it has started with it.
func TestFaults_Cancel(t *testing.T) {
	for _, word := range []string{acptest.Late, acptest.Deaf, acptest.Children} {
		t.Run(word, func(t *testing.T) {
			f := newFake(t, acptest.Fine, "AlwaysConfirm")
			f.say(word)
			ctx, interrupt := context.WithCancel(t.Context())
			done := step(ctx, f.engine)
			begun := func() bool {
				f.mu.Lock()
				defer f.mu.Unlock()
				return len(f.sent) > 0
			}
			if word == acptest.Children {
				begun = func() bool { return len(f.processes()) == 2 }
			}
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for !begun() {
				<-tick.C
			}
			interrupt()
			if got := <-done; !errors.Is(got.err, context.Canceled) {
				t.Fatalf("%v %v, want canceled", got.outcome, got.err)
			}
			if got := f.story()[1:]; len(got) > 0 && slices.Contains(got, "finished") {
				t.Errorf("the interrupted turn left %q", got)
			}
			f.finishes("now this")
			if got := f.story(); got[len(got)-2] != "finish: You said: now this" {
				t.Errorf("the next turn: %q", got)
			}
			if word == acptest.Children && len(f.processes()) != 1 {
				t.Errorf("the processes are %q", f.processes())
			}
		})
	}
}

// A silent agent is given up after acp_prompt_timeout.
func TestFaults_Silent(t *testing.T) {
	f := newFake(t, acptest.Fine, "NeverConfirm")
	f.engine.setup.Agent.ACP.PromptTimeout = 0.5
	f.say(acptest.Deaf)
	if failure := f.fails(codePrompt); !strings.Contains(failure.Detail, "no update for 500ms") {
		t.Error(failure.Detail)
	}
	f.finishes("after it")
}
