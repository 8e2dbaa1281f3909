package agentserver

import (
	"archive/zip"
	"bytes"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/files"
	"bivouac.dev/bivouac/scheduler/agent"
)

// The older form of requests has the path in the URL, with two slashes.
func TestFiles_PathInTheURL(t *testing.T) {
	s, dir := newServer(t), t.TempDir()
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	path := filepath.Join(dir, "a b", "x.txt")
	for i, form := range []string{
		"/" + url.PathEscape(path),
		"/" + (&url.URL{Path: path}).EscapedPath(),
		(&url.URL{Path: path}).EscapedPath(),
	} {
		var body bytes.Buffer
		m := multipart.NewWriter(&body)
		f, _ := m.CreateFormFile("file", "x")
		_, _ = f.Write([]byte(strings.Repeat("x", i+1)))
		_ = m.Close()
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/api/file/upload"+form, &body)
		req.Header.Set(agent.KeyHeader, testKey)
		req.Header.Set("Content-Type", m.FormDataContentType())
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if got, _ := os.ReadFile(path); resp.StatusCode != 200 || len(got) != i+1 {
			t.Errorf("%s: %d, %q", form, resp.StatusCode, got)
		}
		if text := s.want(200, "GET", "/api/file/download"+form, ""); len(text) != i+1 {
			t.Errorf("%s: %q", form, text)
		}
	}
	if text := s.want(200, "GET", "/api/git/changes/"+dir, ""); text != "[]" {
		t.Error(text)
	}
	if text := s.want(200, "GET", "/api/git/diff/"+path, ""); text != `{"modified":null,"original":null}` {
		t.Error(text)
	}
	if status, _ := call(t, "GET", s.url+"/api/file/download/"+path, "", ""); status != 401 {
		t.Errorf("status %d without a key", status)
	}
}

func TestFiles_HomeAndSubdirectories(t *testing.T) {
	dir := t.TempDir()
	s := serveAt(t, t.TempDir(), inherits("HOME="+dir))
	for _, name := range []string{"b", "A", "c", ".hidden"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	_ = os.WriteFile(filepath.Join(dir, "file"), nil, 0o600)
	_ = os.Symlink("/", filepath.Join(dir, "link"))
	home := s.want(200, "GET", "/api/file/home", "")
	if want := `{"favorites":[{"label":"A","path":"` + dir + `/A"},`; !strings.HasPrefix(home, want) ||
		strings.Contains(home, "hidden") {
		t.Error(home)
	}
	if !strings.Contains(s.want(200, "GET", "/api/file/home?include_hidden=true", ""), ".hidden") {
		t.Error("the hidden directory is missing")
	}
	var got []string
	for token := ""; ; {
		page := decodeJSON[agent.Page[files.Subdirectory]](t,
			s.query(200, "/api/file/search_subdirs", "path", dir, "limit", "2", "page_id", token))
		for _, d := range page.Items {
			got = append(got, d.Name)
		}
		if page.NextPageID == nil {
			break
		}
		token = *page.NextPageID
	}
	if strings.Join(got, " ") != "A b c" {
		t.Errorf("%q", got)
	}
	s.query(404, "/api/file/search_subdirs", "path", dir+"/nothing")
	s.query(400, "/api/file/search_subdirs", "path", dir+"/file")
	s.query(400, "/api/file/search_subdirs", "path", "relative")
	s.query(422, "/api/file/search_subdirs", "path", dir, "limit", "0")
}

func TestTrajectory_HasEveryEventAndNoSecret(t *testing.T) {
	s := newServer(t)
	s.want(201, "POST", "/api/conversations", createBody(t, convUID))
	text := s.want(200, "GET", "/api/file/download-trajectory/"+convUID, "")
	z, err := zip.NewReader(strings.NewReader(text), int64(len(text)))
	if err != nil {
		t.Fatal(err)
	}
	page := decodeJSON[struct{ Items []eventSeen }](t,
		s.want(200, "GET", "/api/conversations/"+convID+"/events/search", ""))
	if len(z.File) < 2 || z.File[0].Name != convID+"/meta.json" ||
		!strings.HasSuffix(z.File[1].Name, "event-00000-"+page.Items[0].ID+".json") {
		t.Fatalf("%d files", len(z.File))
	}
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(r)
		if strings.Contains(string(b), "CANARY") {
			t.Errorf("%s has a secret", f.Name)
		}
	}
	s.want(404, "GET", "/api/file/download-trajectory/"+strings.Repeat("0", 32), "")
}
