package e2e

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// The secrets of TestWork. Only Vault, the model's server and the git server may see them.
const (
	workModelKey = "sk-canary-model-key"
	workGitToken = "git-canary-token"
)

// work is a user whose agents work on a repository.
type work struct {
	testcluster.Client
	t *testing.T
	f *testcluster.Cluster
	// model is the scripted model's server.
	model *modeltest.Server
	// sandbox is the sandbox of the conversation, conversation its id, dir its working directory.
	sandbox, conversation, dir string
	// killed is how many requests the model had when the leader died with what it had counted.
	killed int
}

// workSpec is a spec whose agent servers find git and the agents.
const workSpec = `
spec "work" {
  driver      = "raw_exec"
  isolation   = "none"
  command     = "AGENT"
  args        = ["--host", "HOST", "--port", "${port.agent_server}"]
  working_dir = "project"
  cpu         = 1000 # an agent of Node's computes for seconds before it answers
  memory      = 512
  env         = { PATH = "%s" }
  agents      = [{ id = "opencode" }, { id = "codex" }]
  port "AGENT_SERVER" {}
}
`

// agentPath returns a PATH with OpenCode and Codex, which `make agents` installs.
func agentPath(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	path := os.Getenv("PATH")
	for _, dir := range []string{"opencode-linux-x64/bin", "@zed-industries/codex-acp-linux-x64/bin"} {
		dir = filepath.Join(cache, "bivouac/agents/tested/node_modules", dir)
		_, err := os.Stat(dir)
		testcluster.Need(t, "agents", err == nil)
		path = dir + ":" + path
	}
	return path
}

// workScript mends a greeting when it is asked to fix it, with the tools of each agent.
func workScript() *modeltest.Script {
	terminal := func(command string) modeltest.Call {
		return modeltest.Tool("terminal", map[string]any{"command": command})
	}
	const mend = "sed -i s/helo/hello/ greet.sh && sh test.sh"
	edit := modeltest.Tool("file_editor",
		map[string]any{"command": "str_replace", "path": "${dir}/greet.sh", "old_str": "helo", "new_str": "hello"})
	return &modeltest.Script{Key: workModelKey, Stories: []*modeltest.Story{
		{
			When:    modeltest.When{System: "Write a title|title generator"},
			Answers: []modeltest.Answer{modeltest.Text("Mend the greeting")},
		},
		{When: modeltest.When{User: "fix the greeting in (?P<dir>\\S+)", Tool: "file_editor"}, Answers: []modeltest.Answer{
			modeltest.Calls(terminal("touch begun; while [ ! -e go ]; do sleep 0.1; done; rm begun go; sh test.sh")),
			modeltest.Calls(edit, terminal("sh test.sh")),
			modeltest.Calls(modeltest.Tool("finish", map[string]any{"message": "The test passes."})),
		}},
		{When: modeltest.When{User: "make a note", Tool: "terminal"}, Answers: []modeltest.Answer{
			modeltest.Calls(terminal("echo noted >> note.txt")), modeltest.Text("Noted.")}},
		{When: modeltest.When{User: "wait", Tool: "terminal"}, Answers: []modeltest.Answer{
			modeltest.Calls(terminal("touch waiting; sleep 600")), modeltest.Text("I waited.")}},
		{When: modeltest.When{User: "look for keys", Tool: "terminal"}, Answers: []modeltest.Answer{
			modeltest.Calls(
				terminal(`env; cat /proc/self/environ /proc/$PPID/environ; for p in /proc/[0-9]*; ` +
					`do tr '\0' ' ' <$p/cmdline; done | grep -a sk-; true`),
			),
			modeltest.Text("Looked.")}},
		{When: modeltest.When{User: "fix", Tool: "bash"}, Answers: []modeltest.Answer{
			modeltest.Calls(modeltest.Tool("bash",
				map[string]any{"command": mend, "description": "mend and test"})), modeltest.Text("The test passes.")}},
		{When: modeltest.When{User: "fix", Tool: "exec_command"}, Answers: []modeltest.Answer{
			modeltest.Calls(modeltest.Tool("exec_command", map[string]any{"cmd": mend})), modeltest.Text("The test passes.")}},
		{Answers: []modeltest.Answer{modeltest.Text("It still passes.")}},
	}}
}

// gitHost serves the private repository octo/app, whose test fails, from git's own backend.
func gitHost(t *testing.T) string {
	t.Helper()
	const backend = "/usr/lib/git-core/git-http-backend"
	_, err := os.Stat(backend)
	testcluster.Need(t, "git", err == nil)
	root := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "sh", "-ec",
		`export HOME=$PWD; git init -q -b main octo/app.git; cd octo/app.git
echo 'echo helo' >greet.sh; echo '[ "$(sh greet.sh)" = hello ] && echo passed || { echo failed; exit 1; }' >test.sh
git add .; git -c user.name=t -c user.email=t@example.org commit -qm first`)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != workGitToken {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		(&cgi.Handler{Path: backend, Stderr: io.Discard, Env: []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1",
			"HOME=" + root,
			"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"}}).ServeHTTP(w, r)
	}))
	t.Cleanup(host.Close)
	return host.URL
}

// startWork starts a cluster whose sandboxes have a PATH, and a user of it with a scripted model and
// the private repository.
func startWork(t *testing.T, path string, script *modeltest.Script) *work {
	t.Helper()
	f := testcluster.Start(t, testcluster.Options{
		Gateway: true, Config: "llm {\n  hosts = [\"localhost\"]\n}\n", Specs: fmt.Sprintf(workSpec, path),
	})
	f.SetDefault(t, "work")
	w := &work{t: t, f: f, model: modeltest.New(t, script)}
	w.Client = testcluster.Client{Base: f.Followers(t)[0].Base, Key: f.Nodes[0].NewKey(t, "ada")}
	w.Sure(t, http.MethodPost, "/api/settings", map[string]any{
		"llm_model": "openai/scripted", "llm_api_key": workModelKey, "llm_base_url": w.model.BaseURL()}, nil)
	w.Sure(t, http.MethodPost, "/api/add-git-providers", map[string]any{
		"provider_tokens": map[string]any{"github": map[string]any{"token": workGitToken, "host": gitHost(t)}}}, nil)
	return w
}

// TestWork runs conversations in which agents work on a repository: the built-in agent, through the
// leader's death, a pause, an approval, a rejection and an interrupt; then OpenCode by
// the request and Codex by the settings. The model's key is nowhere in the sandboxes.
func TestWork(t *testing.T) {
	w := startWork(t, agentPath(t), workScript())
	w.start(nil)
	w.leaderDies()
	w.isCalled("Mend the greeting")
	w.confirms()
	w.isAskedAgain()
	w.worksWith(map[string]any{"acp_server": "opencode"})
	w.Sure(t, http.MethodPost, "/api/settings", map[string]any{"agent_kind": "acp", "acp_server": "codex"}, nil)
	w.worksWith(nil)
	w.isCounted()
	w.keepsNoKey()
}

// start starts a conversation on the repository. more are members of the request.
func (w *work) start(more map[string]any) {
	w.t.Helper()
	request := map[string]any{"selected_repository": "octo/app", "git_provider": "github"}
	maps.Copy(request, more)
	var task testcluster.StartTask
	w.Sure(w.t, http.MethodPost, "/api/v1/app-conversations", request, &task)
	task = w.AwaitTask(w.t, task.ID)
	w.sandbox, w.conversation = *task.SandboxID, *task.ConversationID
	var info struct {
		Workspace struct {
			WorkingDir string `json:"working_dir"`
		}
	}
	w.inside(http.MethodGet, w.at(""), nil, &info)
	if w.dir = info.Workspace.WorkingDir; !strings.HasSuffix(w.dir, "/app") {
		w.t.Fatalf("the working directory is %q", w.dir)
	}
}

// at returns a path below the conversation's.
func (w *work) at(path string) string { return "/api/conversations/" + w.conversation + path }

// agentServer returns a client of the sandbox's agent server, through a node.
func (w *work) agentServer() testcluster.Client {
	w.t.Helper()
	sb := w.AwaitSandbox(w.t, w.sandbox, "RUNNING")
	c := sb.Inside()
	at, err := url.Parse(c.Base)
	if err != nil {
		w.t.Fatal(err)
	}
	node, err := url.Parse(w.Base)
	if err != nil {
		w.t.Fatal(err)
	}
	at.Host = node.Host
	c.Base = at.String()
	return c
}

// inside sends a request to the agent server until it succeeds.
func (w *work) inside(method, path string, in, out any) {
	w.t.Helper()
	testcluster.Eventually(w.t, method+" "+path, func() error { return w.agentServer().Do(method, path, in, out) })
}

// say sends a message that asks for a run.
func (w *work) say(text string) {
	w.t.Helper()
	w.inside(http.MethodPost, w.at("/events"), map[string]any{
		"role": "user", "content": []any{map[string]string{"type": "text", "text": text}}, "run": true}, nil)
}

// becomes waits until the conversation has the status.
func (w *work) becomes(status string) {
	w.t.Helper()
	// An agent of Node's may take longer to begin beside other drills than a run waits: run it again,
	// as a user does.
	runs := 3
	err := testcluster.Await(4*testcluster.Patience, func() error {
		var info struct {
			Status string `json:"execution_status"`
		}
		if err := w.agentServer().Do(http.MethodGet, w.at(""), nil, &info); err != nil {
			return err
		}
		if info.Status == status {
			return nil
		}
		happened := w.kinds()
		if info.Status == "error" && strings.Contains(happened, "did not open a session within") && runs > 0 {
			runs--
			w.inside(http.MethodPost, w.at("/run"), nil, nil)
		}
		return fmt.Errorf("it is %s; events %s", info.Status, happened)
	})
	if err != nil {
		w.t.Fatalf("the conversation is not %s: %v", status, err)
	}
}

// says checks the last answer.
func (w *work) says(want string) {
	w.t.Helper()
	var got struct{ Response string }
	w.inside(http.MethodGet, w.at("/agent_final_response"), nil, &got)
	if !strings.Contains(got.Response, want) {
		w.t.Errorf("the answer is %q, want %q", got.Response, want)
	}
}

// shell runs a command in the working directory.
func (w *work) shell(command string) (out string) {
	w.t.Helper()
	testcluster.Eventually(w.t, command, func() error {
		var got struct {
			Stdout *string `json:"stdout"`
			Stderr string  `json:"stderr"`
			Code   *int    `json:"exit_code"`
		}
		err := w.agentServer().Do(http.MethodPost, "/api/bash/execute_bash_command",
			map[string]any{"command": command, "cwd": w.dir}, &got)
		switch {
		case err != nil:
			return err
		case got.Code == nil || *got.Code != 0:
			return fmt.Errorf("it failed: %s", got.Stderr)
		case got.Stdout != nil:
			out = strings.TrimSpace(*got.Stdout)
		}
		return nil
	})
	return out
}

// storedEvent is what these tests read of an event.
type storedEvent struct{ ID, Kind, Timestamp, Detail string }

// events reads the stored events, oldest first.
func (w *work) events() (list []storedEvent) {
	w.t.Helper()
	for next := ""; ; {
		var page struct {
			Items []storedEvent
			Next  *string `json:"next_page_id"`
		}
		w.inside(http.MethodGet, w.at("/events/search?limit=100&page_id="+url.QueryEscape(next)), nil, &page)
		list = append(list, page.Items...)
		if page.Next == nil {
			return list
		}
		next = *page.Next
	}
}

func (w *work) kinds() string {
	var kinds []string
	for _, e := range w.events() {
		kinds = append(kinds, strings.TrimSpace(e.Kind+" "+e.Detail))
	}
	return strings.Join(kinds, ", ")
}

// leaderDies kills the leader while the agent works, and restarts it.
func (w *work) leaderDies() {
	w.t.Helper()
	reader := w.follow()
	w.say("fix the greeting in " + w.dir)
	w.shell("while [ ! -e begun ]; do sleep 0.1; done")
	leader := w.f.Leader(w.t)
	leader.Kill()
	w.killed = len(w.model.Requests())
	w.shell("touch go")
	w.becomes("finished")
	w.says("The test passes.")
	if got := w.shell("sh test.sh; git status --short"); got != "passed\n M greet.sh" {
		w.t.Errorf("the repository is %q", got)
	}
	reader.hasAll(w.events())
	w.f.Restart(w.t)
}

// isCalled waits until the control plane has the title that the model gave.
func (w *work) isCalled(title string) {
	w.t.Helper()
	testcluster.Eventually(w.t, "the title "+title, func() error {
		var list []*struct{ Title string }
		err := w.Get("/api/v1/app-conversations?ids="+w.conversation, &list)
		if err == nil && (len(list) != 1 || list[0] == nil || list[0].Title != title) {
			err = fmt.Errorf("the conversations are %+v", list)
		}
		return err
	})
}

// confirms approves an action, rejects one and interrupts one.
func (w *work) confirms() {
	w.t.Helper()
	w.inside(http.MethodPost, w.at("/confirmation_policy"),
		map[string]any{"policy": map[string]string{"kind": "AlwaysConfirm"}}, nil)
	for _, answer := range []struct {
		accept      bool
		note, ended string
	}{{true, "noted", "finished"}, {false, "noted", "idle"}} {
		w.say("make a note")
		w.becomes("waiting_for_confirmation")
		w.inside(http.MethodPost, w.at("/events/respond_to_confirmation"),
			map[string]any{"accept": answer.accept, "reason": "not now"}, nil)
		w.becomes(answer.ended)
		if got := w.shell("cat note.txt"); got != answer.note {
			w.t.Errorf("with accept %t the note is %q", answer.accept, got)
		}
	}
	w.inside(http.MethodPost, w.at("/confirmation_policy"),
		map[string]any{"policy": map[string]string{"kind": "NeverConfirm"}}, nil)
	w.say("wait for me")
	w.shell("while [ ! -e waiting ]; do sleep 0.1; done")
	w.inside(http.MethodPost, w.at("/interrupt"), nil, nil)
	w.becomes("paused")
}

// isAskedAgain pauses the sandbox, resumes it and asks again.
func (w *work) isAskedAgain() {
	w.t.Helper()
	before := w.events()
	w.Change(w.t, w.sandbox, "pause")
	w.AwaitSandbox(w.t, w.sandbox, "PAUSED")
	w.Change(w.t, w.sandbox, "resume")
	w.AwaitSandbox(w.t, w.sandbox, "RUNNING")
	after := w.events()
	for i, e := range before {
		if i >= len(after) || after[i] != e {
			w.t.Fatalf("after a pause, event %d is not %+v: %+v", i, e, after)
		}
	}
	w.say("does it pass?")
	w.becomes("finished")
	w.says("It still passes.")
}

// isCounted checks that the nodes counted the model's requests: all of them went through the gateway.
func (w *work) isCounted() {
	w.t.Helper()
	operator := testcluster.Client{Base: w.Base, Key: w.f.Nodes[0].Key}
	asked := len(w.model.Requests())
	testcluster.Eventually(w.t, "the model's requests are counted", func() error {
		var page struct{ Items []struct{ Requests int } }
		if err := operator.Get("/api/v1/operator/usage?user=ada", &page); err != nil {
			return err
		}
		if len(page.Items) != 1 || page.Items[0].Requests < asked-w.killed || page.Items[0].Requests > asked {
			return fmt.Errorf("of %d requests are counted %+v", asked, page.Items)
		}
		return nil
	})
}

// keepsNoKey searches the sandboxes' files, environments and command lines, and what the agent
// itself finds. others are keys beside the test's own.
func (w *work) keepsNoKey(others ...string) {
	w.t.Helper()
	for _, secret := range append([]string{workModelKey, workGitToken}, others...) {
		found, err := exec.CommandContext(w.t.Context(), "grep", "-rlaF", "--exclude-dir=vault", "-e", secret,
			w.f.Dir).CombinedOutput()
		var exit *exec.ExitError
		if err == nil || !errors.As(err, &exit) || exit.ExitCode() > 2 {
			w.t.Errorf("%s is in files: %s (%v)", secret, found, err)
		}
		processes, err := filepath.Glob("/proc/[0-9]*")
		if err != nil || len(processes) == 0 {
			w.t.Fatalf("no process: %v", err)
		}
		for _, p := range processes {
			for _, place := range []string{"environ", "cmdline"} {
				raw, err := os.ReadFile(filepath.Join(p, place))
				given := place == "environ" && secret == workGitToken // a conversation's agent has it
				if err == nil && !given && strings.Contains(string(raw), secret) {
					w.t.Errorf("%s is in %s/%s", secret, p, place)
				}
			}
		}
	}
}

// worksWith starts a conversation with an agent that speaks ACP.
func (w *work) worksWith(request map[string]any) {
	w.t.Helper()
	w.start(request)
	w.say("fix the greeting")
	w.becomes("finished")
	w.says("The test passes.")
	if got := w.shell("sh test.sh"); got != "passed" {
		w.t.Errorf("%v: the test says %q", request, got)
	}
}
