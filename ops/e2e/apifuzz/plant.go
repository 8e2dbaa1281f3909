package apifuzz

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// patience bounds the setup: sandboxes must start.
const patience = 90 * time.Second

// Plant creates the two users and their objects with the operator's key.
func Plant(nodes []string, operator string) (*World, error) {
	w := &World{nodes: nodes, operator: operator, of: map[string][]string{}}
	// Secrets are unique to a run, so that an earlier run's leftovers don't count.
	mark := fmt.Sprintf("%08x", rand.Uint32())
	w.of["user"], w.of["secret"] = []string{"walk-c"}, []string{"CUSTOM", "GITHUB_TOKEN"}
	w.of["owner"] = []string{"walk-a", "walk-a", "walk-a", "walk-b"}
	w.of["port"] = []string{"WORKER_1", "worker-1", "AGENT_SERVER", "VSCODE", "8000"}
	template := map[string]any{
		"driver": "process", "command": "sandbox-agent", "isolation": "none", "working_dir": "project", "cpu": 500,
		"memory": 512,
		"ports":  map[string]int{"AGENT_SERVER": 0, "WORKER_1": 0}, // a port that can be shared
	}
	// The default of `bivouac dev`, and the one that operators' requests change.
	specs := []any{map[string]any{"id": "local", "template": template}, map[string]any{"id": "walk", "template": template}}
	if err := w.call(operator, "POST", "/api/v1/operator/specs", map[string]any{"specs": specs}, nil); err != nil {
		return nil, err
	}
	for _, name := range []string{"walk-a", "walk-b", "walk-c"} {
		p := person{
			name:    name,
			secret:  "s3cret" + mark + name[5:],
			private: "pr1vate" + mark + name[5:],
			mcp:     "mcpcanary" + mark + name[5:],
		}
		var key struct{ Key string }
		if err := w.call(operator, "POST", "/api/v1/operator/keys", map[string]any{"user": name, "name": "walk"},
			&key); err != nil {
			return nil, err
		}
		p.key = key.Key
		if err := w.call(operator, "PUT", "/api/v1/operator/users/"+name,
			map[string]any{"limits": map[string]any{"running_sandboxes": 3, "total_sandboxes": 6}}, nil); err != nil {
			return nil, err
		}
		if name == "walk-c" {
			break
		}
		if err := w.furnish(&p); err != nil {
			return nil, fmt.Errorf("furnishing %s: %w", name, err)
		}
		if name == "walk-a" {
			w.a = p
			w.of["sandbox"], w.of["conversation"], w.of["task"] = []string{p.sandbox}, []string{p.conversation}, []string{p.task}
		} else {
			w.b = p
		}
	}
	var page struct{ Items []struct{ ID string } }
	if err := w.call(w.a.key, "GET", "/api/v1/sandbox-specs/search", nil, &page); err != nil {
		return nil, err
	}
	for _, one := range page.Items {
		w.of["spec"] = append(w.of["spec"], one.ID)
	}
	return w, nil
}

// endRun waits until the conversation's run has ended: nothing of it changes by itself then.
func (w *World) endRun(p *person) error {
	of := "/sandboxes/" + p.sandbox + "/AGENT_SERVER/api/conversations/" + p.conversation
	return testcluster.Await(patience, func() error {
		if err := w.call(p.key, "POST", of+"/interrupt", map[string]any{}, nil); err != nil {
			return err
		}
		var now struct {
			Status string `json:"execution_status"`
		}
		if err := w.call(p.key, "GET", of, nil, &now); err != nil || now.Status != "running" {
			return err
		}
		return errors.New("the conversation still runs")
	})
}

// furnish gives a user settings, secrets, and a conversation in a running sandbox.
func (w *World) furnish(p *person) error {
	settings := map[string]any{
		"llm_model": "m", "llm_api_key": p.secret, "search_api_key": p.secret, "sandbox_api_key": p.secret,
		"git_user_name": p.private, "email": p.private + "@example.org",
		"mcp_config": map[string]any{
			"sse_servers": []any{map[string]any{"url": "https://mcp.example.org", "api_key": p.mcp}},
		},
		"secrets_store": map[string]any{
			"provider_tokens": map[string]any{"github": map[string]any{"token": p.secret}},
			"custom_secrets":  map[string]any{"CUSTOM": map[string]any{"secret": p.secret, "description": p.private}},
		},
	}
	if err := w.call(p.key, "POST", "/api/settings", settings, nil); err != nil {
		return err
	}
	start := map[string]any{
		"title": p.private, "secrets": map[string]any{"TOKEN": p.secret},
		"observability_metadata": map[string]any{"trace": p.secret},
		"processors":             []any{map[string]any{"kind": "SetTitleCallbackProcessor", "channel": p.secret}},
		"plugins": []any{map[string]any{
			"source": "https://user:" + p.secret + "@git.example.org/p.git", "parameters": map[string]any{"endpoint": p.secret},
		}},
		"initial_message": map[string]any{"content": []any{map[string]any{"type": "text", "text": p.private}}},
	}
	var task testcluster.StartTask
	if err := w.call(p.key, "POST", "/api/v1/app-conversations", start, &task); err != nil {
		return err
	}
	p.task = task.ID
	err := testcluster.Await(patience, func() (err error) {
		task, err = w.as(p.key).Task(p.task)
		if err == nil && (task.Status != "READY" || task.SandboxID == nil || task.ConversationID == nil) {
			err = fmt.Errorf("the start is not ready: %s (%s)", task.Status, task.Text())
		}
		return err
	})
	if err != nil {
		return err
	}
	p.sandbox, p.conversation = *task.SandboxID, *task.ConversationID
	if err := w.endRun(p); err != nil {
		return err
	}
	return testcluster.Await(patience, func() error {
		sb, err := w.as(p.key).Sandbox(p.sandbox)
		if p.sandboxKey = sb.Inside().Key; err == nil && p.sandboxKey == "" {
			err = errors.New("the sandbox has no key yet")
		}
		return err
	})
}

// Secrets are the texts that must not be in any log, or in any file but the secret store's.
func (w *World) Secrets() map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := map[string]string{
		"A's secret": w.a.secret, "B's secret": w.b.secret, "A's MCP secret": w.a.mcp, "B's MCP secret": w.b.mcp,
		"A's key": w.a.key, "B's key": w.b.key, "the operator's key": w.operator, "the key of A's sandbox": w.a.sandboxKey,
		"the key of B's sandbox": w.b.sandboxKey,
	}
	for i, key := range w.issued {
		all[fmt.Sprintf("the key or token %d that was issued", i+1)] = key
	}
	return all
}
