package main

import (
	"archive/zip"
	"bytes"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"testing"
)

// TestDev_ConversationOfTheAgentServer: what a client reads of a conversation through the API, from a
// real agent server in a real sandbox: files, git, skills, hooks, and all events as an archive.
func TestDev_ConversationOfTheAgentServer(t *testing.T) {
	t.Parallel()
	nodes := startDev(t, t.TempDir()).all
	task := nodes[0].awaitTask(t, nodes[0].startConversation(t, "hello"))
	nodes[0].awaitSandbox(t, *task.SandboxID, "RUNNING")
	agent := "/sandboxes/" + *task.SandboxID + "/AGENT_SERVER/api"
	var info struct {
		Workspace struct {
			Dir string `json:"working_dir"`
		} `json:"workspace"`
	}
	nodes[0].do(t, http.StatusOK, http.MethodGet, agent+"/conversations/"+*task.ConversationID, nil).json(t, &info)
	dir := info.Workspace.Dir
	script := `mkdir -p .openhands/microagents; git init -q . ; git config user.email a@b; git config user.name a
echo one >a.txt; git add a.txt; git commit -qm a; echo two >a.txt
printf -- '---\nname: deploy\ntriggers: [ship]\n---\nShip it.\n' >.openhands/microagents/deploy.md
echo '{"stop":[{"matcher":"*","hooks":[{"type":"command","command":"true"}]}]}' >.openhands/hooks.json`
	nodes[0].do(t, http.StatusOK, http.MethodPost, agent+"/bash/execute_bash_command",
		fmt.Sprintf(`{"command":%q,"cwd":%q}`, script, dir))

	of := "/api/v1/app-conversations/" + *task.ConversationID
	get := func(at, want string) {
		t.Helper()
		if got := nodes[1].do(t, http.StatusOK, http.MethodGet, of+at, nil); !strings.Contains(string(got.body), want) {
			t.Errorf("%s answers %s, without %s", at, got.body, want)
		}
	}
	get("/git/changes?path="+dir, `{"status":"UPDATED","path":"a.txt"}`)
	get("/git/diff?path="+path.Join(dir, "a.txt"), `{"modified":"two\n","original":"one\n"}`)
	get("/file?file_path="+path.Join(dir, "a.txt"), `"two\n"`)
	get("/file?file_path=/nosuch", `""`)
	get("/skills", `"name":"deploy","type":"knowledge","content":"Ship it.`)
	get("/hooks",
		`{"event_type":"stop","matchers":[{"matcher":"*","hooks":[{"type":"command","command":"true",`+
			`"timeout":60,"async":false}]}]}`)

	archive := nodes[2].do(t, http.StatusOK, http.MethodGet, of+"/download", nil)
	z, err := zip.NewReader(bytes.NewReader(archive.body), int64(len(archive.body)))
	if err != nil {
		t.Fatal(err)
	}
	var count int
	nodes[0].do(t, http.StatusOK, http.MethodGet, agent+"/conversations/"+*task.ConversationID+"/events/count",
		nil).json(t, &count)
	var names []string
	for _, f := range z.File {
		names = append(names, f.Name)
	}
	if len(names) < 2 || len(names) != count+1 || names[0] != "meta.json" ||
		!strings.HasPrefix(names[1], "event_000000_") || !slices.IsSorted(names[1:]) {
		t.Errorf("%d events, and the archive has %v", count, names)
	}

	nodes[0].do(t, http.StatusOK, http.MethodPost, "/api/v1/sandboxes/"+*task.SandboxID+"/pause", nil)
	nodes[1].do(t, http.StatusConflict, http.MethodGet, of+"/git/changes?path="+dir, nil)
}
