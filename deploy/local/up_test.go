package local_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"bivouac.dev/bivouac/deploy/local"
)

// progress notes what Up says, and calls a function when it says a word.
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

// stackProcesses finds processes that have to do with the directory.
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
		if strings.Contains(string(args), dir+"/") || strings.Contains(string(env), "="+dir+"/") || strings.HasPrefix(cwd, dir+"/") {
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
	for _, file := range []string{"api-key", "vault/keys.json", "approle/secret-id", "approle/role-id", "tls/ca-key.pem", "stack.json"} {
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
	if want := 1 + len(strings.Fields(s.Image)); len(specs.Items) != want {
		t.Errorf("specs %v, want %d", specs.Items, want)
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

	// The example for operators is a configuration the program takes.
	root, err := local.Root()
	if err != nil {
		t.Fatal(err)
	}
	check := exec.Command(filepath.Join(dir, "bin", "bivouac"), "server", "--check", "--config", filepath.Join(root, "deploy", "config", "node.hcl"))
	if out, err := check.CombinedOutput(); err != nil {
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
