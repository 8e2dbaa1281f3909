package conversationapi

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"slices"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/conversation"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/wire"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/credential"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/hooks"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/scheduler/agent"
)

const (
	defaultMaxIters = 500
	maxTitle        = 200
)

// createRequest is a validated POST /api/conversations.
type createRequest struct {
	meta    conversation.Meta
	initial *agent.Message
	// profile is the requested agent profile; this server has none.
	profile string
}

// HandleCreate handles POST /api/conversations: 201 with a new conversation, or 200
// with the existing one of that id, whatever else the request holds.
func (a *API) HandleCreate(w http.ResponseWriter, r *http.Request) {
	o, ok := wire.ReadObject(w, r)
	if !ok {
		return
	}
	req := readCreate(o)
	if wire.Refused(w, o) {
		return
	}
	if req.meta.ID != "" {
		if c := a.conversations.Get(req.meta.ID); c != nil {
			a.writeInfo(w, r, http.StatusOK, c)
			return
		}
	}
	if req.profile != "" {
		wire.WriteDetail(w, http.StatusNotFound, "Agent profile not found: "+req.profile)
		return
	}
	mkdir := func() error { return os.MkdirAll(req.meta.Workspace.WorkingDir, 0o755) }
	if err := credential.Do(a.tools, mkdir); err != nil {
		wire.WriteInvalid(w, []decode.Problem{{Type: "value_error", Loc: []string{"body", "workspace", "working_dir"},
			Msg: "Value error, the directory can't be made", Input: req.meta.Workspace.WorkingDir}})
		return
	}
	// What was validated is stored, encrypted, not the bytes that came: they may have a name twice.
	request, err := json.Marshal(o.Members)
	if err != nil {
		wire.WriteFailure(w, r, a.logger, err)
		return
	}
	c, created, err := a.conversations.Create(req.meta, req.initial, request)
	switch {
	case errors.Is(err, conversation.ErrTooMany):
		wire.WriteDetail(w, http.StatusTooManyRequests, "This sandbox holds too many conversations")
		return
	case err != nil:
		a.respond(w, r, 0, nil, err)
		return
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	a.writeInfo(w, r, status, c)
}

func readCreate(o decode.Object) createRequest {
	stuck := o.Boolean("stuck_detection")
	q := createRequest{meta: conversation.Meta{
		ID:                 wire.TextOr(o.UUID("conversation_id"), ""),
		Workspace:          readWorkspace(o),
		Tags:               readTags(o),
		MaxIterations:      wire.Positive(o, "max_iterations", defaultMaxIters),
		StuckDetection:     stuck == nil || *stuck,
		UserID:             o.Text("user_id", wire.MaxText),
		SecretNames:        readSecretNames(o),
		ConfirmationPolicy: readPolicy(o, "confirmation_policy"),
		MaxBudget:          readBudget(o),
	}}
	if o.Value("security_analyzer") != nil {
		q.meta.SecurityAnalyzer = &agent.Kind{Kind: readKind(o, "security_analyzer", "", nil)}
	}
	if id := o.UUID("parent_conversation_id"); id != nil {
		p := decode.Dashed(*id)
		q.meta.ParentID = &p
	}
	q.meta.Agent, q.profile = readAgent(o)
	readHooks(o)
	refuseUnsupported(o)
	auto := o.Boolean("autotitle")
	q.meta.Autotitle = auto == nil || *auto
	if im, ok := o.Object("initial_message"); ok {
		msg := readMessage(im)
		q.initial = &msg
		if q.meta.Autotitle {
			q.meta.Title = conversation.TitleOf(msg)
		}
	}
	return q
}

// readHooks refuses hooks that can't be read: a hook that forbids something must not be lost.
func readHooks(o decode.Object) {
	if o.Value("hook_config") == nil {
		return
	}
	text, err := json.Marshal(o.Value("hook_config"))
	if err == nil {
		_, err = hooks.Parse(text)
	}
	if err != nil {
		o.Masked().Rule("hook_config", err.Error())
	}
}

// refuseUnsupported refuses what would change what an agent can do or where, and that this server
// has not. An empty list and false ask for nothing.
func refuseUnsupported(o decode.Object) {
	if list, ok := o.Value("client_tools").([]any); ok && len(list) > 0 {
		o.Masked().Rule("client_tools",
			"client_tools are not supported: leave them out, or use an image with the OpenHands agent server")
	}
	if o.Value("worktree") == true {
		o.Rule("worktree", "a worktree of its own is not supported: leave it out")
	}
}

// readKind reads the kind of an object.
func readKind(o decode.Object, name, otherwise string, values []string) string {
	k, ok := o.Object(name)
	if !ok {
		return otherwise
	}
	if values != nil {
		return wire.TextOr(k.Enum("kind", values), otherwise)
	}
	kind := k.Text("kind", wire.MaxText)
	if k.Value("kind") == nil {
		wire.Missing(k, "kind")
	}
	return wire.TextOr(kind, otherwise)
}

// readAgent reads the agent in whichever of the three forms the request has. It keeps only members
// that can't hold a secret.
func readAgent(o decode.Object) (conversation.AgentInfo, string) {
	given := slices.DeleteFunc([]string{"agent", "agent_settings", "agent_profile_id"},
		func(n string) bool { return o.Value(n) == nil })
	switch {
	case len(given) == 0:
		o.Problems.Value(o.Loc, "one of agent, agent_settings or agent_profile_id is required", nil)
		return conversation.AgentInfo{}, ""
	case len(given) > 1 && slices.Contains(given, "agent_profile_id"):
		o.Masked().Rule("agent_profile_id", "agent_profile_id excludes agent and agent_settings")
		return conversation.AgentInfo{}, ""
	case given[0] == "agent_profile_id":
		return conversation.AgentInfo{}, wire.TextOr(o.UUID("agent_profile_id"), "")
	}
	a, ok := o.Object(given[0])
	if !ok {
		return conversation.AgentInfo{}, ""
	}
	out := conversation.AgentInfo{Kind: "Agent", MCPServers: []string{}}
	name := func(member string) string { return wire.TextOr(a.Text(member, wire.MaxName), "") }
	if name("agent_kind") == conversation.KindACP || name("kind") == "ACPAgent" {
		out.Kind = "ACPAgent"
		out.ACPServer, out.ACPModel = name("acp_server"), name("acp_model")
		if files, ok := a.Object("acp_file_secrets"); ok && len(files.Members) > 0 {
			a.Masked().Rule("acp_file_secrets", "acp_file_secrets is not supported: put the secret into acp_env")
		}
	}
	if l, ok := a.Object("llm"); ok {
		out.LLM = readLLM(l)
	} else if a.Value("llm") == nil && out.Kind == "Agent" {
		wire.Missing(a, "llm")
	}
	if ctx, ok := a.Object("agent_context"); ok {
		if suffix := ctx.Text("system_message_suffix", wire.MaxText); suffix != nil {
			out.AgentContext = &conversation.AgentContext{SystemMessageSuffix: *suffix}
		}
	}
	if mcp, ok := a.Object("mcp_config"); ok {
		servers, _ := mcp.Object("mcpServers")
		out.MCPServers = append(out.MCPServers, decode.SortedKeys(servers.Members)...)
	}
	return out, ""
}

func readLLM(o decode.Object) conversation.LLMInfo {
	out := conversation.LLMInfo{
		Model:   wire.TextOr(o.Text("model", wire.MaxText), ""),
		UsageID: wire.TextOr(o.Text("usage_id", wire.MaxText), "default"),
		BaseURL: redactURL(o.Masked().Text("base_url", wire.MaxText)),
	}
	if key := o.Masked().Text("api_key", wire.MaxText); key != nil && *key != "" {
		mask := decode.Masked
		out.APIKey = &mask
	}
	return out
}

// readPolicy reads a confirmation policy; absent is NeverConfirm.
func readPolicy(o decode.Object, name string) engine.Policy {
	p := engine.Policy{Kind: readKind(o, name, "NeverConfirm", []string{"NeverConfirm", "AlwaysConfirm", "ConfirmRisky"})}
	if k, ok := o.Object(name); ok {
		p.Threshold = wire.TextOr(k.Enum("threshold", []string{"LOW", "MEDIUM", "HIGH"}), "")
		p.ConfirmUnknown = k.Boolean("confirm_unknown")
	}
	return p
}

// readBudget reads the largest cost, in US dollars; 0 is no limit.
func readBudget(o decode.Object) float64 {
	n, ok := o.Value("max_budget_per_task").(json.Number)
	if !ok {
		return 0
	}
	v, err := n.Float64()
	if err != nil || v < 0 {
		o.Rule("max_budget_per_task", "max_budget_per_task must be 0 or more")
	}
	return v
}

// writeInfo responds with a conversation.
func (a *API) writeInfo(w http.ResponseWriter, r *http.Request, status int, c *conversation.Conversation) {
	i, err := c.Info()
	a.respond(w, r, status, i, err)
}
