package main

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
)

// begunWith starts a development cluster from a saved state.
func begunWith(t *testing.T, dir, file, keys string) *running {
	t.Helper()
	o := devOptions{dataDir: dir, nodes: 3, logLevel: "debug", restore: file, keys: keys}
	if err := o.check(); err != nil {
		t.Fatal(err)
	}
	c, err := openDev(o)
	if err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, len(c.nodes))
	r := &running{devCluster: c, failed: failed}
	t.Cleanup(func() { r.end(t) })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := c.begin(ctx, failed, o); err != nil {
		t.Fatal(err)
	}
	for _, n := range c.nodes {
		r.all = append(r.all, caller{base: "http://" + n.http, key: c.key.Value})
	}
	return r
}

// A saved state is restored on new nodes in the same directory. A sandbox, its file and a
// secret survive.
func TestDev_Restore(t *testing.T) {
	t.Parallel()
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "state.snap")
	r := startDev(t, dir)
	r.all[0].do(t, http.StatusOK, http.MethodPost, "/api/settings",
		map[string]any{"language": "saved", "llm_api_key": "first"})
	id := r.all[0].startSandbox(t)
	info := r.all[0].awaitSandbox(t, id, "RUNNING")
	kept := keepFile(t, info, "", "kept")
	r.all[0].do(t, http.StatusOK, http.MethodPost, "/api/v1/sandboxes/"+id+"/pause", nil)
	r.all[0].awaitSandbox(t, id, "PAUSED")
	env := map[string]string{"BIVOUAC_ADDR": r.all[0].base, "BIVOUAC_API_KEY": r.key.Value}
	mustRun(t, env, "operator", "snapshot", "save", file)
	r.all[0].do(t, http.StatusOK, http.MethodPost, "/api/settings",
		map[string]any{"language": "later", "llm_api_key": "second"})
	r.end(t)

	for _, bad := range []struct{ args, want string }{
		{"--restore " + file + " --keys keep", "is there: --restore is for a directory without the nodes' data"},
		{"--restore " + file, "--restore needs --keys"},
		{"--keys keep", "--restore"},
	} {
		code, _, stderr := runCommand(t, nil,
			append(strings.Fields("dev --data-dir "+dir+" --http-port 0"), strings.Fields(bad.args)...)...)
		if code != exitUsage || !strings.Contains(stderr, bad.want) {
			t.Errorf("%s: exit %d: %s", bad.args, code, stderr)
		}
	}
	for _, name := range nodeNames(3) {
		if err := os.Rename(filepath.Join(dir, name), filepath.Join(dir, "former-"+name)); err != nil {
			t.Fatal(err)
		}
	}
	damaged := filepath.Join(t.TempDir(), "damaged.snap")
	whole, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(damaged, whole[:len(whole)-700], 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := runCommand(t, nil, "dev", "--data-dir", dir, "--http-port", "0", "--restore", damaged,
		"--keys", "keep"); code != exitUsage ||
		!strings.Contains(stderr, "truncated") {
		t.Errorf("a damaged file: exit %d: %s", code, stderr)
	}

	r = begunWith(t, dir, file, "keep")
	for i, c := range r.all {
		if a := c.do(t, http.StatusOK, http.MethodGet, "/api/settings",
			nil); !strings.Contains(string(a.body), `"language":"saved"`) {
			t.Errorf("node %d shows %s", i, a)
		}
	}
	hold := r.nodes[0].app.store.View().Hold()
	if hold == nil || hold.Findings[0].Kind != fsm.FindingRestored {
		t.Errorf("hold %+v", hold)
	}
	r.all[0].do(t, http.StatusOK, http.MethodPost, "/api/v1/sandboxes/"+id+"/resume", nil)
	info = r.all[0].awaitSandbox(t, id, "RUNNING")
	if text := keptFile(t, info, kept); text != "kept" {
		t.Errorf("the file holds %q", text)
	}
	r.sameState(t)
}
