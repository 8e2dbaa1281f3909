package legacy

import (
	"net/http"
	"strings"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/git"
	"bivouac.dev/bivouac/httpapi/response"
)

// StartBody is the response of POST /api/conversations (API.md, "Conversations: V0 start").
type StartBody struct {
	Status             string  `json:"status"`
	ConversationID     string  `json:"conversation_id"`
	Message            *string `json:"message"`
	ConversationStatus string  `json:"conversation_status"`
}

// NewStartBody is the response to an accepted start.
func NewStartBody(conversation string) StartBody {
	return StartBody{Status: "ok", ConversationID: conversation, ConversationStatus: "STARTING"}
}

// ReadStart converts a V0 request, all but its mcp_config, to a start. wished is the conversation id
// that the client chose, nil if it chose none.
func ReadStart(o decode.Object, bearer bool) (q fsm.StartRequest, wished *string) {
	o.Strict("repository", "git_provider", "selected_branch", "initial_user_msg", "image_urls", "replay_json",
		"suggested_task", "create_microagent", "conversation_instructions", "mcp_config", "conversation_id")
	q = fsm.StartRequest{
		SelectedRepository:  o.Repository("repository", fsm.MaxPath),
		SelectedBranch:      o.Address("selected_branch", fsm.MaxPath),
		GitProvider:         (*fsm.ProviderType)(o.Enum("git_provider", git.Providers())),
		SystemMessageSuffix: o.Text("conversation_instructions", fsm.MaxParagraph),
		AgentType:           fsm.AgentTypeDefault,
		PRNumber:            []int64{},
	}
	if replay := strings.TrimSpace(decode.OrZero(o.Text("replay_json", decode.MaxAnyText))); replay != "" &&
		replay != "[]" {
		o.Masked().Rule("replay_json",
			"there is no replay: leave it out and send what the agent shall do as initial_user_msg")
	}
	q.InitialMessage = readMessage(o)
	q.Trigger = new(fsm.TriggerGUI)
	if bearer {
		q.Trigger = new(fsm.TriggerAPI)
	}
	if m, ok := o.Object("create_microagent"); ok {
		q.Trigger = new(fsm.TriggerMicroagent)
		readMicroagent(m, &q)
	}
	if t, ok := o.Object("suggested_task"); ok {
		message := q.InitialMessage
		q.SuggestedTask = git.ReadTask(t)
		git.ApplyTask(&q)
		if message != nil {
			q.InitialMessage = message
		}
	}
	if decode.OrZero(q.SelectedBranch) != "" && decode.OrZero(q.SelectedRepository) == "" {
		o.Masked().Rule("selected_branch", "a branch needs a repository: send repository, too")
	}
	if o.NotNull("conversation_id", decode.KindString) {
		wished = o.Text("conversation_id", fsm.MaxText)
	}
	return q, wished
}

// readMessage builds the first message from text and images.
func readMessage(o decode.Object) *fsm.Message {
	text, images := decode.OrZero(o.Text("initial_user_msg", fsm.MaxText)), o.Texts("image_urls", decode.MaxAnyText)
	if text == "" && len(images) == 0 {
		return nil
	}
	m := &fsm.Message{Role: "user"}
	if text != "" {
		m.Content = append(m.Content, fsm.ContentBlock{Type: fsm.BlockText, Text: text})
	}
	if len(images) > 0 {
		m.Content = append(m.Content, fsm.ContentBlock{Type: fsm.BlockImage, ImageURLs: images})
	}
	return m
}

// readMicroagent reads create_microagent. Its repository and provider apply where the request has
// none.
func readMicroagent(m decode.Object, q *fsm.StartRequest) {
	repo := m.MustRepository("repo", fsm.MaxPath)
	provider := (*fsm.ProviderType)(m.Enum("git_provider", git.Providers()))
	q.Title = m.Title("title", fsm.MaxLine)
	if q.SelectedRepository == nil && repo != "" {
		q.SelectedRepository = &repo
	}
	if q.GitProvider == nil {
		q.GitProvider = provider
	}
}

// CheckSettings refuses a V0 start without a usable LLM configuration.
func CheckSettings(settings *fsm.Settings) error {
	if settings == nil {
		return startError("Settings not found", "CONFIGURATION$SETTINGS_NOT_FOUND")
	}
	model := decode.OrZero(settings.Values.LLMModel)
	needsNoKey := strings.HasPrefix(model, "bedrock/") || strings.HasPrefix(model, "lemonade/")
	if settings.LLMAPIKey.IsZero() && !needsNoKey {
		return startError("Error authenticating with the LLM provider. Please check your API key",
			"STATUS$ERROR_LLM_AUTHENTICATION")
	}
	return nil
}

func startError(text, id string) *response.HTTPError {
	return &response.HTTPError{Status: http.StatusBadRequest, Text: text,
		Body: response.StatusBody{Status: "error", Message: text, MsgID: id, Detail: text}}
}
