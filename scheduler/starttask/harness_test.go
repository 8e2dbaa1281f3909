package starttask

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent"
)

// taskWorld is the environment of start tasks in memory: a cluster of one, a secret store, agent
// servers that remember, and a scheduler that starts every sandbox.
type taskWorld struct {
	// base is the settings' base URL, "" for https://llm.
	base  string
	t     *testing.T
	store *fsm.Store

	mu    sync.Mutex
	index uint64
	// lost, when set, decides for which applied command the response is lost.
	lost func(fsm.Command) bool

	secrets *taskSecrets
	agents  *taskAgents
	// state is what sandboxes become; detail its reason.
	state  fsm.SandboxState
	detail string
	// port is the agent servers', dir the directory of the workspaces; zero for 8000 and /ws.
	port int
	dir  string
	// client replaces agents.
	client Agents
}

const taskUser = "ada"

func newTaskWorld(t *testing.T) *taskWorld {
	w := &taskWorld{
		t: t, store: fsm.NewStore(), state: fsm.SandboxRunning,
		secrets: &taskSecrets{entries: map[string][]map[string]string{}}, agents: newTaskAgents(),
	}
	w.must("", &fsm.TermOpenBody{Term: 1, Node: "n1", ClusterID: "c1"})
	w.must("",
		&fsm.APIKeyCreateBody{
			Lookup:    "abcdefghijkl",
			Hash:      strings.Repeat("0", 64),
			Name:      "k",
			UserID:    taskUser,
			Bootstrap: true,
		})
	w.must("", &fsm.SpecApplyBody{Specs: []fsm.Spec{{ID: "local", Template: fsm.Template{
		Driver: fsm.DriverProcess, Isolation: fsm.IsolationNone, Command: "sandbox-agent", WorkingDir: "project", CPU: 100,
		Memory: 100, Ports: map[string]int{
			fsm.PortAgentServer: 0,
		},
	}}}})
	return w
}

// Propose implements Cluster.
func (w *taskWorld) Propose(ctx context.Context, cmd fsm.Command) (fsm.Result, error) {
	if err := ctx.Err(); err != nil {
		return fsm.Result{}, err
	}
	if err := fsm.Validate(cmd.Body); err != nil {
		return fsm.Result{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.index++
	if cmd.ID == "" {
		return fsm.Result{}, fsm.Errorf(fsm.CodeInvalid, "a command needs an id")
	}
	res, err := w.store.Apply(w.index, cmd)
	if err == nil && w.lost != nil && w.lost(cmd) {
		return fsm.Result{}, fsm.Errorf(fsm.CodeOutcomeUnknown, "the outcome is not known")
	}
	return res, err
}

func (w *taskWorld) must(user string, body fsm.Body) fsm.Result {
	w.t.Helper()
	cmd := fsm.NewCommand(rand.Text(), time.Now(), user, body)
	res, err := w.Propose(context.Background(), cmd)
	if err != nil {
		w.t.Fatalf("%s: %v", body.CommandType(), err)
	}
	return res
}

// secret writes an entry and returns its reference.
func (w *taskWorld) secret(path, member, value string) fsm.SecretRef {
	w.t.Helper()
	ref, err := w.secrets.Write(context.Background(), path, map[string]string{member: value})
	if err != nil {
		w.t.Fatal(err)
	}
	return ref
}

// task accepts a start request for a new conversation.
func (w *taskWorld) task(id string, edit func(*fsm.StartTaskCreateBody)) *fsm.StartTask {
	w.t.Helper()
	return w.taskOf(taskUser, id, edit)
}

func (w *taskWorld) taskOf(user, id string, edit func(*fsm.StartTaskCreateBody)) *fsm.StartTask {
	w.t.Helper()
	b := &fsm.StartTaskCreateBody{
		ID: strings.Repeat("0", 32-len(id)) + id, ConversationID: strings.Repeat("c", 32-len(id)) + id,
		Request: fsm.StartRequest{AgentType: "default", InitialMessage: &fsm.Message{
			Role: "user", Content: []fsm.ContentBlock{{Type: "text", Text: "hello"}},
		}},
	}
	if edit != nil {
		edit(b)
	}
	return w.must(user, b).StartTask
}

// bringUp is the rest of the scheduler: it observes every sandbox as w.state until ctx ends.
func (w *taskWorld) bringUp(ctx context.Context) {
	for ctx.Err() == nil {
		v := w.store.View()
		for s := range v.AllSandboxes() {
			if s.Desired != fsm.DesiredRunning || (s.Status.Generation == s.Generation &&
				s.Status.State != fsm.SandboxStarting) {
				continue
			}
			st := fsm.SandboxStatus{State: w.state, Detail: w.detail, Generation: s.Generation, Since: time.Now().UTC()}
			if w.state == fsm.SandboxRunning {
				st.Placement = &fsm.Placement{AllocID: "a", NodeID: "n", Address: "127.0.0.1",
					Ports: map[string]int{fsm.PortAgentServer: cmp.Or(w.port, 8000)}, Workspace: cmp.Or(w.dir, "/ws") + "/" + s.ID}
			}
			w.must("", &fsm.SandboxObserveBody{Observations: []fsm.Observation{{ID: s.ID, Status: st}}})
		}
		select {
		case <-ctx.Done():
		case <-v.Changed():
		}
	}
}

// run starts a runner, changed by edit; the returned function stops it and waits for its end.
func (w *taskWorld) run(edit func(*Runner)) (stop func()) {
	w.t.Helper()
	cfg := DefaultConfig()
	cfg.BackoffMin, cfg.BackoffMax = time.Millisecond, 5*time.Millisecond
	r, err := New(cfg, w.store, w, w.agents, w.secrets)
	if err != nil {
		w.t.Fatal(err)
	}
	if w.client != nil {
		r.agents = w.client
	}
	if edit != nil {
		edit(r)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { w.bringUp(ctx) })
	wg.Go(func() {
		if err := r.Run(ctx); err != nil {
			w.t.Errorf("Run: %v", err)
		}
	})
	stop = func() { cancel(); wg.Wait() }
	w.t.Cleanup(stop)
	return stop
}

// await waits until cond holds of the task.
func (w *taskWorld) await(id string, cond func(*fsm.StartTask) bool) *fsm.StartTask {
	w.t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		v := w.store.View()
		if t := v.StartTask(taskUser, id); t != nil && cond(t) {
			return t
		}
		select {
		case <-v.Changed():
		case <-deadline:
			w.t.Fatalf("the task did not get there: %+v", v.StartTask(taskUser, id))
		}
	}
}

func (w *taskWorld) done(id string) *fsm.StartTask {
	w.t.Helper()
	return w.await(id, (*fsm.StartTask).Done)
}

func (w *taskWorld) sandboxes() (n int) {
	for range w.store.View().AllSandboxes() {
		n++
	}
	return n
}

// taskSecrets is a secret store that can be away.
type taskSecrets struct {
	mu      sync.Mutex
	entries map[string][]map[string]string
	away    bool
}

var errAway = fsm.Errorf(fsm.CodeSecretStore, "the secret store is sealed")

func (s *taskSecrets) set(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

func (s *taskSecrets) paths() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for p := range s.entries {
		out = append(out, p)
	}
	return out
}

// Write implements Secrets.
func (s *taskSecrets) Write(_ context.Context, path string, data map[string]string) (fsm.SecretRef, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return fsm.SecretRef{}, errAway
	}
	s.entries[path] = append(s.entries[path], data)
	return fsm.SecretRef{Path: path, Version: len(s.entries[path])}, nil
}

// Read implements Secrets.
func (s *taskSecrets) Read(_ context.Context, ref fsm.SecretRef) (map[string]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return nil, errAway
	}
	if e := s.entries[ref.Path]; ref.Version >= 1 && ref.Version <= len(e) {
		return e[ref.Version-1], nil
	}
	return nil, fsm.Errorf(fsm.CodeNotFound, "no such secret")
}

// Delete implements Secrets.
func (s *taskSecrets) Delete(_ context.Context, path string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return errAway
	}
	delete(s.entries, path)
	return nil
}

// taskAgents are agent servers that keep conversations by id.
type taskAgents struct {
	// title is what the server calls every conversation.
	title *string
	// messages are those after the first, as "id text".
	messages []string
	mu       sync.Mutex
	created  map[string]agent.CreateRequest
	bodies   []string
	keys     []string
	commands []string
	envs     []map[string]string
	uploads  map[string]string
	// started are the commands that nobody waited for. skills and hooks are what projects have,
	// projects the directories that were asked for.
	started       []string
	skills, hooks json.RawMessage
	projects      []string
	// fail is returned once for each element, before any effect; lose loses the first response.
	fail []error
	lose bool
	exit agent.Output
	bash error
	// project is what the calls for skills and hooks return.
	project error
	// respond, when set, is what a command says.
	respond func(agent.Command) agent.Output
	// hang selects, by a conversation's id or a command's text, the calls that get no response
	// before the client's timeout: two minutes.
	hang func(string) bool
}

// wait delays a call that hangs.
func (a *taskAgents) wait(ctx context.Context, what string) error {
	a.mu.Lock()
	hang := a.hang != nil && a.hang(what)
	a.mu.Unlock()
	if !hang {
		return nil
	}
	select {
	case <-ctx.Done():
	case <-time.After(2 * time.Minute):
	}
	return &agent.Error{Op: "wait", Kind: agent.ErrUnreachable}
}

// SendMessage implements Agents. A message that it has is not stored again, as in the built-in server.
func (a *taskAgents) SendMessage(ctx context.Context, _, _, id string, m agent.Message) error {
	if err := a.wait(ctx, id); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	text := m.ID + " " + m.Content[0].Text
	if !slices.Contains(a.messages, text) {
		a.messages = append(a.messages, text)
	}
	if len(a.fail) > 0 {
		err := a.fail[0]
		a.fail = a.fail[1:]
		return err
	}
	return nil
}

func newTaskAgents() *taskAgents {
	return &taskAgents{created: map[string]agent.CreateRequest{}, uploads: map[string]string{}}
}

func (a *taskAgents) conversations() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.created)
}

// CreateConversation implements Agents.
func (a *taskAgents) CreateConversation(
	ctx context.Context,
	_, key string,
	req agent.CreateRequest,
) (agent.ConversationInfo, bool, error) {
	if err := a.wait(ctx, req.ConversationID); err != nil {
		return agent.ConversationInfo{}, false, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if ctx.Err() != nil {
		return agent.ConversationInfo{}, false, ctx.Err()
	}
	if len(a.fail) > 0 {
		err := a.fail[0]
		a.fail = a.fail[1:]
		return agent.ConversationInfo{}, false, err
	}
	b, err := json.Marshal(req)
	if err != nil {
		return agent.ConversationInfo{}, false, err
	}
	a.bodies, a.keys = append(a.bodies, string(b)), append(a.keys, key)
	_, known := a.created[req.ConversationID]
	a.created[req.ConversationID] = req
	if a.lose {
		a.lose = false
		return agent.ConversationInfo{}, false, &agent.Error{Op: "create", Kind: agent.ErrUnreachable}
	}
	return agent.ConversationInfo{ID: req.ConversationID, ExecutionStatus: "idle", Title: a.title}, !known, nil
}

// RunCommand implements Agents.
func (a *taskAgents) RunCommand(ctx context.Context, _, _ string, cmd agent.Command) (agent.Output, error) {
	if err := a.wait(ctx, cmd.Command); err != nil {
		return agent.Output{}, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.commands, a.envs = append(a.commands, cmd.Command), append(a.envs, cmd.Env)
	if a.respond != nil {
		return a.respond(cmd), a.bash
	}
	return a.exit, a.bash
}

// StartCommand implements Agents.
func (a *taskAgents) StartCommand(_ context.Context, _, _ string, cmd agent.Command) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.started = append(a.started, cmd.Command)
	return "1", a.bash
}

// Skills implements Agents.
func (a *taskAgents) Skills(_ context.Context, _, _ string, req agent.SkillsRequest) (json.RawMessage, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.projects = append(a.projects, req.ProjectDir)
	return a.skills, a.project
}

// Hooks implements Agents.
func (a *taskAgents) Hooks(_ context.Context, _, _, dir string) (json.RawMessage, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.projects = append(a.projects, dir)
	return a.hooks, a.project
}

// Upload implements Agents.
func (a *taskAgents) Upload(_ context.Context, _, _, path string, content []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.uploads[path] = string(content)
	return a.bash
}

var errRefused = &agent.Error{Op: "create conversation", Kind: agent.ErrRefused, Status: 422, Detail: "no LLMCANARY"}

func isAway(t *fsm.StartTask) bool {
	return !t.Done() && strings.Contains(t.Detail, errAway.Message)
}
