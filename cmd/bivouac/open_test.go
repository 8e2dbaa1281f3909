package main

import (
	"errors"
	"net/http"
	"strings"
	"testing"
)

// workerURL returns the URL of the sandbox's first worker port with its code.
func (c caller) workerURL(t testing.TB, id string) (at, code string) {
	t.Helper()
	eventually(t, "the worker's URL has a code", func() error {
		info, err := c.sandbox(id)
		if err != nil {
			return err
		}
		for _, u := range info.ExposedURLs {
			if before, after, is := strings.Cut(u.URL, "#bivouac="); is && u.Name == "WORKER_1" {
				at, code = before, after
				return nil
			}
		}
		return errors.New("no code")
	})
	return at, code
}

// open exchanges a code on the node and returns the status.
func (c caller) open(t testing.TB, id, code string) int {
	t.Helper()
	a, err := caller{base: c.base}.try(http.MethodPost, "/sandboxes/"+id+"/WORKER_1/.bivouac/open",
		map[string]string{"code": code})
	if err != nil {
		t.Fatal(err)
	}
	return a.status
}

// TestDev_ACodeOpensOnceOnEveryNode: a code that was used on one node opens nothing on any, also
// after its leader is lost, and one that was not used still opens then. The owner's and an
// operator's commands list and revoke shares.
func TestDev_ACodeOpensOnceOnEveryNode(t *testing.T) {
	t.Parallel()
	r := startDev(t, t.TempDir())
	spec := map[string]any{"specs": []any{map[string]any{"id": "pages", "template": map[string]any{
		"driver": "process", "command": "sandbox-agent", "isolation": "none", "working_dir": "project", "cpu": 500,
		"memory": 512,
		"ports":  map[string]int{"AGENT_SERVER": 0, "WORKER_1": 0},
	}}}}
	r.all[0].do(t, http.StatusOK, http.MethodPost, "/api/v1/operator/specs", spec)
	id := r.all[0].startSandboxOf(t, "pages")
	r.all[0].awaitSandbox(t, id, "RUNNING")
	_, code := r.all[0].workerURL(t, id)
	if got := r.all[1].open(t, id, code); got != http.StatusOK {
		t.Fatalf("a code opens the page: %d", got)
	}
	refused := func(when string, nodes []caller) {
		t.Helper()
		for _, n := range nodes {
			if got := n.open(t, id, code); got != http.StatusUnauthorized {
				t.Errorf("%s, on %s: %d", when, n.base, got)
			}
		}
	}
	refused("a second time", r.all)

	env := map[string]string{"BIVOUAC_API_KEY": r.all[0].key, "BIVOUAC_ADDR": r.all[2].base}
	command := func(args ...string) string {
		t.Helper()
		exit, out, errs := runCommand(t, env, append([]string{"sandboxes"}, args...)...)
		if exit != 0 {
			t.Fatalf("%v: %d %s", args, exit, errs)
		}
		return out
	}
	page := strings.TrimSpace(command("open", id, "WORKER_1"))
	if _, code, is := strings.Cut(page, "#bivouac="); !is || r.all[2].open(t, id, code) != http.StatusOK {
		t.Errorf("the command opens %s", page)
	}
	link := command("share", id, "WORKER_1", "--for", "1h")
	_, token, is := strings.Cut(strings.SplitN(link, "\n", 2)[0], "#bivouac=")
	if !is || r.all[0].open(t, id, token) != http.StatusOK {
		t.Fatalf("the link of a share: %s", link)
	}
	if list := command("shares", id); !strings.Contains(list, "WORKER_1") || strings.Contains(list, token) {
		t.Errorf("the list of shares: %s", list)
	}
	command("unshare", id, "worker-1")
	for _, n := range r.all {
		if got := n.open(t, id, token); got != http.StatusUnauthorized {
			t.Errorf("a revoked share, on %s: %d", n.base, got)
		}
	}

	_, unused := r.all[0].workerURL(t, id)
	lost := r.leader(t)
	r.kill(t, lost)
	left := r.others(lost)
	eventually(t, "there is a leader", func() error {
		a, err := left[0].try(http.MethodGet, "/ready", nil)
		if err == nil && a.status != http.StatusOK {
			err = errors.New(a.String())
		}
		return err
	})
	refused("without its leader", left)
	if got := left[1].open(t, id, unused); got != http.StatusOK {
		t.Errorf("an older leader's code: %d", got)
	}
	code = unused
	r.revive(t, lost)
	refused("a former code, on all", r.all)
}
