package agentserver

import (
	"bytes"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/scheduler/agent"
)

// run executes a command and returns its exit code, stdout and stderr.
func (s *server) run(body string) (int, string, string) {
	s.t.Helper()
	started := decodeJSON[agent.BashCommand](s.t, s.want(200, "POST", "/api/bash/start_bash_command", body))
	search := "/api/bash/bash_events/search?command_id__eq=" + started.ID + "&kind__eq=BashOutput"
	s.until("the command's end", func() bool {
		p := decodeJSON[agent.Page[agent.BashOutput]](s.t, s.want(200, "GET", search+"&sort_order=TIMESTAMP_DESC", ""))
		return slices.ContainsFunc(p.Items, func(o agent.BashOutput) bool { return o.ExitCode != nil })
	})
	var stdout, stderr string
	for last := -1; ; {
		p := decodeJSON[agent.Page[agent.BashOutput]](s.t, s.want(200, "GET",
			search+"&order__gt="+strconv.Itoa(last), ""))
		if len(p.Items) == 0 {
			s.t.Fatal("the command has no end")
		}
		for _, e := range p.Items {
			last = e.Order
			if e.Stdout != nil {
				stdout += *e.Stdout
			}
			if e.Stderr != nil {
				stderr += *e.Stderr
			}
			if e.ExitCode != nil {
				return *e.ExitCode, stdout, stderr
			}
		}
	}
}

func TestBash_Commands(t *testing.T) {
	s := serveAt(t, t.TempDir(),
		inherits(config.EnvSecretKey+"=SEALCANARY", "OH_SESSION_API_KEYS_0="+testKey, "GREETING=inherited"))
	if code, out, errs := s.run(`{"command":"echo out; echo err >&2; exit 3"}`); code != 3 || out != "out\n" ||
		errs != "err\n" {
		t.Errorf("%d %q %q", code, out, errs)
	}
	if code, out, _ := s.run(`{"command":"pwd","cwd":"/tmp"}`); code != 0 || out != "/tmp\n" {
		t.Errorf("cwd: %d %q", code, out)
	}
	if code, _, _ := s.run(`{"command":"sleep 100 & sleep 100","timeout":1}`); code != -1 {
		t.Errorf("timeout: %d", code)
	}
	if _, out, _ := s.run(`{"command":"env"}`); strings.Contains(out, "CANARY") ||
		!strings.Contains(out, "GREETING=inherited") {
		t.Errorf("a command sees the server's keys, or not the rest: %s", out)
	}
	if code, out, _ := s.run(`{"command":"head -c 3000000 /dev/zero | tr '\\0' x"}`); code != 0 ||
		len(out) != 1<<20 {
		t.Errorf("long output: %d, %d bytes", code, len(out))
	}
	if code, _, _ := s.run(`{"command":"true","cwd":"/no/such/dir"}`); code != 127 {
		t.Errorf("no such directory: %d", code)
	}
	body := s.want(200, "POST", "/api/bash/execute_bash_command", `{"command":"echo hi"}`)
	if e := decodeJSON[agent.BashOutput](t, body); *e.ExitCode != 0 || *e.Stdout != "hi\n" {
		t.Errorf("execute: %s", body)
	}
}

func TestFiles(t *testing.T) {
	s := newServer(t)
	path := filepath.Join(t.TempDir(), "a", "b.txt")
	upload := func(path string) int {
		var buf bytes.Buffer
		w := multipart.NewWriter(&buf)
		part, err := w.CreateFormFile("file", "x")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := part.Write([]byte("content")); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), "POST", s.url+"/api/file/upload?path="+path, &buf)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", w.FormDataContentType())
		req.Header.Set(agent.KeyHeader, testKey)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	if status := upload(path); status != 200 {
		t.Errorf("upload: %d", status)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("uploaded: %v, %v", st, err)
	}
	if got := s.want(200, "GET", "/api/file/download?path="+path, ""); got != "content" {
		t.Errorf("download: %q", got)
	}
	if status := upload("relative"); status != 400 {
		t.Errorf("relative upload: %d", status)
	}
	if status := upload(filepath.Dir(path)); status != 400 {
		t.Errorf("upload over a directory: %d", status)
	}
	s.want(422, "POST", "/api/file/upload?path="+path, "not multipart")
	s.want(404, "GET", "/api/file/download?path=/no/such/file", "")
	s.want(400, "GET", "/api/file/download?path="+filepath.Dir(path), "")
	s.want(200, "POST", "/api/file/create_directory?path="+filepath.Dir(path)+"/new", "")
	s.want(400, "POST", "/api/file/create_directory?path="+path, "")
}

// An upload may be larger than another request's body.
func TestFiles_ALargeUpload(t *testing.T) {
	s, path := newServer(t), filepath.Join(t.TempDir(), "large")
	if status := s.uploadStatus(t, path, strings.Repeat("x", maxBody+1)); status != 200 {
		t.Errorf("status %d", status)
	}
	if st, err := os.Stat(path); err != nil || st.Size() != maxBody+1 {
		t.Errorf("it is %v, %v", st, err)
	}
}
