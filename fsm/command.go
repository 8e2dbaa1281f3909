package fsm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	reader "github.com/go-json-experiment/json/v1"
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
	SandboxTouch     CommandType = "sandbox.touch"
	SandboxExpire    CommandType = "sandbox.expire"
	StartTaskCreate  CommandType = "start_task.create"
	StartTaskBind    CommandType = "start_task.bind"
	StartTaskAdvance CommandType = "start_task.advance"
	StartTaskFinish  CommandType = "start_task.finish"
	StartTaskFail    CommandType = "start_task.fail"

	InstallationConfigure CommandType = "installation.configure"
	UserConfigure         CommandType = "user.configure"
	SpecPool              CommandType = "spec.pool"
	PoolAdd               CommandType = "pool.add"
	PoolDrop              CommandType = "pool.drop"
	ConversationUpdate    CommandType = "conversation.update"
	ConversationDelete    CommandType = "conversation.delete"

	MarkNote       CommandType = "mark.note"
	HoldBegin      CommandType = "hold.begin"
	HoldRelease    CommandType = "hold.release"
	RemovalReserve CommandType = "removal.reserve"
	OrphanNote     CommandType = "orphan.note"
	OrphanDelete   CommandType = "orphan.delete"
	OrphanForget   CommandType = "orphan.forget"
	SandboxAdopt   CommandType = "sandbox.adopt"
	APIKeyEnable   CommandType = "api_key.enable"
	BackupNote     CommandType = "backup.note"

	CertificateRevoke CommandType = "certificate.revoke"

	SandboxAcceptWorkspace CommandType = "sandbox.accept_workspace"
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
	// Credential is the key that the command was asked for with. Apply refuses the
	// command with CodeUnauthorized if it is no longer good, from protocol version
	// 3 on.
	Credential Credential `json:"credential,omitzero"`
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
//
// Every node reads every command, so it is read with what is to be Go's next
// encoding/json, in about half the time; FuzzDecodeCommand holds the two
// together.
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
	if err := reader.Unmarshal(b[start:], &c); err != nil {
		return Command{}, fmt.Errorf("decoding command %s: %w", t, err)
	}
	if c.Type != t || c.Body == nil {
		return Command{}, fmt.Errorf("decoding command %s: the object inside is of type %q", t, c.Type)
	}
	return c, nil
}

// Result is what Apply answers to the proposer, on whatever node it is. It
// travels between nodes as JSON and is kept in the command-id table, so a
// repeated command gets the very same answer. What a command sets is said at
// its body.
type Result struct {
	// Index is the Raft log index at which the command was applied (the first
	// time).
	Index uint64 `json:"index"`
	// Replayed is set when the answer came from the command-id table.
	Replayed bool `json:"replayed,omitempty"`

	Sandbox   *Sandbox   `json:"sandbox,omitempty"`
	StartTask *StartTask `json:"start_task,omitempty"`
	APIKey    *APIKey    `json:"api_key,omitempty"`
	// User and Conversation as their commands left them.
	User         *User         `json:"user,omitempty"`
	Conversation *Conversation `json:"conversation,omitempty"`
	// Granted is how many removals removal.reserve allows now.
	Granted int `json:"granted,omitempty"`
}
