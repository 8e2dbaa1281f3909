package agentserver

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
)

// TestWorkspacePath: a client that names a container's paths reaches the workspace of a server without a
// container, and no directory of the machine.
func TestWorkspacePath(t *testing.T) {
	home := t.TempDir()
	s := serveAt(t, filepath.Join(home, "conversations"), func(c *config.Config) {
		c.Environ = append(os.Environ(), "HOME="+home)
	})
	if err := os.MkdirAll(filepath.Join(home, "project"), 0o755); err != nil {
		t.Fatal(err)
	}
	git := exec.Command("git", "init", "-q", filepath.Join(home, "project"))
	if out, err := git.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s.want(200, "POST", "/api/file/create_directory?path=/workspace/project/docs", "")
	if err := os.WriteFile(filepath.Join(home, "project/docs/a.md"), []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/api/file/download?path=/workspace/project/docs/a.md": "text",
		"/api/file/download//workspace/project/docs/a.md":      "text",
		"/api/file/search_subdirs?path=/workspace/project":     `"name":"docs"`,
		"/api/git/changes?path=/workspace/project":             "docs/a.md",
	} {
		if got := s.want(http.StatusOK, "GET", path, ""); !strings.Contains(got, want) {
			t.Errorf("%s: %s", path, got)
		}
	}
	got := s.want(200, "POST", "/api/bash/execute_bash_command", `{"command":"pwd","cwd":"/workspace/project"}`)
	if !strings.Contains(got, filepath.Join(home, "project")) {
		t.Errorf("the command ran elsewhere: %s", got)
	}
	s.want(404, "GET", "/api/file/download?path=/workspaces/project/docs/a.md", "")
	// A server in a container takes paths as they are, and so does one with another home.
	for _, dir := range []string{"/workspace/conversations", home + "/elsewhere/conversations"} {
		c := config.Config{ConversationsPath: dir, Environ: []string{"HOME=/workspace"}}
		if got := c.InWorkspace("/workspace/project"); got != "/workspace/project" {
			t.Errorf("in %s it is %s", dir, got)
		}
	}
}
