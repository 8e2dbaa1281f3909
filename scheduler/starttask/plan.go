package starttask

import (
	"errors"
	"path"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent"
)

// planFile is the plan's place below the project's directory, where clients look for it.
const planFile = ".agents_tmp/PLAN.md"

// planTools are the names of a planning agent's tools: they change nothing but the plan, and there are
// no MCP servers beside them, whose tools may change anything. They are upstream's, which takes the
// plan's place as a parameter.
func planTools(plan string) []agent.Tool {
	return []agent.Tool{
		{Name: "glob"}, {Name: "grep"},
		{Name: "planning_file_editor", Params: map[string]any{"plan_path": plan}},
	}
}

// planning makes the agent of a request one that plans and changes nothing else, if the task asks for
// that.
func (in *inputs) planning(req *agent.CreateRequest) error {
	if in.task.Request.AgentType != fsm.AgentTypePlan {
		return nil
	}
	if in.agent != nil {
		return errors.New("the agent " + in.agent.ID + " makes no plans: nothing would keep it from changing files. " +
			"Choose agent_kind openhands, or ask for a plan in initial_message")
	}
	s, plan := &req.AgentSettings, path.Join(in.workingDir(), planFile)
	s.Tools, s.MCPConfig = planTools(plan), nil
	if s.AgentContext == nil {
		s.AgentContext = &agent.AgentContext{}
	}
	if own := s.AgentContext.SystemMessageSuffix; own != "" {
		s.AgentContext.SystemMessageSuffix = planPrompt(plan) + "\n\n" + own
	} else {
		s.AgentContext.SystemMessageSuffix = planPrompt(plan)
	}
	return nil
}

// planPrompt is what a planning agent is told after the system prompt.
func planPrompt(plan string) string {
	return `<PLANNING>
In this conversation you plan, and somebody else does the work afterwards. Change no file but the plan, ` +
		plan + ` ; you have no terminal, and nothing above that asks you to change, build or run something applies. ` +
		`Look into the code with your tools until you know what is to be done. Ask the user what the code can't answer ` +
		`and the plan depends on.
Write the plan with planning_file_editor, in Markdown, with these sections: 1. OBJECTIVE, 2. CONTEXT SUMMARY, ` +
		`3. APPROACH OVERVIEW, 4. IMPLEMENTATION STEPS (each with its goal, its method and the files it touches), ` +
		`5. TESTING AND VALIDATION. If there is a plan already, change it. When it is complete, say so in a sentence or two.
</PLANNING>`
}
