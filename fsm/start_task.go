package fsm

import (
	"bytes"
	"encoding/json"
	"time"
)

// StartTaskStatus is the progress of a start task (API.md, "Enumerations").
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

// StartTask takes a conversation from the request to READY. The leader's start-task runner advances
// it. A new leader can continue it from any status.
type StartTask struct {
	// ID is 32 lower-case hex characters. It differs from the conversation's id.
	ID     string          `json:"id"`
	UserID string          `json:"user_id"`
	Status StartTaskStatus `json:"status"`
	Detail string          `json:"detail,omitempty"`
	// ConversationID is chosen when the task is created, so that a second leader asks the agent server
	// for the same conversation. Clients see it only when the task is READY.
	ConversationID string `json:"conversation_id"`
	// V0ID as in Conversation.
	V0ID string `json:"v0_id,omitempty"`
	// Reservation counts for the sandbox that is still to be created for the task. It is nil when the
	// task has a sandbox, has ended, or named an existing one. It is stored as "coming".
	Reservation *Reservation `json:"coming,omitempty"`
	// SandboxID is empty until the task has a sandbox: a member of a warm pool when it is created,
	// else from StartTaskBind on.
	SandboxID      string `json:"sandbox_id,omitempty"`
	AgentServerURL string `json:"agent_server_url,omitempty"`
	// Request is the request with its secrets masked.
	Request StartRequest `json:"request"`
	// Pending are the messages that wait for the conversation, in their order (VersionStarts).
	Pending []PendingMessage `json:"pending,omitempty"`
	// Setup is what the task asks its user, nil for nothing (VersionSetup).
	Setup *TaskSetup `json:"setup,omitempty"`
	// AgentProfile is that of the conversation (Conversation.AgentProfile).
	AgentProfile *LaunchedProfile `json:"agent_profile,omitempty"`
	// LLM is that of the conversation (Conversation.LLM).
	LLM *ModelEndpoint `json:"llm,omitempty"`
	// Secrets points at the secrets of the request, a StartSecrets. It is zero when there are none.
	Secrets   SecretRef `json:"secrets"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
	// CreatedIndex is the log index of its creation, 0 before protocol version 3.
	CreatedIndex uint64 `json:"created_index,omitempty"`
	// Grouped: the user's grouping strategy chose the sandbox, a new one where none fits. The
	// conversation has a directory of its own in it.
	Grouped bool `json:"grouped,omitempty"`
}

// Reservation is what a start task's sandbox counts for until the sandbox exists. For limits it
// counts as running from the moment the task is accepted.
type Reservation struct {
	// CPU (MHz) and Memory (MiB) of the template at that moment.
	CPU    int `json:"cpu"`
	Memory int `json:"memory"`
}

// usage returns what the reservation counts for; nil counts for nothing.
func (c *Reservation) usage() Usage {
	if c == nil {
		return Usage{}
	}
	return Usage{Running: 1, Total: 1, CPU: c.CPU, Memory: c.Memory}
}

// Done reports whether the task has ended.
func (t *StartTask) Done() bool {
	return t.Status == StartTaskReady || t.Status == StartTaskError
}

// The types of agents that a start asks for.
const (
	AgentTypeDefault = "default"
	// AgentTypePlan makes a plan and changes nothing else. It is from VersionPlans on.
	AgentTypePlan = "plan"
)

// StartRequest is the request of POST /api/v1/app-conversations with all defaults filled in and
// secrets masked, with the API's names in the API's order (API.md, "Conversations: start"). POST
// /api/conversations is translated into one.
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
	// ACPServer is the id of an agent of the spec, nil for the user's choice (VersionAgents).
	ACPServer *string `json:"acp_server,omitempty"`
	// ACPModel is what that agent is asked for, nil for the user's choice (VersionProfiles).
	ACPModel *string `json:"acp_model,omitempty"`
}

// Values of a request's trigger.
const (
	TriggerGUI           = "gui"
	TriggerAPI           = "openhands_api"
	TriggerMicroagent    = "microagent_management"
	TriggerSuggestedTask = "suggested_task"
)

// Message is a SendMessage (API.md, "Messages").
type Message struct {
	Role    string         `json:"role"`
	Content []ContentBlock `json:"content"`
	Run     bool           `json:"run"`
}

// The types of a ContentBlock.
const (
	BlockText  = "text"
	BlockImage = "image"
)

// ContentBlock is a text or an image block of a Message.
type ContentBlock struct {
	CachePrompt bool     `json:"cache_prompt"`
	Type        string   `json:"type"`
	Text        string   `json:"text,omitempty"`
	ImageURLs   []string `json:"image_urls,omitempty"`
}

// SuggestedTask is a task at a git provider from which a conversation starts.
type SuggestedTask struct {
	GitProvider *ProviderType `json:"git_provider"`
	TaskType    string        `json:"task_type"`
	Repo        string        `json:"repo"`
	IssueNumber int64         `json:"issue_number"`
	Title       string        `json:"title"`
}

// PluginSource is a plugin to load into a conversation. Credentials inside Source are masked as
// "****".
type PluginSource struct {
	Source     string     `json:"source"`
	Ref        *string    `json:"ref"`
	RepoPath   *string    `json:"repo_path"`
	Parameters JSONObject `json:"parameters"`
}

// JSONObject is a client's own object, which is passed on. Its numbers stay as they were written: a
// float64 does not hold every integer.
type JSONObject map[string]any

// UnmarshalJSON implements json.Unmarshaler.
func (o *JSONObject) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return d.Decode((*map[string]any)(o))
}

// rank orders the statuses; 0 is an unknown one.
func (s StartTaskStatus) rank() int {
	//exhaustive:enforce
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
		{"sandbox_id", q.SandboxID, MaxName}, {"conversation_id", q.ConversationID, MaxName},
		{"system_message_suffix", q.SystemMessageSuffix, r.limit(MaxParagraph, MaxText)}, {"llm_model", q.LLMModel, MaxLine},
		{"agent_profile_id", q.AgentProfileID, MaxName}, {"selected_repository", q.SelectedRepository, MaxPath},
		{
			"selected_branch",
			q.SelectedBranch,
			MaxPath,
		}, {"title", q.Title, r.limit(MaxLine, MaxParagraph)}, {"trigger", q.Trigger, MaxName},
		{"parent_conversation_id", q.ParentConversationID, maxID}, {"acp_server", q.ACPServer, MaxName},
		{"acp_model", q.ACPModel, MaxLine},
		{"observability_span_name", q.ObservabilitySpanName, r.limit(MaxLine, MaxParagraph)},
	} {
		r.optional(f.name, f.value, f.limit)
	}
	r.text("agent_type", q.AgentType, MaxName)
	r.count("pr_number", len(q.PRNumber))
	r.list("observability_tags", q.ObservabilityTags, r.limit(MaxLine, MaxParagraph))
	r.count("observability_metadata", len(q.ObservabilityMetadata))
	r.value("observability_metadata", map[string]any(q.ObservabilityMetadata))
	if q.Secrets != nil {
		r.texts("secrets", *q.Secrets)
	}
	if q.GitProvider != nil {
		r.check(q.GitProvider.Known(), "unknown git provider %q", clip(string(*q.GitProvider)))
	}
	q.checkParts(r)
}

// maxOldRequest bounds the weight of a start request below protocol version 3, as older nodes do.
// From version 3 on MaxCommandBytes is the bound.
const maxOldRequest = 2 << 20

// fits checks the size of a start against what every node of the cluster accepts.
func (q *StartRequest) fits(version int) *Error {
	if version >= VersionHistory || q.weight() <= maxOldRequest {
		return nil
	}
	return Errorf(CodeInvalid, "the request holds more than %d bytes", maxOldRequest)
}

// check adds the rules of a message.
func (m *Message) check(r *rules) {
	r.text("role", m.Role, MaxName)
	r.count("content", len(m.Content))
	for i := range m.Content {
		r.text("content type", m.Content[i].Type, MaxName)
		r.text("text", m.Content[i].Text, MaxText)
		r.count("image_urls", len(m.Content[i].ImageURLs))
		for _, u := range m.Content[i].ImageURLs {
			r.text("image_urls", u, MaxCommandBytes)
		}
	}
}

// checkParts adds the rules of a request's lists of objects.
func (q *StartRequest) checkParts(r *rules) {
	if m := q.InitialMessage; m != nil {
		m.check(r)
	}
	r.count("processors", len(q.Processors))
	for _, p := range q.Processors {
		r.raw("processors", p)
	}
	if s := q.SuggestedTask; s != nil {
		r.text("task_type", s.TaskType, MaxName)
		r.text("repo", s.Repo, MaxPath)
		r.text("title", s.Title, r.limit(MaxLine, MaxParagraph))
	}
	r.count("plugins", len(q.Plugins))
	for i := range q.Plugins {
		p := &q.Plugins[i]
		r.text("source", p.Source, MaxLine)
		r.optional("ref", p.Ref, MaxPath)
		r.optional("repo_path", p.RepoPath, MaxPath)
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
