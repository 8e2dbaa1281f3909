package httpapi

import (
	"cmp"
	"fmt"
	"net/http"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/eventin"
	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// maxConversationBatch is the most ids in one batch-get. An agent server accepts no more
// (PROTOCOL.md, "Conversations: read").
const maxConversationBatch = 99

// conversationBody is the API's AppConversation (API.md, "Conversations: members").
type conversationBody struct {
	ID                   string               `json:"id"`
	CreatedByUserID      *string              `json:"created_by_user_id"`
	SandboxID            string               `json:"sandbox_id"`
	SelectedRepository   *string              `json:"selected_repository"`
	SelectedBranch       *string              `json:"selected_branch"`
	GitProvider          *fsm.ProviderType    `json:"git_provider"`
	Title                *string              `json:"title"`
	Trigger              *string              `json:"trigger"`
	PRNumber             []int64              `json:"pr_number"`
	LLMModel             *string              `json:"llm_model"`
	AgentKind            string               `json:"agent_kind"`
	Metrics              *metricsBody         `json:"metrics"`
	ParentConversationID *string              `json:"parent_conversation_id"`
	SubConversationIDs   []string             `json:"sub_conversation_ids"`
	Public               *bool                `json:"public"`
	Tags                 map[string]string    `json:"tags"`
	CreatedAt            wire.Time            `json:"created_at"`
	UpdatedAt            wire.Time            `json:"updated_at"`
	SandboxStatus        fsm.SandboxState     `json:"sandbox_status"`
	ExecutionStatus      *string              `json:"execution_status"`
	ConversationURL      *string              `json:"conversation_url"`
	SessionAPIKey        *string              `json:"session_api_key"`
	ACPServer            *string              `json:"acp_server"`
	LaunchedAgentProfile *fsm.LaunchedProfile `json:"launched_agent_profile"`
}

// conversationQuery reads the filters of API.md, "Conversations: search".
func conversationQuery(q decode.Query) fsm.ConversationFilter {
	return fsm.ConversationFilter{
		TitleContains: decode.OrZero(q.Text("title__contains", fsm.MaxLine)),
		CreatedGTE:    q.Time("created_at__gte"),
		CreatedLT:     q.Time("created_at__lt"),
		UpdatedGTE:    q.Time("updated_at__gte"),
		UpdatedLT:     q.Time("updated_at__lt"),
		SandboxID:     decode.OrZero(q.Text("sandbox_id__eq", fsm.MaxName)),
		IncludeSub:    q.Boolean("include_sub_conversations"),
	}
}

// handleConversationSearch handles GET /api/v1/app-conversations/search.
func (s *Server) handleConversationSearch(c *call) (response.Response, error) {
	rows, v, next, err := c.listConversations()
	if err != nil {
		return response.Response{}, err
	}
	bodies := s.newConversationBodies(c, v, rows)
	list := request.List{N: len(bodies), Item: func(i int) any { return bodies[i] }}
	return c.BoundedPage(list, next, func(limit int) string {
		_, next := v.Conversations(c.Caller.User, conversationQuery(c.Query),
			fsm.Page{After: request.PageIDOf(c.Query), Limit: limit})
		return next
	})
}

// handleConversationCount handles GET /api/v1/app-conversations/count.
func (s *Server) handleConversationCount(c *call) (response.Response, error) {
	filter := conversationQuery(c.Query)
	filter.IncludeSub = true // as upstream
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	v, err := c.View()
	if err != nil {
		return response.Response{}, err
	}
	return response.OK(v.CountConversations(c.Caller.User, filter))
}

// handleConversationList handles GET /api/v1/app-conversations. With ids it is a batch-get, without
// a listing. Both return a bare array.
func (s *Server) handleConversationList(c *call) (response.Response, error) {
	if sent := c.Query.All("ids"); len(sent) > 0 {
		return s.batchConversations(c, sent)
	}
	rows, v, _, err := c.listConversations()
	if err != nil {
		return response.Response{}, err
	}
	return response.OK(s.newConversationBodies(c, v, rows))
}

func (c *call) listConversations() ([]*fsm.Conversation, *fsm.View, string, error) {
	filter := conversationQuery(c.Query)
	p := fsm.Page{After: request.PageIDOf(c.Query), Limit: request.LimitOf(c.Query)}
	if err := c.Check(); err != nil {
		return nil, nil, "", err
	}
	v, err := c.View()
	if err != nil {
		return nil, nil, "", err
	}
	rows, next := v.Conversations(c.Caller.User, filter, p)
	return rows, v, next, nil
}

func (s *Server) batchConversations(c *call, sent []string) (response.Response, error) {
	if len(sent) > maxConversationBatch {
		return response.Response{}, response.Error(http.StatusBadRequest,
			fmt.Sprintf("Too many ids requested. Maximum is %d.", maxConversationBatch))
	}
	ids := make([]string, len(sent))
	var bad []string
	for i, text := range sent {
		hex, fine := decode.ParseUUID(text)
		if !fine {
			bad = append(bad, text)
		}
		ids[i] = hex
	}
	if len(bad) > 0 {
		return response.Response{}, response.Error(http.StatusBadRequest,
			"Invalid UUID format for ids: "+decode.PythonList(bad))
	}
	v, err := c.View()
	if err != nil {
		return response.Response{}, err
	}
	rows := make([]*fsm.Conversation, 0, len(ids))
	for _, id := range ids {
		if row := v.Conversation(c.Caller.User, id); row != nil {
			rows = append(rows, row)
		}
	}
	found := map[string]*conversationBody{}
	for _, b := range s.newConversationBodies(c, v, rows) {
		b.SubConversationIDs = wire.OrEmpty(v.SubConversations(c.Caller.User, b.ID))
		found[b.ID] = &b
	}
	items := make([]*conversationBody, len(ids))
	for i, id := range ids {
		items[i] = found[id]
	}
	return response.OK(items)
}

// newConversationBodies renders conversations with the present state of their sandboxes, and what their
// events say. Below fsm.VersionEvents it asks their agent servers.
func (s *Server) newConversationBodies(c *call, v *fsm.View, rows []*fsm.Conversation) []conversationBody {
	sandboxes := map[string]*fsm.Sandbox{}
	var placed []*fsm.Sandbox
	for _, row := range rows {
		if _, seen := sandboxes[row.SandboxID]; seen {
			continue
		}
		sb := v.Sandbox(c.Caller.User, row.SandboxID)
		sandboxes[row.SandboxID] = sb
		if sb != nil {
			placed = append(placed, sb)
		}
	}
	keys := s.sandboxKeys(c.Ctx(), placed)
	states := map[string]AgentState{}
	byEvents := v.Active(fsm.VersionEvents)
	if !byEvents {
		states = s.agentStates(c.Ctx(), rows, sandboxes, keys)
	}
	bodies := make([]conversationBody, len(rows))
	for i, row := range rows {
		bodies[i] = newConversationBody(row, sandboxes[row.SandboxID], keys, s.linksFor(c.Request))
		if byEvents {
			bodies[i].addEvents(row, v.Settings(c.Caller.User))
			continue
		}
		said := states[row.ID]
		// The sandbox's user controls the agent server, so the text may be anything.
		if eventin.IsExecutionStatus(said.Status) {
			bodies[i].ExecutionStatus = &said.Status
		}
		bodies[i].Metrics = newMetricsBody(row, saidMetrics(said.Metrics), v.Settings(c.Caller.User))
	}
	return bodies
}

func newConversationBody(row *fsm.Conversation, sb *fsm.Sandbox, keys sandboxKeys, to links) conversationBody {
	b := conversationBody{
		ID: row.ID, CreatedByUserID: &row.UserID, SandboxID: row.SandboxID,
		SelectedRepository: row.SelectedRepository, SelectedBranch: row.SelectedBranch, GitProvider: row.GitProvider,
		Title: row.Title, Trigger: row.Trigger, PRNumber: wire.OrEmpty(row.PRNumber), LLMModel: row.LLMModel,
		AgentKind: row.AgentKind, ParentConversationID: row.ParentID, SubConversationIDs: []string{},
		Public: row.Public, Tags: wire.OrEmptyMap(row.Tags),
		CreatedAt: wire.At(row.CreatedAt), UpdatedAt: wire.At(row.UpdatedAt),
		SandboxStatus: fsm.SandboxMissing, ACPServer: wire.OrNull(row.Tags["acpserver"]),
		LaunchedAgentProfile: row.AgentProfile,
	}
	b.AgentKind = cmp.Or(b.AgentKind, "openhands")
	if sb == nil {
		return b
	}
	b.SandboxStatus = sb.State()
	if proxy.IsServing(sb) {
		link := to.port(sb, fsm.PortAgentServer) + "/api/conversations/" + row.ID
		b.ConversationURL = &link
		b.SessionAPIKey = wire.OrNull(keys.values[sb.ID])
	}
	return b
}
