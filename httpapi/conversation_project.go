package httpapi

import (
	"context"
	"encoding/json"
	"net/http"

	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// skillBody is one skill of a conversation's project.
type skillBody struct {
	Name string `json:"name"`
	// Type is repo, knowledge or agentskills.
	Type     string   `json:"type"`
	Content  string   `json:"content"`
	Triggers []string `json:"triggers"`
}

// skillsBody is the response of GET …/skills.
type skillsBody struct {
	Skills []skillBody `json:"skills"`
}

// handleSkills handles GET …/{conversation_id}/skills: none while the sandbox does not run.
func (s *Server) handleSkills(c *call) (response.Response, error) {
	a, err := c.agentOfPath()
	if err != nil {
		return response.Response{}, err
	}
	found := skillsBody{Skills: []skillBody{}}
	if !a.serves() {
		return response.OK(found)
	}
	err = a.callForProject(c.Ctx(), "/api/skills",
		map[string]any{"load_public": false, "load_user": true, "load_project": true, "load_org": false}, &found)
	if err != nil {
		return response.Response{}, errOfAgent(err)
	}
	found.Skills = wire.OrEmpty(found.Skills)
	for i := range found.Skills {
		one := &found.Skills[i]
		one.Triggers = wire.OrEmpty(one.Triggers)
		switch {
		case one.Type == "repo" || one.Type == "knowledge" || one.Type == "agentskills":
		case len(one.Triggers) > 0:
			one.Type = "knowledge"
		default:
			one.Type = "repo"
		}
	}
	return response.OK(found)
}

// The hooks of a conversation's project.
type (
	hooksBody struct {
		Hooks []hookEvent `json:"hooks"`
	}
	hookEvent struct {
		EventType string        `json:"event_type"`
		Matchers  []hookMatcher `json:"matchers"`
	}
	hookMatcher struct {
		Matcher string        `json:"matcher"`
		Hooks   []hookCommand `json:"hooks"`
	}
	hookCommand struct {
		Type    string `json:"type"`
		Command string `json:"command"`
		// Timeout is in seconds.
		Timeout int64 `json:"timeout"`
		Async   bool  `json:"async"`
	}
)

// UnmarshalJSON fills in the protocol's defaults.
func (h *hookCommand) UnmarshalJSON(text []byte) error {
	type plain hookCommand
	one := plain{Type: "command", Timeout: 60}
	err := json.Unmarshal(text, &one)
	*h = hookCommand(one)
	return err
}

// hookEvents are the events that hooks are called at, in their order.
func hookEvents() []string {
	return []string{"pre_tool_use", "post_tool_use", "user_prompt_submit", "session_start", "session_end", "stop"}
}

// handleHooks handles GET …/{conversation_id}/hooks: none while the sandbox does not run.
func (s *Server) handleHooks(c *call) (response.Response, error) {
	a, err := c.agentOfPath()
	if err != nil {
		return response.Response{}, err
	}
	body := hooksBody{Hooks: []hookEvent{}}
	if !a.serves() {
		return response.OK(body)
	}
	var found struct {
		Config map[string]json.RawMessage `json:"hook_config"`
	}
	if err := a.callForProject(c.Ctx(), "/api/hooks", map[string]any{}, &found); err != nil {
		return response.Response{}, errOfAgent(err)
	}
	for _, name := range hookEvents() {
		var matchers []hookMatcher
		if doc := found.Config[name]; len(doc) > 0 && json.Unmarshal(doc, &matchers) != nil {
			return response.Response{}, errOfAgent(errBadAgentAnswer)
		}
		for i := range matchers {
			matchers[i].Hooks = wire.OrEmpty(matchers[i].Hooks)
		}
		if len(matchers) > 0 {
			body.Hooks = append(body.Hooks, hookEvent{EventType: name, Matchers: matchers})
		}
	}
	return response.OK(body)
}

// callForProject posts body and the conversation's directory, which the agent server says.
func (a *conversationAgent) callForProject(ctx context.Context, at string, body map[string]any, out any) error {
	var info struct {
		Workspace struct {
			WorkingDir string `json:"working_dir"`
		} `json:"workspace"`
	}
	if err := a.call(ctx, AgentRequest{Method: http.MethodGet, Path: "/api/conversations/" + decode.Dashed(a.row.ID)},
		&info); err != nil {
		return err
	}
	body["project_dir"] = info.Workspace.WorkingDir
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return a.call(ctx, AgentRequest{Method: http.MethodPost, Path: at, Body: text}, out)
}
