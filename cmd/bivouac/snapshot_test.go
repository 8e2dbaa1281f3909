package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm/snapshotfile"
)

// savedState saves through a node and returns the file's manifest and state.
func savedState(t *testing.T, n caller, file string) (snapshotfile.Manifest, []byte) {
	t.Helper()
	code, _, stderr := runCommand(t, map[string]string{"BIVOUAC_API_KEY": n.key}, "operator", "snapshot", "save",
		"--address", n.base, file)
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := snapshotfile.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	state, err := io.ReadAll(r.State())
	if err != nil {
		t.Fatal(err)
	}
	return r.Manifest(), state
}

// TestDev_SnapshotSave: every node returns the whole state without any secret, also right after
// the leader was killed.
func TestDev_SnapshotSave(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := startDev(t, filepath.Join(dir, "data"))
	var c canaries
	c.answers(t, r.all[1])
	for i, n := range r.all {
		file := filepath.Join(dir, r.nodes[i].name+".snap")
		m, state := savedState(t, n, file)
		if v := c.leak(state); v != "" {
			t.Errorf("the state holds %s", v)
		}
		if bytes.Contains(state, []byte(strings.Split(n.key, "_")[2])) {
			t.Error("the state holds the API key")
		}
		if !bytes.Contains(state, []byte(`"llm_api_key"`)) && !bytes.Contains(state, []byte("settings/llm_api_key")) {
			t.Error("the state has no reference to the LLM key")
		}
		if m.Node != r.nodes[i].name || m.ClusterID == "" {
			t.Errorf("%+v", m)
		}
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v %v", info.Mode(), err)
		}
	}
	c.search(t, dir)
	checkInspect(t, filepath.Join(dir, "n1.snap"))

	leader := r.leader(t)
	before := r.all[leader].do(t, http.StatusOK, http.MethodPost, "/api/settings",
		map[string]any{"llm_model": "written before the kill"})
	r.kill(t, leader)
	m, state := savedState(t, r.others(leader)[0], filepath.Join(dir, "after.snap"))
	if !bytes.Contains(state, []byte("written before the kill")) {
		t.Errorf("the snapshot at %d lacks the write acknowledged at %s", m.Index, before.header.Get("X-Bivouac-Index"))
	}
}

// checkInspect checks the output of inspect for a valid file.
func checkInspect(t *testing.T, file string) {
	t.Helper()
	code, stdout, stderr := runCommand(t, nil, "operator", "snapshot", "inspect", file)
	if code != exitOK || !strings.Contains(stdout, "every checksum is right") || !strings.Contains(stdout, "sandboxes ") {
		t.Errorf("exit %d: %s%s", code, stdout, stderr)
	}
	code, stdout, _ = runCommand(t, nil, "operator", "snapshot", "inspect", "--json", file)
	var report snapshotReport
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != exitOK {
		t.Fatalf("exit %d, %v: %s", code, err, stdout)
	}
	if report.Manifest.Index == 0 || len(report.Tables) < 4 || report.SecretReferences == 0 || report.Size == 0 {
		t.Errorf("%+v", report)
	}
}

// offeredSnapshot is a node that responds with the content of a file.
func offeredSnapshot(t *testing.T, serve http.HandlerFunc) map[string]string {
	t.Helper()
	server := httptest.NewServer(serve)
	t.Cleanup(server.Close)
	return map[string]string{"BIVOUAC_ADDR": server.URL, "BIVOUAC_API_KEY": "k"}
}

// goodSnapshot returns a valid file.
func goodSnapshot(t *testing.T) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/snapshot/good.snap")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestSnapshotSave_KeepsWhatIsGood(t *testing.T) {
	good := goodSnapshot(t)
	env := offeredSnapshot(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(good) })
	dir := t.TempDir()
	file := filepath.Join(dir, "f.snap")
	code, stdout, stderr := runCommand(t, env, "operator", "snapshot", "save", file)
	if code != exitOK || !strings.Contains(stdout, "saved "+file) {
		t.Fatalf("exit %d: %s%s", code, stdout, stderr)
	}
	// An existing file is not overwritten.
	code, _, stderr = runCommand(t, env, "operator", "snapshot", "save", file)
	if code != exitUsage || !strings.Contains(stderr, "--force") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	if code, _, stderr = runCommand(t, env, "operator", "snapshot", "save", "--force", file); code != exitOK {
		t.Errorf("exit %d: %s", code, stderr)
	}
	// stdout receives the same content.
	code, stdout, stderr = runCommand(t, env, "operator", "snapshot", "save", "-")
	if code != exitOK || stdout != string(good) || !strings.Contains(stderr, "saved -") {
		t.Errorf("exit %d, %d bytes: %s", code, len(stdout), stderr)
	}
	onlyFile(t, dir, "f.snap")
}

// onlyFile fails if dir contains anything else.
func onlyFile(t *testing.T, dir string, want ...string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range left {
		names = append(names, f.Name())
	}
	if strings.Join(names, " ") != strings.Join(want, " ") {
		t.Errorf("there is %q, want %q", names, want)
	}
}

func TestSnapshotSave_KeepsNothingElse(t *testing.T) {
	good := goodSnapshot(t)
	flipped := bytes.Clone(good)
	flipped[len(flipped)/2] ^= 1
	for name, test := range map[string]struct {
		serve http.HandlerFunc
		want  string
	}{
		"cut off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000000")
			_, _ = w.Write(good[:len(good)/2])
		}, "unexpected EOF"},
		"truncated": {
			func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(good[:len(good)-600]) },
			"the file is truncated",
		},
		"damaged": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(flipped) }, "the file is damaged"},
		"no file": {
			func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") },
			"not a bivouac snapshot",
		},
		"refused": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"detail":"no leader"}`)
		}, "no leader"},
	} {
		t.Run(name, func(t *testing.T) {
			env := offeredSnapshot(t, test.serve)
			dir := t.TempDir()
			code, stdout, stderr := runCommand(t, env, "operator", "snapshot", "save", filepath.Join(dir, "f"))
			if code != exitFailed || !strings.Contains(stderr, test.want) || stdout != "" {
				t.Errorf("exit %d: %s%s", code, stdout, stderr)
			}
			onlyFile(t, dir)
			if code, _, _ := runCommand(t, env, "operator", "snapshot", "save", "-"); code != exitFailed {
				t.Errorf("to stdout: exit %d", code)
			}
		})
	}
}

// TestSnapshotSave_Interrupted: an interrupted save leaves nothing, and a slow one prints its
// progress.
func TestSnapshotSave_Interrupted(t *testing.T) {
	good := goodSnapshot(t)
	env := offeredSnapshot(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "1000000")
		_, _ = w.Write(good[:1000])
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	dir := t.TempDir()
	var stdout, stderr buffer
	p := &program{stdout: &stdout, stderr: &stderr, getenv: func(name string) string { return env[name] }}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int, 1)
	go func() { done <- p.run(ctx, []string{"operator", "snapshot", "save", filepath.Join(dir, "f")}) }()
	eventually(t, "it says how far it is", func() error {
		if !strings.Contains(stderr.String(), "received 1000 bytes of 976.6 KiB") {
			return errors.New(stderr.String())
		}
		return nil
	})
	cancel()
	select {
	case code := <-done:
		if code != exitFailed || !strings.Contains(stderr.String(), "interrupted; no file was written") {
			t.Errorf("exit %d: %s", code, stderr.String())
		}
	case <-time.After(patience):
		t.Fatal("it goes on")
	}
	onlyFile(t, dir)
}

func TestSnapshotInspect_SaysWhatIsWrong(t *testing.T) {
	good := goodSnapshot(t)
	checkInspect(t, "testdata/snapshot/good.snap")
	flipped := bytes.Clone(good)
	flipped[len(flipped)/2] ^= 1
	newer := bytes.Replace(good, []byte(`"format": 1,`), []byte(`"format": 7,`), 1)
	for name, test := range map[string]struct {
		content []byte
		want    string
	}{
		"truncated": {good[:len(good)-600], "the file is truncated: it ends within"},
		"damaged":   {flipped, "the file is damaged: the SHA-256 of part \"state\""},
		"newer":     {newer, "its format is 7 and this program reads 1: upgrade it"},
		"text":      {[]byte(strings.Repeat("x", 2000)), "not a bivouac snapshot file"},
		"empty":     {nil, "it is empty"},
	} {
		file := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(file, test.content, 0o600); err != nil {
			t.Fatal(err)
		}
		code, stdout, stderr := runCommand(t, nil, "operator", "snapshot", "inspect", file)
		if code != exitFailed || !strings.Contains(stderr, test.want) || stdout != "" {
			t.Errorf("%s: exit %d: %s%s", name, code, stdout, stderr)
		}
	}
	if code, _, stderr := runCommand(t, nil, "operator", "snapshot", "inspect", "/nowhere/f"); code != exitUsage {
		t.Errorf("no file: exit %d: %s", code, stderr)
	}
}
