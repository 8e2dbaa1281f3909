package local_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local"
)

// progress records Up's messages and calls a function at a given word.
type progress struct {
	mu   sync.Mutex
	text strings.Builder
	at   string
	then func()
}

func (p *progress) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text.Write(b)
	if p.then != nil && strings.Contains(string(b), p.at) {
		p.then()
		p.then = nil
	}
	return len(b), nil
}

func (p *progress) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// stackProcesses finds the processes that use the directory.
func stackProcesses(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		args, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		env, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		cwd, _ := os.Readlink(filepath.Join("/proc", e.Name(), "cwd"))
		if strings.Contains(string(args), dir+"/") || strings.Contains(string(env), "="+dir+"/") ||
			strings.HasPrefix(cwd, dir+"/") {
			found = append(found, e.Name()+" "+strings.ReplaceAll(string(args), "\x00", " "))
		}
	}
	return found
}

func wantNothingLeft(t *testing.T, dir string) {
	t.Helper()
	eventually(t, "the end of every process", func() error {
		if found := stackProcesses(t, dir); len(found) > 0 {
			return errorf("still running:\n%s", strings.Join(found, "\n"))
		}
		return nil
	})
}

// client talks to a stack's API.
type client struct {
	t       *testing.T
	address string
	key     string
}

func (c client) do(method, path string, out any) error {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.address+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("X-Session-API-Key", c.key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return errorf("%s %s: %d: %s", method, path, resp.StatusCode, body)
	}
	return json.Unmarshal(body, out)
}

func TestUp_RunsSandboxes_DownLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "stack")
	said := &progress{}
	s, err := local.Up(t.Context(), dir, said)
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	t.Cleanup(func() {
		if err := local.Down(dir, io.Discard); err != nil {
			t.Error(err)
		}
	})
	if _, err := local.Up(t.Context(), dir, io.Discard); !errors.Is(err, local.ErrAlreadyUp) {
		t.Errorf("a second up: %v", err)
	}
	for _, file := range []string{
		"api-key",
		"vault/keys.json",
		"approle/secret-id",
		"approle/role-id",
		"tls/ca-key.pem",
		"stack.json",
	} {
		if fi, err := os.Stat(filepath.Join(dir, file)); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v; want mode 0600", file, fi, err)
		}
	}
	key, err := os.ReadFile(s.APIKeyFile)
	if err != nil {
		t.Fatal(err)
	}
	api := client{t, s.Address(), strings.TrimSpace(string(key))}
	var specs struct{ Items []struct{ ID string } }
	if err := api.do(http.MethodGet, "/api/v1/sandbox-specs/search", &specs); err != nil {
		t.Fatal(err)
	}
	if len(specs.Items) != 1 {
		t.Errorf("specs %v, want one", specs.Items)
	}
	for _, spec := range specs.Items {
		if err := api.do(http.MethodPost, "/api/v1/sandboxes?sandbox_spec_id="+spec.ID, &struct{}{}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "running sandboxes", func() error {
		var found struct {
			Items []struct {
				ID, Status string
				Detail     *string `json:"status_detail"`
			}
		}
		if err := api.do(http.MethodGet, "/api/v1/sandboxes/search", &found); err != nil {
			return err
		}
		for _, sandbox := range found.Items {
			if sandbox.Status != "RUNNING" {
				detail := ""
				if sandbox.Detail != nil {
					detail = *sandbox.Detail
				}
				return errorf("sandbox %s is %s: %s", sandbox.ID, sandbox.Status, detail)
			}
		}
		return nil
	})

	keepsKeys(t, s, api)
	keepsDrivers(t, s)
	keepsNetwork(t, s)
	asksModels(t, api)
	restartsNodes(t, s)

	// The program accepts the operators' example configuration; only its files are missing.
	root, err := local.Root()
	if err != nil {
		t.Fatal(err)
	}
	check := exec.Command(filepath.Join(dir, "bin", "bivouac"), "server", "--check", "--config",
		filepath.Join(root, "deploy", "config", "node.hcl"))
	out, err := check.CombinedOutput()
	missing := strings.Count(string(out), "no such file or directory")
	if check.ProcessState.ExitCode() != 1 || missing == 0 || strings.Count(string(out), "fail ") != missing {
		t.Errorf("deploy/config/node.hcl: %v\n%s", err, out)
	}

	for range 2 { // the second time there is nothing to do
		if err := local.Down(dir, said); err != nil {
			t.Fatal(err)
		}
	}
	wantNothingLeft(t, dir)
	if _, err := os.Stat(dir); err == nil {
		t.Errorf("%s is still there", dir)
	}
}

// asksModels checks that an agent in a sandbox reaches the nodes' model gateway, which adds the key.
func asksModels(t *testing.T, api client) {
	t.Helper()
	asked := make(chan string, 100)
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case asked <- r.Header.Get("Authorization"):
		default:
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w,
			`data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"hello"},`+
				`"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n")
	}))
	defer model.Close()
	post := func(path, body string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, api.address+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Session-API-Key", api.key)
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d %s", path, resp.StatusCode, text)
		}
	}
	post("/api/settings",
		fmt.Sprintf(`{"llm_model":"openai/scripted","llm_base_url":"%s/v1","llm_api_key":"sk-stack"}`, model.URL))
	post("/api/v1/app-conversations", `{"initial_message":{"content":[{"type":"text","text":"hello"}]}}`)
	select {
	case key := <-asked:
		if key != "Bearer sk-stack" {
			t.Errorf("the model was asked with %q", key)
		}
	case <-time.After(2 * time.Minute):
		t.Error("no agent asked the model")
	}
}

// restartsNodes kills two nodes. One is started again as the commands do, the other by hand.
func restartsNodes(t *testing.T, s *local.Stack) {
	t.Helper()
	for _, n := range s.Nodes[1:] {
		if err := syscall.Kill(n.Pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"", "node-2 runs already\n"} {
		said := &progress{}
		eventually(t, "the node is started", func() error {
			said.text.Reset()
			n, err := local.StartNode(t.Context(), s.Dir, "node-2", said)
			if err == nil && (n.Name != "node-2" || n.Pid == s.Nodes[1].Pid || said.String() != want) {
				err = errorf("%+v after %q", n, said)
			}
			return err
		})
	}
	if _, err := local.StartNode(t.Context(), s.Dir, "node-4", io.Discard); err == nil {
		t.Error("a node that the stack does not have was started")
	}
	byHand := exec.Command(filepath.Join(s.Dir, "bin", "bivouac"), "server", "--config", "node.hcl")
	byHand.Dir = filepath.Join(s.Dir, "node-3")
	if err := byHand.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = byHand.Wait() }()
	api := client{t, s.Nodes[2].HTTP, ""}
	eventually(t, "the node that was started by hand is ready",
		func() error { return api.do(http.MethodGet, "/ready", new(any)) })
}

// keepsKeys checks that a job with a sandbox's name gets the sandbox's key in the stack's
// namespace only, and that registering one there needs Nomad's permission.
func keepsKeys(t *testing.T, s *local.Stack, api client) {
	t.Helper()
	token, err := os.ReadFile(s.NomadTokenFile)
	if err != nil {
		t.Fatal(err)
	}
	n := &local.Nomad{Server: local.Server{Address: s.Nomad}, Token: strings.TrimSpace(string(token))}
	var found struct{ Items []struct{ ID string } }
	if err := api.do(http.MethodGet, "/api/v1/sandboxes/search", &found); err != nil {
		t.Fatal(err)
	}
	id := "sandbox-" + found.Items[0].ID
	var own []struct{ ID string }
	if err := n.Do(t.Context(), http.MethodGet, "jobs?namespace=sandboxes&prefix="+id, nil, &own); err != nil ||
		len(own) != 1 {
		t.Fatalf("the job of %s in the stack's namespace: %v, %v", id, own, err)
	}
	thief := func(namespace, driver, config string) string {
		return fmt.Sprintf(`
job %q {
  namespace = %q
  node_pool = "all"
  group "sandbox" {
    reschedule {
      attempts  = 0
      unlimited = false
    }
    task "agent" {
      driver = %q
      config {
        %s
      }
      vault {}
      template {
        data        = "{{ with secret \"secret/data/sandboxes/%s/session\" }}{{ .Data.data.key }}{{ end }}"
        destination = "secrets/stolen"
      }
    }
  }
}`, id, namespace, driver, config, id)
	}
	if err := n.RunHCL(t.Context(), thief("default", "raw_exec", `command = "/bin/true"`)); err != nil {
		t.Fatal(err)
	}
	last := ""
	eventually(t, "Vault's refusal", func() error {
		var allocs []struct {
			TaskStates map[string]struct {
				Events []struct{ DisplayMessage string }
			}
		}
		if err := n.Do(t.Context(), http.MethodGet, "job/"+id+"/allocations?namespace=default", nil, &allocs); err != nil {
			return err
		}
		for _, a := range allocs {
			for _, e := range a.TaskStates["agent"].Events {
				last = e.DisplayMessage
				if strings.Contains(last, "nomad_namespace") && strings.Contains(last, "claim") {
					return nil
				}
			}
		}
		return errorf("the task's last event: %s", last)
	})
	t.Logf("a job of the sandbox's name in another namespace: %s", last)
	var parsed map[string]any
	driver, config := "raw_exec", `command = "/bin/true"`
	if s.Image != "" {
		driver, config = "docker", fmt.Sprintf("image = %q", s.Image)
	}
	in := map[string]any{"JobHCL": thief("sandboxes", driver, config), "Canonicalize": true}
	if err := n.Do(t.Context(), http.MethodPost, "jobs/parse", in, &parsed); err != nil {
		t.Fatal(err)
	}
	var status *local.StatusError
	err = n.DoAs(t.Context(), "", http.MethodPost, "jobs", map[string]any{"Job": parsed}, nil)
	t.Logf("a job of the sandbox's name in its namespace, without a token: %v", err)
	if !errors.As(err, &status) || status.Status != http.StatusForbidden {
		t.Errorf("Nomad takes it: %v", err)
	}
}

// keepsDrivers checks that the nodes' own token can't register a job in the sandboxes' namespace with
// a driver that is not the specs'.
func keepsDrivers(t *testing.T, s *local.Stack) {
	t.Helper()
	token, err := os.ReadFile(filepath.Join(s.Dir, "nomad-token"))
	if err != nil {
		t.Fatal(err)
	}
	n := &local.Nomad{Server: local.Server{Address: s.Nomad}, Token: strings.TrimSpace(string(token))}
	used := "raw_exec"
	if s.Image != "" {
		used = "docker"
	}
	for _, driver := range []string{"raw_exec", "exec", "docker"} {
		job := fmt.Sprintf(`
job "escape-%s" {
  namespace = "sandboxes"
  node_pool = "sandboxes"
  group "a" {
    task "a" {
      driver = %q
      config {
        %s
      }
    }
  }
}`, driver, driver, map[bool]string{true: `image = "none:1"`, false: `command = "/bin/true"`}[driver == "docker"])
		in := map[string]any{"JobHCL": job, "Canonicalize": true}
		var parsed map[string]any
		if err := n.Do(t.Context(), http.MethodPost, "jobs/parse?namespace=sandboxes", in, &parsed); err != nil {
			t.Fatal(err)
		}
		err := n.Do(t.Context(), http.MethodPost, "jobs?namespace=sandboxes",
			map[string]any{"Job": parsed, "EnforceIndex": true, "JobModifyIndex": 1 << 40}, nil)
		t.Logf("a job with %s: %v", driver, err)
		// The index is no job's: what is allowed fails as well, for another reason.
		if refused := err != nil && strings.Contains(err.Error(), "driver"); err == nil || refused == (driver == used) {
			t.Errorf("driver %s, the specs use %s: %v", driver, used, err)
		}
	}
}

// keepsNetwork checks that the containers are in the stack's own network, where one can be made.
func keepsNetwork(t *testing.T, s *local.Stack) {
	t.Helper()
	err := local.SandboxNetworkPossible(t.Context())
	switch {
	case s.Network == "" && err == nil:
		t.Error("the stack has no network of its own")
	case s.Network == "":
		t.Log(err)
	default:
		out, err := exec.CommandContext(t.Context(), "docker", "network", "inspect", "--format", "{{len .Containers}}",
			s.Network).CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != "1" {
			t.Errorf("containers in %s: %v %s", s.Network, err, out)
		}
		t.Cleanup(func() {
			out, err := exec.Command("docker", "network", "inspect", s.Network).CombinedOutput()
			rules, _ := exec.Command("sh", "-c", "PATH=$PATH:/usr/sbin; iptables-save; ip6tables-save").Output()
			bridge := strings.Replace(s.Network, "bivouac-stack-", "bvs", 1)
			if err == nil || strings.Contains(string(rules), bridge) {
				t.Errorf("the network is still there: %s\n%s", out, rules)
			}
		})
	}
}

func TestUp_Interrupted_StopsWhatItStarted(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"starting Nomad", "starting three nodes", "loading sandbox specs"} {
		t.Run(strings.ReplaceAll(at, " ", "-"), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "stack")
			ctx, cancel := context.WithCancel(t.Context())
			said := &progress{at: at, then: cancel}
			if _, err := local.Up(ctx, dir, said); !errors.Is(err, context.Canceled) {
				t.Errorf("%v, want context.Canceled\n%s", err, said)
			}
			wantNothingLeft(t, dir)
			if err := local.Down(dir, said); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestDown_LeavesForeignDirectoriesAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "precious")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := local.Down(dir, io.Discard); err == nil {
		t.Error("no error")
	}
	if _, err := local.Up(t.Context(), dir, io.Discard); err == nil {
		t.Error("up: no error")
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}
