package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"github.com/google/uuid"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
)

// agentProfileVersion is upstream's version of the document.
const agentProfileVersion = 3

// agentProfilesBody is the answer of GET /api/agent-profiles.
type agentProfilesBody struct {
	Profiles []agentProfileSummary `json:"profiles"`
	Active   *string               `json:"active_agent_profile_id"`
}

type agentProfileSummary struct {
	ID            string    `json:"id"`
	Name          string    `json:"name"`
	AgentKind     string    `json:"agent_kind"`
	Revision      int64     `json:"revision"`
	LLMProfileRef *string   `json:"llm_profile_ref"`
	MCPServerRefs *[]string `json:"mcp_server_refs"`
}

// agentProfile is what is read of the document of an agent profile.
type agentProfile struct {
	AgentKind     string  `json:"agent_kind"`
	LLMProfileRef *string `json:"llm_profile_ref"`
	ACPServer     *string `json:"acp_server"`
	ACPModel      *string `json:"acp_model"`
	Suffix        *string `json:"system_message_suffix"`
}

func newAgentProfile(p *fsm.Profile) (doc agentProfile, err error) {
	if err := json.Unmarshal(p.Document, &doc); err != nil {
		return doc, fmt.Errorf("reading the agent profile %s: %w", p.ID, err)
	}
	return doc, nil
}

// handleAgentProfileList handles GET /api/agent-profiles.
func (s *Server) handleAgentProfileList(c *call) (response.Response, error) {
	if err := c.begin(); err != nil {
		return response.Response{}, err
	}
	v, err := c.View()
	if err != nil {
		return response.Response{}, err
	}
	body := agentProfilesBody{Profiles: []agentProfileSummary{}}
	for _, p := range v.Profiles(c.Caller.User, fsm.ProfileAgent) {
		doc, err := newAgentProfile(p)
		if err != nil {
			return response.Response{}, err
		}
		if p.Active {
			body.Active = &p.ID
		}
		body.Profiles = append(body.Profiles, agentProfileSummary{
			ID: p.ID, Name: p.Name, AgentKind: doc.AgentKind, Revision: p.Revision, LLMProfileRef: doc.LLMProfileRef,
		})
	}
	return response.OK(body)
}

// agentProfileBody is the answer of GET /api/agent-profiles/{name}.
type agentProfileBody struct {
	Name    string         `json:"name"`
	Profile map[string]any `json:"profile"`
}

// handleAgentProfileGet handles GET /api/agent-profiles/{name}.
func (s *Server) handleAgentProfileGet(c *call) (response.Response, error) {
	p, err := c.profile(fsm.ProfileAgent)
	if err != nil {
		return response.Response{}, err
	}
	body := agentProfileBody{Name: p.Name, Profile: map[string]any{}}
	if err := json.Unmarshal(p.Document, &body.Profile); err != nil {
		return response.Response{}, fmt.Errorf("reading the agent profile %s: %w", p.ID, err)
	}
	for name, value := range map[string]any{
		"schema_version": agentProfileVersion, "id": p.ID, "name": p.Name, "revision": p.Revision,
	} {
		body.Profile[name] = value
	}
	return response.OK(body)
}

// handleAgentProfileSave handles POST /api/agent-profiles/{name}.
func (s *Server) handleAgentProfileSave(c *call) (response.Response, error) {
	name, doc := c.profileName(), readAgentProfile(c.Object().Masked())
	if err := c.begin(); err != nil {
		return response.Response{}, err
	}
	return c.Once(func() (fsm.Body, request.SecretWrites, error) {
		if _, err := c.current("an agent profile"); err != nil {
			return nil, request.SecretWrites{}, err
		}
		text, err := response.Encode(doc)
		if err != nil {
			return nil, request.SecretWrites{}, err
		}
		return &fsm.ProfilePutBody{
			Profile: fsm.Profile{Kind: fsm.ProfileAgent, Name: name, ID: uuid.NewString(), Document: text},
		}, request.SecretWrites{}, nil
	}, func(fsm.Result) (response.Response, error) {
		return response.Response{
			Status: http.StatusCreated, Body: profileBody{name, fmt.Sprintf("Agent profile '%s' saved", name)},
		}, nil
	})
}

// Members of agent profiles. What a profile is known by is not the client's to say.
func agentProfileMembers(kind string) []string {
	common := []string{"schema_version", "id", "name", "revision", "agent_kind", "mcp_server_refs"}
	if kind == fsm.AgentACP {
		return append(common, "acp_server", "acp_model", "acp_session_mode", "acp_prompt_timeout", "acp_startup_timeout",
			"acp_command", "acp_args")
	}
	return append(common, "llm_profile_ref", "agent", "tools", "system_message_suffix", "disabled_skills", "skills",
		"condenser", "verification", "enable_sub_agents", "enable_switch_llm_tool", "tool_concurrency_limit")
}

// readAgentProfile reads a profile with its defaults. It holds no secret: the log has it.
func readAgentProfile(o decode.Object) map[string]any {
	kind := fsm.AgentOpenHands
	if k := o.Enum("agent_kind", []string{fsm.AgentOpenHands, fsm.AgentACP}); k != nil {
		kind = *k
	}
	o.Strict(agentProfileMembers(kind)...)
	doc := map[string]any{"agent_kind": kind, "mcp_server_refs": nil}
	refuseGiven(o, "mcp_server_refs", "a conversation has all MCP servers of the settings: leave this out")
	if kind == fsm.AgentACP {
		readACPProfile(o, doc)
		return doc
	}
	doc["llm_profile_ref"] = o.MustText("llm_profile_ref", fsm.MaxProfileName)
	if ref := doc["llm_profile_ref"].(string); ref != "" && !fsm.ValidProfileName(ref) {
		o.Rule("llm_profile_ref", badProfileName())
	}
	doc["agent"] = orDefault(o.Text("agent", fsm.MaxName), "CodeActAgent")
	doc["system_message_suffix"] = o.Text("system_message_suffix", fsm.MaxParagraph/2)
	refuseGiven(o, "tools", "a conversation has the agent server's tools: leave this out")
	doc["tools"] = nil
	for _, name := range []string{"disabled_skills", "skills"} {
		if skills, _ := o.Value(name).([]any); len(skills) > 0 {
			o.Rule(name, "a conversation has the skills of its project: leave this out")
		}
	}
	doc["disabled_skills"] = []string{}
	for _, name := range []string{"condenser", "verification"} {
		if members := readPlainMembers(o, name); members != nil {
			doc[name] = members
		}
	}
	doc["enable_sub_agents"] = orDefault(o.Boolean("enable_sub_agents"), false)
	doc["enable_switch_llm_tool"] = orDefault(o.Boolean("enable_switch_llm_tool"), true)
	limit := orDefault(o.Integer("tool_concurrency_limit"), 1)
	if limit < 1 {
		o.Rule("tool_concurrency_limit", "at least 1 tool runs at a time")
	}
	doc["tool_concurrency_limit"] = limit
	return doc
}

// readACPProfile reads the members of a profile whose agent speaks ACP.
func readACPProfile(o decode.Object, doc map[string]any) {
	doc["acp_server"] = orDefault(readAgentID(o, "acp_server"), "claude-code")
	doc["acp_model"] = o.Text("acp_model", fsm.MaxLine)
	for _, name := range []string{"acp_command", "acp_args"} {
		refuseGiven(o, name, "a profile takes no command: store acp_command in the settings and name acp_server \""+
			fsm.AgentCustom+"\"")
		doc[name] = nil
	}
	refuseGiven(o, "acp_session_mode", "the sandbox spec has the agent's session mode: leave this out")
	doc["acp_session_mode"] = nil
	doc["acp_prompt_timeout"] = readSeconds(o, "acp_prompt_timeout", 1800)
	doc["acp_startup_timeout"] = readSeconds(o, "acp_startup_timeout", 90)
}

func readSeconds(o decode.Object, name string, otherwise float64) float64 {
	seconds := orDefault(o.Number(name), otherwise)
	if seconds <= 0 {
		o.Rule(name, "must be greater than 0")
	}
	return seconds
}

// refuseGiven refuses a value that nothing would honour.
func refuseGiven(o decode.Object, name, text string) {
	if o.Value(name) != nil {
		o.Masked().Rule(name, text)
	}
}

// readPlainMembers reads an object of texts, numbers and booleans that is stored as it is; nil for none.
func readPlainMembers(o decode.Object, name string) map[string]any {
	members := readScalars(o.Masked(), name)
	for _, member := range decode.SortedKeys(members) {
		if text, ok := members[member].(string); ok && decode.HoldsCredential([]string{member + "=" + text}) {
			o.Masked().Rule(name, name+" must hold no credential: the log shows it")
		}
	}
	return members
}

// orDefault returns what p points at, otherwise for nil.
func orDefault[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// activatedBody is the answer of POST /api/agent-profiles/{id}/activate.
type activatedBody struct {
	ID      string `json:"id"`
	Message string `json:"message"`
	// Applied is always false: an agent profile changes no settings.
	Applied bool `json:"agent_settings_applied"`
}

// handleAgentProfileActivate handles POST /api/agent-profiles/{id}/activate: the path has an id here.
func (s *Server) handleAgentProfileActivate(c *call) (response.Response, error) {
	id := c.Params.ByName("name")
	if err := c.begin(); err != nil {
		return response.Response{}, err
	}
	out, err := c.Once(func() (fsm.Body, request.SecretWrites, error) {
		return &fsm.ProfileActivateBody{Kind: fsm.ProfileAgent, ID: id}, request.SecretWrites{}, nil
	}, func(fsm.Result) (response.Response, error) {
		return response.OK(activatedBody{ID: id, Message: fmt.Sprintf("Agent profile '%s' activated", id)})
	})
	return out, response.NotFoundAs(err, fmt.Sprintf("Agent profile with id '%s' not found", decode.Truncate(id, 64)))
}

// useAgentProfile fills in what a start leaves open by the agent profile that it names, and by the
// active one if it names none. The id "" names none, and takes none.
func (c *call) useAgentProfile(in *startInput) error {
	q := &in.request
	if q.AgentProfileID != nil && *q.AgentProfileID == "" {
		return nil
	}
	v, err := c.ViewWith(cluster.Linearizable)
	if err != nil {
		return err
	}
	var p *fsm.Profile
	if id := q.AgentProfileID; id == nil {
		p = activeAgentProfile(v, c.Caller.User)
	} else if p = v.ProfileByID(c.Caller.User, fsm.ProfileAgent, *id); p == nil {
		return response.Error(http.StatusNotFound,
			fmt.Sprintf("Agent profile with id '%s' not found", decode.Truncate(*id, 64)))
	}
	if p == nil {
		return nil
	}
	doc, err := newAgentProfile(p)
	if err != nil {
		return err
	}
	if q.AgentProfileID == nil && q.AgentType == fsm.AgentTypePlan && doc.AgentKind == fsm.AgentACP {
		return nil // no agent that speaks ACP plans, and nobody asked for this one
	}
	in.agentProfile = &fsm.LaunchedProfile{ID: p.ID, Revision: p.Revision}
	return fillIn(in, v, p, doc)
}

// activeAgentProfile is the user's agent profile for starts that name none, nil without one.
func activeAgentProfile(v *fsm.View, user string) *fsm.Profile {
	for _, p := range v.Profiles(user, fsm.ProfileAgent) {
		if p.Active {
			return p
		}
	}
	return nil
}

// fillIn fills in what a start leaves open by an agent profile.
func fillIn(in *startInput, v *fsm.View, p *fsm.Profile, doc agentProfile) error {
	q, server := &in.request, fsm.AgentOpenHands
	if doc.AgentKind == fsm.AgentACP {
		server = decode.OrZero(doc.ACPServer)
		if q.LLMModel == nil && (decode.OrZero(q.ACPServer) == "" || *q.ACPServer == server) {
			q.ACPModel = doc.ACPModel
		}
	}
	if decode.OrZero(q.ACPServer) == "" {
		q.ACPServer = &server
	}
	texts := slices.DeleteFunc([]*string{doc.Suffix, q.SystemMessageSuffix}, func(s *string) bool {
		return decode.OrZero(s) == ""
	})
	switch len(texts) {
	case 1:
		q.SystemMessageSuffix = texts[0]
	case 2:
		q.SystemMessageSuffix = new(*texts[0] + "\n\n" + *texts[1])
	}
	if doc.LLMProfileRef == nil {
		return nil
	}
	llm := v.Profile(p.UserID, fsm.ProfileLLM, *doc.LLMProfileRef)
	if llm == nil {
		return response.Error(http.StatusNotFound, fmt.Sprintf("LLM profile '%s' of the agent profile '%s' not found",
			*doc.LLMProfileRef, p.Name))
	}
	in.llmProfile = llm.ID
	return nil
}
