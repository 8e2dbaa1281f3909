package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cluster/recovery"
)

// TestRecover_KillAndDeleteTwoOfThree: two of three nodes are killed and their disks deleted.
// `operator recover` makes the third a cluster of one, two new nodes join, and every
// acknowledged write that the third had is there.
func TestRecover_KillAndDeleteTwoOfThree(t *testing.T) {
	t.Parallel()
	s := newServers(t, serverOptions{nomad: "http://" + freeAddress(t), vault: "http://" + freeAddress(t)})
	s.up(t, 0, 1, 2)
	last := s.nodes[2]
	for i := range 40 { // more than one snapshot
		last.do(t, http.StatusOK, http.MethodPost, "/api/settings", map[string]any{"language": fmt.Sprintf("l%d", i)})
	}
	index := last.do(t, http.StatusOK, http.MethodGet, "/api/settings", nil).header.Get("X-Bivouac-Index")
	once := map[string]any{"language": "once"}
	last.header = http.Header{"Idempotency-Key": {"k-1"}}
	last.do(t, http.StatusOK, http.MethodPost, "/api/settings", once)
	last.header = nil

	refused := func(want string, args ...string) {
		t.Helper()
		args = append([]string{"operator", "recover", "--config", last.config}, args...)
		if code, stdout, stderr := runCommand(t, nil, args...); code == exitOK || !strings.Contains(stderr, want) {
			t.Fatalf("%v: exit %d, want %q: %s\n%s", args, code, want, stderr, stdout)
		}
	}
	refused("is in use by another bivouac", "--yes")
	for _, n := range s.nodes[1:] {
		n.process.kill()
	}
	refused("n1 at ", "--yes") // it runs, although without a leader
	s.nodes[0].process.kill()
	for _, n := range s.nodes[:2] {
		if err := os.RemoveAll(filepath.Join(n.dir, "data")); err != nil {
			t.Fatal(err)
		}
	}
	refused("nobody answered")
	refused("the disk ends with entry", "--yes", "--until", "99999")
	var disk recovery.Survivor
	described := mustRun(t, nil, "operator", "recover", "--config", last.config, "--describe", "--json")
	if err := json.Unmarshal([]byte(described), &disk); err != nil || disk.Node != "n3" || len(disk.Members) != 3 {
		t.Fatalf("%s (%v)", described, err)
	}
	further := disk
	further.Node, further.ID, further.LastIndex = "n2", "n2.x", disk.LastIndex+1
	b, err := json.Marshal(further)
	if err != nil {
		t.Fatal(err)
	}
	survivor := filepath.Join(s.dir, "n2.json")
	if err := os.WriteFile(survivor, b, 0o600); err != nil {
		t.Fatal(err)
	}
	refused("the disk of n2 comes further", "--yes", "--survivor", survivor)
	t.Log(mustRun(t, nil, "operator", "recover", "--config", last.config, "--yes"))

	last.start()
	last.ready(t)
	a := last.do(t, http.StatusOK, http.MethodGet, "/api/settings", nil)
	if !strings.Contains(string(a.body), `"language":"once"`) || len(a.header.Get("X-Bivouac-Index")) <= len(index) {
		t.Errorf("after the recovery: %s at index %s, before at %s", a, a.header.Get("X-Bivouac-Index"), index)
	}
	again := last.caller
	again.header = http.Header{"Idempotency-Key": {"k-1"}}
	if a, err := again.try(http.MethodPost, "/api/settings", once); err != nil ||
		a.status != http.StatusServiceUnavailable ||
		!strings.Contains(string(a.body), "outcome of this request is unknown") {
		t.Errorf("the Idempotency-Key of before: %s (%v)", a, err)
	}
	for _, n := range s.nodes[:2] {
		n.start()
	}
	for _, n := range s.nodes {
		n.ready(t)
		if a := n.do(t, http.StatusOK, http.MethodGet, "/api/settings",
			nil); !strings.Contains(string(a.body), `"language":"once"`) {
			t.Errorf("%s shows %s", n.name, a)
		}
	}
	threeVoters(t, last)
	t.Log(mustRun(t, nil, "operator", "status", "--address", last.base, "--api-key-file", s.keyFile))
	last.do(t, http.StatusOK, http.MethodPost, "/api/settings", map[string]any{"language": "after"})
}
