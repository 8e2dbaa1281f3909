package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

const agentModelKey = "sk-canary-of-the-agents"

// agentScript lets each agent write a file with its own tool.
func agentScript() *modeltest.Script {
	return &modeltest.Script{Key: agentModelKey, Stories: []*modeltest.Story{
		{When: modeltest.When{User: "make the file", Tool: "write"}, Answers: []modeltest.Answer{
			modeltest.Calls(modeltest.Tool("write",
				map[string]any{"filePath": "by-opencode.txt", "content": "hello\n"})), modeltest.Text("Done.")}},
		{When: modeltest.When{User: "make the file", Tool: "exec_command"}, Answers: []modeltest.Answer{
			modeltest.Calls(modeltest.Tool("exec_command",
				map[string]any{"cmd": "echo hello > by-codex.txt"})), modeltest.Text("Done.")}},
		{Answers: []modeltest.Answer{modeltest.Text("A title")}},
	}}
}

// installedAgent returns the path of a program that `make agents` installs.
func installedAgent(t *testing.T, program string) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	program = filepath.Join(cache, "bivouac/agents/tested/node_modules", program)
	if _, err := os.Stat(program); err != nil {
		if slices.Contains(strings.Split(os.Getenv("BIVOUAC_TEST_REQUIRE"), ","), "agents") {
			t.Fatalf("%s is not installed, and BIVOUAC_TEST_REQUIRE names agents", program)
		}
		t.Skipf("%s is not installed: make agents", program)
	}
	return program
}

// TestDev_AgentsOfASpec: a user chooses OpenCode in the settings and Codex with a start, and each
// writes a file. One that is not installed ends its start with what is missing. The model's key is in
// no file.
func TestDev_AgentsOfASpec(t *testing.T) {
	t.Parallel()
	agents := []any{
		map[string]any{"id": "opencode", "command": installedAgent(t, "opencode-linux-x64/bin/opencode")},
		map[string]any{"id": "codex", "command": installedAgent(t, "@zed-industries/codex-acp-linux-x64/bin/codex-acp")},
		map[string]any{"id": "absent", "command": "/nowhere/agent"},
	}
	model, dir := modeltest.New(t, agentScript()), t.TempDir()
	r := startDev(t, dir)
	c := r.all[1]
	if config := string(c.do(t, http.StatusOK, http.MethodGet, "/api/v1/web-client/config",
		nil).body); !strings.Contains(config, `"key":"qwen-code"`) {
		t.Errorf("the shipped spec has no agents: %s", config)
	}
	c.do(t, http.StatusOK, http.MethodPost, "/api/v1/operator/specs",
		map[string]any{"specs": []any{map[string]any{"id": "local", "agents": agents,
			"template": map[string]any{"driver": "process", "isolation": "none", "command": "sandbox-agent",
				"working_dir": "project",
				"cpu":         500, "memory": 512, "ports": map[string]int{"AGENT_SERVER": 0}}}}})
	c.do(t, http.StatusOK, http.MethodPost, "/api/settings", map[string]any{
		"llm_model": "openai/scripted", "llm_api_key": agentModelKey, "llm_base_url": model.BaseURL(),
		"acp_server": "opencode"})

	for agent, start := range map[string]map[string]any{"opencode": {}, "codex": {"acp_server": "codex"}} {
		t.Run(agent, func(t *testing.T) {
			start["initial_message"] = map[string]any{
				"content": []any{map[string]any{"type": "text", "text": "Please make the file."}},
			}
			task := c.awaitStart(t, start)
			if task.Status != "READY" {
				t.Fatalf("the start of %s is %s: %s", agent, task.Status, task.Detail)
			}
			var made []string
			eventually(t, agent+" wrote its file", func() error {
				if made = filesOf(t, dir, "by-"+agent+".txt"); len(made) != 1 {
					return fmt.Errorf("%d files; the model has %d requests", len(made), len(model.Requests()))
				}
				return nil
			})
			eventually(t, agent+" is done", func() error {
				var rows []struct {
					Status string `json:"execution_status"`
					Kind   string `json:"agent_kind"`
					Server string `json:"acp_server"`
				}
				c.do(t, http.StatusOK, http.MethodGet, "/api/v1/app-conversations?ids="+task.Conversation, nil).json(t, &rows)
				if rows[0].Kind != "acp" || rows[0].Server != agent {
					t.Fatalf("the conversation is %+v", rows[0])
				}
				if rows[0].Status != "finished" {
					return errors.New(rows[0].Status)
				}
				return nil
			})
			if text, err := os.ReadFile(made[0]); string(text) != "hello\n" {
				t.Errorf("%s has %q, %v", made[0], text, err)
			}
		})
	}
	task := c.awaitStart(t, map[string]any{"acp_server": "absent"})
	if task.Status != "ERROR" || !strings.Contains(task.Detail,
		`it has no program "/nowhere/agent". Install it in what the sandbox spec local runs`) {
		t.Errorf("the start of an agent that is not there is %s: %s", task.Status, task.Detail)
	}
	if found := filesOf(t, dir, ""); len(found) > 0 {
		t.Errorf("the model's key is in %v", found)
	}
}

// startedTask is a start task at its end.
type startedTask struct {
	ID           string `json:"id"`
	Status       string `json:"status"`
	Detail       string `json:"detail"`
	Conversation string `json:"app_conversation_id"`
}

// awaitStart starts a conversation and waits until its task has ended.
func (c caller) awaitStart(t *testing.T, start map[string]any) startedTask {
	t.Helper()
	var task startedTask
	c.do(t, http.StatusOK, http.MethodPost, "/api/v1/app-conversations", start).json(t, &task)
	eventually(t, "the start ends", func() error {
		var tasks []startedTask
		c.do(t, http.StatusOK, http.MethodGet, "/api/v1/app-conversations/start-tasks?ids="+task.ID, nil).json(t, &tasks)
		if task = tasks[0]; task.Status != "READY" && task.Status != "ERROR" {
			return errors.New(task.Status + " " + task.Detail)
		}
		return nil
	})
	return task
}

// filesOf returns the files below dir with a name; "" are those with the model's key in them.
func filesOf(t *testing.T, dir, name string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // agents remove their files meanwhile
		}
		if name != "" {
			if d.Name() == name {
				found = append(found, path)
			}
			return nil
		}
		if text, err := os.ReadFile(path); err == nil && bytes.Contains(text, []byte(agentModelKey)) {
			found = append(found, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
