package fsm

import (
	"bytes"
	"encoding/json"
	"time"
)

// StartTaskStatus is where a start task stands (api-contract.md A.0.7).
type StartTaskStatus string

// The statuses, in their order.
const (
	StartTaskWorking              StartTaskStatus = "WORKING"
	StartTaskWaitingForSandbox    StartTaskStatus = "WAITING_FOR_SANDBOX"
	StartTaskPreparingRepository  StartTaskStatus = "PREPARING_REPOSITORY"
	StartTaskRunningSetupScript   StartTaskStatus = "RUNNING_SETUP_SCRIPT"
	StartTaskSettingUpGitHooks    StartTaskStatus = "SETTING_UP_GIT_HOOKS"
	StartTaskSettingUpSkills      StartTaskStatus = "SETTING_UP_SKILLS"
	StartTaskStartingConversation StartTaskStatus = "STARTING_CONVERSATION"
	StartTaskReady                StartTaskStatus = "READY"
	StartTaskError                StartTaskStatus = "ERROR"
)

// StartTask carries a conversation from the request to READY. The leader's
// start-task runner advances it; any leader can take it over at any status.
type StartTask struct {
	// ID is 32 lower-case hex characters, not the conversation's.
	ID     string          `json:"id"`
	UserID string          `json:"user_id"`
	Status StartTaskStatus `json:"status"`
	Detail string          `json:"detail,omitempty"`
	// ConversationID is decided when the task is made, so that a second
	// leader asks the agent server for the same conversation; clients see it
	// only when READY.
	ConversationID string `json:"conversation_id"`
	// V0ID as in Conversation.
	V0ID string `json:"v0_id,omitempty"`
	// Coming is the sandbox that is still to be made for the task; nil when it
	// has one, has ended, or named one that is there.
	Coming *Coming `json:"coming,omitempty"`
	// SandboxID is empty until StartTaskBind.
	SandboxID      string `json:"sandbox_id,omitempty"`
	AgentServerURL string `json:"agent_server_url,omitempty"`
	// Request is what was asked, secrets masked.
	Request StartRequest `json:"request"`
	// Secrets points at the secrets of the request: member "json" holds
	// {"secrets":{name:value},"mcp_config":{...}|null,"plugins":[...]|null}.
	// Zero when there are none.
	Secrets   SecretRef `json:"secrets"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
	// CreatedIndex is the log index of its creation; 0 for before protocol
	// version 3.
	CreatedIndex uint64 `json:"created_index,omitempty"`
}

// Coming is what a sandbox that was promised to a start task counts for until
// it is there: it runs, as far as limits go, from the moment the task is
// accepted.
type Coming struct {
	// CPU (MHz) and Memory (MiB) as the template came to then.
	CPU    int `json:"cpu"`
	Memory int `json:"memory"`
}

// usage gives what it counts for; nil counts for nothing.
func (c *Coming) usage() Usage {
	if c == nil {
		return Usage{}
	}
	return Usage{Running: 1, Total: 1, CPU: c.CPU, Memory: c.Memory}
}

// Done reports whether the task has ended.
func (t *StartTask) Done() bool {
	return t.Status == StartTaskReady || t.Status == StartTaskError
}

// StartRequest is the request of POST /api/v1/app-conversations with all
// defaults filled in and secrets masked, in the wire's order and names
// (api-contract.md A.5). POST /api/conversations is translated into one.
type StartRequest struct {
	SandboxID             *string            `json:"sandbox_id"`
	ConversationID        *string            `json:"conversation_id"`
	InitialMessage        *Message           `json:"initial_message"`
	SystemMessageSuffix   *string            `json:"system_message_suffix"`
	Processors            []json.RawMessage  `json:"processors"`
	LLMModel              *string            `json:"llm_model"`
	AgentProfileID        *string            `json:"agent_profile_id"`
	SelectedRepository    *string            `json:"selected_repository"`
	SelectedBranch        *string            `json:"selected_branch"`
	GitProvider           *ProviderType      `json:"git_provider"`
	SuggestedTask         *SuggestedTask     `json:"suggested_task"`
	Title                 *string            `json:"title"`
	Trigger               *string            `json:"trigger"`
	PRNumber              []int64            `json:"pr_number"`
	ParentConversationID  *string            `json:"parent_conversation_id"`
	AgentType             string             `json:"agent_type"`
	Public                *bool              `json:"public"`
	ObservabilityMetadata JSONObject         `json:"observability_metadata"`
	ObservabilityTags     []string           `json:"observability_tags"`
	ObservabilitySpanName *string            `json:"observability_span_name"`
	Plugins               []PluginSource     `json:"plugins"`
	Secrets               *map[string]string `json:"secrets"`
}

// Message is a SendMessage (api-contract.md A.5).
type Message struct {
	Role    string         `json:"role"`
	Content []ContentBlock `json:"content"`
	Run     bool           `json:"run"`
}

// ContentBlock is a text or an image block of a Message.
type ContentBlock struct {
	CachePrompt bool     `json:"cache_prompt"`
	Type        string   `json:"type"`
	Text        string   `json:"text,omitempty"`
	ImageURLs   []string `json:"image_urls,omitempty"`
}

// SuggestedTask is a task found at a git provider that a conversation starts
// from.
type SuggestedTask struct {
	GitProvider *ProviderType `json:"git_provider"`
	TaskType    string        `json:"task_type"`
	Repo        string        `json:"repo"`
	IssueNumber int64         `json:"issue_number"`
	Title       string        `json:"title"`
}

// PluginSource is a plugin to load into a conversation; credentials inside
// Source are masked as "****".
type PluginSource struct {
	Source     string     `json:"source"`
	Ref        *string    `json:"ref"`
	RepoPath   *string    `json:"repo_path"`
	Parameters JSONObject `json:"parameters"`
}

// JSONObject is a client's own object, which is passed on. Its numbers stay as they
// were written: a float64 would not hold every integer.
type JSONObject map[string]any

// UnmarshalJSON implements json.Unmarshaler.
func (o *JSONObject) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return d.Decode((*map[string]any)(o))
}

// rank orders the statuses; 0 is an unknown one.
func (s StartTaskStatus) rank() int {
	switch s {
	case StartTaskWorking:
		return 1
	case StartTaskWaitingForSandbox:
		return 2
	case StartTaskPreparingRepository:
		return 3
	case StartTaskRunningSetupScript:
		return 4
	case StartTaskSettingUpGitHooks:
		return 5
	case StartTaskSettingUpSkills:
		return 6
	case StartTaskStartingConversation:
		return 7
	case StartTaskReady, StartTaskError:
		return 8
	}
	return 0
}

// check adds the rules of a start request.
func (q *StartRequest) check(r *rules) {
	for _, f := range []struct {
		name  string
		value *string
		limit int
	}{
		{"sandbox_id", q.SandboxID, maxName}, {"conversation_id", q.ConversationID, maxName},
		{"system_message_suffix", q.SystemMessageSuffix, maxText}, {"llm_model", q.LLMModel, maxSetting},
		{"agent_profile_id", q.AgentProfileID, maxName}, {"selected_repository", q.SelectedRepository, maxPath},
		{"selected_branch", q.SelectedBranch, maxPath}, {"title", q.Title, maxDetail}, {"trigger", q.Trigger, maxName},
		{"parent_conversation_id", q.ParentConversationID, maxID},
		{"observability_span_name", q.ObservabilitySpanName, maxDetail},
	} {
		r.optional(f.name, f.value, f.limit)
	}
	r.text("agent_type", q.AgentType, maxName)
	r.count("pr_number", len(q.PRNumber))
	r.list("observability_tags", q.ObservabilityTags, maxDetail)
	r.count("observability_metadata", len(q.ObservabilityMetadata))
	r.value("observability_metadata", map[string]any(q.ObservabilityMetadata))
	if q.Secrets != nil {
		r.texts("secrets", *q.Secrets)
	}
	if q.GitProvider != nil {
		r.check(q.GitProvider.Known(), "unknown git provider %q", clip(string(*q.GitProvider)))
	}
	q.checkParts(r)
	r.check(q.weight() <= maxRequest, "the request holds more than %d bytes", maxRequest)
}

// maxRequest bounds a whole start request, pictures included. The cluster's log
// takes a command of this size.
const maxRequest = 2 << 20

// checkParts adds the rules of a request's lists of objects.
func (q *StartRequest) checkParts(r *rules) {
	if m := q.InitialMessage; m != nil {
		r.text("role", m.Role, maxName)
		r.count("content", len(m.Content))
		for i := range m.Content {
			r.text("content type", m.Content[i].Type, maxName)
			r.text("text", m.Content[i].Text, maxText)
			r.count("image_urls", len(m.Content[i].ImageURLs))
			for _, u := range m.Content[i].ImageURLs {
				r.text("image_urls", u, maxRequest)
			}
		}
	}
	r.count("processors", len(q.Processors))
	for _, p := range q.Processors {
		r.raw("processors", p)
	}
	if s := q.SuggestedTask; s != nil {
		r.text("task_type", s.TaskType, maxName)
		r.text("repo", s.Repo, maxPath)
		r.text("title", s.Title, maxDetail)
	}
	r.count("plugins", len(q.Plugins))
	for i := range q.Plugins {
		p := &q.Plugins[i]
		r.text("source", p.Source, maxSetting)
		r.optional("ref", p.Ref, maxPath)
		r.optional("repo_path", p.RepoPath, maxPath)
		r.value("parameters", map[string]any(p.Parameters))
	}
}

// weight estimates the bytes of the parts of a request that can be large.
func (q *StartRequest) weight() int {
	w := 1024
	if m := q.InitialMessage; m != nil {
		for i := range m.Content {
			w += len(m.Content[i].Text)
			for _, u := range m.Content[i].ImageURLs {
				w += len(u)
			}
		}
	}
	for _, p := range q.Processors {
		w += len(p)
	}
	for i := range q.Plugins {
		w += len(q.Plugins[i].Source) + valueSize(map[string]any(q.Plugins[i].Parameters), 0)
	}
	for _, s := range q.ObservabilityTags {
		w += len(s)
	}
	w += valueSize(map[string]any(q.ObservabilityMetadata), 0)
	if q.SystemMessageSuffix != nil {
		w += len(*q.SystemMessageSuffix)
	}
	if q.Secrets != nil {
		for k, v := range *q.Secrets {
			w += len(k) + len(v)
		}
	}
	return w
}
