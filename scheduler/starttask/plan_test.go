package starttask

import (
	"encoding/json"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
)

// TestStartTask_Plan: a planning agent has the tools that change nothing but the plan, and is told so
// before what the request adds.
func TestStartTask_Plan(t *testing.T) {
	w := newTaskWorld(t)
	w.everything()
	task := w.task("1", func(b *fsm.StartTaskCreateBody) {
		w.requestSecrets(b)
		b.Request.AgentType, b.Request.SystemMessageSuffix = fsm.AgentTypePlan, ptr("be brief")
	})
	w.run(nil)
	if got := w.done(task.ID); got.Status != fsm.StartTaskReady {
		t.Fatalf("task %+v", got)
	}
	var got struct {
		Workspace struct {
			WorkingDir string `json:"working_dir"`
		}
		Settings struct {
			Kind    string `json:"agent_kind"`
			Tools   json.RawMessage
			MCP     json.RawMessage `json:"mcp_config"`
			Context struct {
				Suffix string `json:"system_message_suffix"`
			} `json:"agent_context"`
		} `json:"agent_settings"`
	}
	if err := json.Unmarshal([]byte(w.agents.bodies[0]), &got); err != nil {
		t.Fatal(err)
	}
	plan := got.Workspace.WorkingDir + "/.agents_tmp/PLAN.md"
	want := `[{"name":"glob"},{"name":"grep"},{"name":"planning_file_editor","params":{"plan_path":"` + plan + `"}}]`
	if string(got.Settings.Tools) != want || got.Settings.Kind != fsm.AgentOpenHands {
		t.Errorf("the agent is %+v", got.Settings)
	}
	if got.Settings.MCP != nil {
		t.Errorf("the agent has the MCP servers %s", got.Settings.MCP)
	}
	prompt, own, _ := strings.Cut(got.Settings.Context.Suffix, "</PLANNING>")
	if !strings.Contains(prompt, plan) || strings.TrimSpace(own) != "be brief" {
		t.Errorf("the suffix is %q", got.Settings.Context.Suffix)
	}
}

// TestStartTask_PlanOfAnotherAgent: nothing would keep it from changing files.
func TestStartTask_PlanOfAnotherAgent(t *testing.T) {
	w := newTaskWorld(t)
	w.withAgents(false, fsm.Agent{ID: "opencode"})
	task := w.task("1", func(b *fsm.StartTaskCreateBody) {
		b.Request.AgentType, b.Request.ACPServer = fsm.AgentTypePlan, ptr("opencode")
	})
	w.run(nil)
	if got := w.done(task.ID); got.Status != fsm.StartTaskError || !strings.Contains(got.Detail, "makes no plans") {
		t.Errorf("task %s %q", got.Status, got.Detail)
	}
}
