package conversation

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/scheduler/agent"
	"bivouac.dev/bivouac/scheduler/durable"
)

const (
	metaFile   = "meta.json"
	eventsFile = "events.jsonl"
	sealFile   = "request.seal"
)

// Meta is meta.json: a conversation without its secrets.
type Meta struct {
	ID                 string            `json:"id"`
	CreatedAt          time.Time         `json:"created_at"`
	UpdatedAt          time.Time         `json:"updated_at"`
	Title              *string           `json:"title"`
	Tags               map[string]string `json:"tags"`
	Workspace          agent.Workspace   `json:"workspace"`
	Agent              AgentInfo         `json:"agent"`
	ConfirmationPolicy engine.Policy     `json:"confirmation_policy"`
	SecurityAnalyzer   *agent.Kind       `json:"security_analyzer"`
	MaxIterations      int64             `json:"max_iterations"`
	// MaxBudget is the largest cost of the conversation in US dollars; 0 is no limit.
	MaxBudget float64 `json:"max_budget_per_task,omitempty"`
	// Autotitle is true while the title is the server's own and may become the model's.
	Autotitle      bool    `json:"autotitle,omitempty"`
	StuckDetection bool    `json:"stuck_detection"`
	ParentID       *string `json:"parent_conversation_id"`
	UserID         *string `json:"user_id"`
	// ForkedFrom is the conversation, with dashes, that this one was a copy of; ForkedFromEvent is the
	// last event of it that was copied.
	ForkedFrom      *string `json:"forked_from_conversation_id,omitempty"`
	ForkedFromEvent *string `json:"forked_from_event_id,omitempty"`
	// AfterRestart is what the conversation does after the server's next start: run, stay (paused), or
	// empty, by which a run that was broken off goes on.
	AfterRestart string `json:"after_restart,omitempty"`
	// SecretNames are the names of the conversation's secrets.
	SecretNames []string `json:"secret_names"`
}

// AgentInfo is the agent in responses. It has only known members, so that a credential in an
// unknown member can't leak.
type AgentInfo struct {
	Kind string `json:"kind"`
	// ACPServer and ACPModel are set for an agent that speaks the Agent Client Protocol.
	ACPServer    string        `json:"acp_server,omitempty"`
	ACPModel     string        `json:"acp_model,omitempty"`
	LLM          LLMInfo       `json:"llm"`
	AgentContext *AgentContext `json:"agent_context"`
	// MCPServers are the names of the configured MCP servers.
	MCPServers []string `json:"mcp_servers"`
}

// LLMInfo is an agent's model in responses.
type LLMInfo struct {
	Model   string  `json:"model"`
	APIKey  *string `json:"api_key"`
	BaseURL *string `json:"base_url"`
	UsageID string  `json:"usage_id"`
}

// AgentContext is what an agent was told beside its conversation.
type AgentContext struct {
	SystemMessageSuffix string `json:"system_message_suffix"`
}

// Conversation is one conversation in memory. mu guards all fields except id and createdAt, which
// never change.
type Conversation struct {
	Id        string
	createdAt time.Time

	// control is held while a run starts or is answered, so that two clients don't do both.
	control sync.Mutex
	// making is held while the engine is made, which reads the conversation.
	making sync.Mutex

	mu      sync.Mutex
	dir     string
	meta    Meta
	log     *eventLog // nil until needed
	deleted bool
	// decoded are the events of log, nil until needed. It only grows.
	decoded []event.Event
	// branch are those on the active branch of a log with several, nil until needed.
	branch []event.Event
	// unsaved are events that count but could not be stored.
	unsaved []event.Event
	// copying keeps the times of the events that are written: those of a fork, while it is made.
	copying bool
	// latest is the latest event's time.
	latest string
	// grown is closed when there are new events; nil without waiters.
	grown chan struct{}
	subs  map[*Subscription]struct{}
	// run is the present run, nil without one.
	run *run
	// goal is the goal that the agent pursues, nil without one.
	goal *goal
	// former is a conversation of the server's last process until its events are read; resumes says
	// that a run may go on by itself; goesOn is a run that does, until it is launched.
	former, resumes, goesOn bool
	// engine is nil until needed.
	engine engine.Engine
	// resting closes the engine of a conversation that is not used.
	resting *time.Timer
	// stored, if not nil, is called when events were stored or read from the disk. It must not wait.
	stored func(*Conversation)
	// request is the create request while it is not on disk: until the conversation is created, and
	// always for a server without a secret key.
	request []byte
}

func readConversation(dir, id string) (*Conversation, error) {
	b, err := os.ReadFile(filepath.Join(dir, metaFile))
	if err != nil {
		return nil, err
	}
	c := &Conversation{Id: id, dir: dir, former: true}
	if err := json.Unmarshal(b, &c.meta); err != nil {
		return nil, fmt.Errorf("reading %s: %w", metaFile, err)
	}
	if c.meta.ID != id {
		return nil, fmt.Errorf("%s is of conversation %q", metaFile, c.meta.ID)
	}
	c.createdAt = c.meta.CreatedAt
	return c, nil
}

func writeMeta(dir string, m Meta) error {
	b, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return err
	}
	return durable.Replace(filepath.Join(dir, metaFile), b, 0o600)
}

// events returns the log and loads it from disk if needed. The caller holds c.mu.
func (c *Conversation) events() (*eventLog, error) {
	if c.deleted {
		return nil, errGone
	}
	if c.log == nil {
		l, err := openEventLog(filepath.Join(c.dir, eventsFile))
		if err != nil {
			return nil, err
		}
		c.log = l
		if n := len(l.entries); n > 0 {
			c.latest = l.entries[n-1].Timestamp
		}
		if err := c.restarted(); err != nil && len(c.unsaved) == 0 {
			c.log = nil
			return nil, err
		}
	}
	return c.log, nil
}

// tellStored says that there may be events that the control plane lacks.
func (c *Conversation) tellStored() {
	if c.stored != nil && !c.copying {
		c.stored(c)
	}
}

// tail reads the conversation's events for the control plane (webhook.Tail).
func (c *Conversation) tail(from, bytes int) (texts []json.RawMessage, first, total int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	idle := c.log == nil
	l, err := c.events()
	if err != nil {
		return nil, 0, 0, err
	}
	texts, first, err = l.tail(from, bytes)
	if idle && from < 0 {
		c.drop() // after a start this is each conversation's turn, and few are used
	}
	return texts, first, len(l.entries), err
}

// drop forgets the indexes of a conversation without a run. The caller holds c.mu.
func (c *Conversation) drop() {
	if c.run == nil && !c.goesOn && len(c.unsaved) == 0 {
		c.log, c.decoded, c.branch = nil, nil, nil
	}
}

// change updates meta on disk and in memory.
func (c *Conversation) change(fn func(*Meta)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deleted {
		return errGone
	}
	m := c.meta
	fn(&m)
	m.UpdatedAt = now()
	if err := writeMeta(c.dir, m); err != nil {
		return err
	}
	c.meta = m
	return nil
}

// IsGone reports whether an error means that the conversation was deleted meanwhile.
func IsGone(err error) bool { return errors.Is(err, errGone) }
