package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
)

// expectOne makes a node form a cluster of one.
func (n *serverNode) expectOne(t *testing.T) {
	t.Helper()
	b, err := os.ReadFile(n.config)
	if err == nil {
		err = os.WriteFile(n.config, []byte(strings.Replace(string(b), "bootstrap_expect = 3", "bootstrap_expect = 1", 1)),
			0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestRestore_ThreeNewDataDirectories: a state is saved, all three data directories are lost,
// and the state is restored on a new cluster of one, which the others join.
func TestRestore_ThreeNewDataDirectories(t *testing.T) {
	t.Parallel()
	s := newServers(t, serverOptions{nomad: "http://" + freeAddress(t), vault: "http://" + freeAddress(t)})
	s.up(t, 0, 1, 2)
	n := s.nodes[0]
	flags := []string{"--address", n.base, "--api-key-file", s.keyFile}
	run := func(args ...string) string { return mustRun(t, nil, append(args, flags...)...) }
	n.do(t, http.StatusOK, http.MethodPost, "/api/settings", map[string]any{"language": "saved"})
	again := n.caller
	again.header = http.Header{"Idempotency-Key": {"k-1"}}
	again.do(t, http.StatusOK, http.MethodPost, "/api/settings", map[string]any{"language": "once"})
	stolen := run("keys", "create", "--user", "alice", "--name", "stolen")
	file := filepath.Join(s.dir, "state.snap")
	run("operator", "snapshot", "save", file)
	run("keys", "revoke", "2")
	alice := caller{base: n.base, key: stolen}
	alice.do(t, http.StatusUnauthorized, http.MethodGet, "/api/settings", nil)
	after := n.do(t, http.StatusOK, http.MethodPost, "/api/settings",
		map[string]any{"language": "lost"}).header.Get("X-Bivouac-Index")

	refused := func(want string, args ...string) {
		t.Helper()
		args = append(append([]string{"operator", "snapshot", "restore"}, args...), flags...)
		if code, stdout, stderr := runCommand(t, nil, args...); code == exitOK || !strings.Contains(stderr, want) {
			t.Fatalf("%v: exit %d, want %q: %s\n%s", args, code, want, stderr, stdout)
		}
	}
	refused("has 3 members", file, "--keys", "keep", "--yes")
	refused("--keys is required", file, "--yes")
	refused("nobody answered", file, "--keys", "keep")
	for _, n := range s.nodes {
		n.process.kill()
		if err := os.RemoveAll(filepath.Join(n.dir, "data")); err != nil {
			t.Fatal(err)
		}
	}

	n.expectOne(t)
	n.start()
	n.ready(t)
	old := n.key
	key := mustRun(t, nil, "keys", "bootstrap", "--config", n.config)
	if err := os.WriteFile(s.keyFile, []byte(key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	damaged := filepath.Join(s.dir, "damaged.snap")
	whole, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(damaged, whole[:len(whole)-700], 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	refused("truncated", damaged, "--keys", "keep", "--yes")
	var done cluster.Restored
	if out := run("operator", "snapshot", "restore", file, "--keys", "suspend", "--yes",
		"--json"); json.Unmarshal([]byte(out), &done) != nil || done.Suspended != 2 {
		t.Fatalf("%s", out)
	}
	n.key = key
	a := n.do(t, http.StatusOK, http.MethodGet, "/api/v1/operator/keys", nil)
	t.Logf("keys: %s", a)
	was, err := strconv.ParseUint(after, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if now, err := strconv.ParseUint(a.header.Get("X-Bivouac-Index"), 10, 64); err != nil || now < was+fsm.IndexStep-100 {
		t.Errorf("the index was %d and is %d (%v)", was, now, err)
	}
	alice.do(t, http.StatusUnauthorized, http.MethodGet, "/api/settings", nil)
	// The former operator's key.
	again.do(t, http.StatusUnauthorized, http.MethodGet, "/api/settings", nil)
	run("keys", "enable", "1")
	again.key = old
	if a, err := again.try(http.MethodPost, "/api/settings", map[string]any{"language": "once"}); err != nil ||
		a.status != http.StatusServiceUnavailable || !strings.Contains(string(a.body), "outcome of this request is unknown") {
		t.Errorf("the Idempotency-Key of before: %s (%v)", a, err)
	}
	refused("a state that would be lost", file, "--keys", "keep", "--yes")

	for _, n := range s.nodes {
		n.key = old
		if n != s.nodes[0] {
			n.start()
		}
	}
	for _, n := range s.nodes {
		n.ready(t)
		if a := n.do(t, http.StatusOK, http.MethodGet, "/api/settings",
			nil); !strings.Contains(string(a.body), `"language":"once"`) {
			t.Errorf("%s shows %s", n.name, a)
		}
	}
	threeVoters(t, s.nodes[0])
	t.Log(run("operator", "status"))
	s.nodes[1].do(t, http.StatusOK, http.MethodPost, "/api/settings", map[string]any{"language": "after"})
}

// threeVoters waits until the node's cluster has three voters.
func threeVoters(t *testing.T, n *serverNode) {
	t.Helper()
	eventually(t, "three voters", func() error {
		var status cluster.Status
		if err := decode(n.do(t, http.StatusOK, http.MethodGet, "/api/v1/operator/status", nil), &status); err != nil {
			return err
		}
		for _, m := range status.Servers {
			if !m.Voter || len(status.Servers) != 3 {
				return fmt.Errorf("the members are %+v", status.Servers)
			}
		}
		return nil
	})
}
