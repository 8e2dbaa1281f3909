package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent"
)

func ptr[T any](v T) *T { return &v }

func TestStartTask_BecomesReady(t *testing.T) {
	w := newTaskWorld(t)
	task := w.task("1", nil)
	w.run(nil)
	got := w.done(task.ID)
	if got.Status != fsm.StartTaskReady || got.Detail != "" || got.AgentServerURL != "http://127.0.0.1:8000" {
		t.Fatalf("task %+v", got)
	}
	c := w.store.View().Conversation(taskUser, task.ConversationID)
	if c == nil || c.SandboxID != got.SandboxID || *c.Title != "Conversation ccccc" || c.AgentKind != "openhands" {
		t.Fatalf("conversation %+v", c)
	}
	s := w.store.View().Sandbox(taskUser, got.SandboxID)
	if s == nil || len(s.ID) < 20 || s.ID == task.ConversationID {
		t.Fatalf("sandbox %+v", s)
	}
	entry, err := w.secrets.Read(t.Context(), s.KeyRef)
	if err != nil || len(entry["key"]) < 40 || len(entry["secret_key"]) < 40 || entry["key"] == entry["secret_key"] {
		t.Errorf("session entry %v, %v", len(entry), err)
	}
	if w.agents.keys[0] != entry["key"] {
		t.Error("the agent was called with another key")
	}
	req := w.agents.created[agent.DashedID(task.ConversationID)]
	if req.Workspace.WorkingDir != "/ws/"+s.ID+"/project" || req.InitialMessage.Content[0].Text != "hello" {
		t.Errorf("request %+v", req)
	}
}

func TestStartTask_WishedSandboxID(t *testing.T) {
	w := newTaskWorld(t)
	w.run(nil)
	wish := func(b *fsm.StartTaskCreateBody) { b.Request.ConversationID = ptr(agent.DashedID(b.ConversationID)) }
	first := w.done(w.task("1", wish).ID)
	if first.SandboxID != first.ConversationID {
		t.Errorf("sandbox id %s, want the conversation's", first.SandboxID)
	}
	// Taken, for instance by another user: a random one.
	w.must("eve", &fsm.SandboxCreateBody{ID: strings.Repeat("c", 31) + "2", KeyHash: strings.Repeat("a", 64),
		KeyRef: w.secret("sandboxes/e/session", "key", "k")})
	second := w.done(w.task("2", wish).ID)
	if second.Status != fsm.StartTaskReady || second.SandboxID == second.ConversationID {
		t.Errorf("second %+v", second)
	}
}

// everything gives the user settings and secrets of every kind.
func (w *taskWorld) everything() {
	w.must(taskUser, &fsm.SettingsPutBody{
		Values: fsm.SettingsValues{
			LLMModel: ptr("m/stored"), LLMBaseURL: ptr("https://llm"), MaxIterations: ptr(int64(7)), ConfirmationMode: ptr(true),
			SecurityAnalyzer: ptr("llm"), EnableDefaultCondenser: true, CondenserMaxSize: ptr(int64(40)),
			GitUserName: ptr("Ada O'Neil"), GitUserEmail: ptr("ada@example.org"),
		},
		LLMAPIKey:    ptr(w.secret("users/ada/settings/llm_api_key", "value", "LLMCANARY")),
		SearchAPIKey: ptr(w.secret("users/ada/settings/search_api_key", "value", "SEARCHCANARY")),
		MCPConfig: w.secret("users/ada/settings/mcp_config", "json", `{"sse_servers":[{"url":"https://mcp/sse","api_key":"MCPCANARY"}],
			"shttp_servers":[{"url":"https://mcp/s","timeout":5}],"stdio_servers":[{"name":"files","command":"fs","env":{"A":"ENVCANARY"}}]}`),
		Providers: []fsm.Provider{{Type: fsm.ProviderGitHub, Ref: w.secret("users/ada/providers/github", "token", "GITHUBCANARY")}},
		CustomSecrets: []fsm.CustomSecret{
			{Name: "MINE", Ref: w.secret("users/ada/custom/a", "value", "MINECANARY")},
			{Name: "BOTH", Ref: w.secret("users/ada/custom/b", "value", "STOREDCANARY")},
		},
	})
}

func (w *taskWorld) requestSecrets(b *fsm.StartTaskCreateBody) {
	b.Secrets = w.secret("users/ada/start_tasks/"+b.ID, "json", `{"secrets":{"BOTH":"REQUESTCANARY","ONLY":"ONLYCANARY"},"mcp_config":null,"plugins":null}`)
	b.Request.Secrets = &map[string]string{"BOTH": "**********", "ONLY": "**********"}
}

func TestStartTask_HandsOverSettingsAndSecrets(t *testing.T) {
	w := newTaskWorld(t)
	w.everything()
	task := w.task("1", func(b *fsm.StartTaskCreateBody) {
		w.requestSecrets(b)
		b.Request.LLMModel, b.Request.SystemMessageSuffix, b.Request.Title = ptr("m/asked"), ptr("be brief"), ptr("Mine")
		b.Request.ObservabilitySpanName = ptr("span")
	})
	w.run(nil)
	if got := w.done(task.ID); got.Status != fsm.StartTaskReady {
		t.Fatalf("task %+v", got)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(w.agents.bodies[0]), &got); err != nil {
		t.Fatal(err)
	}
	delete(got, "initial_message")
	delete(got, "workspace")
	static := func(v string) map[string]any { return map[string]any{"kind": "StaticSecret", "value": v} }
	want := map[string]any{
		"conversation_id": agent.DashedID(task.ConversationID),
		"agent_settings": map[string]any{
			"agent_kind":    "openhands",
			"llm":           map[string]any{"model": "m/asked", "api_key": "LLMCANARY", "base_url": "https://llm", "usage_id": "agent"},
			"condenser":     map[string]any{"enabled": true, "max_size": 40.0},
			"agent_context": map[string]any{"system_message_suffix": "be brief"},
			"mcp_config": map[string]any{"mcpServers": map[string]any{
				"sse_0":   map[string]any{"url": "https://mcp/sse", "transport": "sse", "headers": map[string]any{"Authorization": "Bearer MCPCANARY"}},
				"shttp_0": map[string]any{"url": "https://mcp/s", "transport": "streamable-http", "timeout": 5.0},
				"files":   map[string]any{"command": "fs", "args": []any{}, "env": map[string]any{"A": "ENVCANARY"}},
				"tavily":  map[string]any{"url": "https://mcp.tavily.com/mcp/?tavilyApiKey=SEARCHCANARY"},
			}},
		},
		"confirmation_policy": map[string]any{"kind": "ConfirmRisky"}, "security_analyzer": map[string]any{"kind": "LLMSecurityAnalyzer"},
		"max_iterations": 7.0, "tags": map[string]any{}, "autotitle": true, "observability_span_name": "span",
		"secrets": map[string]any{"GITHUB_TOKEN": static("GITHUBCANARY"), "MINE": static("MINECANARY"), "BOTH": static("REQUESTCANARY"), "ONLY": static("ONLYCANARY")},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("request (-want +got):\n%s", d)
	}
	c := w.store.View().Conversation(taskUser, task.ConversationID)
	if *c.LLMModel != "m/asked" || *c.Title != "Mine" {
		t.Errorf("conversation %+v", c)
	}
	w.awaitPathGone("users/ada/start_tasks/" + task.ID)
	// The git user's name is set, and is one word of the shell.
	if len(w.agents.commands) != 1 || !strings.Contains(w.agents.commands[0], `git config --global user.name 'Ada O'\''Neil'`) {
		t.Errorf("commands %q", w.agents.commands)
	}
}

func TestStartTask_Failures(t *testing.T) {
	for name, c := range map[string]struct {
		world func(*taskWorld)
		task  func(*fsm.StartTaskCreateBody)
		want  string
	}{
		"unknown sandbox": {task: func(b *fsm.StartTaskCreateBody) { b.Request.SandboxID = ptr("nobody") }, want: "Sandbox not found: nobody"},
		"no spec":         {world: func(w *taskWorld) { w.must("", &fsm.SpecDeleteBody{ID: "local"}) }, want: "no sandbox spec yet"},
		"sandbox in error": {world: func(w *taskWorld) { w.state, w.detail = fsm.SandboxError, "no client has room" },
			want: "is in ERROR: no client has room"},
		"agent refuses":   {world: func(w *taskWorld) { w.agents.fail = []error{errRefused} }, want: "no **********"},
		"unknown profile": {task: func(b *fsm.StartTaskCreateBody) { b.Request.AgentProfileID = ptr("p") }, want: "Agent profile not found: p"},
		"no bash": {world: func(w *taskWorld) { w.agents.bash = &agent.Error{Kind: agent.ErrRefused, Status: 404} },
			task: func(b *fsm.StartTaskCreateBody) { b.Request.SelectedRepository = ptr("octo/app") }, want: "runs no commands"},
		"clone fails": {world: func(w *taskWorld) { w.agents.exit = agent.Output{ExitCode: 128, Stderr: "fatal: bad GITHUBCANARY\n"} },
			task: func(b *fsm.StartTaskCreateBody) { b.Request.SelectedRepository = ptr("octo/app") }, want: "octo/app: fatal: bad **********"},
		"strange repository": {task: func(b *fsm.StartTaskCreateBody) { b.Request.SelectedRepository = ptr("octo/$(reboot)") }, want: "Not a repository name"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTaskWorld(t)
			w.everything()
			if c.world != nil {
				c.world(w)
			}
			task := w.task("1", func(b *fsm.StartTaskCreateBody) {
				w.requestSecrets(b)
				if c.task != nil {
					c.task(b)
				}
			})
			w.run(nil)
			got := w.done(task.ID)
			if got.Status != fsm.StartTaskError || !strings.Contains(got.Detail, c.want) || strings.Contains(got.Detail, "CANARY") {
				t.Errorf("task %s %q, want %q", got.Status, got.Detail, c.want)
			}
			w.awaitPathGone("users/ada/start_tasks/" + task.ID)
			if w.store.View().Conversation(taskUser, task.ConversationID) != nil {
				t.Error("a failed task made a conversation")
			}
		})
	}
}

func (w *taskWorld) awaitPathGone(path string) {
	w.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(5 * time.Second); slices.Contains(w.secrets.paths(), path); <-tick.C {
		if time.Now().After(deadline) {
			w.t.Fatalf("%s is still there", path)
		}
	}
}

func TestStartTask_GivenSandbox(t *testing.T) {
	w := newTaskWorld(t)
	w.run(nil)
	first := w.done(w.task("1", nil).ID)
	w.must(taskUser, &fsm.SandboxPauseBody{ID: first.SandboxID})
	second := w.done(w.task("2", func(b *fsm.StartTaskCreateBody) { b.Request.SandboxID = &first.SandboxID }).ID)
	if second.Status != fsm.StartTaskReady || second.SandboxID != first.SandboxID || w.sandboxes() != 1 {
		t.Errorf("second %+v in %d sandboxes", second, w.sandboxes())
	}
}

func TestStartTask_SandboxGoesAwayWhileWaiting(t *testing.T) {
	for name, body := range map[string]func(id string) fsm.Body{
		"deleted": func(id string) fsm.Body { return &fsm.SandboxDeleteBody{ID: id} },
		"paused":  func(id string) fsm.Body { return &fsm.SandboxPauseBody{ID: id} },
	} {
		t.Run(name, func(t *testing.T) {
			w := newTaskWorld(t)
			w.state, w.detail = fsm.SandboxStarting, "pulling the image"
			task := w.task("1", nil)
			w.run(nil)
			// The reason for waiting is shown.
			waiting := w.await(task.ID, func(x *fsm.StartTask) bool { return x.Detail == "pulling the image" })
			w.must(taskUser, body(waiting.SandboxID))
			if got := w.done(task.ID); got.Status != fsm.StartTaskError || !strings.Contains(got.Detail, name) {
				t.Errorf("task %s %q", got.Status, got.Detail)
			}
		})
	}
}

func TestStartTask_VaultAwayThenBack(t *testing.T) {
	w := newTaskWorld(t)
	w.secrets.set(true)
	task := w.task("1", nil)
	w.run(nil)
	w.await(task.ID, isAway)
	w.secrets.set(false)
	if got := w.done(task.ID); got.Status != fsm.StartTaskReady || got.Detail != "" {
		t.Errorf("task %+v", got)
	}
	if w.sandboxes() != 1 {
		t.Errorf("%d sandboxes", w.sandboxes())
	}
}

func TestStartTask_DeadlineGivesUpWithTheReason(t *testing.T) {
	w := newTaskWorld(t)
	w.secrets.set(true)
	task := w.task("1", nil)
	var mu sync.Mutex
	ahead := time.Duration(0)
	w.run(func(r *StartTasks) {
		r.now = func() time.Time { mu.Lock(); defer mu.Unlock(); return time.Now().Add(ahead) }
	})
	w.await(task.ID, isAway)
	mu.Lock()
	ahead = 11 * time.Minute
	mu.Unlock()
	got := w.done(task.ID)
	if got.Status != fsm.StartTaskError || !strings.Contains(got.Detail, "not ready after 10m0s, still WORKING: the secret store is sealed") {
		t.Errorf("task %s %q", got.Status, got.Detail)
	}
}

func TestStartTask_AgentNotReachableAtFirst(t *testing.T) {
	w := newTaskWorld(t)
	w.agents.fail = []error{
		&agent.Error{Op: "x", Kind: agent.ErrUnreachable}, &agent.Error{Op: "x", Kind: agent.ErrUnavailable, Status: 503},
		&agent.Error{Op: "x", Kind: agent.ErrUnauthorized, Status: 401},
	}
	task := w.task("1", nil)
	w.run(nil)
	if got := w.done(task.ID); got.Status != fsm.StartTaskReady {
		t.Errorf("task %+v", got)
	}
}

// TestStartTask_LeaderLostAtEveryStep stops the runner before each of its
// effects in turn, and has another one finish.
func TestStartTask_LeaderLostAtEveryStep(t *testing.T) {
	for n := 1; ; n++ {
		w := newTaskWorld(t)
		w.everything()
		task := w.task("1", func(b *fsm.StartTaskCreateBody) {
			w.requestSecrets(b)
			b.Request.SelectedRepository = ptr("octo/app")
		})
		lostAt := w.loseLeaderAt(n)
		if lostAt == "" {
			if n < 10 {
				t.Fatalf("only %d steps were seen", n-1)
			}
			return
		}
		w.run(nil)
		got := w.done(task.ID)
		if got.Status != fsm.StartTaskReady || w.sandboxes() != 1 || w.agents.conversations() != 1 {
			t.Errorf("lost before step %d (%s): %s %q, %d sandboxes, %d conversations", n, lostAt, got.Status, got.Detail, w.sandboxes(), w.agents.conversations())
		}
		if lostAt != "forget" {
			// After "forget" the entry is the collector's.
			w.awaitPathGone("users/ada/start_tasks/" + task.ID)
		}
	}
}

// loseLeaderAt runs a leader until its nth step and stops it there; it gives
// the step's name, or "" when the work was done before.
func (w *taskWorld) loseLeaderAt(n int) string {
	w.t.Helper()
	lost := make(chan string, 1)
	count := 0
	var mu sync.Mutex
	stop := w.run(func(r *StartTasks) {
		r.step = func(ctx context.Context, _ *fsm.StartTask, name string) {
			mu.Lock()
			count++
			here := count == n
			mu.Unlock()
			if here {
				lost <- name
				<-ctx.Done() // the rest of the step finds its context ended
			}
		}
	})
	defer stop()
	for {
		v := w.store.View()
		if len(v.OpenStartTasks()) == 0 {
			select {
			case name := <-lost:
				return name
			case <-time.After(20 * time.Millisecond):
				return ""
			}
		}
		select {
		case name := <-lost:
			return name
		case <-v.Changed():
		}
	}
}

// TestStartTask_EveryAnswerLost has each command, and the agent's answer,
// applied without the leader hearing of it.
func TestStartTask_EveryAnswerLost(t *testing.T) {
	for _, typ := range []fsm.CommandType{fsm.StartTaskBind, fsm.StartTaskAdvance, fsm.StartTaskFinish, "agent"} {
		t.Run(string(typ), func(t *testing.T) {
			w := newTaskWorld(t)
			task := w.task("1", nil)
			lost := map[fsm.CommandType]bool{}
			w.lost = func(c fsm.Command) bool {
				first := c.Type == typ && !lost[typ]
				lost[c.Type] = true
				return first
			}
			w.agents.lose = typ == "agent"
			w.run(nil)
			if got := w.done(task.ID); got.Status != fsm.StartTaskReady || w.sandboxes() != 1 || w.agents.conversations() != 1 {
				t.Errorf("%s %q, %d sandboxes, %d conversations", got.Status, got.Detail, w.sandboxes(), w.agents.conversations())
			}
		})
	}
}

// TestStartTask_TwoLeadersAtOnce: a deposed leader that has not noticed yet.
func TestStartTask_TwoLeadersAtOnce(t *testing.T) {
	w := newTaskWorld(t)
	w.run(nil)
	w.run(nil)
	var ids []string
	for i := range 20 {
		ids = append(ids, w.task(fmt.Sprint(i), nil).ID)
	}
	for _, id := range ids {
		if got := w.done(id); got.Status != fsm.StartTaskReady {
			t.Errorf("task %+v", got)
		}
	}
	if w.sandboxes() != len(ids) || w.agents.conversations() != len(ids) {
		t.Errorf("%d tasks made %d sandboxes and %d conversations", len(ids), w.sandboxes(), w.agents.conversations())
	}
}

func TestStartTask_MoreTasksThanRoom(t *testing.T) {
	w := newTaskWorld(t)
	var ids []string
	for i := range 30 {
		ids = append(ids, w.task(fmt.Sprint(i), nil).ID)
	}
	w.run(func(r *StartTasks) { r.cfg.Tasks = 3 })
	for _, id := range ids {
		if got := w.done(id); got.Status != fsm.StartTaskReady {
			t.Errorf("task %+v", got)
		}
	}
}

func TestStartTask_CredentialIsNeitherInCommandNorURL(t *testing.T) {
	w := newTaskWorld(t)
	w.everything()
	task := w.task("1", func(b *fsm.StartTaskCreateBody) {
		b.Request.SelectedRepository, b.Request.SelectedBranch = ptr("octo/app"), ptr("it's/main")
	})
	w.run(nil)
	if got := w.done(task.ID); got.Status != fsm.StartTaskReady {
		t.Fatalf("task %+v", got)
	}
	script := w.agents.commands[0]
	if strings.Contains(script, "CANARY") || !strings.Contains(script, "'https://github.com/octo/app.git'") || !strings.Contains(script, `--branch 'it'\''s/main'`) {
		t.Errorf("script:\n%s", script)
	}
	for path, content := range w.agents.uploads {
		if content != "https://x-access-token:GITHUBCANARY@github.com\n" || !strings.Contains(script, path) {
			t.Errorf("upload %s: %q", path, content)
		}
	}
	c := w.store.View().Conversation(taskUser, task.ConversationID)
	if c.Tags["repo_name"] != "octo/app" || w.agents.created[agent.DashedID(c.ID)].Workspace.WorkingDir != "/ws/"+c.SandboxID+"/project/app" {
		t.Errorf("conversation %+v", c)
	}
}

func TestGitJob_ScriptRuns(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
	home := t.TempDir()
	sh := func(script string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
		cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + home, "GIT_ALLOW_PROTOCOL=file"}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	origin := filepath.Join(home, "it's origin.git")
	if out, err := sh(`git config --global user.name x; git config --global user.email x@y; git init -q -b main ` + quote(origin) +
		` && cd ` + quote(origin) + ` && echo hi > README && git add . && git commit -qm one`); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dir := filepath.Join(home, "the project")
	job := gitJob{dir: dir, remote: "file://" + origin, target: "app", tmp: ".tmp", newBranch: "work", credential: filepath.Join(home, "cred")}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if out, err := sh("touch " + quote(job.credential) + "\n" + job.script()); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	wg.Wait()
	if out, err := sh(gitJob{dir: dir, userName: "Ada", userEmail: "a@b"}.script()); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	out, err := sh("cd " + quote(dir) + " && ls -A && cat app/README && git -C app branch --show-current && git config --global user.name && ls " + quote(job.credential))
	if err == nil {
		t.Error("the credential is still there")
	}
	if !strings.HasPrefix(out, "app\nhi\nwork\nAda\n") {
		t.Errorf("result:\n%s", out)
	}
	job.branch, job.target = "nothing", "app2"
	if out, err := sh(job.script()); err == nil || !strings.Contains(out, "nothing") {
		t.Errorf("a branch that is not there: %v: %s", err, out)
	}
	if out, err := sh("mkdir " + quote(dir+"/app3")); err != nil {
		t.Fatal(out)
	}
	job.target = "app3"
	if out, err := sh(job.script()); err == nil || !strings.Contains(out, "not a git repository") {
		t.Errorf("a directory in the way: %v: %s", err, out)
	}
}

func TestBase62(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		s := base62(16)
		if seen[s] || len(s) < 18 || len(s) > 22 || strings.Trim(s, base62Digits) != "" {
			t.Fatalf("%q", s)
		}
		seen[s] = true
	}
}

func TestStartTaskConfig_Validate(t *testing.T) {
	if err := DefaultStartTaskConfig().Validate(); err != nil {
		t.Error(err)
	}
	for i, edit := range []func(*StartTaskConfig){
		func(c *StartTaskConfig) { c.Tasks = 0 }, func(c *StartTaskConfig) { c.Deadline = 0 },
		func(c *StartTaskConfig) { c.BackoffMax = 1 },
	} {
		c := DefaultStartTaskConfig()
		edit(&c)
		if c.Validate() == nil {
			t.Errorf("case %d is valid", i)
		}
	}
}
