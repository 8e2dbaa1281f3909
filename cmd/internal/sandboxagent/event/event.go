// Package event has the events of a conversation (PROTOCOL.md, "Events"): one type for each kind,
// and the objects in them. Their JSON is the protocol's. The engines make them; agentserver stores
// and sends them.
package event

import (
	"encoding/json"
	"fmt"
)

// TimeFormat is the format of an event's time: UTC without a zone. All have one length, so they
// compare as text.
const TimeFormat = "2006-01-02T15:04:05.000000"

// The sources of events.
const (
	SourceAgent       = "agent"
	SourceUser        = "user"
	SourceEnvironment = "environment"
	SourceHook        = "hook"
)

// Event is one event. Its type tells its kind. The types of this package implement it, as pointers.
type Event interface {
	// Envelope returns the members that every event has, to be read or filled in.
	Envelope() *Head
}

// Head are the members that every event has. The server fills in what the engine leaves empty,
// except Source.
type Head struct {
	Kind string `json:"kind"`
	// ID is a UUID with dashes.
	ID string `json:"id"`
	// Timestamp is in TimeFormat.
	Timestamp string `json:"timestamp"`
	Source    string `json:"source"`
	// ParentID is the id of the event before this one on its branch; null for the first.
	ParentID *string `json:"parent_id"`
}

// Envelope implements Event.
func (h *Head) Envelope() *Head { return h }

// Unknown is an event of a kind that this package does not know, as it was read.
type Unknown struct {
	Head
	// Raw is the whole event.
	Raw json.RawMessage `json:"-"`
}

// MarshalJSON returns the event as it was read.
func (u *Unknown) MarshalJSON() ([]byte, error) { return u.Raw, nil }

// kinds makes an empty event of each kind.
func kinds(kind string) Event {
	switch kind {
	case KindSystemPrompt:
		return &SystemPrompt{}
	case KindMessage:
		return &Message{}
	case KindAction:
		return &Action{}
	case KindObservation:
		return &Observation{}
	case KindUserReject:
		return &UserReject{}
	case KindAgentError:
		return &AgentError{}
	case KindConversationError:
		return &ConversationError{}
	case KindStateUpdate:
		return &StateUpdate{}
	case KindPause:
		return &Pause{}
	case KindInterrupt:
		return &Interrupt{}
	case KindCondensationRequest:
		return &CondensationRequest{}
	case KindCondensation:
		return &Condensation{}
	case KindACPToolCall:
		return &ACPToolCall{}
	case KindStreamingDelta:
		return &StreamingDelta{}
	case KindHookExecution:
		return &HookExecution{}
	case KindServerError:
		return &ServerError{}
	}
	return nil
}

// KindOf returns the protocol's name of an event's kind.
func KindOf(e Event) string {
	switch e := e.(type) {
	case *SystemPrompt:
		return KindSystemPrompt
	case *Message:
		return KindMessage
	case *Action:
		return KindAction
	case *Observation:
		return KindObservation
	case *UserReject:
		return KindUserReject
	case *AgentError:
		return KindAgentError
	case *ConversationError:
		return KindConversationError
	case *StateUpdate:
		return KindStateUpdate
	case *Pause:
		return KindPause
	case *Interrupt:
		return KindInterrupt
	case *CondensationRequest:
		return KindCondensationRequest
	case *Condensation:
		return KindCondensation
	case *ACPToolCall:
		return KindACPToolCall
	case *StreamingDelta:
		return KindStreamingDelta
	case *HookExecution:
		return KindHookExecution
	case *ServerError:
		return KindServerError
	default:
		return e.Envelope().Kind
	}
}

// Decode reads one event. A kind that this package does not know becomes Unknown.
func Decode(raw []byte) (Event, error) {
	var h Head
	if err := json.Unmarshal(raw, &h); err != nil {
		return nil, fmt.Errorf("decoding an event: %w", err)
	}
	e := kinds(h.Kind)
	if e == nil {
		return &Unknown{Head: h, Raw: append(json.RawMessage(nil), raw...)}, nil
	}
	if err := json.Unmarshal(raw, e); err != nil {
		return nil, fmt.Errorf("decoding a %s: %w", h.Kind, err)
	}
	return e, nil
}
