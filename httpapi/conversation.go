package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	"golang.org/x/sync/errgroup"

	"bivouac.dev/bivouac/fsm"
)

// maxConversationBatch is how many conversations one batch-get may ask for: the
// agent server answers at most that many (api-contract.md C.4).
const maxConversationBatch = 99

// conversationBody is the wire's AppConversation (api-contract.md A.6).
type conversationBody struct {
	ID                   string            `json:"id"`
	CreatedByUserID      *string           `json:"created_by_user_id"`
	SandboxID            string            `json:"sandbox_id"`
	SelectedRepository   *string           `json:"selected_repository"`
	SelectedBranch       *string           `json:"selected_branch"`
	GitProvider          *fsm.ProviderType `json:"git_provider"`
	Title                *string           `json:"title"`
	Trigger              *string           `json:"trigger"`
	PRNumber             []int64           `json:"pr_number"`
	LLMModel             *string           `json:"llm_model"`
	AgentKind            string            `json:"agent_kind"`
	Metrics              *struct{}         `json:"metrics"`
	ParentConversationID *string           `json:"parent_conversation_id"`
	SubConversationIDs   []string          `json:"sub_conversation_ids"`
	Public               *bool             `json:"public"`
	Tags                 map[string]string `json:"tags"`
	CreatedAt            wireTime          `json:"created_at"`
	UpdatedAt            wireTime          `json:"updated_at"`
	SandboxStatus        fsm.SandboxState  `json:"sandbox_status"`
	ExecutionStatus      *string           `json:"execution_status"`
	ConversationURL      *string           `json:"conversation_url"`
	SessionAPIKey        *string           `json:"session_api_key"`
	ACPServer            *string           `json:"acp_server"`
	LaunchedAgentProfile *struct{}         `json:"launched_agent_profile"`
}

// conversationQuery reads the filters of B.2.
func conversationQuery(q query) fsm.ConversationFilter {
	return fsm.ConversationFilter{
		TitleContains: deref(q.text("title__contains", maxSetting)),
		CreatedGTE:    q.time("created_at__gte"),
		CreatedLT:     q.time("created_at__lt"),
		UpdatedGTE:    q.time("updated_at__gte"),
		UpdatedLT:     q.time("updated_at__lt"),
		SandboxID:     deref(q.text("sandbox_id__eq", maxNameText)),
		IncludeSub:    q.boolean("include_sub_conversations"),
	}
}

// handleConversationSearch handles GET /api/v1/app-conversations/search.
func (s *Server) handleConversationSearch(c *call) (answer, error) {
	rows, v, next, err := c.listConversations()
	if err != nil {
		return answer{}, err
	}
	return ok(newPage(s.newConversationBodies(c, v, rows), next))
}

// handleConversationCount handles GET /api/v1/app-conversations/count.
func (s *Server) handleConversationCount(c *call) (answer, error) {
	filter := conversationQuery(c.query)
	filter.IncludeSub = true // as upstream
	if err := c.check(); err != nil {
		return answer{}, err
	}
	v, err := c.view()
	if err != nil {
		return answer{}, err
	}
	return ok(v.CountConversations(c.who.user, filter))
}

// handleConversationList handles GET /api/v1/app-conversations: with ids a
// batch-get, without a listing, both as a bare array.
func (s *Server) handleConversationList(c *call) (answer, error) {
	if sent := c.query.values["ids"]; len(sent) > 0 {
		return s.batchConversations(c, sent)
	}
	rows, v, _, err := c.listConversations()
	if err != nil {
		return answer{}, err
	}
	return ok(s.newConversationBodies(c, v, rows))
}

func (c *call) listConversations() ([]*fsm.Conversation, *fsm.View, string, error) {
	filter := conversationQuery(c.query)
	p := fsm.Page{After: c.query.pageID(), Limit: c.query.limit()}
	if err := c.check(); err != nil {
		return nil, nil, "", err
	}
	v, err := c.view()
	if err != nil {
		return nil, nil, "", err
	}
	rows, next := v.Conversations(c.who.user, filter, p)
	return rows, v, next, nil
}

func (s *Server) batchConversations(c *call, sent []string) (answer, error) {
	if len(sent) > maxConversationBatch {
		return answer{}, refuse(http.StatusBadRequest,
			fmt.Sprintf("Too many ids requested. Maximum is %d.", maxConversationBatch))
	}
	ids := make([]string, len(sent))
	var bad []string
	for i, text := range sent {
		hex, fine := parseUUID(text)
		if !fine {
			bad = append(bad, text)
		}
		ids[i] = hex
	}
	if len(bad) > 0 {
		return answer{}, refuse(http.StatusBadRequest, "Invalid UUID format for ids: "+pythonList(bad))
	}
	v, err := c.view()
	if err != nil {
		return answer{}, err
	}
	rows := make([]*fsm.Conversation, 0, len(ids))
	for _, id := range ids {
		if row := v.Conversation(c.who.user, id); row != nil {
			rows = append(rows, row)
		}
	}
	found := map[string]*conversationBody{}
	for _, b := range s.newConversationBodies(c, v, rows) {
		b.SubConversationIDs = orEmpty(v.SubConversations(c.who.user, b.ID))
		found[b.ID] = &b
	}
	items := make([]*conversationBody, len(ids))
	for i, id := range ids {
		items[i] = found[id]
	}
	return ok(items)
}

// newConversationBodies renders conversations with what their sandboxes and
// agent servers say right now.
func (s *Server) newConversationBodies(c *call, v *fsm.View, rows []*fsm.Conversation) []conversationBody {
	sandboxes := map[string]*fsm.Sandbox{}
	var placed []*fsm.Sandbox
	for _, row := range rows {
		if _, seen := sandboxes[row.SandboxID]; seen {
			continue
		}
		box := v.Sandbox(c.who.user, row.SandboxID)
		sandboxes[row.SandboxID] = box
		if box != nil {
			placed = append(placed, box)
		}
	}
	keys := s.sandboxKeys(c.ctx(), placed)
	statuses := s.executionStatuses(c.ctx(), rows, sandboxes, keys)
	bodies := make([]conversationBody, len(rows))
	for i, row := range rows {
		bodies[i] = newConversationBody(row, sandboxes[row.SandboxID], keys, s.linksFor(c.r))
		if status, known := statuses[row.ID]; known {
			bodies[i].ExecutionStatus = &status
		}
	}
	return bodies
}

func newConversationBody(row *fsm.Conversation, box *fsm.Sandbox, keys sandboxKeys, to links) conversationBody {
	b := conversationBody{
		ID: row.ID, CreatedByUserID: &row.UserID, SandboxID: row.SandboxID,
		SelectedRepository: row.SelectedRepository, SelectedBranch: row.SelectedBranch, GitProvider: row.GitProvider,
		Title: row.Title, Trigger: row.Trigger, PRNumber: orEmpty(row.PRNumber), LLMModel: row.LLMModel,
		AgentKind: row.AgentKind, ParentConversationID: row.ParentID, SubConversationIDs: []string{},
		Public: row.Public, Tags: orEmptyMap(row.Tags),
		CreatedAt: wireTime(row.CreatedAt), UpdatedAt: wireTime(row.UpdatedAt),
		SandboxStatus: fsm.SandboxMissing, ACPServer: orNull(row.Tags["acpserver"]),
	}
	if b.AgentKind == "" {
		b.AgentKind = "openhands"
	}
	if box == nil {
		return b
	}
	b.SandboxStatus = box.State()
	if isServing(box) {
		link := to.port(box, fsm.PortAgentServer) + "/api/conversations/" + row.ID
		b.ConversationURL = &link
		b.SessionAPIKey = orNull(keys.values[box.ID])
	}
	return b
}

// agentCallers is how many agent servers one listing asks at once.
const agentCallers = 16

// maxAgentIDs is how many conversations one question to an agent server holds.
const maxAgentIDs = 99

// executionStatuses asks each running sandbox's agent server once. What does not
// answer in Config.AgentTimeout is left out: a listing never fails or hangs for
// a sandbox.
func (s *Server) executionStatuses(ctx context.Context, rows []*fsm.Conversation, sandboxes map[string]*fsm.Sandbox, keys sandboxKeys) map[string]string {
	asks := map[string][]string{}
	for _, row := range rows {
		if keys.values[row.SandboxID] != "" && len(asks[row.SandboxID]) < maxAgentIDs {
			asks[row.SandboxID] = append(asks[row.SandboxID], row.ID)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.AgentTimeout)
	defer cancel()
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(agentCallers)
	statuses := map[string]string{}
	for id, ids := range asks {
		group.Go(func() error {
			if ctx.Err() != nil {
				return nil
			}
			found, err := s.agents.ExecutionStatuses(ctx, agentURL(sandboxes[id].Status.Placement), keys.values[id], ids)
			if err != nil {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			// The sandbox's user may have put anything there.
			for _, one := range ids {
				if isExecutionStatus(found[one]) {
					statuses[one] = found[one]
				}
			}
			return nil
		})
	}
	_ = group.Wait() // what failed is null in the answer
	return statuses
}

// isExecutionStatus reports whether a text is one of the wire's (api-contract.md
// A.0.7).
func isExecutionStatus(s string) bool {
	switch s {
	case "idle", "running", "paused", "waiting_for_confirmation", "finished", "error", "stuck", "deleting":
		return true
	}
	return false
}
