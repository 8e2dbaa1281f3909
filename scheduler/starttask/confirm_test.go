package starttask

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent"
)

// confirm sets the confirmation mode of the user.
func (w *taskWorld) confirm(on bool) {
	w.t.Helper()
	b := &fsm.SettingsPutBody{}
	if s := w.store.View().Settings(taskUser); s != nil {
		b.Values, b.MCPConfig = s.Values, s.MCPConfig
	}
	b.Values.ConfirmationMode = &on
	w.must(taskUser, b)
}

func newAskingWorld(t *testing.T) *taskWorld { return newAskingWorldOf(t, fsm.ProtocolVersion) }

// newAskingWorldOf is a world of a protocol version whose user's conversations ask. Its agents say that
// every project has all three files.
func newAskingWorldOf(t *testing.T, version int) *taskWorld {
	w := newTaskWorld(t)
	w.must("", &fsm.ProtocolRaiseBody{Version: version})
	w.confirm(true)
	w.agents.hooks = []byte(`{"pre_tool_use":[{"matcher":"*"}]}`)
	w.agents.skills = []byte(`[{"name":"style","content":"Be brief."},
		{"name":"db","source":"/x","content":"","mcp_tools":{"mcpServers":{}}},
		{"name":"log","content":"!` + "`git log`" + `"}]`)
	w.agents.respond = func(agent.Command) agent.Output {
		out := "\n"
		for _, name := range []string{setupFile, gitHooksFile} {
			out += "bivouac: " + name + "\nbivouac: " + sum([]byte(name)) + " " + name + "\n"
		}
		return agent.Output{Stdout: out}
	}
	return w
}

func (w *taskWorld) startApp(id string) *fsm.StartTask {
	w.t.Helper()
	return w.task(id, func(b *fsm.StartTaskCreateBody) { b.Request.SelectedRepository = ptr("octo/app") })
}

// ran says what of the projects has run or has been handed over: S the setup script, G the git hook, H
// the hooks, and the names of the skills.
func (w *taskWorld) ran(task *fsm.StartTask) string {
	w.agents.mu.Lock()
	defer w.agents.mu.Unlock()
	var out strings.Builder
	for _, c := range w.agents.commands {
		if strings.Contains(c, "bivouac-setup-"+task.ID) {
			out.WriteString("S")
		}
		if strings.Contains(c, "Installed by Bivouac") && strings.Contains(c, task.SandboxID) {
			out.WriteString("G")
		}
	}
	req := w.agents.created[agent.DashedID(task.ConversationID)]
	if req.HookConfig != nil {
		out.WriteString("H")
	}
	if c := req.AgentSettings.AgentContext; c != nil {
		var list []struct{ Name string }
		if err := json.Unmarshal(c.Skills, &list); err != nil {
			w.t.Error(err)
		}
		for _, s := range list {
			out.WriteString(" " + s.Name)
		}
	}
	return out.String()
}

func isAsking(t *fsm.StartTask) bool { return t.Setup != nil && strings.Contains(t.Detail, "/setup") }

// asking waits until a task asks.
func (w *taskWorld) asking(task *fsm.StartTask) *fsm.StartTask {
	w.t.Helper()
	got := w.await(task.ID, func(t *fsm.StartTask) bool { return isAsking(t) || t.Done() })
	if got.Done() {
		w.t.Fatalf("nothing was asked: %s, %q ran", got.Status, w.ran(got))
	}
	return got
}

func wasSkipped(t *fsm.StartTask) bool { return t.Setup != nil && t.Setup.Skipped }

// TestStartTask_Confirm_NothingRunsUnasked: a start in confirmation mode asks before anything of the
// repository runs, and what was answered counts for the repository and the hash of its files.
func TestStartTask_Confirm_NothingRunsUnasked(t *testing.T) {
	w := newAskingWorld(t)
	w.run(nil)
	const all, none = "SGH style db log", " style"
	first := w.asking(w.startApp("1"))
	if got := w.ran(first); first.Status != fsm.StartTaskRunningSetupScript || got != "" {
		t.Fatalf("before the answer: %s, %q ran", first.Status, got)
	}
	paths := ""
	for _, f := range first.Setup.Files {
		paths += f.Path + " "
	}
	if paths != ".openhands/hooks.json .openhands/pre-commit.sh .openhands/setup.sh skill db skill log " ||
		first.Setup.Repository != "https://github.com/octo/app.git" ||
		!strings.HasSuffix(first.Setup.Directory, "/project/app") {
		t.Errorf("the question is %+v", first.Setup)
	}
	w.must(taskUser, &fsm.StartTaskAnswerBody{ID: first.ID, Hash: first.Setup.Hash, Accept: true})
	if got := w.done(first.ID); got.Status != fsm.StartTaskReady || wasSkipped(got) || w.ran(got) != all {
		t.Errorf("after the yes: %s, %q ran", got.Status, w.ran(got))
	}
	again := w.done(w.startApp("2").ID)
	if again.Status != fsm.StartTaskReady || w.ran(again) != all {
		t.Errorf("the same files: %s, %q ran", again.Status, w.ran(again))
	}
	w.must(taskUser, &fsm.StartTaskAnswerBody{ID: again.ID, Hash: first.Setup.Hash})
	if got := w.done(w.startApp("3").ID); got.Status != fsm.StartTaskReady || !wasSkipped(got) || w.ran(got) != none {
		t.Errorf("after the no: %s %+v, %q ran", got.Status, got.Setup, w.ran(got))
	}
	// Other files.
	w.agents.mu.Lock()
	w.agents.hooks = []byte(`{"pre_tool_use":[{"matcher":"terminal"}]}`)
	w.agents.mu.Unlock()
	fourth := w.asking(w.startApp("4"))
	w.confirm(false)
	if got := w.done(w.startApp("5").ID); got.Setup != nil || w.ran(got) != all {
		t.Errorf("without confirmation mode: %+v, %q ran", got.Setup, w.ran(got))
	}
	// The question stays.
	if got := w.ran(fourth); got != "" {
		t.Errorf("with other files %q ran", got)
	}
}

// TestStartTask_Confirm_GoesOn: a start that gets no answer goes on without the files, once; the next
// one does not wait. One whose question can't be stored does not wait either.
func TestStartTask_Confirm_GoesOn(t *testing.T) {
	w := newAskingWorld(t)
	w.run(func(r *Runner) { r.cfg.ConfirmTimeout = 50 * time.Millisecond })
	for i := range 2 {
		got := w.done(w.startApp(fmt.Sprint(i)).ID)
		if got.Status != fsm.StartTaskReady || !wasSkipped(got) || w.ran(got) != " style" {
			t.Errorf("without an answer: %s %+v, %q ran", got.Status, got.Setup, w.ran(got))
		}
	}
	older := newAskingWorldOf(t, fsm.VersionSetup-1)
	older.run(nil)
	if got := older.done(older.startApp("1").ID); got.Status != fsm.StartTaskReady || older.ran(got) != " style" {
		t.Errorf("below protocol version %d: %s, %q ran", fsm.VersionSetup, got.Status, older.ran(got))
	}
}

// TestStartTask_Confirm_WithoutAQuestion: what was not asked about does not run: files that come with a
// sandbox, before the answer; files whose question is too large; a project whose user has switched
// confirmation mode on since it was looked at.
func TestStartTask_Confirm_WithoutAQuestion(t *testing.T) {
	w := newAskingWorld(t)
	w.run(nil)
	sandbox := w.must(taskUser, &fsm.SandboxCreateBody{
		ID: "mine", KeyHash: strings.Repeat("a", 64), KeyRef: w.secret("sandboxes/mine/session", "key", "k"),
	}).Sandbox
	there := w.asking(w.task("1", func(b *fsm.StartTaskCreateBody) { b.Request.SandboxID = &sandbox.ID }))
	if got := w.ran(there); got != "" || there.Setup.Repository != "sandbox mine" {
		t.Errorf("in a sandbox that was there: %q ran, %+v", got, there.Setup)
	}
	w.agents.mu.Lock()
	many := []string{`{"name":"style","content":""}`}
	for i := range fsm.MaxSetupFiles {
		many = append(many, fmt.Sprintf("{\"name\":\"s%d\",\"content\":\"!`date`\"}", i))
	}
	w.agents.skills = []byte("[" + strings.Join(many, ",") + "]")
	w.agents.mu.Unlock()
	if got := w.done(w.startApp("2").ID); got.Status != fsm.StartTaskReady || w.ran(got) != " style" {
		t.Errorf("with too many files: %s, %q ran", got.Status, w.ran(got))
	}
	late := newAskingWorld(t)
	late.confirm(false)
	late.run(func(r *Runner) {
		r.step = func(_ context.Context, _ *fsm.StartTask, name string) {
			if name == "advance RUNNING_SETUP_SCRIPT" {
				late.confirm(true)
			}
		}
	})
	if got := late.done(late.startApp("1").ID); got.Status != fsm.StartTaskReady || late.ran(got) != " style" {
		t.Errorf("switched on meanwhile: %s, %q ran", got.Status, late.ran(got))
	}
}

// TestStartTask_RealProject_Asks_LeaderLostAtEveryStep: with a real agent server and a real repository,
// nothing runs before the answer and everything once after a yes, wherever the leader is lost.
func TestStartTask_RealProject_Asks_LeaderLostAtEveryStep(t *testing.T) {
	host := GitHost(t, map[string]string{
		"README": "hi\n", ".openhands/setup.sh": "echo ran >>../setup.log\n",
		".openhands/pre-commit.sh": "#!/bin/sh\nexit 1\n",
		".openhands/hooks.json":    `{"stop":[{"hooks":[{"command":"true"}]}]}`,
	})
	bin := agentProgram(t)
	for name, accept := range map[string]bool{"yes": true, "no": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for n := 1; askedAndLost(t, host, bin, accept, n); n++ {
			}
		})
	}
}

// askedAndLost runs a start whose leader is lost before its step n; false where there is no such step.
func askedAndLost(t *testing.T, host, bin string, accept bool, n int) bool {
	t.Helper()
	w := newTaskWorld(t)
	w.must("", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
	client, _ := w.realAgents(bin)
	w.client = client
	w.must(taskUser, &fsm.ProvidersReplaceBody{Providers: []fsm.Provider{{
		Type: fsm.ProviderGitHub, Host: &host, Ref: w.secret("users/ada/providers/github", "token", GitToken),
	}}})
	w.confirm(true)
	task := w.startApp("1")
	early, answered := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(answered)
		early <- w.answer(task, accept)
	}()
	lostAt := w.loseLeaderAt(n)
	if lostAt != "" {
		w.run(nil)
	}
	got := w.done(task.ID)
	<-answered
	project := filepath.Join(w.dir, got.SandboxID, "project")
	log, _ := os.ReadFile(filepath.Join(project, "setup.log"))
	_, noHook := os.Stat(filepath.Join(project, "app/.git/hooks/pre-commit"))
	state := fmt.Sprintf("%s, early %q, log %q, hook %v, skipped %v",
		got.Status, <-early, log, noHook == nil, wasSkipped(got))
	want := `READY, early "", log "", hook false, skipped true`
	if accept {
		want = `READY, early "", log "ran\n", hook true, skipped false`
	}
	if state != want {
		t.Errorf("lost before step %d (%s): %s, not %s", n, lostAt, state, want)
	}
	if lostAt == "" && n < 15 {
		t.Errorf("only %d steps were seen", n-1)
	}
	return lostAt != ""
}

// answer waits until the task asks, answers, and returns what the setup script had written until then.
func (w *taskWorld) answer(task *fsm.StartTask, accept bool) string {
	for {
		v := w.store.View()
		now := v.StartTask(taskUser, task.ID)
		if now == nil || now.Done() {
			return "the task did not ask"
		}
		if !isAsking(now) {
			<-v.Changed()
			continue
		}
		log, _ := os.ReadFile(filepath.Join(w.dir, now.SandboxID, "project", "setup.log"))
		w.must(taskUser, &fsm.StartTaskAnswerBody{ID: task.ID, Hash: now.Setup.Hash, Accept: accept})
		return string(log)
	}
}

// TestScripts_RunWhatWasApproved: the setup script and the git hook run only with the content that was
// asked about.
func TestScripts_RunWhatWasApproved(t *testing.T) {
	dir := t.TempDir()
	sh := func(script string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "sh", "-c", "cd "+quote(dir)+"\n"+script)
		cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + dir}
		out, err := cmd.CombinedOutput()
		return fmt.Sprintf("%s%v", out, err)
	}
	write := func(setup, hook string) {
		t.Helper()
		for name, content := range map[string]string{setupFile: setup, gitHooksFile: hook} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	const setup, hook = "echo \"$(cd \"$(dirname \"$0\")/..\"; pwd)\" >>ran\n", "#!/bin/sh\necho hook >>ran\n"
	if got := sh("git init -q; git config user.name x; git config user.email x@y; mkdir .openhands"); got != "<nil>" {
		t.Fatal(got)
	}
	write(setup, hook)
	if got := sh(setupScript(dir, "t1", sum([]byte(setup)))); !strings.HasSuffix(got, "<nil>") {
		t.Errorf("the setup script: %s", got)
	}
	if got := sh(hooksScript(dir, sum([]byte(hook))) + "git commit -q --allow-empty -m one"); got != "<nil>" {
		t.Errorf("a commit: %s", got)
	}
	write(setup+"echo more >>ran\n", hook+"echo more >>ran\n")
	got := sh(setupScript(dir, "t2", sum([]byte(setup))))
	if !strings.Contains(got, "has changed") || !strings.HasSuffix(got, "exit status 76") {
		t.Errorf("another setup script: %s", got)
	}
	got = sh("git commit -q --allow-empty -m two")
	if !strings.Contains(got, "has changed") || !strings.HasSuffix(got, "<nil>") {
		t.Errorf("a commit with another hook: %s", got)
	}
	if got := sh("cat ran; ls -A .openhands"); got != dir+"\nhook\npre-commit.sh\nsetup.sh\n<nil>" {
		t.Errorf("what ran: %s", got)
	}
}
