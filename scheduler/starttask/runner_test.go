package starttask

import (
	"context"
	"encoding/json"
	"fmt"
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

// Fault 6: a sandbox has an id of its own, and a conversation that is started again under the
// same id gets another.
func TestStartTask_WishedConversationID_IsNoSandboxID(t *testing.T) {
	w := newTaskWorld(t)
	w.run(nil)
	conversation := strings.Repeat("c", 32)
	used := map[string]bool{conversation: true}
	for i := range 3 {
		got := w.done(w.task(fmt.Sprint(i), func(b *fsm.StartTaskCreateBody) {
			b.ConversationID, b.Request.ConversationID = conversation, ptr(agent.DashedID(conversation))
		}).ID)
		if got.Status != fsm.StartTaskReady || used[got.SandboxID] {
			t.Fatalf("start %d: %s %q, sandbox %s, used before: %v", i, got.Status, got.Detail, got.SandboxID, used)
		}
		used[got.SandboxID] = true
		w.must(taskUser, &fsm.ConversationDeleteBody{ID: conversation, DeleteSandbox: true})
		w.must("", &fsm.SandboxRemoveBody{ID: got.SandboxID})
	}
}

// An id that is taken by chance is drawn again.
func TestStartTask_TakenSandboxID_IsDrawnAnew(t *testing.T) {
	w := newTaskWorld(t)
	task := w.task("1", nil)
	id := newSandboxID(w.store.View(), task)
	w.must("eve",
		&fsm.SandboxCreateBody{ID: id, KeyHash: strings.Repeat("a", 64), KeyRef: w.secret("sandboxes/e/session", "key", "k")})
	w.run(nil)
	if got := w.done(task.ID); got.Status != fsm.StartTaskReady || got.SandboxID == id {
		t.Errorf("%+v", got)
	}
}

// TestStartTask_Title: a conversation has the request's title, else the agent server's on one line,
// which the sandbox may have filled with anything.
func TestStartTask_Title(t *testing.T) {
	w := newTaskWorld(t)
	w.everything()
	w.agents.title = ptr("  Fix\x00the\n README of GITHUBCANARY " + strings.Repeat("字", 100))
	made := w.task("1", nil)
	asked := w.task("2", func(b *fsm.StartTaskCreateBody) { b.Request.Title = ptr("Mine") })
	w.run(nil)
	for task, want := range map[*fsm.StartTask]string{
		made: "Fix the README of ********** " + strings.Repeat("字", 57) + "…", asked: "Mine",
	} {
		if got := w.done(task.ID); got.Status != fsm.StartTaskReady {
			t.Fatalf("%+v", got)
		}
		if c := w.store.View().Conversation(taskUser, task.ConversationID); *c.Title != want {
			t.Errorf("title %q, not %q", *c.Title, want)
		}
	}
}

// everything gives the user settings and secrets of every kind.
func (w *taskWorld) everything() {
	base := w.base
	if base == "" {
		base = "https://llm"
	}
	w.must(taskUser, &fsm.SettingsPutBody{
		Values: fsm.SettingsValues{
			LLMModel: ptr("m/stored"), LLMBaseURL: &base, MaxIterations: ptr(int64(7)), MaxBudgetPerTask: ptr(2.5),
			ConfirmationMode: ptr(true),
			SecurityAnalyzer: ptr("llm"), EnableDefaultCondenser: true, CondenserMaxSize: ptr(int64(40)),
			GitUserName: ptr("Ada O'Neil"), GitUserEmail: ptr("ada@example.org"),
		},
		LLMAPIKey:    ptr(w.secret("users/ada/settings/llm_api_key", "value", "LLMCANARY")),
		SearchAPIKey: ptr(w.secret("users/ada/settings/search_api_key", "value", "SEARCHCANARY")),
		MCPConfig: w.secret("users/ada/settings/mcp_config", "json", `{"sse_servers":[{"url":"https://mcp/sse",
			"api_key":"MCPCANARY"}],
			"shttp_servers":[{"url":"https://mcp/s","timeout":5}],"stdio_servers":[{"name":"files","command":"fs",
			"env":{"A":"ENVCANARY"}}]}`),
		Providers: []fsm.Provider{
			{Type: fsm.ProviderGitHub, Ref: w.secret("users/ada/providers/github", "token", "GITHUBCANARY")},
		},
		CustomSecrets: []fsm.CustomSecret{
			{Name: "MINE", Ref: w.secret("users/ada/custom/a", "value", "MINECANARY")},
			{Name: "BOTH", Ref: w.secret("users/ada/custom/b", "value", "STOREDCANARY")},
		},
	})
}

func (w *taskWorld) requestSecrets(b *fsm.StartTaskCreateBody) {
	b.Secrets = w.secret("users/ada/start_tasks/"+b.ID, "json",
		`{"secrets":{"BOTH":"REQUESTCANARY","ONLY":"ONLYCANARY"},`+
			`"mcp_config":null,"plugins":null,"observability_metadata":{"trace":"METACANARY","n":9007199254740993}}`)
	b.Request.Secrets = &map[string]string{"BOTH": "**********", "ONLY": "**********"}
	b.Request.ObservabilityMetadata = fsm.JSONObject{"trace": "**********", "n": "**********"}
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
	if !strings.Contains(w.agents.bodies[0], `"n":9007199254740993`) {
		t.Errorf("a number is not as it was sent: %s", w.agents.bodies[0])
	}
	delete(got, "initial_message")
	delete(got, "workspace")
	static := func(v string) map[string]any { return map[string]any{"kind": "StaticSecret", "value": v} }
	want := map[string]any{
		"conversation_id": agent.DashedID(task.ConversationID),
		"agent_settings": map[string]any{
			"agent_kind": "openhands",
			"llm": map[string]any{
				"model":    "m/asked",
				"api_key":  "LLMCANARY",
				"base_url": "https://llm",
				"usage_id": "agent",
			},
			"condenser":     map[string]any{"enabled": true, "max_size": 40.0},
			"agent_context": map[string]any{"system_message_suffix": "be brief"},
			"mcp_config": map[string]any{"mcpServers": map[string]any{
				"sse_0": map[string]any{
					"url":       "https://mcp/sse",
					"transport": "sse",
					"headers":   map[string]any{"Authorization": "Bearer MCPCANARY"},
				},
				"shttp_0": map[string]any{"url": "https://mcp/s", "transport": "streamable-http", "timeout": 5.0},
				"files":   map[string]any{"command": "fs", "args": []any{}, "env": map[string]any{"A": "ENVCANARY"}},
				"tavily":  map[string]any{"url": "https://mcp.tavily.com/mcp/?tavilyApiKey=SEARCHCANARY"},
			}},
		},
		"confirmation_policy": map[string]any{
			"kind": "ConfirmRisky",
		}, "security_analyzer": map[string]any{"kind": "LLMSecurityAnalyzer"},
		"max_iterations": 7.0, "max_budget_per_task": 2.5, "tags": map[string]any{}, "autotitle": true,
		"observability_span_name": "span",
		"observability_metadata":  map[string]any{"trace": "METACANARY", "n": 9007199254740992.0},
		"secrets": map[string]any{
			"GITHUB_TOKEN": static("GITHUBCANARY"),
			"MINE":         static("MINECANARY"),
			"BOTH":         static("REQUESTCANARY"),
			"ONLY":         static("ONLYCANARY"),
		},
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
	if len(w.agents.commands) != 1 || !strings.Contains(w.agents.commands[0],
		`git config --global user.name 'Ada O'\''Neil'`) {
		t.Errorf("commands %q", w.agents.commands)
	}
}

// TestStartTask_MetadataOfAnOldRow: an earlier program stored the metadata in the request.
func TestStartTask_MetadataOfAnOldRow(t *testing.T) {
	w := newTaskWorld(t)
	task := w.task("1", func(b *fsm.StartTaskCreateBody) {
		b.Request.ObservabilityMetadata = fsm.JSONObject{"trace": "plain"}
	})
	w.run(nil)
	if got := w.done(task.ID); got.Status != fsm.StartTaskReady ||
		!strings.Contains(w.agents.bodies[0], `{"trace":"plain"}`) {
		t.Fatalf("task %+v, sent %q", got, w.agents.bodies)
	}
}

func TestStartTask_Failures(t *testing.T) {
	for name, c := range map[string]struct {
		world func(*taskWorld)
		task  func(*fsm.StartTaskCreateBody)
		want  string
	}{
		"unknown sandbox": {
			task: func(b *fsm.StartTaskCreateBody) { b.Request.SandboxID = ptr("nobody") },
			want: "Sandbox not found: nobody",
		},
		"no spec": {world: func(w *taskWorld) { w.must("", &fsm.SpecDeleteBody{ID: "local"}) }, want: "no sandbox spec yet"},
		"sandbox in error": {world: func(w *taskWorld) { w.state, w.detail = fsm.SandboxError, "no client has room" },
			want: "is in ERROR: no client has room"},
		"client drained": {
			world: func(w *taskWorld) {
				w.state, w.detail = fsm.SandboxPaused, "its Nomad client one is drained"
			},
			want: "is in PAUSED: its Nomad client one is drained"},
		"agent refuses": {world: func(w *taskWorld) { w.agents.fail = []error{errRefused} }, want: "no **********"},
		"no bash": {world: func(w *taskWorld) { w.agents.bash = &agent.Error{Kind: agent.ErrRefused, Status: 404} },
			task: func(b *fsm.StartTaskCreateBody) { b.Request.SelectedRepository = ptr("octo/app") }, want: "runs no commands"},
		"clone fails": {world: func(w *taskWorld) {
			w.agents.exit = agent.Output{
				ExitCode: 128,
				Stderr:   "fatal: bad GITHUBCANARY\n",
			}
		},
			task: func(b *fsm.StartTaskCreateBody) { b.Request.SelectedRepository = ptr("octo/app") },
			want: "octo/app: fatal: bad **********"},
		"strange repository": {
			task: func(b *fsm.StartTaskCreateBody) { b.Request.SelectedRepository = ptr("octo/$(reboot)") },
			want: "Not a repository name",
		},
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
			if got.Status != fsm.StartTaskError || !strings.Contains(got.Detail, c.want) ||
				strings.Contains(got.Detail, "CANARY") {
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
	w.run(func(r *Runner) {
		r.now = func() time.Time { mu.Lock(); defer mu.Unlock(); return time.Now().Add(ahead) }
	})
	w.await(task.ID, isAway)
	mu.Lock()
	ahead = 11 * time.Minute
	mu.Unlock()
	got := w.done(task.ID)
	if got.Status != fsm.StartTaskError || !strings.Contains(got.Detail,
		"not ready after 10m0s, still WORKING: the secret store is sealed") {
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

// TestStartTask_LeaderLostAtEveryStep stops the runner before each of its effects in turn, and
// another one finishes.
func TestStartTask_LeaderLostAtEveryStep(t *testing.T) {
	for n := 1; ; n++ {
		w := newTaskWorld(t)
		w.everything()
		w.confirm(false) // TestStartTask_RealProject_Asks_LeaderLostAtEveryStep asks
		w.agents.respond = func(agent.Command) agent.Output {
			return agent.Output{Stdout: foundSetup + "\n" + foundGitHooks + "\n"}
		}
		task := w.task("1", func(b *fsm.StartTaskCreateBody) {
			w.requestSecrets(b)
			b.Request.SelectedRepository = ptr("octo/app")
		})
		lostAt := w.loseLeaderAt(n)
		if lostAt == "" {
			if n < 20 {
				t.Fatalf("only %d steps were seen", n-1)
			}
			return
		}
		w.run(nil)
		got := w.done(task.ID)
		if got.Status != fsm.StartTaskReady || w.sandboxes() != 1 || w.agents.conversations() != 1 {
			t.Errorf("lost before step %d (%s): %s %q, %d sandboxes, %d conversations", n, lostAt, got.Status, got.Detail,
				w.sandboxes(), w.agents.conversations())
		}
		if lostAt != "forget" {
			// After "forget" the entry is left to the collector.
			w.awaitPathGone("users/ada/start_tasks/" + task.ID)
		}
	}
}

// loseLeaderAt runs a leader until its nth step and stops it there. It returns the step's name,
// or "" when the task ended before.
func (w *taskWorld) loseLeaderAt(n int) string {
	w.t.Helper()
	lost := make(chan string, 1)
	count := 0
	var mu sync.Mutex
	stop := w.run(func(r *Runner) {
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

// TestStartTask_EveryAnswerLost applies each command, and the agent's call, and loses the
// response.
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
	w.run(func(r *Runner) { r.cfg.Tasks = 3 })
	for _, id := range ids {
		if got := w.done(id); got.Status != fsm.StartTaskReady {
			t.Errorf("task %+v", got)
		}
	}
}

func TestConfig_Validate(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	for i, edit := range []func(*Config){
		func(c *Config) { c.Tasks = 0 }, func(c *Config) { c.Deadline = 0 },
		func(c *Config) { c.BackoffMax = 1 },
	} {
		c := DefaultConfig()
		edit(&c)
		if c.Validate() == nil {
			t.Errorf("case %d is valid", i)
		}
	}
}
