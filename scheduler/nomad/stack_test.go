package nomad_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/access"
	"bivouac.dev/bivouac/scheduler/nomad"
)

// stack is the real Nomad and Vault that the tests of this package share.
type stack struct {
	nomad  *local.Nomad
	vault  *local.Vault
	client *api.Client
	dir    string
	agent  string
	image  string
	err    error
	// broken: err is ours, not a program that can't be had.
	broken bool
}

var shared struct {
	once sync.Once
	stack
}

func TestMain(m *testing.M) {
	flag.Parse()
	// The tests mostly wait for Nomad, so more run at a time than there are CPUs.
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = f.Value.Set("6")
	}
	code := m.Run()
	s := &shared.stack
	if s.nomad != nil {
		if err := s.nomad.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if s.vault != nil {
		_ = s.vault.Close()
	}
	if s.image != "" {
		if err := local.RemoveImage(s.image); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
	os.Exit(code)
}

// required reports whether the environment says that the program must be there.
func required(program string) bool {
	return slices.Contains(strings.Split(os.Getenv("BIVOUAC_TEST_REQUIRE"), ","), program)
}

// useStack returns the shared Nomad and Vault, or skips.
func useStack(t *testing.T) *stack {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a real Nomad")
	}
	shared.once.Do(func() { shared.stack.err = shared.start() })
	if err := shared.stack.err; err != nil {
		if shared.broken || required("nomad") || required("vault") {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	return &shared.stack
}

func (s *stack) start() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	var err error
	if s.dir, err = os.MkdirTemp("", "bivouac-nomad-test-"); err != nil {
		return err
	}
	// Tasks of any user reach the agent binary through it.
	if err := os.Chmod(s.dir, 0o755); err != nil {
		return err
	}
	s.agent = filepath.Join(s.dir, "sandbox-agent")
	if err := local.BuildGo(ctx, "./cmd/sandbox-agent", s.agent); err != nil {
		s.broken = true
		return err
	}
	if s.vault, err = local.StartVault(ctx,
		local.VaultOptions{Dir: filepath.Join(s.dir, "vault"), Progress: os.Stderr}); err != nil {
		return err
	}
	if s.nomad, err = local.StartNomad(ctx, local.NomadOptions{
		Dir: filepath.Join(s.dir, "nomad"), Vault: s.vault, Progress: os.Stderr, Extra: extraNetwork(ctx),
	}); err != nil {
		return err
	}
	if local.DockerReachable(ctx) {
		s.image = fmt.Sprintf("bivouac-test/agent:%d", os.Getpid())
		if err := local.BuildImage(ctx, s.agent, s.image); err != nil {
			return err
		}
	}
	s.client, err = api.NewClient(&api.Config{Address: s.nomad.Address})
	return err
}

// hostNetwork is a host network of the shared Nomad, where there is Docker: docker's bridge.
const hostNetwork = "bridge"

func extraNetwork(ctx context.Context) string {
	if !local.DockerReachable(ctx) {
		return ""
	}
	return fmt.Sprintf("client {\n  host_network %q {\n    interface = \"docker0\"\n  }\n}\n", hostNetwork)
}

// bench is one test's runner on the shared Nomad, with its own cluster.
type bench struct {
	*testing.T
	s       *stack
	cluster string
	r       *nomad.Runner
	config  nomad.Config
}

func newBench(t *testing.T) *bench { return benchWith(t, func(*nomad.Config) {}) }

func benchWith(t *testing.T, change func(*nomad.Config)) *bench {
	t.Helper()
	s := useStack(t)
	cfg := nomad.DefaultConfig()
	cfg.Address, cfg.VaultMount, cfg.KillTimeout = s.nomad.Address, "secret", 2*time.Second
	cluster := fmt.Sprintf("cluster-%d", time.Now().UnixNano())
	// Each cluster has its own mark: another's would be a hold.
	cfg.Variable = "bivouac/" + cluster
	change(&cfg)
	r, err := nomad.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return &bench{T: t, s: s, cluster: cluster, r: r, config: cfg}
}

// key is the key of the sandbox in these tests.
func key(id string) string { return "canary-key-of-" + id }

// job makes the sandbox's job and puts its key into Vault; the sandbox is removed when the test
// ends.
func (b *bench) job(driver fsm.Driver) scheduler.Job {
	b.Helper()
	id := fmt.Sprintf("t%d", time.Now().UnixNano())
	data := map[string]any{"data": map[string]string{"key": key(id), "secret_key": "canary-secret-of-" + id}}
	if err := b.s.vault.Do(b.Context(), http.MethodPost, "secret/data/default/sandbox-"+id+"/session", data,
		nil); err != nil {
		b.Fatal(err)
	}
	t := fsm.Template{
		Driver: driver, Args: []string{"--host", "127.0.0.1", "--port", "${port.agent_server}"},
		WorkingDir: "project", CPU: 100, Memory: 64, Ports: map[string]int{fsm.PortAgentServer: 0, "VSCODE": 0},
		Env: map[string]string{"GREETING": "hello"},
	}
	switch driver {
	case fsm.DriverDocker:
		b.needDocker()
		t.Image, t.NetworkMode, t.VolumePath = b.s.image, "bridge", "/workspace"
		t.Args, t.Ports = []string{
			"--port",
			"${port.agent_server}",
		}, map[string]int{fsm.PortAgentServer: 8000, "VSCODE": 8001}
	default:
		t.Command, t.Isolation = b.s.agent, fsm.IsolationNone
	}
	job := scheduler.Job{
		SandboxID: id, ClusterID: b.cluster, Template: t,
		KeyRef: fsm.SecretRef{Path: "sandboxes/" + id + "/session", Version: 1},
	}
	b.Cleanup(func() {
		b.remove(job)
	})
	return job
}

// remove removes the sandbox in its present state. It may be called after the test has ended.
func (b *bench) remove(job scheduler.Job) {
	b.Helper()
	ctx := context.Background()
	err := await(ctx, func() error {
		o, err := b.lookOnce(ctx, job)
		if err != nil || o.Foreign {
			return err
		}
		job.ModifyIndex = o.ModifyIndex
		return b.r.Remove(ctx, job)
	})
	if err != nil {
		b.Errorf("sandbox %s could not be removed: %v", job.SandboxID, err)
	}
}

// needDocker skips, or fails, where there is no Docker.
func (b *bench) needDocker() {
	b.Helper()
	switch {
	case b.s.image != "":
	case required("docker"):
		b.Fatal("Docker can't be reached")
	default:
		b.Skip("Docker can't be reached")
	}
}

// watch keeps a watch open until the test ends, as a leader does: it reads the last output of
// crashed tasks.
func (b *bench) watch() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.r.Watch(ctx, b.cluster, func(scheduler.Observed) {}) }()
	b.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
	})
}

// look lists until the observation of the sandbox is as wanted.
func (b *bench) look(job scheduler.Job, what string, ok func(scheduler.Observed) bool) scheduler.Observed {
	b.Helper()
	var last scheduler.Observed
	b.until(what, func() error {
		last = b.observed(job)
		if !ok(last) {
			return fmt.Errorf("observed %+v: failure %w, waiting %w", last, last.Failure, last.Waiting)
		}
		return nil
	})
	return last
}

func (b *bench) observed(job scheduler.Job) scheduler.Observed {
	b.Helper()
	o, err := b.lookOnce(b.Context(), job)
	if err != nil {
		b.Fatal(err)
	}
	return o
}

func (b *bench) lookOnce(ctx context.Context, job scheduler.Job) (scheduler.Observed, error) {
	list, err := b.r.List(ctx, job.ClusterID)
	for _, o := range list {
		if o.SandboxID == job.SandboxID {
			return o, err
		}
	}
	return scheduler.Observed{SandboxID: job.SandboxID}, err
}

func (b *bench) until(what string, cond func() error) {
	b.Helper()
	if err := await(b.Context(), cond); err != nil {
		b.Fatalf("%s: %v", what, err)
	}
}

// patience bounds every wait in these tests. It is generous because the machine may be busy; only a
// failure reaches it.
const patience = 2 * time.Minute

// await retries until cond is nil. It returns cond's last error when ctx ends or the time is
// over.
func await(ctx context.Context, cond func() error) error { return awaitFor(ctx, patience, cond) }

// awaitFor is await with another time limit.
func awaitFor(ctx context.Context, patience time.Duration, cond func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := cond()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// started starts the sandbox and waits until its agent server accepts its key; it returns the job
// as a scheduler would next use it. As a scheduler does, it starts again what ended for want of
// Vault: Nomad ends a task whose login fails once.
func (b *bench) started(job scheduler.Job) (scheduler.Job, scheduler.Observed) {
	b.Helper()
	for {
		job.ModifyIndex = b.observed(job).ModifyIndex
		b.must(b.r.Start(b.Context(), job))
		o := b.look(job, "placement", func(o scheduler.Observed) bool { return o.Placement != nil || o.Failure != nil })
		if o.Placement != nil && b.serves(job, o.Placement) {
			break
		}
		job.ModifyIndex = b.observed(job).ModifyIndex
		job = b.paused(job)
	}
	o := b.look(job, "known version", func(o scheduler.Observed) bool { return o.Placement != nil })
	job.ModifyIndex, job.RevertTo, job.HasVersion = o.ModifyIndex, o.Version, true
	return job, o
}

// serves waits until the sandbox's agent server accepts its key. It returns false when its task ended
// for want of Vault.
func (b *bench) serves(job scheduler.Job, at *fsm.Placement) (ok bool) {
	b.Helper()
	b.until("agent server with its key", func() error {
		err := get(b.Context(), access.AgentURL(at)+"/api/conversations/count", key(job.SandboxID))
		if ok = err == nil; ok {
			return nil
		}
		told := b.told(at.AllocID)
		if f := b.observed(job).Failure; f != nil && f.Reason == fsm.ReasonSecretStore {
			b.Logf("it is started again: %s", told)
			return nil
		}
		return fmt.Errorf("%w; its task: %s", err, told)
	})
	return ok
}

// told is what Nomad tells of an allocation's task.
func (b *bench) told(alloc string) string {
	a, _, err := b.s.client.Allocations().Info(alloc, nil)
	if err != nil || a.TaskStates["agent"] == nil {
		return fmt.Sprint("nothing: ", err)
	}
	text := a.ClientStatus + ", to " + a.DesiredStatus
	for _, ev := range a.TaskStates["agent"].Events {
		text += "; " + ev.Type + ": " + ev.DisplayMessage
	}
	return text
}

// paused stops the sandbox and waits until nothing of it is live.
func (b *bench) paused(job scheduler.Job) scheduler.Job {
	b.Helper()
	b.must(b.r.Stop(b.Context(), job))
	o := b.look(job, "stopped", func(o scheduler.Observed) bool { return o.Live == 0 && (o.Stopped || !o.Exists) })
	job.ModifyIndex = o.ModifyIndex
	return job
}

// get makes a request with a key; any status but 200 is an error.
func get(ctx context.Context, url, key string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("X-Session-API-Key", key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", url, resp.Status)
	}
	return nil
}

// createConversation leaves something in the sandbox's workspace.
func (b *bench) createConversation(o scheduler.Observed, job scheduler.Job, id string) {
	b.Helper()
	body, err := json.Marshal(map[string]any{
		"conversation_id": id, "agent": map[string]any{"kind": "Agent", "llm": map[string]any{"model": "none"}},
		"workspace": map[string]any{"working_dir": filepath.Join(o.Placement.Workspace, "project")},
	})
	b.must(err)
	req, err := http.NewRequestWithContext(b.Context(), http.MethodPost,
		access.AgentURL(o.Placement)+"/api/conversations", bytes.NewReader(body))
	b.must(err)
	req.Header.Set("X-Session-API-Key", key(job.SandboxID))
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	b.must(err)
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		text, _ := io.ReadAll(resp.Body)
		b.Fatalf("creating a conversation: %s %s", resp.Status, text)
	}
}

// hasConversation fails unless the sandbox's agent server still has it.
func (b *bench) hasConversation(o scheduler.Observed, job scheduler.Job, id string) {
	b.Helper()
	b.must(get(b.Context(), access.AgentURL(o.Placement)+"/api/conversations/"+id, key(job.SandboxID)))
}

// volumes lists Nomad's volumes of the sandbox.
func (b *bench) volumes(job scheduler.Job) []*api.HostVolumeStub {
	b.Helper()
	q := &api.QueryOptions{Prefix: "sandbox-" + job.SandboxID}
	list, _, err := b.s.client.HostVolumes().List(nil, q)
	b.must(err)
	return list
}

func (b *bench) raw(job scheduler.Job) *api.Job {
	b.Helper()
	j, _, err := b.s.client.Jobs().Info("sandbox-"+job.SandboxID, nil)
	b.must(err)
	return j
}

// systemGC runs the operator's `nomad system gc` until the job is gone.
func (b *bench) systemGC(job scheduler.Job) {
	b.Helper()
	b.until("garbage collection of the stopped job", func() error {
		b.must(b.s.client.System().GarbageCollect())
		_, _, err := b.s.client.Jobs().Info("sandbox-"+job.SandboxID, nil)
		if err == nil {
			return errors.New("the job is still there")
		}
		return nil
	})
}
