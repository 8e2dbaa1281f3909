package nomad_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/agent"
	"bivouac.dev/bivouac/scheduler/nomad"
	"bivouac.dev/bivouac/scheduler/nomadtest"
)

// vaultSecrets is the part of the secret store that the scheduler needs, on a real Vault.
type vaultSecrets struct{ v *local.Vault }

func entry(path string) string {
	id := strings.TrimSuffix(strings.TrimPrefix(path, "sandboxes/"), "/session")
	return "default/sandbox-" + id + "/session"
}

func unavailable(err error) error {
	if err == nil {
		return nil
	}
	return fsm.Errorf(fsm.CodeSecretStore, "Vault: %v", err)
}

func (s vaultSecrets) Write(ctx context.Context, path string, data map[string]string) (fsm.SecretRef, error) {
	var out struct {
		Data struct{ Version int }
	}
	err := s.v.Do(ctx, http.MethodPost, "secret/data/"+entry(path), map[string]any{"data": data}, &out)
	return fsm.SecretRef{Path: path, Version: out.Data.Version}, unavailable(err)
}

func (s vaultSecrets) Read(ctx context.Context, ref fsm.SecretRef) (map[string]string, error) {
	var out struct {
		Data struct{ Data map[string]string }
	}
	err := s.v.Do(ctx, http.MethodGet, fmt.Sprintf("secret/data/%s?version=%d", entry(ref.Path), ref.Version), nil, &out)
	return out.Data.Data, unavailable(err)
}

func (s vaultSecrets) Delete(ctx context.Context, path string) error {
	return unavailable(s.v.Do(ctx, http.MethodDelete, "secret/metadata/"+entry(path), nil, nil))
}

func (vaultSecrets) Collect(
	context.Context,
	func(scheduler.SecretEntry) scheduler.SecretVerdict,
) (scheduler.SecretsCollected, error) {
	return scheduler.SecretsCollected{}, nil
}

// life is a scheduler on the real stack.
type life struct {
	*bench
	store   *nomadtest.Cluster
	secrets vaultSecrets
	sched   *scheduler.Scheduler
	stop    func()
}

func newLife(t *testing.T) *life { return lifeOn(t, newBench(t)) }

func lifeOn(t *testing.T, b *bench) *life {
	t.Helper()
	return lifeOf(t, b, nomadtest.NewCluster(b.cluster), scheduler.DefaultConfig())
}

// lifeOf is lifeOn with a cluster that has a history, and with its own intervals.
func lifeOf(t *testing.T, b *bench, store *nomadtest.Cluster, cfg scheduler.Config) *life {
	t.Helper()
	l := &life{bench: b, store: store, secrets: vaultSecrets{b.s.vault}}
	cfg.StartTimeout, cfg.PlacementGrace, cfg.ListInterval = patience-20*time.Second, time.Second, 5*time.Second
	if os.Getenv("BIVOUAC_TEST_LOG") != "" {
		cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	var err error
	l.sched, err = scheduler.New(cfg, l.store.Store, l.store, b.r, agent.New(agent.Config{}), l.secrets)
	b.must(err)
	l.lead()
	t.Cleanup(func() {
		for sb := range l.store.Store.View().AllSandboxes() {
			if sb.Desired != fsm.DesiredDeleted {
				l.store.Must(&fsm.SandboxDeleteBody{ID: sb.ID}, "u1")
			}
		}
		if err := await(context.Background(), l.empty); err != nil {
			t.Error(err)
		}
		l.stop()
	})
	return l
}

// empty is nil when the store has no sandbox left.
func (l *life) empty() error {
	for sb := range l.store.Store.View().AllSandboxes() {
		return fmt.Errorf("sandbox %s could not be removed: %+v", sb.ID, sb.Status)
	}
	return nil
}

func (l *life) lead() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.sched.Run(ctx, 1) }()
	// A test that ends early stops it a second time.
	l.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			l.Error(err)
		}
	})
}

// template is a working sandbox of the driver.
func (l *life) template(driver fsm.Driver) fsm.Template {
	t := fsm.Template{
		Driver: driver, Args: []string{"--host", "127.0.0.1", "--port", "${port.agent_server}"},
		CPU: 100, Memory: 64, Ports: map[string]int{fsm.PortAgentServer: 0},
	}
	if driver == fsm.DriverDocker {
		l.needDocker()
		t.Image, t.NetworkMode, t.VolumePath, t.WorkingDir = l.s.image, "bridge", "/workspace", "/workspace/project"
		t.Args, t.Ports = []string{"--port", "${port.agent_server}"}, map[string]int{fsm.PortAgentServer: 8000}
	} else {
		t.Command, t.WorkingDir, t.Isolation = l.s.agent, "project", fsm.IsolationNone
	}
	return t
}

// create makes a sandbox of the template and returns its id.
func (l *life) create(t fsm.Template) string {
	l.Helper()
	id := fmt.Sprintf("l%d", time.Now().UnixNano())
	l.store.Must(&fsm.SpecApplyBody{Specs: []fsm.Spec{{ID: "spec", Template: t}}}, "operator")
	v, err := l.secrets.Write(l.Context(), fsm.SandboxKeyPath(id), map[string]string{"key": key(id)})
	l.must(err)
	l.store.Create(id, "spec", v.Version)
	return id
}

// reach waits until the sandbox is shown in the state.
func (l *life) reach(id string, state fsm.SandboxState) fsm.SandboxStatus {
	l.Helper()
	var st fsm.SandboxStatus
	l.until(fmt.Sprintf("sandbox %s", state), func() error {
		sb := l.store.Sandbox(id)
		st = sb.Status
		if sb.State() != state || st.Generation != sb.Generation {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	return st
}

// hostPath is the sandbox's workspace on the client.
func (l *life) hostPath(id string) string {
	l.Helper()
	v, _, err := l.s.client.HostVolumes().Get(l.volumes(scheduler.Job{SandboxID: id})[0].ID, nil)
	l.must(err)
	return v.HostPath
}

func (l *life) wish(body fsm.Body) { l.store.Must(body, "u1") }

func TestLife_StartPauseResumeOnNextLeaderDelete(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers {
		t.Run(string(driver), func(t *testing.T) {
			t.Parallel()
			l := newLife(t)
			id := l.create(l.template(driver))
			st := l.reach(id, fsm.SandboxRunning)
			job := scheduler.Job{SandboxID: id, ClusterID: l.cluster}
			o := scheduler.Observed{Placement: st.Placement}
			l.createConversation(o, job, conversation)
			for range 3 {
				l.wish(&fsm.SandboxPauseBody{ID: id})
				if st := l.reach(id, fsm.SandboxPaused); st.Placement != nil {
					t.Errorf("paused, and placed at %+v", st.Placement)
				}
				l.stop()
				l.wish(&fsm.SandboxResumeBody{ID: id})
				l.lead()
				o.Placement = l.reach(id, fsm.SandboxRunning).Placement
				l.hasConversation(o, job, conversation)
			}
			l.wish(&fsm.SandboxDeleteBody{ID: id})
			l.until("nothing left", func() error {
				if l.store.Sandbox(id) != nil {
					return fmt.Errorf("%+v", l.store.Sandbox(id))
				}
				return nil
			})
			if o := l.observed(job); o.Exists || o.Live > 0 || len(l.volumes(job)) > 0 {
				t.Errorf("left: %+v", o)
			}
			if _, err := l.secrets.Read(t.Context(), fsm.SecretRef{Path: fsm.SandboxKeyPath(id), Version: 1}); err == nil {
				t.Error("the key is still in Vault")
			}
		})
	}
}

// TestLife_RunningBeforeNomadSaysSo: a sandbox is RUNNING once its agent server has answered. Here
// Nomad's word that the task runs never reaches the scheduler.
func TestLife_RunningBeforeNomadSaysSo(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	to, err := url.Parse(b.s.nomad.Address)
	b.must(err)
	var withheld atomic.Int64
	proxy := httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		// What is compressed can't be edited.
		r.Out.Header.Del("Accept-Encoding")
	}}
	proxy.ModifyResponse = func(resp *http.Response) error {
		resp.ContentLength = -1
		resp.Header.Del("Content-Length")
		resp.Body = &alwaysPending{body: resp.Body, lines: bufio.NewReader(resp.Body), withheld: &withheld}
		return nil
	}
	server := httptest.NewServer(&proxy)
	b.Cleanup(server.Close)
	cfg := b.config
	cfg.Address, cfg.Registerer = server.URL, nil
	b.r, err = nomad.New(cfg)
	b.must(err)
	b.Cleanup(b.r.Close)
	l := lifeOn(t, b)
	id := l.create(l.template(fsm.DriverRawExec))
	st := l.reach(id, fsm.SandboxRunning)
	if n := restarts(l, st.Placement.AllocID); n != 1 {
		t.Errorf("the task was started %d times", n)
	}
	l.until("Nomad's word withheld", func() error {
		if withheld.Load() == 0 {
			return fmt.Errorf("Nomad did not say that a task runs")
		}
		return nil
	})
	if now := l.reach(id, fsm.SandboxRunning); !now.Placement.Equal(st.Placement) {
		t.Errorf("first %+v, then %+v", st.Placement, now.Placement)
	}
}

// alwaysPending is a response of Nomad, read line by line, in which no allocation runs yet.
type alwaysPending struct {
	body     io.Closer
	lines    *bufio.Reader
	rest     []byte
	withheld *atomic.Int64
}

func (r *alwaysPending) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		line, err := r.lines.ReadBytes('\n')
		if len(line) == 0 && err != nil {
			return 0, err
		}
		const running, pending = `"ClientStatus":"running"`, `"ClientStatus":"pending"`
		r.withheld.Add(int64(bytes.Count(line, []byte(running))))
		r.rest = bytes.ReplaceAll(line, []byte(running), []byte(pending))
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func (r *alwaysPending) Close() error { return r.body.Close() }

func TestLife_JobPurgedByHand_IsRegisteredAgainWithItsWorkspace(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	id := l.create(l.template(fsm.DriverRawExec))
	first := l.reach(id, fsm.SandboxRunning).Placement
	job := scheduler.Job{SandboxID: id, ClusterID: l.cluster}
	l.createConversation(scheduler.Observed{Placement: first}, job, conversation)
	_, _, err := l.s.client.Jobs().Deregister("sandbox-"+id, true, nil)
	l.must(err)
	l.until("another allocation", func() error {
		if sb := l.store.Sandbox(id); sb.State() != fsm.SandboxRunning || sb.Status.Placement.Equal(first) {
			return fmt.Errorf("%+v", sb.Status)
		}
		return nil
	})
	l.hasConversation(scheduler.Observed{Placement: l.reach(id, fsm.SandboxRunning).Placement}, job, conversation)
}

// The time-outs leave a busy machine time to start a job and its server.
func TestLife_FailuresAreNamed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		driver fsm.Driver
		change func(t *fsm.Template)
		reason string
		words  string
	}{
		"no room": {
			fsm.DriverRawExec, func(t *fsm.Template) { t.Memory = 16 << 20 },
			fsm.ReasonNoCapacity, "memory exhausted on 1",
		},
		"crash loop": {
			fsm.DriverRawExec, func(t *fsm.Template) {
				t.Command, t.Args = "/bin/sh", []string{"-c", "echo no plan >&2; echo key=$OH_SESSION_API_KEYS_0 >&2; exit 42"}
			},
			fsm.ReasonCrashed, "Exit Code: 42; it last wrote: key=********** | no plan",
		},
		"no such program": {
			fsm.DriverRawExec, func(t *fsm.Template) { t.Command = "/no/such/program" },
			fsm.ReasonDriver, "/no/such/program",
		},
		"no such image": {
			fsm.DriverDocker, func(t *fsm.Template) { t.Image = "127.0.0.1:1/no/such:image" },
			fsm.ReasonImage, "127.0.0.1:1/no/such",
		},
		"never answers": {
			fsm.DriverRawExec, func(t *fsm.Template) {
				t.Command, t.Args, t.StartTimeout = "/bin/sleep", []string{"1000"}, 30*time.Second
			},
			fsm.ReasonHealth, "http://127.0.0.1:",
		},
		"somebody else's server": {
			fsm.DriverRawExec, func(t *fsm.Template) {
				t.Command = "/usr/bin/env"
				t.Args = append([]string{"OH_SESSION_API_KEYS_0=another", "%agent%"}, t.Args...)
				t.StartTimeout = 45 * time.Second
			},
			fsm.ReasonAgentRejected, "did not prove",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLife(t)
			tmpl := l.template(c.driver)
			c.change(&tmpl)
			for i := range tmpl.Args {
				tmpl.Args[i] = strings.ReplaceAll(tmpl.Args[i], "%agent%", l.s.agent)
			}
			id := l.create(tmpl)
			st := l.reach(id, fsm.SandboxError)
			t.Logf("%s: %s", st.Reason, st.Detail)
			if st.Reason != c.reason || !strings.Contains(st.Detail, c.words) {
				t.Errorf("want %s with %q", c.reason, c.words)
			}
		})
	}
}

func TestLife_CrashedSandboxIsResumed(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	tmpl := l.template(fsm.DriverRawExec)
	script := "test -e ${workspace}/ok || exit 3; exec " + l.s.agent + " " + strings.Join(tmpl.Args, " ")
	tmpl.Command, tmpl.Args = "/bin/sh", []string{"-c", script}
	id := l.create(tmpl)
	if st := l.reach(id, fsm.SandboxError); st.Reason != fsm.ReasonCrashed {
		t.Errorf("status %+v", st)
	}
	dir := l.hostPath(id)
	l.must(os.WriteFile(filepath.Join(dir, "ok"), nil, 0o600))
	for range 2 {
		l.wish(&fsm.SandboxResumeBody{ID: id})
		l.reach(id, fsm.SandboxRunning)
		l.wish(&fsm.SandboxPauseBody{ID: id})
		l.reach(id, fsm.SandboxPaused)
	}
	l.must(os.Remove(filepath.Join(dir, "ok")))
	l.wish(&fsm.SandboxResumeBody{ID: id})
	l.reach(id, fsm.SandboxError)
	l.must(os.WriteFile(filepath.Join(dir, "ok"), nil, 0o600))
	l.wish(&fsm.SandboxResumeBody{ID: id})
	l.reach(id, fsm.SandboxRunning)
}

// TestLife_NomadKilledAndVaultSealed has its own stack, because it breaks it.
func TestLife_NomadKilledAndVaultSealed(t *testing.T) {
	t.Parallel()
	s := useStack(t)
	own := &stack{agent: s.agent}
	dir := t.TempDir()
	var err error
	if own.vault, err = local.StartVault(t.Context(), local.VaultOptions{Dir: filepath.Join(dir, "vault")}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = own.vault.Close() })
	if own.nomad, err = local.StartNomad(t.Context(),
		local.NomadOptions{Dir: filepath.Join(dir, "nomad"), Vault: own.vault}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := own.nomad.Close(); err != nil {
			t.Error(err)
		}
	})
	own.client, err = api.NewClient(&api.Config{Address: own.nomad.Address})
	if err != nil {
		t.Fatal(err)
	}
	cfg := nomad.DefaultConfig()
	cfg.Address, cfg.VaultMount, cfg.KillTimeout = own.nomad.Address, "secret", 2*time.Second
	r, err := nomad.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	l := lifeOn(t, &bench{T: t, s: own, cluster: "cluster-faults", r: r, config: cfg})
	first := l.create(l.template(fsm.DriverRawExec))
	placed := l.reach(first, fsm.SandboxRunning).Placement

	// Vault sealed: what needs no key continues, what needs one waits and shows it.
	l.wish(&fsm.SandboxPauseBody{ID: first})
	l.reach(first, fsm.SandboxPaused)
	l.must(own.vault.Seal(t.Context()))
	l.wish(&fsm.SandboxResumeBody{ID: first})
	l.until("words about Vault", func() error {
		if st := l.store.Sandbox(first).Status; st.State != fsm.SandboxStarting || st.Reason != fsm.ReasonSecretStore {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	t.Logf("sealed: %s", l.store.Sandbox(first).Status.Detail)
	l.must(own.vault.Unseal(t.Context()))
	if again := l.reach(first, fsm.SandboxRunning).Placement; again.Equal(placed) {
		t.Error("resumed at the old placement")
	}

	// Nomad killed: what runs stays RUNNING, what starts waits and shows it.
	l.must(own.nomad.Kill())
	second := l.create(l.template(fsm.DriverRawExec))
	l.until("words about Nomad", func() error {
		if st := l.store.Sandbox(second).Status; st.State != fsm.SandboxStarting || st.Reason != fsm.ReasonScheduler {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	t.Logf("killed: %s", l.store.Sandbox(second).Status.Detail)
	if st := l.store.Sandbox(first).Status; st.State != fsm.SandboxRunning {
		t.Errorf("a running sandbox suffered: %+v", st)
	}
	l.must(own.nomad.Start(t.Context()))
	l.reach(second, fsm.SandboxRunning)
	l.reach(first, fsm.SandboxRunning)
	if o := l.observed(scheduler.Job{SandboxID: first, ClusterID: l.cluster}); o.Live != 1 {
		t.Errorf("%d copies after Nomad's restart", o.Live)
	}
}
