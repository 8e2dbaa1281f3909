package agentserver

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/credential"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/hooks"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/scheduler/agent"
)

const (
	defaultMaxIters = 500
	maxTitle        = 200
	autoTitle       = 50
)

// createRequest is a validated POST /api/conversations.
type createRequest struct {
	meta    meta
	initial *agent.Message
	// profile is the requested agent profile; this server has none.
	profile string
}

// handleConversationCreate handles POST /api/conversations: 201 with a new conversation, or 200
// with the existing one of that id, whatever else the request holds.
func (s *Server) handleConversationCreate(w http.ResponseWriter, r *http.Request) {
	o, ok := readObject(w, r)
	if !ok {
		return
	}
	req := readCreate(o)
	if refused(w, o) {
		return
	}
	if req.meta.ID != "" {
		if c := s.store.get(req.meta.ID); c != nil {
			s.writeInfo(w, r, http.StatusOK, c)
			return
		}
	} else {
		req.meta.ID, _ = decode.ParseUUID(newUUID())
	}
	if req.profile != "" {
		writeDetail(w, http.StatusNotFound, "Agent profile not found: "+req.profile)
		return
	}
	mkdir := func() error { return os.MkdirAll(req.meta.Workspace.WorkingDir, 0o755) }
	if err := credential.Do(s.cfg.tools, mkdir); err != nil {
		writeInvalid(w, []decode.Problem{{Type: "value_error", Loc: []string{"body", "workspace", "working_dir"},
			Msg: "Value error, the directory can't be made", Input: req.meta.Workspace.WorkingDir}})
		return
	}
	// What was validated is stored, encrypted, not the bytes that came: they may have a name twice.
	request, err := json.Marshal(o.Members)
	if err != nil {
		s.failed(w, r, err)
		return
	}
	fresh := s.store.prepare(req.meta, request)
	c, created, err := s.store.create(fresh, s.firstEvents(fresh, req.initial), request)
	if !created {
		s.release(fresh)
	}
	switch {
	case errors.Is(err, errTooMany):
		writeDetail(w, http.StatusTooManyRequests, "This sandbox holds too many conversations")
		return
	case err != nil:
		s.failed(w, r, err)
		return
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
		s.logger.Info("conversation created", "conversation", c.id)
		s.begin(c, req.initial != nil)
	}
	s.writeInfo(w, r, status, c)
}

// firstEvents are a new conversation's first events. An initial message always runs, whatever its
// member run says; the status says so from the first moment, so that a crash before the run is told.
func (s *Server) firstEvents(c *conversation, initial *agent.Message) []event.Event {
	if initial == nil {
		return []event.Event{statusEvent(engine.StatusIdle)}
	}
	return append(s.opening(c, messageEvent(*initial)), statusEvent(engine.StatusRunning))
}

// begin starts the run of a new conversation's initial message.
func (s *Server) begin(c *conversation, run bool) {
	s.entitle(c)
	if !run {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.run == nil && !c.deleted {
		_ = s.launch(c) // fails only when the server stops
	}
}

func readCreate(o decode.Object) createRequest {
	t := now()
	stuck := o.Boolean("stuck_detection")
	q := createRequest{meta: meta{
		ID: textOr(o.UUID("conversation_id"), ""), CreatedAt: t, UpdatedAt: t,
		Workspace:          readWorkspace(o),
		Tags:               readTags(o),
		MaxIterations:      positive(o, "max_iterations", defaultMaxIters),
		StuckDetection:     stuck == nil || *stuck,
		UserID:             o.Text("user_id", maxText),
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
			q.meta.Title = titleOf(msg)
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
		return textOr(k.Enum("kind", values), otherwise)
	}
	kind := k.Text("kind", maxText)
	if k.Value("kind") == nil {
		missing(k, "kind")
	}
	return textOr(kind, otherwise)
}

// readAgent reads the agent in whichever of the three forms the request has. It keeps only members
// that can't hold a secret.
func readAgent(o decode.Object) (agentInfo, string) {
	given := slices.DeleteFunc([]string{"agent", "agent_settings", "agent_profile_id"},
		func(n string) bool { return o.Value(n) == nil })
	switch {
	case len(given) == 0:
		o.Problems.Value(o.Loc, "one of agent, agent_settings or agent_profile_id is required", nil)
		return agentInfo{}, ""
	case len(given) > 1 && slices.Contains(given, "agent_profile_id"):
		o.Masked().Rule("agent_profile_id", "agent_profile_id excludes agent and agent_settings")
		return agentInfo{}, ""
	case given[0] == "agent_profile_id":
		return agentInfo{}, textOr(o.UUID("agent_profile_id"), "")
	}
	a, ok := o.Object(given[0])
	if !ok {
		return agentInfo{}, ""
	}
	out := agentInfo{Kind: "Agent", MCPServers: []string{}}
	if textOr(a.Text("agent_kind", maxName), "") == kindACP || textOr(a.Text("kind", maxName), "") == "ACPAgent" {
		out.Kind = "ACPAgent"
		out.ACPServer, out.ACPModel = textOr(a.Text("acp_server", maxName), ""), textOr(a.Text("acp_model", maxName), "")
		if files, ok := a.Object("acp_file_secrets"); ok && len(files.Members) > 0 {
			a.Masked().Rule("acp_file_secrets", "acp_file_secrets is not supported: put the secret into acp_env")
		}
	}
	if l, ok := a.Object("llm"); ok {
		out.LLM = readLLM(l)
	} else if a.Value("llm") == nil && out.Kind == "Agent" {
		missing(a, "llm")
	}
	if ctx, ok := a.Object("agent_context"); ok {
		if suffix := ctx.Text("system_message_suffix", maxText); suffix != nil {
			out.AgentContext = &agentContext{SystemMessageSuffix: *suffix}
		}
	}
	if mcp, ok := a.Object("mcp_config"); ok {
		servers, _ := mcp.Object("mcpServers")
		out.MCPServers = append(out.MCPServers, decode.SortedKeys(servers.Members)...)
	}
	return out, ""
}

func readLLM(o decode.Object) llmInfo {
	out := llmInfo{
		Model: textOr(o.Text("model", maxText), ""), UsageID: textOr(o.Text("usage_id", maxText), "default"),
		BaseURL: redactURL(o.Masked().Text("base_url", maxText)),
	}
	if key := o.Masked().Text("api_key", maxText); key != nil && *key != "" {
		mask := decode.Masked
		out.APIKey = &mask
	}
	return out
}

// readPolicy reads a confirmation policy; absent is NeverConfirm.
func readPolicy(o decode.Object, name string) engine.Policy {
	p := engine.Policy{Kind: readKind(o, name, "NeverConfirm", []string{"NeverConfirm", "AlwaysConfirm", "ConfirmRisky"})}
	if k, ok := o.Object(name); ok {
		p.Threshold = textOr(k.Enum("threshold", []string{"LOW", "MEDIUM", "HIGH"}), "")
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

// titleOf returns the start of the first text, as upstream does when no model makes a title.
func titleOf(m agent.Message) *string {
	for _, b := range m.Content {
		if t := shortTitle(b.Text); t != nil {
			return t
		}
	}
	return nil
}

// shortTitle returns the start of a text on one line, nil for a blank one.
func shortTitle(text string) *string {
	t := strings.Join(strings.Fields(text), " ")
	if t == "" {
		return nil
	}
	if utf8.RuneCountInString(t) > autoTitle {
		t = string([]rune(t)[:autoTitle])
	}
	return &t
}

// writeInfo responds with a conversation.
func (s *Server) writeInfo(w http.ResponseWriter, r *http.Request, status int, c *conversation) {
	i, err := c.info()
	switch {
	case isGone(err):
		writeDetail(w, http.StatusNotFound, "Not Found")
	case err != nil:
		s.failed(w, r, err)
	default:
		writeJSON(w, status, i)
	}
}
