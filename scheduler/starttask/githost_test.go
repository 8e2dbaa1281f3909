package starttask

import (
	"io"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// GitToken is what GitHost asks for.
const GitToken = "TOKEN/CANARY@1"

// GitHost serves the repository octo/app over HTTP, with authentication, from git's own backend.
// files are its files by path.
func GitHost(t *testing.T, files map[string]string) string {
	t.Helper()
	url, _ := GitHostToChange(t, files)
	return url
}

// GitHostToChange is GitHost with a function that commits the content of a file.
func GitHostToChange(t *testing.T, files map[string]string) (url string, change func(path, content string)) {
	t.Helper()
	backend := "/usr/lib/git-core/git-http-backend"
	if _, err := os.Stat(backend); err != nil {
		t.Skip("git's HTTP backend is not installed")
	}
	root := t.TempDir()
	for path, content := range files {
		path = filepath.Join(root, "octo/app.git", path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c",
		`set -e; export HOME=$PWD; git config --global user.name x; git config --global user.email x@y
git init -q -b main octo/app.git; cd octo/app.git; git add .; git commit -qm one; git config http.receivepack true`)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	host := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if user, pass, _ := r.BasicAuth(); user != "x-access-token" || pass != GitToken {
			rw.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			rw.WriteHeader(http.StatusUnauthorized)
			return
		}
		(&cgi.Handler{Path: backend, Stderr: io.Discard, Env: []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1",
			"HOME=" + root,
			"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"}}).ServeHTTP(rw, r)
	}))
	t.Cleanup(host.Close)
	return host.URL, func(path, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(root, "octo/app.git", path), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "sh", "-c", `export HOME=$PWD; cd octo/app.git; git commit -qam more`)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
}

// NoCanary fails for each file below dir that holds the token.
func NoCanary(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(p)
		if strings.Contains(string(b), "CANARY") {
			t.Errorf("%s holds the token", p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
