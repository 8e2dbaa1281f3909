// Package engine is the boundary between a conversation, which agentserver keeps and runs, and the
// engine that does its work: the native loop or an agent behind the Agent Client Protocol. Both
// write events through one Conversation.
package engine

import (
	"context"
	"encoding/json"
	"fmt"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

// Engine does the work of one conversation. The server calls Step from one goroutine at a time; it
// may call the other methods at any time.
type Engine interface {
	// Step does one step of a run. The native loop executes the open actions, or condenses, or calls
	// the model; an ACP agent has its whole turn. It returns when its events are stored.
	//
	// When ctx ends, the run was interrupted: Step stops its tools and calls at once and returns
	// ctx's error. It leaves open actions without a result; the server writes their errors.
	// Another error is a *Failure, or becomes one with the code InternalError.
	Step(ctx context.Context) (Outcome, error)

	// Respond answers a confirmation; no Step runs. When the answer is yes, the server starts a run,
	// whose first Step executes the open actions; a run without an answer does so too. When it is no,
	// Respond has written the rejections of the open actions, or returns true: then the server starts a
	// run whose first Step tells the agent of the rejection.
	Respond(accept bool, reason string) (goesOn bool, err error)

	// Notify tells that a message of the user was added while Step runs.
	Notify()

	// Close ends what the engine started, processes too, and waits for it. The server calls it when
	// the conversation is deleted or unloaded, and when the server stops.
	Close() error
}

// Outcome says how a step ended.
type Outcome int

// The outcomes of a step.
const (
	// Continue asks for another step.
	Continue Outcome = iota
	// Finished ends the run: the agent has answered.
	Finished
	// Waiting ends the run until the user confirms the open actions.
	Waiting
	// Stuck ends the run: the agent repeats itself.
	Stuck
	// Idle ends the run without an answer, as after a rejection.
	Idle
)

// Failure ends a run with the status error. The server writes it as a ConversationErrorEvent.
type Failure struct {
	// Code is one of event.Classify's.
	Code string
	// Detail says what was wrong and what to do, for the user. It has no secret in it.
	Detail string
	// Source is the event's; empty is environment.
	Source string
}

// Error implements error.
func (f *Failure) Error() string { return fmt.Sprintf("%s: %s", f.Code, f.Detail) }

// Conversation is what an engine sees of its conversation. All methods are safe for concurrent use.
type Conversation interface {
	// Append stores events in one write and sends them to the subscribers. It fills in the members of
	// the Head that are empty, except Source. A StateUpdate becomes part of the state.
	Append(events ...event.Event) error
	// Send sends an event that is not stored, such as a StreamingDelta.
	Send(e event.Event)
	// Events returns the stored events, oldest first. The caller does not change them.
	Events() ([]event.Event, error)
	// State returns the state's value of a key, nil if it has none. Keys are those of
	// agent-server state updates, such as stats, agent_state and confirmation_policy.
	State(key string) json.RawMessage
}

// Update returns the event that sets a key of the conversation's state.
func Update(key string, value any) *event.StateUpdate {
	b, err := json.Marshal(value)
	if err != nil {
		b = []byte("null") // engines set values of this package's and event's types, which encode
	}
	return &event.StateUpdate{Head: event.Head{Source: event.SourceEnvironment}, Key: key, Value: b}
}

// The keys of the state that engines read or set.
const (
	KeyStatus             = "execution_status"
	KeyStats              = "stats"                      // event.Stats
	KeyAgentState         = "agent_state"                // an object that only the engine reads
	KeyConfirmationPolicy = "confirmation_policy"        // Policy
	KeySecurityAnalyzer   = "security_analyzer"          // an object with a kind, or null
	KeyStuckDetection     = "stuck_detection"            // a boolean
	KeyActivatedSkills    = "activated_knowledge_skills" // list of names
	KeyActivatedPathRules = "activated_path_rules"       // list of names
)

// The execution statuses.
const (
	StatusIdle    = "idle"
	StatusRunning = "running"
	StatusPaused  = "paused"
	// StatusWaiting is set by the server when Step returns Waiting.
	StatusWaiting  = "waiting_for_confirmation"
	StatusFinished = "finished"
	StatusError    = "error"
	StatusStuck    = "stuck"
)

// Policy says which actions the user confirms.
type Policy struct {
	// Kind is NeverConfirm, AlwaysConfirm or ConfirmRisky.
	Kind string `json:"kind"`
	// Threshold is the least risk that ConfirmRisky asks about; empty is HIGH.
	Threshold string `json:"threshold,omitempty"`
	// ConfirmUnknown makes ConfirmRisky ask about an unknown risk; null is true.
	ConfirmUnknown *bool `json:"confirm_unknown,omitempty"`
}
