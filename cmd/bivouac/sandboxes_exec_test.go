package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// TestSandboxes_ExecOutage: a short outage is said once and outlived, an answer that can't be read
// ends the command, and lost output is a failure.
func TestSandboxes_ExecOutage(t *testing.T) {
	end := `{"items":[{"order":0,"stdout":"some\n"},{"order":1,"exit_code":%d,"dropped_bytes":%d}]}`
	for _, c := range []struct {
		name   string
		failed int32 // answers of 502
		answer string
		want   int
		stderr string
	}{
		{"outage", 3, fmt.Sprintf(end, 0, 0), exitOK, "no node can do it now; asking again\n"},
		{"no JSON", 0, "<html>", exitFailed, "is not what was expected"},
		{"lost", 0, fmt.Sprintf(end, 0, 7), exitFailed, "bivouac: 7 bytes of the output are lost"},
		{"failed and lost", 0, fmt.Sprintf(end, 3, 7), 3, "bivouac: 7 bytes of the output are lost"},
	} {
		var asked atomic.Int32
		node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method == http.MethodPost:
				_, _ = w.Write([]byte(`{"id":"1"}`))
			case asked.Add(1) <= c.failed:
				w.WriteHeader(http.StatusBadGateway)
			default:
				_, _ = w.Write([]byte(c.answer))
			}
		}))
		env := map[string]string{"BIVOUAC_ADDR": node.URL, "BIVOUAC_API_KEY": "k"}
		code, stdout, stderr := runCommand(t, env, "sandboxes", "exec", "a", "ls")
		node.Close()
		if code != c.want || strings.Count(stderr, c.stderr) != 1 || stdout != "some\n" && c.answer[0] == '{' {
			t.Errorf("%s: exit %d, want %d, %q, %q", c.name, code, c.want, stdout, stderr)
		}
	}
}

// TestSandboxes_CopyIsWhole: a copy that breaks off leaves what was there, and nothing else.
func TestSandboxes_CopyIsWhole(t *testing.T) {
	var breaks atomic.Bool
	breaks.Store(true)
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5")
		_, _ = w.Write([]byte("new"))
		_ = http.NewResponseController(w).Flush()
		if breaks.Load() {
			panic(http.ErrAbortHandler)
		}
		_, _ = w.Write([]byte("er"))
	}))
	defer node.Close()
	env := map[string]string{"BIVOUAC_ADDR": node.URL, "BIVOUAC_API_KEY": "k"}
	dir := t.TempDir()
	to, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := os.WriteFile(to, []byte("old"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("file", link); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"old", "newer"} {
		code, _, stderr := runCommand(t, env, "sandboxes", "cp", "a:/x", link)
		text, err := os.ReadFile(to)
		if string(text) != want || err != nil || (code == exitOK) == breaks.Load() {
			t.Errorf("exit %d: the file has %q, want %q, %v; %s", code, text, want, err, stderr)
		}
		found, err := os.ReadDir(dir)
		if info, statErr := os.Stat(to); len(found) != 2 || err != nil || statErr != nil || info.Mode().Perm() != 0o640 {
			t.Errorf("there are %v, %v, and the file is %v, %v", found, err, info, statErr)
		}
		breaks.Store(false)
	}
}
