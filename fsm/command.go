package fsm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	reader "github.com/go-json-experiment/json/v1"
)

// CommandType names what a command does, as "noun.verb". The list is append-only. A released name
// keeps its meaning, because Raft logs contain it.
type CommandType string

// The command types. Each has a body type of the same stem (SandboxPause has SandboxPauseBody),
// declared with its noun in <noun>_commands.go.
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
	StartTaskQueue   CommandType = "start_task.queue"
	StartTaskAsk     CommandType = "start_task.ask"
	StartTaskAnswer  CommandType = "start_task.answer"

	InstallationConfigure CommandType = "installation.configure"
	UserConfigure         CommandType = "user.configure"
	SpecPool              CommandType = "spec.pool"
	PoolAdd               CommandType = "pool.add"
	PoolDrop              CommandType = "pool.drop"
	ConversationUpdate    CommandType = "conversation.update"
	ConversationDelete    CommandType = "conversation.delete"
	ConversationSwitchLLM CommandType = "conversation.switch_llm"

	MarkNote       CommandType = "mark.note"
	HoldBegin      CommandType = "hold.begin"
	HoldRelease    CommandType = "hold.release"
	RemovalReserve CommandType = "removal.reserve"
	OrphanNote     CommandType = "orphan.note"
	OrphanDelete   CommandType = "orphan.delete"
	OrphanForget   CommandType = "orphan.forget"
	OrphanRestore  CommandType = "orphan.restore"
	SandboxAdopt   CommandType = "sandbox.adopt"
	APIKeyEnable   CommandType = "api_key.enable"
	BackupNote     CommandType = "backup.note"

	CertificateRevoke CommandType = "certificate.revoke"
	CertificateAllow  CommandType = "certificate.allow"

	SandboxAcceptWorkspace CommandType = "sandbox.accept_workspace"

	ClientMarkSet CommandType = "client.mark"
	ClientDrain   CommandType = "client.drain"
	SandboxCopied CommandType = "sandbox.copied"
	SandboxMove   CommandType = "sandbox.move"
	SandboxMoved  CommandType = "sandbox.moved"

	APIKeyDisable CommandType = "api_key.disable"
	APIKeyUsed    CommandType = "api_key.used"
	LLMReported   CommandType = "llm.report"
	UserDisable   CommandType = "user.disable"
	UserEnable    CommandType = "user.enable"
	UserDelete    CommandType = "user.delete"

	SandboxShare     CommandType = "sandbox.share"
	SandboxUnshare   CommandType = "sandbox.unshare"
	SandboxRotateKey CommandType = "sandbox.rotate_key"
	SandboxRedeem    CommandType = "sandbox.redeem"

	SettingsPatch CommandType = "settings.patch"

	ProfilePut      CommandType = "profile.put"
	ProfileDelete   CommandType = "profile.delete"
	ProfileRename   CommandType = "profile.rename"
	ProfileActivate CommandType = "profile.activate"

	CustomSecretPut    CommandType = "custom_secret.put"
	CustomSecretUpdate CommandType = "custom_secret.update"
	CustomSecretDelete CommandType = "custom_secret.delete"

	SessionCreate CommandType = "session.create"
	SessionOffer  CommandType = "session.offer"
	SessionRedeem CommandType = "session.redeem"
	SessionEnd    CommandType = "session.end"
	SessionSeen   CommandType = "session.seen"

	DeviceAsk    CommandType = "device.ask"
	DeviceAllow  CommandType = "device.allow"
	DeviceRedeem CommandType = "device.redeem"

	OwnKeyCreate CommandType = "own_key.create"
	OwnKeyRevoke CommandType = "own_key.revoke"
	EventsAppend CommandType = "events.append"
	EventsKey    CommandType = "events.key"
)

// Command is one entry of the Raft log. The proposer reads the clock, generates the ids and names
// the user; Apply takes them from nowhere else.
type Command struct {
	// ID makes the command apply at most once. The proposer draws a random one; httpapi derives it
	// from the Idempotency-Key header when there is one.
	ID string `json:"id"`
	// Type selects the body.
	Type CommandType `json:"type"`
	// Time is the proposer's clock, in UTC and whole microseconds.
	Time time.Time `json:"time"`
	// UserID is the user for whom the command runs. It is empty for the leader's own commands
	// (observations, task progress).
	UserID string `json:"user_id,omitempty"`
	// Fingerprint is the hash of the HTTP request behind a client-chosen ID. The same ID with another
	// fingerprint is refused with CodeIdempotencyMismatch. With a fingerprint the result is kept for
	// ClientResultTTL instead of InternalResultTTL.
	Fingerprint string `json:"fingerprint,omitempty"`
	// Credential is the key of the request behind the command. From protocol version 3 on Apply
	// refuses the command with CodeUnauthorized if the key is no longer valid.
	Credential Credential `json:"credential,omitzero"`
	// Body holds the fields of the type.
	Body Body `json:"body"`
}

// NewCommand builds a command. The type is the body's; the time is converted to UTC and truncated
// to microseconds. It is pure: the caller draws the id and reads the clock.
func NewCommand(id string, now time.Time, userID string, body Body) Command {
	return Command{
		ID:     id,
		Type:   body.CommandType(),
		Time:   now.UTC().Truncate(time.Microsecond),
		UserID: userID,
		Body:   body,
	}
}

// Body is the type-specific part of a Command. Implementations are plain data
// with JSON tags, declared in this package only.
type Body interface {
	// CommandType returns the type of the command that the body belongs to.
	CommandType() CommandType
	// check adds the rules of a single object, which need no state. They are checked before the log
	// (cluster.Node.Propose) and again in Apply.
	check(*rules)
}

// MaxCommandBytes bounds an encoded command: a request body of the API's default size (6 MiB, room
// for 4 MiB of images) and the envelope. It is the only bound on the size of a whole start, so that
// the log takes every start that was admitted.
const MaxCommandBytes = 6<<20 + 256<<10

// Encode returns the bytes that are stored in the Raft log and sent between nodes below
// VersionBinary: the type, then the command as a JSON object. The type comes first so that
// DecodeCommand reads the object once, directly into the right body. More than MaxCommandBytes is
// CodeInvalid.
func (c Command) Encode() ([]byte, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encoding command %s: %w", c.Type, err)
	}
	if size := len(c.Type) + len(b); size > MaxCommandBytes {
		return nil, c.tooLarge(size)
	}
	return append([]byte(c.Type), b...), nil
}

// tooLarge is the error for a command that exceeds MaxCommandBytes. It says what to do.
func (c Command) tooLarge(size int) *Error {
	remedy := "send less at once"
	if c.Type == StartTaskCreate {
		remedy = "start with less, and send pictures and long texts with send-message, which the log does not hold"
	}
	return Errorf(CodeInvalid, "the request comes to %d bytes in the cluster's log, which takes %d: %s", size,
		MaxCommandBytes, remedy)
}

// DecodeCommand reads what Encode or EncodeBinary wrote. An unknown type is an error. In Apply the
// error stops the node: if it skipped the command, its state would diverge from the other nodes'.
//
// Every node decodes every command, so it uses the proposed next encoding/json, which takes about
// half the time. FuzzDecodeCommand compares the two.
func DecodeCommand(b []byte) (Command, error) {
	if IsBinary(b) {
		return decodeBinary(b)
	}
	start := bytes.IndexByte(b, '{')
	if start < 0 {
		return Command{}, errors.New("decoding command: it holds no object")
	}
	t := CommandType(b[:start])
	body, err := newBody(t)
	if err != nil {
		return Command{}, err
	}
	// Unmarshal decodes into a pointer that an interface holds.
	c := Command{Body: body}
	if err := reader.Unmarshal(b[start:], &c); err != nil {
		return Command{}, fmt.Errorf("decoding command %s: %w", t, err)
	}
	if c.Type != t || c.Body == nil {
		return Command{}, fmt.Errorf("decoding command %s: the object inside is of type %q", t, c.Type)
	}
	return c, nil
}

// ofType reports whether an encoded command is of the type, without decoding it.
func ofType(b []byte, t CommandType) bool {
	if IsBinary(b) {
		text, _, err := cutText(b[1:])
		return err == nil && string(text) == string(t)
	}
	rest, found := bytes.CutPrefix(b, []byte(t))
	return found && bytes.HasPrefix(rest, []byte("{"))
}

// Result is what Apply returns to the proposer, on any node. It travels between nodes as JSON. The
// command-id table keeps it, so that a repeated command gets the same result. The body of each
// command documents which fields it sets.
type Result struct {
	// Index is the Raft log index at which the command was first applied.
	Index uint64 `json:"index"`
	// Replayed is set when the result came from the command-id table.
	Replayed bool `json:"replayed,omitempty"`
	// Granted is how many removals removal.reserve allows now. 32 bits keep records of results small.
	Granted int32 `json:"granted,omitempty"`

	Sandbox   *Sandbox   `json:"sandbox,omitempty"`
	StartTask *StartTask `json:"start_task,omitempty"`
	APIKey    *APIKey    `json:"api_key,omitempty"`
	// User and Conversation are the rows after the command.
	User         *User         `json:"user,omitempty"`
	Conversation *Conversation `json:"conversation,omitempty"`
	// Profile is the profile that was activated.
	Profile *Profile `json:"profile,omitempty"`
}
