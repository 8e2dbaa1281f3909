package starttask_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/access"
	"bivouac.dev/bivouac/scheduler/agent"
	"bivouac.dev/bivouac/scheduler/process"
	"bivouac.dev/bivouac/scheduler/starttask"
)

// realWorld is a cluster of one with the real scheduler, real local processes and the real
// sandbox agent.
type realWorld struct {
	t       *testing.T
	store   *fsm.Store
	secrets *realSecrets
	agents  *agent.Client
	runner  *process.Runner

	mu    sync.Mutex
	index uint64
}

// Propose implements scheduler.Cluster.
func (w *realWorld) Propose(ctx context.Context, cmd fsm.Command) (fsm.Result, error) {
	if err := ctx.Err(); err != nil {
		return fsm.Result{}, err
	}
	if err := fsm.Validate(cmd.Body); err != nil {
		return fsm.Result{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if cmd.ID == "" {
		return fsm.Result{}, fsm.Errorf(fsm.CodeInvalid, "a command needs an id")
	}
	w.index++
	return w.store.Apply(w.index, cmd)
}

func (w *realWorld) must(user string, body fsm.Body) fsm.Result {
	w.t.Helper()
	res, err := w.Propose(context.Background(), fsm.NewCommand(rand.Text(), time.Now(), user, body))
	if err != nil {
		w.t.Fatalf("%s: %v", body.CommandType(), err)
	}
	return res
}

type realSecrets struct {
	mu      sync.Mutex
	entries map[string]map[string]string
}

// Write implements scheduler.Secrets.
func (s *realSecrets) Write(_ context.Context, path string, data map[string]string) (fsm.SecretRef, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 1
	for ; s.entries[fmt.Sprintf("%s@%d", path, n)] != nil; n++ {
	}
	s.entries[fmt.Sprintf("%s@%d", path, n)] = data
	return fsm.SecretRef{Path: path, Version: n}, nil
}

// Read implements scheduler.Secrets.
func (s *realSecrets) Read(_ context.Context, ref fsm.SecretRef) (map[string]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[fmt.Sprintf("%s@%d", ref.Path, ref.Version)]; e != nil {
		return e, nil
	}
	return nil, fsm.Errorf(fsm.CodeNotFound, "no such secret: %s", ref.Path)
}

// Delete implements scheduler.Secrets.
func (s *realSecrets) Delete(context.Context, string) error { return nil }

// Collect implements scheduler.Secrets.
func (s *realSecrets) Collect(
	context.Context,
	func(scheduler.SecretEntry) scheduler.SecretVerdict,
) (scheduler.SecretsCollected, error) {
	return scheduler.SecretsCollected{}, nil
}

func newRealWorld(t *testing.T) *realWorld {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "sandbox-agent")
	if err := local.BuildGo(t.Context(), "./cmd/sandbox-agent", bin); err != nil {
		t.Fatal(err)
	}
	w := &realWorld{
		t:       t,
		store:   fsm.NewStore(),
		secrets: &realSecrets{entries: map[string]map[string]string{}},
		agents:  agent.New(agent.Config{}),
	}
	t.Cleanup(w.agents.Close)
	var err error
	w.runner, err = process.New(process.Config{
		Dir:         t.TempDir(),
		AgentBinary: bin,
		Secrets:     w.secrets,
		BackoffMin:  time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.runner.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	w.must("", &fsm.TermOpenBody{Term: 1, Node: "n1", ClusterID: "c1"})
	w.must("",
		&fsm.APIKeyCreateBody{
			Lookup:    "abcdefghijkl",
			Hash:      strings.Repeat("0", 64),
			Name:      "k",
			UserID:    "ada",
			Bootstrap: true,
		})
	w.must("", &fsm.SpecApplyBody{Specs: []fsm.Spec{{ID: "local", Template: fsm.Template{
		Driver: fsm.DriverProcess, Isolation: fsm.IsolationNone, Command: "sandbox-agent", WorkingDir: "project", CPU: 100,
		Memory: 100,
		Ports:  map[string]int{fsm.PortAgentServer: 0},
	}}}})
	return w
}

// lead runs one leader's term; stop ends it and waits.
func (w *realWorld) lead() (stop func()) {
	w.t.Helper()
	cfg := starttask.DefaultConfig()
	cfg.BackoffMin = 10 * time.Millisecond
	tasks, err := starttask.New(cfg, w.store, w, w.agents, w.secrets)
	if err != nil {
		w.t.Fatal(err)
	}
	s, err := scheduler.New(scheduler.DefaultConfig(), w.store, w, w.runner, w.agents, w.secrets, tasks.Run)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, 1) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				w.t.Errorf("Run: %v", err)
			}
		})
	}
	w.t.Cleanup(stop)
	return stop
}

// await waits until cond holds of the newest view, for at most 30 s.
func (w *realWorld) await(what string, cond func(*fsm.View) bool) {
	w.t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		v := w.store.View()
		if cond(v) {
			return
		}
		select {
		case <-v.Changed():
		case <-deadline:
			w.t.Fatalf("gave up waiting: %s", what)
		}
	}
}

func (w *realWorld) start(n int, edit func(*fsm.StartRequest)) *fsm.StartTask {
	w.t.Helper()
	b := &fsm.StartTaskCreateBody{ID: fmt.Sprintf("%032x", n), ConversationID: fmt.Sprintf("c%031x", n),
		Request: fsm.StartRequest{
			AgentType:      "default",
			InitialMessage: &fsm.Message{Role: "user", Content: []fsm.ContentBlock{{Type: "text", Text: "hello"}}},
		}}
	if edit != nil {
		edit(&b.Request)
	}
	return w.must("ada", b).StartTask
}

func (w *realWorld) ready(task *fsm.StartTask) *fsm.StartTask {
	w.t.Helper()
	var got *fsm.StartTask
	w.await("the task ends", func(v *fsm.View) bool { got = v.StartTask("ada", task.ID); return got.Done() })
	if got.Status != fsm.StartTaskReady {
		w.t.Fatalf("task %s: %s", got.Status, got.Detail)
	}
	return got
}

func (w *realWorld) running(id string) (url, key string, s *fsm.Sandbox) {
	w.t.Helper()
	w.await("the sandbox runs", func(v *fsm.View) bool {
		s = v.SandboxAny(id)
		return s.State() == fsm.SandboxRunning && s.Status.Placement != nil
	})
	entry, err := w.secrets.Read(context.Background(), s.KeyRef)
	if err != nil {
		w.t.Fatal(err)
	}
	return access.AgentURL(s.Status.Placement), entry["key"], s
}

// messages counts a conversation's messages. It retries until the agent answers: its process may be
// restarting.
func (w *realWorld) messages(id, conversation string) int {
	w.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); ; <-tick.C {
		url, key, _ := w.running(id)
		n, err := w.agents.CountEvents(w.t.Context(), url, key, conversation, "MessageEvent")
		if err == nil {
			return n
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("counting events: %v", err)
		}
	}
}

func TestStartTasks_RealConversationOutlivesKillPauseAndLeader(t *testing.T) {
	w := newRealWorld(t)
	stop := w.lead()
	task := w.ready(w.start(1, nil))
	if n := w.messages(task.SandboxID, task.ConversationID); n != 1 {
		t.Fatalf("%d messages", n)
	}
	url, key, s := w.running(task.SandboxID)
	if _, err := w.agents.Prove(t.Context(), url, key, true); err != nil {
		t.Errorf("Prove: %v", err)
	}
	if _, err := w.agents.Prove(t.Context(), url, "another key", true); !errors.Is(err, agent.ErrNotOurs) {
		t.Errorf("Prove with another key: %v", err)
	}
	infos, err := w.agents.Conversations(t.Context(), url, key, []string{task.ConversationID, strings.Repeat("0", 32)})
	if err != nil || infos[0].HexID() != task.ConversationID || infos[0].ExecutionStatus == "" || infos[1] != nil {
		t.Errorf("Conversations: %+v, %v", infos, err)
	}
	if err := errors.Join(w.agents.Pause(t.Context(), url, key, task.ConversationID),
		w.agents.PreparePause(t.Context(), url, key)); err != nil {
		t.Errorf("pausing: %v", err)
	}
	// kill -9 of the agent: it comes back with its conversation.
	var pid int
	if _, err := fmt.Sscanf(s.Status.Placement.AllocID[strings.LastIndex(s.Status.Placement.AllocID, "-")+1:], "%d",
		&pid); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if n := w.messages(task.SandboxID, task.ConversationID); n != 1 {
		t.Errorf("%d messages after kill -9, want 1", n)
	}
	// Pause, another leader, resume.
	w.must("ada", &fsm.SandboxPauseBody{ID: task.SandboxID})
	w.await("paused", func(v *fsm.View) bool { return v.SandboxAny(task.SandboxID).State() == fsm.SandboxPaused })
	stop()
	w.lead()
	w.must("ada", &fsm.SandboxResumeBody{ID: task.SandboxID})
	if n := w.messages(task.SandboxID, task.ConversationID); n != 1 {
		t.Errorf("%d messages after pause and resume, want 1", n)
	}
	w.must("ada", &fsm.SandboxDeleteBody{ID: task.SandboxID})
	w.await("removed", func(v *fsm.View) bool { return v.SandboxAny(task.SandboxID) == nil })
	if l, err := w.runner.List(t.Context(), "c1"); err != nil || len(l) != 0 {
		t.Errorf("left: %v, %v", l, err)
	}
}

func TestStartTasks_RealLeadersComeAndGo(t *testing.T) {
	w := newRealWorld(t)
	const tasks = 4
	var list []*fsm.StartTask
	for i := range tasks {
		list = append(list, w.start(i+1, nil))
	}
	for i := 0; i < 50 && len(w.store.View().OpenStartTasks()) > 0; i++ {
		stop := w.lead()
		// Each leader gets a few changes further, whatever they are.
		for range 3 {
			select {
			case <-w.store.View().Changed():
			case <-time.After(time.Second):
			}
		}
		stop()
	}
	w.lead()
	conversations := map[string]bool{}
	for _, task := range list {
		got := w.ready(task)
		url, key, _ := w.running(got.SandboxID)
		infos, err := w.agents.Conversations(t.Context(), url, key, []string{got.ConversationID})
		if err != nil || infos[0] == nil {
			t.Errorf("conversation %s: %v, %v", got.ConversationID, infos, err)
		}
		if n := w.messages(got.SandboxID, got.ConversationID); n != 1 {
			t.Errorf("%d messages in %s: the first message was sent twice", n, got.ConversationID)
		}
		conversations[got.SandboxID] = true
	}
	l, err := w.runner.List(t.Context(), "c1")
	if err != nil || len(l) != tasks || len(conversations) != tasks {
		t.Errorf("%d tasks made %d jobs in %d sandboxes: %v", tasks, len(l), len(conversations), err)
	}
}
