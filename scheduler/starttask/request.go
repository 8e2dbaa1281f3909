package starttask

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path"
	"strings"
	"time"
	"unicode"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/scheduler/agent"
)

// request builds the body of POST /api/conversations (PROTOCOL.md, "Conversations: create").
func (in *inputs) request() (agent.CreateRequest, error) {
	t, set := in.task, in.settings.Values
	mcp, err := in.mcpServers()
	if err != nil {
		return agent.CreateRequest{}, err
	}
	req := agent.CreateRequest{
		ConversationID: agent.DashedID(t.ConversationID),
		Workspace:      agent.Workspace{Kind: "LocalWorkspace", WorkingDir: in.workingDir()},
		AgentSettings: agent.AgentSettings{
			AgentKind: fsm.AgentOpenHands,
			LLM:       in.llm(),
			MCPConfig: mcp,
			Condenser: &agent.Condenser{Enabled: set.EnableDefaultCondenser, MaxSize: deref(set.CondenserMaxSize)},
		},
		ConfirmationPolicy: in.confirmation(),
		MaxIterations:      max(0, deref(set.MaxIterations)),
		MaxBudget:          max(0, deref(set.MaxBudgetPerTask)),
		Secrets:            in.secrets(),
		Plugins:            in.plugins(),
		Tags:               map[string]string{},
		Autotitle:          true,
		Observability: &agent.ObservabilityMeta{
			Metadata: in.metadata(), Tags: t.Request.ObservabilityTags, SpanName: deref(t.Request.ObservabilitySpanName),
		},
	}
	if suffix := deref(t.Request.SystemMessageSuffix); suffix != "" || in.project.skills != nil {
		req.AgentSettings.AgentContext = &agent.AgentContext{SystemMessageSuffix: suffix, Skills: in.project.skills}
	}
	req.HookConfig = in.project.hooks
	if parent := deref(t.Request.ParentConversationID); parent != "" {
		id := agent.DashedID(parent)
		req.ParentConversationID = &id
	}
	if deref(set.SecurityAnalyzer) == "llm" {
		req.SecurityAnalyzer = &agent.Kind{Kind: "LLMSecurityAnalyzer"}
	}
	if m := t.Request.InitialMessage; m != nil {
		req.InitialMessage = firstMessage(m)
	}
	if in.agent != nil {
		in.agent.settings(in, &req)
	}
	return req, in.planning(&req)
}

// plugins returns the request's plugins with their credentials, or those in the task when they
// had none.
func (in *inputs) plugins() json.RawMessage {
	list := in.requested.Plugins
	if list == nil {
		if list = in.task.Request.Plugins; len(list) == 0 {
			return nil
		}
	}
	doc, err := json.Marshal(list)
	if err != nil {
		return nil // they came as JSON
	}
	return doc
}

// metadata returns the request's observability metadata, or that in the task: an older program
// stored it there in full.
func (in *inputs) metadata() map[string]any {
	if in.requested.Metadata != nil {
		return in.requested.Metadata
	}
	return in.task.Request.ObservabilityMetadata
}

func firstMessage(m *fsm.Message) *agent.Message {
	// The agent server runs an initial message whatever the request's run says.
	out := &agent.Message{Role: m.Role, Content: []agent.ContentBlock{}, Run: true}
	for _, b := range m.Content {
		out.Content = append(out.Content,
			agent.ContentBlock{Type: b.Type, Text: b.Text, ImageURLs: b.ImageURLs, CachePrompt: b.CachePrompt})
	}
	return out
}

// workingDir is the repository's directory, or the one for projects.
func (in *inputs) workingDir() string {
	if repo := deref(in.task.Request.SelectedRepository); repo != "" {
		return path.Join(in.place.projects, path.Base(repo))
	}
	return in.place.projects
}

func (in *inputs) confirmation() agent.Kind {
	set := in.settings.Values
	switch {
	case !deref(set.ConfirmationMode):
		return agent.Kind{Kind: "NeverConfirm"}
	case deref(set.SecurityAnalyzer) == "llm":
		return agent.Kind{Kind: "ConfirmRisky"}
	default:
		return agent.Kind{Kind: "AlwaysConfirm"}
	}
}

// secrets returns what the conversation may use by name. Of two with one name the request's wins,
// then the user's own, then the provider token.
func (in *inputs) secrets() map[string]agent.Secret {
	out := map[string]agent.Secret{}
	for p, token := range in.tokens {
		out[strings.ToUpper(string(p))+"_TOKEN"] = agent.StaticSecret(token)
	}
	for name, value := range in.custom {
		out[name] = agent.StaticSecret(value)
	}
	for name, value := range in.requested.Secrets {
		out[name] = agent.StaticSecret(value)
	}
	return out
}

// mcpServers converts the MCP configuration into the agent server's format. The request's
// replaces the user's.
func (in *inputs) mcpServers() (json.RawMessage, error) {
	var cfg fsm.MCPConfig
	switch requested := in.requested.MCPConfig; {
	case requested != nil:
		cfg = *requested
	case len(in.mcp) > 0:
		if err := json.Unmarshal(in.mcp, &cfg); err != nil {
			return nil, errors.New("the stored MCP configuration can't be read")
		}
	}
	servers := map[string]any{}
	for i, s := range cfg.SSEServers {
		servers[fmt.Sprintf("sse_%d", i)] = mcpEntry("sse", s.URL, s.APIKey, nil)
	}
	for i, s := range cfg.SHTTPServers {
		servers[fmt.Sprintf("shttp_%d", i)] = mcpEntry("streamable-http", s.URL, s.APIKey, s.Timeout)
	}
	for _, s := range cfg.StdioServers {
		servers[s.Name] = map[string]any{"command": s.Command, "args": orEmpty(s.Args), "env": s.Env}
	}
	if _, taken := servers["tavily"]; in.searchAPIKey != "" && !taken {
		servers["tavily"] = map[string]any{
			"url": "https://mcp.tavily.com/mcp/?" + url.Values{"tavilyApiKey": {in.searchAPIKey}}.Encode(),
		}
	}
	if len(servers) == 0 {
		return nil, nil
	}
	return json.Marshal(map[string]any{"mcpServers": servers})
}

// mcpEntry is a server that is called at a URL. timeout is in seconds, nil for the agent server's.
func mcpEntry(transport, url string, key *string, timeout *int64) map[string]any {
	e := map[string]any{"url": url, "transport": transport}
	if key := deref(key); key != "" {
		e["headers"] = map[string]string{"Authorization": "Bearer " + key}
	}
	if timeout != nil {
		e["timeout"] = *timeout
	}
	return e
}

// maxTitle bounds a title that an agent server made, in bytes.
const maxTitle = 200

// conversation returns the row that comes with READY. title is the agent server's, "" for none.
func (in *inputs) conversation(now time.Time, title string) fsm.Conversation {
	q := in.task.Request
	c := fsm.Conversation{
		ID: in.task.ConversationID, UserID: in.task.UserID, V0ID: in.task.V0ID, SandboxID: in.task.SandboxID,
		SelectedRepository: q.SelectedRepository, SelectedBranch: q.SelectedBranch, GitProvider: q.GitProvider,
		Title: q.Title, Trigger: q.Trigger, PRNumber: q.PRNumber, AgentKind: fsm.AgentOpenHands,
		ParentID: q.ParentConversationID, Public: q.Public, Tags: map[string]string{},
		CreatedAt: now.UTC(), UpdatedAt: now.UTC(),
	}
	if deref(c.Title) == "" {
		title = cmp.Or(in.titleFrom(title), fsm.UntitledOf(c.ID))
		c.Title, c.AutoTitle = &title, true
	}
	if m := in.model(); m != "" {
		c.LLMModel = &m
	}
	if in.agent != nil {
		c.AgentKind, c.Tags["acpserver"] = fsm.AgentACP, in.agent.ID
	}
	for name, value := range map[string]string{
		"repo_name": deref(q.SelectedRepository), "selected_branch": deref(q.SelectedBranch),
		"git_provider": string(deref(q.GitProvider)),
	} {
		if value != "" {
			c.Tags[name] = value
		}
	}
	return c
}

// titleFrom makes one line of what the sandbox calls a title.
func (in *inputs) titleFrom(text string) string {
	text = strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return ' '
		}
		return c
	}, text)
	return decode.Truncate(in.scrub(strings.Join(strings.Fields(text), " ")), maxTitle)
}

// deref returns what p points to, the zero value for nil.
func deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

func orEmpty(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
