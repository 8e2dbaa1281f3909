package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/wire"
)

// putBack replaces the nodes' directories below dir with those below from.
func putBack(t testing.TB, dir, from string) {
	t.Helper()
	for _, name := range nodeNames(3) {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join(from, name))); err != nil {
			t.Fatal(err)
		}
	}
}

// operatorJSON runs an operator command and decodes its output.
func (r *running) operatorJSON(t testing.TB, out any, args ...string) {
	t.Helper()
	env := map[string]string{"BIVOUAC_ADDR": r.all[0].base, "BIVOUAC_API_KEY": r.key.Value}
	code, stdout, stderr := runCommand(t, env, append(append([]string{"operator"}, args...), "--json")...)
	if code != 0 {
		t.Fatalf("%s: exit %d: %s", strings.Join(args, " "), code, stderr)
	}
	if err := json.Unmarshal([]byte(stdout), out); err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, stdout)
	}
}

// awaitOrphan waits until an orphan is listed.
func (r *running) awaitOrphan(t testing.TB, kind, sandbox, reason string) {
	t.Helper()
	eventually(t, "the "+kind+" of "+sandbox+" is an orphan: "+reason, func() error {
		var orphans []wire.Orphan
		r.operatorJSON(t, &orphans, "orphans", "list")
		for _, o := range orphans {
			if o.Kind == kind && o.Sandbox == sandbox && o.Reason == reason {
				return nil
			}
		}
		return fmt.Errorf("listed: %+v", orphans)
	})
}

// Fault 2 of issue 9: the data directories of all nodes are rolled back. A sandbox that was
// created meanwhile keeps running until an operator decides.
func TestDev_OlderStateKillsNothing(t *testing.T) {
	t.Parallel()
	dir, kept := t.TempDir(), t.TempDir()
	r := startDev(t, dir)
	eventually(t, "the history is recorded", func() error {
		if r.nodes[0].app.store.View().Marked(fsm.StoreNomad) {
			return nil
		}
		return errors.New("no mark yet")
	})
	r.end(t)
	putBack(t, kept, dir)

	r = startDev(t, dir)
	id := r.all[0].startSandbox(t)
	info := r.all[0].awaitSandbox(t, id, "RUNNING")
	file := keepFile(t, info, "", "kept")
	clusterID := r.nodes[0].app.store.View().ClusterID()
	r.end(t)
	putBack(t, dir, kept)
	mustRun(t, nil, "operator", "adopt-disk", "--yes", "--dev", dir)

	r = startDev(t, dir)
	r.awaitOrphan(t, "job", id, "stranger")
	var report wire.HoldReport
	r.operatorJSON(t, &report, "hold", "status")
	if report.Hold == nil || report.AfterRelease == nil || strings.Join(report.AfterRelease.RemoveJobs, " ") != id {
		t.Fatalf("hold %+v, after a release %+v", report.Hold, report.AfterRelease)
	}
	ready := r.all[0].do(t, http.StatusOK, http.MethodGet, "/ready", nil)
	if ready.header.Get("X-Bivouac-Hold") != "true" {
		t.Errorf("/ready says nothing of the hold: %v", ready.header)
	}
	jobs, err := r.runner.List(t.Context(), clusterID)
	if err != nil || len(jobs) != 1 || !jobs[0].Exists { // `bivouac dev` stops jobs when it ends
		t.Fatalf("jobs under the hold: %+v, %v", jobs, err)
	}

	r.operatorJSON(t, &report, "hold", "release", "--yes")
	if report.Hold != nil {
		t.Errorf("hold after its release: %+v", report.Hold)
	}
	r.awaitOrphan(t, "workspace", id, "unowned")
	if text := workspaceFile(t, dir, filepath.Base(file)); text != "kept" {
		t.Errorf("the workspace's file holds %q", text)
	}
	r.operatorJSON(t, &struct{}{}, "orphans", "delete", "workspace", id, "--yes")
	eventually(t, "the workspace is gone", func() error {
		var orphans []wire.Orphan
		if r.operatorJSON(t, &orphans, "orphans", "list"); len(orphans) > 0 {
			return fmt.Errorf("listed: %+v", orphans)
		}
		return nil
	})
}

// workspaceFile reads the only file with that name in the sandboxes' directories.
func workspaceFile(t testing.TB, dir, name string) (content string) {
	t.Helper()
	found := 0
	err := filepath.WalkDir(devLayout{dir}.sandboxes(), func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Name() != name {
			return err
		}
		b, err := os.ReadFile(path)
		content, found = strings.TrimSpace(string(b)), found+1
		return err
	})
	if err != nil || found != 1 {
		t.Fatalf("%d files %s: %v", found, name, err)
	}
	return content
}
