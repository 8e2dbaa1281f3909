package agentserver

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	masked          = "**********"
	defaultMaxIters = 500
	maxTitle        = 200
	autoTitle       = 50
)

// createRequest is a checked POST /api/conversations.
type createRequest struct {
	meta    meta
	initial *message
	// profile is set when an agent profile was asked for; there are none.
	profile string
}

// handleConversationCreate handles POST /api/conversations: 201 with a new
// conversation, 200 with the one that has the id already, whatever else the
// request says.
func (s *Server) handleConversationCreate(w http.ResponseWriter, r *http.Request) {
	// The body is kept as it came, to be sealed.
	var raw bytes.Buffer
	r.Body = teeBody{io.TeeReader(r.Body, &raw), r.Body}
	m := readObject(w, r)
	if m == nil {
		return
	}
	var d reader
	req := d.createRequest(m)
	if len(d.errs) > 0 {
		writeInvalid(w, d.errs)
		return
	}
	if req.meta.ID != "" {
		if c := s.store.get(req.meta.ID); c != nil {
			s.writeInfo(w, r, http.StatusOK, c)
			return
		}
	} else {
		req.meta.ID, _ = parseID(newUUID())
	}
	if req.profile != "" {
		writeDetail(w, http.StatusNotFound, "Agent profile not found: "+req.profile)
		return
	}
	if err := os.MkdirAll(req.meta.Workspace.WorkingDir, 0o755); err != nil {
		writeInvalid(w, []fieldError{{Type: "value_error", Loc: []string{"body", "workspace", "working_dir"},
			Msg: "Value error, the directory can't be made", Input: req.meta.Workspace.WorkingDir}})
		return
	}
	c, created, err := s.store.create(req.meta, req.events(), raw.Bytes())
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
	}
	s.writeInfo(w, r, status, c)
}

type teeBody struct {
	io.Reader
	io.Closer
}

// events are what a new conversation begins with. An initial message always
// runs, whatever its run member says.
func (q createRequest) events() []map[string]any {
	if q.initial == nil {
		return []map[string]any{statusEvent(statusIdle)}
	}
	return append([]map[string]any{messageEvent(*q.initial)}, runEvents()...)
}

func (d *reader) createRequest(m map[string]any) createRequest {
	t := now()
	q := createRequest{meta: meta{
		ID: d.uuid(m, "conversation_id"), CreatedAt: t, UpdatedAt: t,
		Workspace:      d.workspace(m),
		Tags:           d.tags(m),
		MaxIterations:  d.positive(m, "max_iterations", defaultMaxIters),
		StuckDetection: d.boolean(m, "stuck_detection", true),
		UserID:         d.str(m, "user_id"),
		SecretNames:    d.secretNames(m),
		ConfirmationPolicy: kindObject{Kind: d.kind(m, "confirmation_policy", "NeverConfirm",
			[]string{"NeverConfirm", "AlwaysConfirm", "ConfirmRisky"})},
	}}
	if m["security_analyzer"] != nil {
		q.meta.SecurityAnalyzer = &kindObject{Kind: d.kind(m, "security_analyzer", "", nil)}
	}
	if id := d.uuid(m, "parent_conversation_id"); id != "" {
		p := dashed(id)
		q.meta.ParentID = &p
	}
	q.meta.Agent, q.profile = d.agent(m)
	if im := d.object(m, "initial_message"); im != nil {
		msg := d.message(im, "initial_message")
		q.initial = &msg
		if d.boolean(m, "autotitle", true) {
			q.meta.Title = titleOf(msg)
		}
	}
	return q
}

// kind reads the kind of an object that is told apart by it.
func (d *reader) kind(m map[string]any, name, def string, values []string) string {
	o := d.object(m, name)
	if o == nil {
		return def
	}
	if values != nil {
		return d.enum(o, "kind", def, values, name)
	}
	k := d.str(o, "kind", name)
	if k == nil {
		d.missing(name, "kind")
		return def
	}
	return *k
}

// agent reads whichever of the three ways to name an agent is there, and
// keeps only members known to hold no secret.
func (d *reader) agent(m map[string]any) (agentInfo, string) {
	given := slices.DeleteFunc([]string{"agent", "agent_settings", "agent_profile_id"}, func(n string) bool { return m[n] == nil })
	switch {
	case len(given) == 0:
		d.value("one of agent, agent_settings or agent_profile_id is required", nil)
		return agentInfo{}, ""
	case len(given) > 1 && slices.Contains(given, "agent_profile_id"):
		d.value("agent_profile_id excludes agent and agent_settings", nil, "agent_profile_id")
		return agentInfo{}, ""
	case given[0] == "agent_profile_id":
		return agentInfo{}, d.uuid(m, "agent_profile_id")
	}
	name := given[0]
	a := d.object(m, name)
	if a == nil {
		return agentInfo{}, ""
	}
	out := agentInfo{Kind: "Agent", MCPServers: []string{}}
	if l := d.object(a, "llm", name); l != nil {
		out.LLM = d.llm(l, name)
	} else if a["llm"] == nil {
		d.missing(name, "llm")
	}
	if ctx := d.object(a, "agent_context", name); ctx != nil {
		if suffix := d.str(ctx, "system_message_suffix", name, "agent_context"); suffix != nil {
			out.AgentContext = &agentContext{SystemMessageSuffix: *suffix}
		}
	}
	if mcp := d.object(a, "mcp_config", name); mcp != nil {
		for server := range d.object(mcp, "mcpServers", name, "mcp_config") {
			out.MCPServers = append(out.MCPServers, server)
		}
		slices.Sort(out.MCPServers)
	}
	return out, ""
}

func (d *reader) llm(l map[string]any, agent string) llmInfo {
	out := llmInfo{UsageID: "default", BaseURL: redactURL(d.str(l, "base_url", agent, "llm"))}
	if model := d.str(l, "model", agent, "llm"); model != nil {
		out.Model = *model
	}
	if usage := d.str(l, "usage_id", agent, "llm"); usage != nil {
		out.UsageID = *usage
	}
	switch key := l["api_key"].(type) {
	case nil:
	case string:
		if key != "" {
			mask := masked
			out.APIKey = &mask
		}
	default:
		d.fail("string_type", "Input should be a valid string", nil, agent, "llm", "api_key")
	}
	return out
}

// titleOf is the first words of the first text, as upstream does when no model
// makes a title.
func titleOf(m message) *string {
	for _, b := range m.Content {
		if b.Text == nil {
			continue
		}
		t := strings.Join(strings.Fields(*b.Text), " ")
		if t == "" {
			continue
		}
		if utf8.RuneCountInString(t) > autoTitle {
			t = string([]rune(t)[:autoTitle])
		}
		return &t
	}
	return nil
}

// writeInfo answers with a conversation.
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
