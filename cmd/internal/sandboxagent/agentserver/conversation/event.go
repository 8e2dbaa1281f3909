package conversation

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/scheduler/agent"
)

// eventTime is the format of event times (event.TimeFormat).
const eventTime = event.TimeFormat

// messageEvent is the event of a client's message.
func messageEvent(m agent.Message) *event.Message {
	source := event.SourceUser
	if m.Role == "assistant" {
		source = event.SourceAgent
	}
	e := &event.Message{Head: event.Head{Source: source}, LLMMessage: event.LLMMessage{
		Role:    m.Role,
		Content: []event.Content{},
	},
		ActivatedSkills: []string{}, ExtendedContent: []event.Text{}}
	for _, b := range m.Content {
		e.LLMMessage.Content = append(e.LLMMessage.Content, event.Content(b))
	}
	return e
}

func statusEvent(status string) event.Event { return engine.Update(engine.KeyStatus, status) }

// failureEvents end a run as error.
func failureEvents(f *engine.Failure) []event.Event {
	source := cmp.Or(f.Source, event.SourceEnvironment)
	return []event.Event{
		&event.ConversationError{
			Head:           event.Head{Source: source},
			Code:           f.Code,
			Detail:         f.Detail,
			Classification: event.Classify(f.Code),
		},
		statusEvent(engine.StatusError),
	}
}

// unfinished are the errors of actions that were broken off.
func unfinished(open []*event.Action, text string) []event.Event {
	list := make([]event.Event, 0, len(open))
	for _, a := range open {
		list = append(list, &event.AgentError{Head: event.Head{
			Source: event.SourceAgent,
		}, ToolName: a.ToolName, ToolCallID: a.ToolCallID,
			Error: text, Classification: event.Classification{Kind: "internal", UserAction: "none"}})
	}
	return list
}

// newUUID is a new id as events have it, with dashes.
func newUUID() string { return decode.Dashed(newID()) }

// newID is the id of a new conversation.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return hex.EncodeToString(b[:])
}
