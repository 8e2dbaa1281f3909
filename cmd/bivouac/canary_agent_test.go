package main

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local/ownprocess"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/llmtoken"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// loot is a command by which an agent takes what it finds: every environment and command line of the
// machine, and all that is in its home and its workspace. It prints its own environment.
//
//nolint:lll // lines of shell
const loot = `cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' '\n' >loot-%[1]s.txt; env >>loot-%[1]s.txt
find ~ .. -type f -not -name 'loot-*' -size -1000k -exec cat {} + 2>/dev/null >loot-%[1]s-files.bin; env; touch looted-%[1]s`

// laterEnv prints the environment while its caller reads already.
const laterEnv = "for i in 1 2 3; do sleep 1; env; done; sleep 1"

// robbed is a sandbox whose agents look for keys.
type robbed struct {
	*canaries
	r       *running
	sandbox sandboxInfo
	home    string
	// token is the gateway's for the conversation.
	conversation, token string
}

// codexPath returns a PATH with Codex on it for sandboxes, and false where Codex is not installed.
func codexPath(t *testing.T) (string, bool) {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "bivouac/agents/tested/node_modules/@zed-industries/codex-acp-linux-x64/bin")
	if _, err := os.Stat(filepath.Join(dir, "codex-acp")); err != nil {
		if slices.Contains(strings.Split(os.Getenv("BIVOUAC_TEST_REQUIRE"), ","), "agents") {
			t.Fatalf("codex-acp is not installed, and BIVOUAC_TEST_REQUIRE names agents")
		}
		return os.Getenv("PATH"), false
	}
	return dir + ":" + os.Getenv("PATH"), true
}

// TestCanary_AnAgentFindsNoKey: an agent that looks everywhere finds neither its owner's model key, nor
// the gateway's token, nor the key of its sandbox.
func TestCanary_AnAgentFindsNoKey(t *testing.T) {
	path, codex := codexPath(t)
	if !ownprocess.Enter(t, "PATH="+path) {
		return
	}
	dir := t.TempDir()
	c := &robbed{canaries: &canaries{}, r: startDev(t, dir), home: filepath.Join(dir, "sandboxes")}
	modelKey := "sk-" + rand.Text()
	c.issued(t, "the model's key", modelKey)
	model := modeltest.New(t, &modeltest.Script{Key: modelKey, Stories: []*modeltest.Story{
		{When: modeltest.When{User: "look for keys", Tool: "terminal"}, Answers: []modeltest.Answer{
			modeltest.Calls(modeltest.Tool("terminal",
				map[string]any{"command": fmt.Sprintf(loot, "native")})), modeltest.Text("Looked.")}},
		{When: modeltest.When{User: "look for keys", Tool: "exec_command"}, Answers: []modeltest.Answer{
			// Codex loses what a command prints in its first moment.
			modeltest.Calls(modeltest.Tool("exec_command",
				map[string]any{"cmd": fmt.Sprintf(loot, "acp"), "yield_time_ms": 30000})),
			modeltest.Calls(modeltest.Tool("exec_command", map[string]any{"cmd": laterEnv, "yield_time_ms": 30000})),
			modeltest.Calls(modeltest.Tool("exec_command", map[string]any{"cmd": laterEnv, "yield_time_ms": 30000})),
			modeltest.Text("Looked.")}},
		{Answers: []modeltest.Answer{modeltest.Text("Keys")}},
	}})
	user := c.r.all[1]
	user.do(t, http.StatusOK, http.MethodPost, "/api/settings", map[string]any{
		"llm_model": "openai/scripted", "llm_base_url": model.BaseURL(), "llm_api_key": modelKey})
	c.start(t, user)
	c.check(t, c.conversation, "native")
	if codex {
		c.check(t, c.copied(t), "acp")
	} else {
		t.Log("codex-acp is not installed (make agents): the built-in agent alone was tried")
	}
	if files := c.search(t, c.home); files < 5 {
		t.Errorf("only %d files were searched", files)
	}
	if os.Getuid() == 0 { // the agent server's own user can't, nor root in a container
		c.remembers(t, modelKey)
	}
	for _, r := range model.Requests() {
		if r.Key != modelKey {
			t.Errorf("the endpoint was asked with the key %q", r.Key)
		}
	}
}

// start starts the conversation and learns the keys of its sandbox.
func (c *robbed) start(t *testing.T, user caller) {
	t.Helper()
	var task startTaskInfo
	user.do(t, http.StatusOK, http.MethodPost, "/api/v1/app-conversations", map[string]any{
		"initial_message": map[string]any{
			"content": []any{map[string]any{"type": "text", "text": "look for keys"}},
		}}).json(t, &task)
	task = user.awaitTask(t, task.ID)
	c.conversation = *task.ConversationID
	c.sandbox = user.awaitSandbox(t, *task.SandboxID, "RUNNING")
	key := *c.sandbox.SessionAPIKey
	c.issued(t, "the sandbox's key", key)
	row := c.r.nodes[0].app.store.View().SandboxAny(c.sandbox.ID)
	entry, err := c.r.sealed.Read(t.Context(), row.KeyRef.Path, row.KeyRef.Version, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	c.issued(t, "the key that seals", entry[fsm.MemberSecretKey])
	c.token = llmtoken.New(key, row, c.conversation)
	c.issued(t, "the gateway's token", c.token[strings.LastIndexByte(c.token, '.')+1:])
}

// agent is the sandbox's agent server.
func (c *robbed) agent() caller {
	return caller{base: c.sandbox.agentURL(), key: *c.sandbox.SessionAPIKey}
}

// copied starts a conversation of Codex that has its access to models from the first one.
func (c *robbed) copied(t *testing.T) string {
	t.Helper()
	id := strings.Repeat("ac", 16)
	c.agent().do(t, http.StatusCreated, http.MethodPost, "/api/conversations", map[string]any{
		"conversation_id": id, "workspace": map[string]any{
			"working_dir": filepath.Join(c.home, c.sandbox.ID, "workspace", "project"),
		},
		"agent_settings": map[string]any{"agent_kind": "acp", "acp_server": "codex", "llm": map[string]any{
			"model": "openai/scripted", "base_url": c.r.all[2].base + "/llm/v1", "api_key": c.token}},
		"initial_message": map[string]any{"content": "look for keys"},
	})
	return id
}

// remembers looks for the model's key in the memory of the sandbox's processes, where the sandbox's own
// key is found.
func (c *robbed) remembers(t *testing.T, modelKey string) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	looked := 0
	for _, dir := range dirs {
		cmdline, _ := os.ReadFile(dir + "/cmdline") // it may have ended
		if cwd, err := os.Readlink(dir + "/cwd"); err != nil || !strings.HasPrefix(cwd, c.home) ||
			!bytes.Contains(cmdline, []byte(sandboxAgentName)) {
			continue
		}
		found := inMemory(t, dir, modelKey, *c.sandbox.SessionAPIKey)
		if found[modelKey] {
			t.Errorf("the memory of %q has the model's key", cmdline)
		}
		if found[*c.sandbox.SessionAPIKey] {
			looked++
		}
	}
	if looked != 1 {
		t.Errorf("%d agent servers were looked at", looked)
	}
}

// inMemory returns which of the texts are in what a process may write of its memory, without regions
// above 64 MiB.
func inMemory(t *testing.T, dir string, texts ...string) map[string]bool {
	t.Helper()
	maps, err := os.ReadFile(dir + "/maps")
	if err != nil {
		t.Fatal(err)
	}
	mem, err := os.Open(dir + "/mem")
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	found := map[string]bool{}
	const part, overlap = 1 << 20, 256
	b := make([]byte, part+overlap)
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		var mode string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); err != nil || !strings.HasPrefix(mode, "rw") ||
			to-from > 64<<20 {
			continue
		}
		for ; from < to; from += part {
			n, _ := mem.ReadAt(b[:min(part+overlap, to-from)], from) // a region may be gone
			for _, text := range texts {
				found[text] = found[text] || bytes.Contains(b[:n], []byte(text))
			}
		}
	}
	return found
}

// check waits for the end of a conversation and looks at all that its agent found and said.
func (c *robbed) check(t *testing.T, id, engine string) {
	t.Helper()
	var got struct {
		Status string `json:"execution_status"`
	}
	path := "/api/conversations/" + id
	eventually(t, engine+" has looked", func() error {
		c.agent().do(t, http.StatusOK, http.MethodGet, path, nil).json(t, &got)
		if got.Status == "error" {
			t.Fatalf("%s failed: %s", engine,
				c.agent().do(t, http.StatusOK, http.MethodGet, path+"/events/search?limit=100", nil))
		}
		if got.Status != "finished" {
			return fmt.Errorf("it is %s", got.Status)
		}
		return nil
	})
	events := c.agent().do(t, http.StatusOK, http.MethodGet, path+"/events/search?limit=100", nil)
	if !bytes.Contains(events.body, []byte("PATH=")) {
		t.Errorf("%s printed no environment: %s", engine, events.body)
	}
	for _, what := range c.leaks(events.body) {
		t.Errorf("the events of %s show %s", engine, what)
	}
	for _, name := range []string{"loot-%s.txt", "loot-%s-files.bin"} {
		files, err := filepath.Glob(filepath.Join(c.home, "*", "workspace", "project", fmt.Sprintf(name, engine)))
		if err != nil || len(files) != 1 {
			t.Fatalf("%s took %v, %v", engine, files, err)
		}
		b, err := os.ReadFile(files[0])
		if err != nil || len(b) == 0 {
			t.Fatalf("%s took nothing: %v", engine, err)
		}
		for _, what := range c.leaks(b) {
			t.Errorf("%s found %s (%s)", engine, what, files[0])
		}
	}
}
