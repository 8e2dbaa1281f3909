package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// installed is a node that only serves the installation's configuration.
type installed struct {
	now     installationInfo
	changes int
	refuse  bool
}

// ServeHTTP implements http.Handler.
func (i *installed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer := func(status int, body any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body)
	}
	switch {
	case r.URL.Path != installationPath || r.Header.Get("X-Session-API-Key") != "the-key":
		answer(http.StatusUnauthorized, map[string]string{"detail": "Invalid API key"})
	case r.Method == http.MethodPut && i.refuse:
		answer(http.StatusForbidden, map[string]string{"detail": "An operator's key is needed"})
	case r.Method == http.MethodPut:
		raw, err := io.ReadAll(r.Body)
		var wanted installationInfo
		if err == nil {
			err = json.Unmarshal(raw, &wanted)
		}
		if i.now = wanted; err != nil {
			answer(http.StatusUnprocessableEntity, map[string]string{"detail": err.Error()})
			return
		}
		i.changes++
		answer(http.StatusOK, i.now)
	default:
		answer(http.StatusOK, i.now)
	}
}

// configured runs `operator configure` against a node with an input.
func configured(t *testing.T, node *installed, config, stdin string, flags ...string) (code int, stdout, stderr string) {
	t.Helper()
	server := httptest.NewServer(node)
	t.Cleanup(server.Close)
	env := map[string]string{"BIVOUAC_ADDR": server.URL, "BIVOUAC_API_KEY": "the-key"}
	args := append([]string{"operator", "configure", "--config", config}, flags...)
	return runCommandWith(t, env, stdin, args...)
}

func TestOperatorConfigure(t *testing.T) {
	full := "testdata/config/good_full.hcl"
	cfg, err := loadConfig(full)
	if err != nil {
		t.Fatal(err)
	}
	wanted := installationOf(cfg.installation())
	before := wanted
	before.Policy.IdleTimeout, before.OnLimit = new("17m0s"), "refuse"
	before.PerUser.Running = 4711
	broken := filepath.Join(t.TempDir(), "broken.hcl")
	if err := os.WriteFile(broken, []byte(`color = "red"`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, config, stdin string
		flags               []string
		node                installed
		code, changes       int
		stdout, stderr      []string
	}{
		{
			name: "asks, and does it", config: full, stdin: "yes\n", node: installed{now: before}, code: exitOK, changes: 1,
			stdout: []string{"the policies and limits of the file are in force"},
			stderr: []string{"policy.idle_timeout: in force 17m0s, in the file ", "limits.user.running_sandboxes: in force 4711, in the file ", "limits.on_limit: in force refuse, in the file "},
		},
		{
			name: "asks, and is told no", config: full, stdin: "no\n", node: installed{now: before}, code: exitFailed,
			stderr: []string{"policy.idle_timeout: in force 17m0s", "nothing was done"},
		},
		{
			name: "asks where nobody answers", config: full, node: installed{now: before}, code: exitUsage,
			stderr: []string{"nobody answered"},
		},
		{
			name: "--yes", config: full, flags: []string{"--yes"}, node: installed{now: before}, code: exitOK, changes: 1,
			stdout: []string{"in force"}, stderr: []string{"policy.idle_timeout: in force 17m0s"},
		},
		{
			name: "--json", config: full, flags: []string{"--yes", "--json"}, node: installed{now: before}, code: exitOK, changes: 1,
			stdout: []string{`"on_limit":`, `"per_user":`},
		},
		{
			name: "is in force already", config: full, node: installed{now: wanted}, code: exitOK,
			stdout: []string{"nothing was done"},
		},
		{
			name: "is in force already, --json", config: full, flags: []string{"--json"}, node: installed{now: wanted}, code: exitOK,
			stdout: []string{`"on_limit":`},
		},
		{
			name: "is refused", config: full, flags: []string{"--yes"}, node: installed{now: before, refuse: true}, code: exitFailed,
			stderr: []string{"this API key is not an operator's"},
		},
		{name: "no file", config: filepath.Join(t.TempDir(), "none.hcl"), node: installed{now: before}, code: exitUsage, stderr: []string{"no such file"}},
		{name: "a broken file", config: broken, node: installed{now: before}, code: exitUsage, stderr: []string{"color"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			was := c.node.now
			code, stdout, stderr := configured(t, &c.node, c.config, c.stdin, c.flags...)
			if code != c.code || c.node.changes != c.changes {
				t.Errorf("exit %d with %d changes, want %d with %d\n%s%s", code, c.node.changes, c.code, c.changes, stdout, stderr)
			}
			for _, want := range c.stdout {
				if !strings.Contains(stdout, want) {
					t.Errorf("stdout lacks %q: %s", want, stdout)
				}
			}
			for _, want := range c.stderr {
				if !strings.Contains(stderr, want) {
					t.Errorf("stderr lacks %q: %s", want, stderr)
				}
			}
			if c.changes > 0 {
				was = wanted
			}
			if d := cmp.Diff(was, c.node.now); d != "" {
				t.Errorf("in force afterwards: %s", d)
			}
			var printed installationInfo
			if strings.HasSuffix(c.name, "--json") && (json.Unmarshal([]byte(stdout), &printed) != nil || cmp.Diff(wanted, printed) != "") {
				t.Errorf("printed %s", stdout)
			}
		})
	}
}
