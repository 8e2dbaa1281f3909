package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/llmtoken"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// handleSwitchLLM handles POST …/{conversation_id}/switch_llm: the one way by which a conversation
// goes to another server of models, and to another key. No key enters its sandbox.
func (s *Server) handleSwitchLLM(c *call) (response.Response, error) {
	id, o := c.conversationID(), c.Object()
	model := decode.OrZero(o.Text("llm_model", fsm.MaxLine))
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	return s.switchLLM(c, id, model, "")
}

// handleSwitchProfile handles POST …/{conversation_id}/switch_profile: to the model, base URL and key of
// an LLM profile. The settings stay.
func (s *Server) handleSwitchProfile(c *call) (response.Response, error) {
	id, o := c.conversationID(), c.Object()
	name := o.MustText("profile_name", fsm.MaxProfileName)
	if o.Has("profile_name") && o.Value("profile_name") == "" {
		o.Rule("profile_name", badProfileName())
	}
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	return s.switchLLM(c, id, "", name)
}

// switchLLM moves a conversation to an LLM profile of its owner, "" for the settings.
func (s *Server) switchLLM(c *call, id, model, profile string) (response.Response, error) {
	if c.Key != "" {
		if _, found, err := c.Recorded(); found || err != nil {
			return response.Response{Status: http.StatusOK, Body: wire.Success{Success: true}}, err
		}
	}
	v, err := c.ViewWith(cluster.Linearizable)
	if err != nil {
		return response.Response{}, err
	}
	a, err := c.agentOf(id, cluster.Linearizable)
	switch {
	case err != nil:
		return response.Response{}, err
	case a == nil:
		return response.Response{}, errNoConversation()
	case !s.usesGateway(v):
		return response.Response{}, response.Error(http.StatusBadRequest,
			"This installation hands keys of models to sandboxes: a conversation keeps the one that it began with. "+
				"Start a new conversation.")
	case a.row.AgentKind == fsm.AgentACP && model != "":
		return response.Response{}, response.Error(http.StatusBadRequest,
			"The conversation's agent speaks ACP: leave llm_model out, "+
				"and name its model with switch_acp_model.")
	case a.paused():
		return response.Response{}, response.Error(http.StatusConflict,
			"Sandbox is paused; resume it before switching the model.")
	case !a.serves():
		return response.Response{}, response.Error(http.StatusConflict,
			fmt.Sprintf("Sandbox is %s; the model can't be switched now.", a.state()))
	}
	profileID := ""
	if profile != "" {
		p := v.Profile(c.Caller.User, fsm.ProfileLLM, profile)
		if p == nil {
			return response.Response{}, fsm.ErrProfileNotFound(fsm.ProfileLLM, profile)
		}
		profileID = p.ID
	}
	to, refused := v.EndpointForSwitch(c.Caller.User, model, profileID, c.Now)
	if refused != nil {
		return response.Response{}, refused
	}
	// The agent first: what is recorded under an Idempotency-Key has been done.
	if a.row.AgentKind != fsm.AgentACP && to.Model != "" {
		if err := a.switchModel(c.Ctx(), id, to, v.Installation().LLM.SettingsOf(to.Model)); err != nil {
			return response.Response{}, err
		}
	}
	if _, err := c.Propose(&fsm.ConversationSwitchLLMBody{ID: id, Model: model, Profile: profileID}); err != nil {
		return response.Response{}, response.NotFoundAs(err, "Conversation not found")
	}
	return response.OK(wire.Success{Success: true})
}

// usesGateway reports whether sandboxes reach models through the gateway.
func (s *Server) usesGateway(v *fsm.View) bool {
	return len(s.cfg.APIURLs) > 0 && v.Active(fsm.VersionModels) && !v.Installation().LLM.Direct
}

// gatewayURL is where sandboxes reach the gateway's OpenAI API.
func (s *Server) gatewayURL() string { return strings.TrimRight(s.cfg.APIURLs[0], "/") + "/llm/v1" }

// switchedLLM is how an agent server reaches a conversation's model from now on.
type switchedLLM struct {
	Model   string `json:"model"`
	API     string `json:"api,omitempty"`
	BaseURL string `json:"base_url"`
	APIKey  string `json:"api_key"`
	UsageID string `json:"usage_id"`
	fsm.ModelSettings
}

// switchModel tells the agent server which model the conversation asks for from now on. The gateway's
// address and a token come along for agent servers that replace the whole, and a usage id of the
// model's own for those that keep the first model of an id.
func (a *conversationAgent) switchModel(
	ctx context.Context, id string, to *fsm.ModelEndpoint, said fsm.ModelSettings,
) error {
	body, err := json.Marshal(map[string]switchedLLM{"llm": {
		Model: to.Model, API: preset.APIOf(to.Model, to.BaseURL).Named(), BaseURL: a.server.gatewayURL(),
		APIKey: llmtoken.New(a.key, a.sandbox, id), UsageID: "agent-" + to.Model, ModelSettings: said,
	}})
	if err != nil {
		return err
	}
	err = a.call(ctx,
		AgentRequest{
			Method: http.MethodPost,
			Path:   "/api/conversations/" + decode.Dashed(id) + "/switch_llm",
			Body:   body,
		}, nil)
	var failed *AgentError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &failed) && failed.Status == http.StatusBadRequest:
		return &response.HTTPError{Status: failed.Status, Text: "The agent refused the model: " + failed.Detail, Cause: err}
	case errors.Is(err, context.DeadlineExceeded):
		return &response.HTTPError{
			Status: http.StatusGatewayTimeout,
			Text:   "The agent server did not answer in time.",
			Cause:  err,
		}
	}
	return errOfAgent(err)
}

// metricsBody is the upstream's MetricsSnapshot of a conversation.
type metricsBody struct {
	ModelName string `json:"model_name"`
	// AccumulatedCost is in US dollars.
	AccumulatedCost  float64        `json:"accumulated_cost"`
	MaxBudgetPerTask *float64       `json:"max_budget_per_task"`
	TokenUsage       tokenUsageBody `json:"accumulated_token_usage"`
}

type tokenUsageBody struct {
	Model            string `json:"model"`
	PromptTokens     int64  `json:"prompt_tokens"`
	CompletionTokens int64  `json:"completion_tokens"`
	CacheReadTokens  int64  `json:"cache_read_tokens"`
	CacheWriteTokens int64  `json:"cache_write_tokens"`
	ReasoningTokens  int64  `json:"reasoning_tokens"`
	ContextWindow    int64  `json:"context_window"`
	PerTurnToken     int64  `json:"per_turn_token"`
	ResponseID       string `json:"response_id"`
}

// newMetricsBody is what the model gateway counted of a conversation; the members that it does not
// count are 0. The gateway tells the cluster seconds after an answer, and counts nothing of models
// that are reached past it: where it has nothing, it is what the agent server said, nil for nothing.
func newMetricsBody(row *fsm.Conversation, said *metricsBody, settings *fsm.Settings) *metricsBody {
	if row.Models == (fsm.ModelUsage{}) {
		return said
	}
	b := &metricsBody{ModelName: "default", AccumulatedCost: wire.Dollars(row.Models.Cost), TokenUsage: tokenUsageBody{
		Model: decode.OrZero(row.LLMModel), PromptTokens: row.Models.Input, CompletionTokens: row.Models.Output,
		CacheReadTokens: row.Models.Cached,
	}}
	if settings != nil {
		b.MaxBudgetPerTask = settings.Values.MaxBudgetPerTask
	}
	return b
}

// saidMetrics reads an agent server's metrics, nil for none and for what is not of their form.
func saidMetrics(said json.RawMessage) *metricsBody {
	var b *metricsBody
	if len(said) == 0 || json.Unmarshal(said, &b) != nil || b == nil {
		return nil
	}
	for _, text := range []*string{&b.ModelName, &b.TokenUsage.Model, &b.TokenUsage.ResponseID} {
		*text = decode.Truncate(*text, fsm.MaxLine)
	}
	return b
}
