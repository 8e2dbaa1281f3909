package httpapi

import (
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
)

// maxV0ID bounds a conversation id that a V0 client chooses, in characters;
// maxStoredV0ID is how much of it fsm keeps, in bytes.
const (
	maxV0ID       = 100
	maxStoredV0ID = 128
)

// v0StartBody is the answer of POST /api/conversations (seed-api.md 2.4).
type v0StartBody struct {
	Status             string  `json:"status"`
	ConversationID     string  `json:"conversation_id"`
	Message            *string `json:"message"`
	ConversationStatus string  `json:"conversation_status"`
}

// handleV0Start handles POST /api/conversations.
func (s *Server) handleV0Start(c *call) (answer, error) {
	in, wished := readV0Start(c.object(), c.who)
	if err := c.check(); err != nil {
		return answer{}, err
	}
	if wished != nil {
		if err := checkV0ID(*wished); err != nil {
			return answer{}, err
		}
		in.conversation, in.v0ID = mapV0ID(c.who.user, *wished)
	}
	return c.once(func() (fsm.Body, secretWrites, error) {
		v, err := c.viewWith(cluster.Linearizable)
		if err != nil {
			return nil, secretWrites{}, err
		}
		if err := checkV0Settings(v.Settings(c.who.user)); err != nil {
			return nil, secretWrites{}, err
		}
		if err := s.checkRepository(c, v, &in.request); err != nil {
			return nil, secretWrites{}, err
		}
		if !in.joins(v, c.who.user) {
			err := c.admitted(v, func(v *fsm.View) *fsm.Error { return v.StartAdmission(c.who.user, &in.request, c.now) })
			if err != nil {
				return nil, secretWrites{}, err
			}
		}
		return in.command(c.who.user)
	}, func(res fsm.Result) (answer, error) {
		return newV0Start(in, res)
	})
}

// joins reports whether the start is of a conversation that there is, or that is
// being started: it needs no sandbox of its own.
func (in startInput) joins(v *fsm.View, user string) bool {
	if !in.join || in.conversation == "" {
		return false
	}
	task := v.StartTaskByConversation(user, in.conversation)
	return v.Conversation(user, in.conversation) != nil || task != nil && !task.Done()
}

// newV0Start says which conversation was started or joined. A joined one that is
// past its start has no task; its id is the one that was asked for.
func newV0Start(in startInput, res fsm.Result) (answer, error) {
	id := in.v0ID
	if id == "" {
		id = in.conversation
	}
	if id == "" {
		if res.StartTask == nil {
			return answer{}, errEmptyResult(fsm.StartTaskCreate)
		}
		id = res.StartTask.ConversationID
	}
	return ok(v0StartBody{Status: "ok", ConversationID: id, ConversationStatus: "STARTING"})
}

// readV0Start translates a V0 creation into a start.
func readV0Start(o object, who principal) (in startInput, wished *string) {
	o.strict("repository", "git_provider", "selected_branch", "initial_user_msg", "image_urls", "replay_json",
		"suggested_task", "create_microagent", "conversation_instructions", "mcp_config", "conversation_id")
	q := fsm.StartRequest{
		SelectedRepository:  o.text("repository", maxSetting),
		SelectedBranch:      o.text("selected_branch", maxSetting),
		GitProvider:         (*fsm.ProviderType)(o.enum("git_provider", providerNames())),
		SystemMessageSuffix: o.text("conversation_instructions", maxText),
		AgentType:           "default",
		PRNumber:            []int64{},
	}
	o.text("replay_json", maxAnyText) // taken, not replayed
	q.InitialMessage = readV0Message(o)
	trigger := triggerGUI
	if who.bearer {
		trigger = triggerAPI
	}
	q.Trigger = &trigger
	if m, ok := o.object("create_microagent"); ok {
		trigger = triggerMicroagent
		readMicroagent(m, &q)
	}
	if t, ok := o.object("suggested_task"); ok {
		message := q.InitialMessage
		q.SuggestedTask = readTaskMembers(t)
		applySuggestedTask(&q)
		if message != nil {
			q.InitialMessage = message
		}
	}
	if o.notNull("conversation_id", kindString) {
		wished = o.text("conversation_id", maxLongText)
	}
	return startInput{request: q, secrets: startSecrets{MCPConfig: readMCPConfig(o)}, join: wished != nil}, wished
}

// readV0Message makes the first message out of text and images.
func readV0Message(o object) *fsm.Message {
	text, images := o.text("initial_user_msg", maxLongText), o.texts("image_urls", maxPictures)
	if deref(text) == "" && len(images) == 0 {
		return nil
	}
	m := &fsm.Message{Role: "user"}
	if t := deref(text); t != "" {
		m.Content = append(m.Content, fsm.ContentBlock{Type: blockText, Text: t})
	}
	if len(images) > 0 {
		m.Content = append(m.Content, fsm.ContentBlock{Type: blockImage, ImageURLs: images})
	}
	return m
}

// readMicroagent reads create_microagent, which names the repository where the
// request does not.
func readMicroagent(m object, q *fsm.StartRequest) {
	repo := m.mustText("repo", maxNameText)
	provider := (*fsm.ProviderType)(m.enum("git_provider", providerNames()))
	q.Title = m.text("title", maxSetting)
	if q.SelectedRepository == nil && repo != "" {
		q.SelectedRepository = &repo
	}
	if q.GitProvider == nil {
		q.GitProvider = provider
	}
}

// checkV0ID applies upstream's rules for a chosen conversation id.
func checkV0ID(id string) error {
	text := ""
	switch {
	case id == "":
		text = "Conversation ID must not be empty"
	case utf8.RuneCountInString(id) > maxV0ID:
		text = "Conversation ID is too long"
	case strings.Contains(id, "..") || strings.ContainsAny(id, `/\`):
		text = "Conversation ID contains invalid path characters"
	case strings.ContainsFunc(id, unicode.IsControl):
		text = "Conversation ID contains control characters"
	default:
		return nil
	}
	return refuse(http.StatusBadRequest, text)
}

// mapV0ID gives the V1 id for a V0 client's: a UUID's hex form, or, for any other
// text, an id derived from user and text; and the text itself, to be kept where it
// is another one.
func mapV0ID(user, id string) (hex, v0 string) {
	if hex, ok := parseUUID(id); ok {
		if hex == id {
			return hex, ""
		}
		return hex, id
	}
	derived := uuid.NewSHA1(uuid.NameSpaceURL, []byte("bivouac:conversation:"+user+":"+id))
	return strings.ReplaceAll(derived.String(), "-", ""), id
}

// checkV0Settings refuses a V0 creation that could not talk to a model.
func checkV0Settings(settings *fsm.Settings) error {
	if settings == nil {
		return errV0("Settings not found", "CONFIGURATION$SETTINGS_NOT_FOUND")
	}
	model := deref(settings.Values.LLMModel)
	keyless := strings.HasPrefix(model, "bedrock/") || strings.HasPrefix(model, "lemonade/")
	if settings.LLMAPIKey.IsZero() && !keyless {
		return errV0("Error authenticating with the LLM provider. Please check your API key", "STATUS$ERROR_LLM_AUTHENTICATION")
	}
	return nil
}

func errV0(text, id string) *refusal {
	return &refusal{status: http.StatusBadRequest, text: text,
		body: statusBody{Status: "error", Message: text, MsgID: id, Detail: text}}
}
