package fsm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// CommandType names what a command does, as "noun.verb". The list is
// append-only: a name once released keeps its meaning for ever, because it
// stands in Raft logs.
type CommandType string

// The command types. Each has a body type of the same stem (SandboxPause has
// SandboxPauseBody), declared beside its noun in <noun>_commands.go.
const (
	TermOpen         CommandType = "term.open"
	ProtocolRaise    CommandType = "protocol.raise"
	APIKeyCreate     CommandType = "api_key.create"
	APIKeyRevoke     CommandType = "api_key.revoke"
	SettingsPut      CommandType = "settings.put"
	ProvidersReplace CommandType = "providers.replace"
	SpecApply        CommandType = "spec.apply"
	SpecDelete       CommandType = "spec.delete"
	SandboxCreate    CommandType = "sandbox.create"
	SandboxPause     CommandType = "sandbox.pause"
	SandboxResume    CommandType = "sandbox.resume"
	SandboxDelete    CommandType = "sandbox.delete"
	SandboxObserve   CommandType = "sandbox.observe"
	SandboxRemove    CommandType = "sandbox.remove"
	StartTaskCreate  CommandType = "start_task.create"
	StartTaskBind    CommandType = "start_task.bind"
	StartTaskAdvance CommandType = "start_task.advance"
	StartTaskFinish  CommandType = "start_task.finish"
	StartTaskFail    CommandType = "start_task.fail"
)

// Command is one entry of the Raft log: what changes, decided before the log.
// Whoever proposes reads the clock, makes the ids and names the actor; Apply
// reads none of these from anywhere else.
type Command struct {
	// ID makes the command apply at most once. The proposer draws a random one;
	// httpapi derives it from the Idempotency-Key header when there is one.
	ID string `json:"id"`
	// Type selects the body.
	Type CommandType `json:"type"`
	// Time is the proposer's clock, UTC, microseconds.
	Time time.Time `json:"time"`
	// UserID is the user on whose behalf the command runs; empty for the
	// leader's own commands (observations, task progress).
	UserID string `json:"user_id,omitempty"`
	// Fingerprint is the hash of the HTTP request behind a client-chosen ID.
	// The same ID with another fingerprint is refused with
	// CodeIdempotencyMismatch. Non-empty also means: keep the result for
	// ClientResultTTL instead of the short internal window.
	Fingerprint string `json:"fingerprint,omitempty"`
	// Body is what the type needs.
	Body Body `json:"body"`
}

// NewCommand builds a command: the type is the body's, the time is brought to
// UTC and whole microseconds. It is pure: the caller draws the id and reads the
// clock.
func NewCommand(id string, now time.Time, userID string, body Body) Command {
	return Command{ID: id, Type: body.CommandType(), Time: now.UTC().Truncate(time.Microsecond), UserID: userID, Body: body}
}

// Body is the type-specific part of a Command. Implementations are plain data
// with JSON tags, declared in this package only.
type Body interface {
	// CommandType tells which command the body belongs to.
	CommandType() CommandType
	// Validate checks the rules of the one object, without any state; it runs
	// before the log (cluster.Node.Propose) and again in Apply. It returns an
	// *Error with CodeInvalid.
	Validate() error
}

// Encode gives the bytes that stand in the Raft log and travel between nodes:
// the type, then the command as a JSON object. The type comes first so that
// DecodeCommand reads the object once, straight into the right body.
func (c Command) Encode() ([]byte, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encoding command %s: %w", c.Type, err)
	}
	return append([]byte(c.Type), b...), nil
}

// DecodeCommand reads what Encode wrote. An unknown type is an error; in
// Apply it stops the node, because skipping it would let this node's state
// drift from the others'.
func DecodeCommand(b []byte) (Command, error) {
	start := bytes.IndexByte(b, '{')
	if start < 0 {
		return Command{}, errors.New("decoding command: it holds no object")
	}
	t := CommandType(b[:start])
	body, err := newBody(t)
	if err != nil {
		return Command{}, err
	}
	// A pointer inside an interface is decoded into.
	c := Command{Body: body}
	if err := json.Unmarshal(b[start:], &c); err != nil {
		return Command{}, fmt.Errorf("decoding command %s: %w", t, err)
	}
	if c.Type != t || c.Body == nil {
		return Command{}, fmt.Errorf("decoding command %s: the object inside is of type %q", t, c.Type)
	}
	return c, nil
}

// newBody returns a pointer to a zero body of the type. All bodies are used
// through pointers.
func newBody(t CommandType) (Body, error) {
	switch t {
	case TermOpen:
		return &TermOpenBody{}, nil
	case ProtocolRaise:
		return &ProtocolRaiseBody{}, nil
	case APIKeyCreate:
		return &APIKeyCreateBody{}, nil
	case APIKeyRevoke:
		return &APIKeyRevokeBody{}, nil
	case SettingsPut:
		return &SettingsPutBody{}, nil
	case ProvidersReplace:
		return &ProvidersReplaceBody{}, nil
	case SpecApply:
		return &SpecApplyBody{}, nil
	case SpecDelete:
		return &SpecDeleteBody{}, nil
	case SandboxCreate:
		return &SandboxCreateBody{}, nil
	case SandboxPause:
		return &SandboxPauseBody{}, nil
	case SandboxResume:
		return &SandboxResumeBody{}, nil
	case SandboxDelete:
		return &SandboxDeleteBody{}, nil
	case SandboxObserve:
		return &SandboxObserveBody{}, nil
	case SandboxRemove:
		return &SandboxRemoveBody{}, nil
	case StartTaskCreate:
		return &StartTaskCreateBody{}, nil
	case StartTaskBind:
		return &StartTaskBindBody{}, nil
	case StartTaskAdvance:
		return &StartTaskAdvanceBody{}, nil
	case StartTaskFinish:
		return &StartTaskFinishBody{}, nil
	case StartTaskFail:
		return &StartTaskFailBody{}, nil
	}
	return nil, fmt.Errorf("unknown command type %q: this node is older than the cluster; upgrade it", t)
}

// Result is what Apply answers to the proposer, on whatever node it is. It
// travels between nodes as JSON and is kept in the command-id table, so a
// repeated command gets the very same answer. At most one pointer is set.
type Result struct {
	// Index is the Raft log index at which the command was applied (the first
	// time).
	Index uint64 `json:"index"`
	// Replayed is set when the answer came from the command-id table.
	Replayed bool `json:"replayed,omitempty"`

	Sandbox   *Sandbox   `json:"sandbox,omitempty"`
	StartTask *StartTask `json:"start_task,omitempty"`
	APIKey    *APIKey    `json:"api_key,omitempty"`
}
