package agentserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/scheduler/agent"
	"bivouac.dev/bivouac/scheduler/durable"
)

const (
	metaFile   = "meta.json"
	eventsFile = "events.jsonl"
	sealFile   = "request.seal"
)

// The execution statuses that this server uses (API.md, "Enumerations").
const (
	statusIdle    = "idle"
	statusPaused  = "paused"
	statusRunning = "running"
)

// meta is meta.json: a conversation without its secrets.
type meta struct {
	ID                 string            `json:"id"`
	CreatedAt          time.Time         `json:"created_at"`
	UpdatedAt          time.Time         `json:"updated_at"`
	Title              *string           `json:"title"`
	Tags               map[string]string `json:"tags"`
	Workspace          agent.Workspace   `json:"workspace"`
	Agent              agentInfo         `json:"agent"`
	ConfirmationPolicy agent.Kind        `json:"confirmation_policy"`
	SecurityAnalyzer   *agent.Kind       `json:"security_analyzer"`
	MaxIterations      int64             `json:"max_iterations"`
	StuckDetection     bool              `json:"stuck_detection"`
	ParentID           *string           `json:"parent_conversation_id"`
	UserID             *string           `json:"user_id"`
	// SecretNames are the names of the conversation's secrets.
	SecretNames []string `json:"secret_names"`
}

// agentInfo is the agent in responses. It has only known members, so that a credential in an
// unknown member can't leak.
type agentInfo struct {
	Kind         string        `json:"kind"`
	LLM          llmInfo       `json:"llm"`
	AgentContext *agentContext `json:"agent_context"`
	// MCPServers are the names of the configured MCP servers.
	MCPServers []string `json:"mcp_servers"`
}

type llmInfo struct {
	Model   string  `json:"model"`
	APIKey  *string `json:"api_key"`
	BaseURL *string `json:"base_url"`
	UsageID string  `json:"usage_id"`
}

type agentContext struct {
	SystemMessageSuffix string `json:"system_message_suffix"`
}

// conversation is one conversation in memory. mu guards all fields except id and createdAt, which
// never change.
type conversation struct {
	id        string
	createdAt time.Time

	mu      sync.Mutex
	dir     string
	meta    meta
	log     *eventLog // nil until needed
	deleted bool
	// grown is closed when there are new events; nil without waiters.
	grown chan struct{}
}

func readConversation(dir, id string) (*conversation, error) {
	b, err := os.ReadFile(filepath.Join(dir, metaFile))
	if err != nil {
		return nil, err
	}
	c := &conversation{id: id, dir: dir}
	if err := json.Unmarshal(b, &c.meta); err != nil {
		return nil, fmt.Errorf("reading %s: %w", metaFile, err)
	}
	if c.meta.ID != id {
		return nil, fmt.Errorf("%s is of conversation %q", metaFile, c.meta.ID)
	}
	c.createdAt = c.meta.CreatedAt
	return c, nil
}

func writeMeta(dir string, m meta) error {
	b, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return err
	}
	return durable.Replace(filepath.Join(dir, metaFile), b, 0o600)
}

// events returns the log and loads it from disk if needed. The caller holds c.mu.
func (c *conversation) events() (*eventLog, error) {
	if c.deleted {
		return nil, errGone
	}
	if c.log == nil {
		l, err := openEventLog(filepath.Join(c.dir, eventsFile))
		if err != nil {
			return nil, err
		}
		c.log = l
	}
	return c.log, nil
}

func (c *conversation) append(events ...map[string]any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, err := c.events()
	if err != nil {
		return err
	}
	defer c.grew()
	return l.append(events)
}

// change updates meta on disk and in memory.
func (c *conversation) change(fn func(*meta)) error {
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

// info is the protocol's ConversationInfo.
type info struct {
	ID                   string            `json:"id"`
	Workspace            agent.Workspace   `json:"workspace"`
	PersistenceDir       string            `json:"persistence_dir"`
	MaxIterations        int64             `json:"max_iterations"`
	StuckDetection       bool              `json:"stuck_detection"`
	ExecutionStatus      string            `json:"execution_status"`
	ConfirmationPolicy   agent.Kind        `json:"confirmation_policy"`
	SecurityAnalyzer     *agent.Kind       `json:"security_analyzer"`
	ActivatedKnowledge   []string          `json:"activated_knowledge_skills"`
	BlockedActions       map[string]string `json:"blocked_actions"`
	BlockedMessages      map[string]string `json:"blocked_messages"`
	Stats                map[string]any    `json:"stats"`
	Metrics              any               `json:"metrics"`
	Agent                agentInfo         `json:"agent"`
	SecretNames          []string          `json:"secret_names"`
	Title                *string           `json:"title"`
	Tags                 map[string]string `json:"tags"`
	ParentConversationID *string           `json:"parent_conversation_id"`
	UserID               *string           `json:"user_id"`
	CreatedAt            time.Time         `json:"created_at"`
	UpdatedAt            time.Time         `json:"updated_at"`
}

// info returns the conversation's present state. UpdatedAt is never before the latest event.
func (c *conversation) info() (info, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, err := c.events()
	if err != nil {
		return info{}, err
	}
	m := c.meta
	updated := m.UpdatedAt
	if n := len(l.entries); n > 0 {
		if t, err := time.Parse(eventTime, l.entries[n-1].Timestamp); err == nil && t.After(updated) {
			updated = t
		}
	}
	status := l.status
	if status == "" {
		status = statusIdle
	}
	return info{
		ID: decode.Dashed(m.ID), Workspace: m.Workspace, PersistenceDir: c.dir,
		MaxIterations: m.MaxIterations, StuckDetection: m.StuckDetection, ExecutionStatus: status,
		ConfirmationPolicy: m.ConfirmationPolicy, SecurityAnalyzer: m.SecurityAnalyzer,
		ActivatedKnowledge: []string{}, BlockedActions: map[string]string{}, BlockedMessages: map[string]string{},
		Stats: map[string]any{"usage_to_metrics": map[string]any{}}, Agent: m.Agent, SecretNames: m.SecretNames,
		Title: m.Title, Tags: m.Tags, ParentConversationID: m.ParentID, UserID: m.UserID,
		CreatedAt: m.CreatedAt, UpdatedAt: updated,
	}, nil
}

// isGone reports whether an error means that the conversation was deleted meanwhile.
func isGone(err error) bool { return errors.Is(err, errGone) }
