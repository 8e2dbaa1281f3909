package agentserver

import (
	"bytes"
	"fmt"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/scheduler/agent"
)

// toolsUID is nobody's.
const toolsUID = 65534

// serveSplit serves as root with another user for the tools, in a workspace that user may reach.
func serveSplit(t *testing.T) (*server, string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root runs commands as another user")
	}
	dir, err := os.MkdirTemp("", "bivouac-tools-") // the test's own directory is closed to others
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	workspace := filepath.Join(dir, "workspace")
	// What an earlier server of the tools' user left.
	old := filepath.Join(workspace, "conversations", ".new-"+convID)
	if err := os.MkdirAll(old, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{workspace, filepath.Dir(old), old} {
		if err := os.Chown(path, toolsUID, toolsUID); err != nil {
			t.Fatal(err)
		}
	}
	return serveAt(t, filepath.Join(workspace, "conversations"), func(c *config.Config) {
		c.BashEventsDir, c.Tools = filepath.Join(workspace, "bash_events"), &syscall.Credential{Uid: toolsUID, Gid: toolsUID}
	}), workspace
}

func ownerOf(t *testing.T, path string) (uid uint32, mode os.FileMode) {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Uid, info.Mode().Perm() //nolint:forcetypeassert // as on every Linux
}

// shellOf runs a command through the API and returns what it printed.
func (s *server) shellOf(command string) string {
	s.t.Helper()
	out := decodeJSON[agent.BashOutput](s.t,
		s.want(200, "POST", "/api/bash/execute_bash_command", `{"command":`+strconv.Quote(command)+`}`))
	var text string
	for _, part := range []*string{out.Stdout, out.Stderr} {
		if part != nil {
			text += *part
		}
	}
	return text
}

// Commands, uploads and new directories are the tools' user's; the conversations are the server's,
// also those that the user made before.
func TestToolsUser_OwnsTheWorkspaceAndNothingElse(t *testing.T) {
	t.Parallel()
	s, workspace := serveSplit(t)
	project := filepath.Join(workspace, "project")
	s.createIn(t, project)
	for path, want := range map[string]uint32{
		workspace: 0, filepath.Join(workspace, "conversations"): 0, filepath.Join(workspace, "bash_events"): 0,
		filepath.Join(workspace, "conversations", convID, "meta.json"): 0,
	} {
		if uid, _ := ownerOf(t, path); uid != want {
			t.Errorf("%s is of user %d", path, uid)
		}
	}
	s.want(200, "POST", "/api/file/create_directory?path="+url.QueryEscape(project), "")
	s.upload(t, filepath.Join(project, "sub", "up.txt"), "uploaded")
	if got := s.shellOf(
		"id -u; cd " + project + " && cat sub/up.txt && echo more >> sub/up.txt && echo made > made.txt && id -un",
	); !strings.HasPrefix(got, "65534\nuploaded") {
		t.Errorf("a command prints %q", got)
	}
	for _, name := range []string{"", "sub", "sub/up.txt", "made.txt"} {
		if uid, _ := ownerOf(t, filepath.Join(project, name)); uid != toolsUID {
			t.Errorf("%s is of user %d", filepath.Join(project, name), uid)
		}
	}
	s.upload(t, filepath.Join(project, "made.txt"), "again")
	if got := s.want(200, "GET", "/api/file/download?path="+url.QueryEscape(filepath.Join(project, "made.txt")),
		""); got != "again" {
		t.Errorf("downloaded %q", got)
	}
	// A command's file that only its user may read is read as that user.
	s.shellOf(
		"umask 077; echo secret > " + project + "/closed.txt; git init -q " + project +
			"/repo; echo x > " + project + "/repo/x",
	)
	if got := s.want(200, "GET", "/api/file/download?path="+url.QueryEscape(project+"/closed.txt"),
		""); got != "secret\n" {
		t.Errorf("downloaded %q", got)
	}
	if got := s.want(200, "GET", "/api/git/changes?path="+url.QueryEscape(project+"/repo"),
		""); !strings.Contains(got, `"x"`) {
		t.Errorf("git changes are %s", got)
	}
}

// What the tools' user does reaches neither the server's files nor the server.
func TestToolsUser_ReachesNothingOfTheServer(t *testing.T) {
	t.Parallel()
	s, workspace := serveSplit(t)
	s.createIn(t, filepath.Join(workspace, "project"))
	own := filepath.Join(workspace, "conversations")
	server := "/proc/" + strconv.Itoa(os.Getpid())
	for _, command := range []string{
		"cat " + own + "/" + convID + "/" + "meta.json", "ls " + own + "/" + convID, "mv " + own + " " + own + "2",
		"rm -r " + workspace + "/bash_events",
		"cat " + server + "/environ", "head -c 1 " + server + "/mem", "ls " + server + "/fd",
		"kill -0 " + strconv.Itoa(os.Getpid()),
	} {
		if got := s.shellOf(command + " >/dev/null && echo done"); strings.Contains(got, "done") ||
			!strings.Contains(got, "ermission denied") && !strings.Contains(got, "not permitted") {
			t.Errorf("%s: %q", command, got)
		}
	}
	// Nor through a link that the server follows for a client.
	link := filepath.Join(workspace, "link")
	for _, to := range []string{
		server + "/environ",
		"/proc/self/environ",
		"/proc/thread-self/environ",
		filepath.Join(own, convID, "meta.json"),
		"/etc/shadow",
	} {
		s.shellOf("ln -sfn " + to + " " + link)
		if status, got := s.send("GET", "/api/file/download?path="+url.QueryEscape(link),
			""); status != http.StatusForbidden {
			t.Errorf("a link to %s: %d %.80s", to, status, got)
		}
	}
	s.shellOf("ln -sfn " + own + "/" + convID + " " + link)
	if status := s.uploadStatus(t, filepath.Join(link, "meta.json"), "{}"); status == http.StatusOK {
		t.Error("an upload through a link replaced the conversation")
	}
	if uid, mode := ownerOf(t, filepath.Join(own, convID, "meta.json")); uid != 0 || mode&0o077 != 0 {
		t.Errorf("the conversation is user %d's, with mode %o", uid, mode)
	}
}

func (s *server) createIn(t *testing.T, dir string) {
	t.Helper()
	s.want(201, "POST", "/api/conversations",
		fmt.Sprintf(`{"conversation_id":%q,"workspace":{"kind":"LocalWorkspace","working_dir":%q},`+
			`"agent_settings":{"agent_kind":"openhands","llm":{"model":"m","api_key":"k"}}}`, convUID, dir))
}

func (s *server) upload(t *testing.T, path, text string) {
	t.Helper()
	if status := s.uploadStatus(t, path, text); status != http.StatusOK {
		t.Errorf("upload to %s: %d", path, status)
	}
}

func (s *server) uploadStatus(t *testing.T, path, text string) int {
	t.Helper()
	var body bytes.Buffer
	m := multipart.NewWriter(&body)
	f, _ := m.CreateFormFile("file", "x")
	_, _ = f.Write([]byte(text))
	_ = m.Close()
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost,
		s.url+"/api/file/upload?path="+url.QueryEscape(path), &body)
	req.Header.Set(agent.KeyHeader, testKey)
	req.Header.Set("Content-Type", m.FormDataContentType())
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}
