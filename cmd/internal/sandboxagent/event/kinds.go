package event

import "encoding/json"

// The kinds of event (PROTOCOL.md, "Events").
const (
	KindSystemPrompt        = "SystemPromptEvent"
	KindMessage             = "MessageEvent"
	KindAction              = "ActionEvent"
	KindObservation         = "ObservationEvent"
	KindUserReject          = "UserRejectObservation"
	KindAgentError          = "AgentErrorEvent"
	KindConversationError   = "ConversationErrorEvent"
	KindStateUpdate         = "ConversationStateUpdateEvent"
	KindPause               = "PauseEvent"
	KindInterrupt           = "InterruptEvent"
	KindCondensationRequest = "CondensationRequest"
	KindCondensation        = "Condensation"
	KindACPToolCall         = "ACPToolCallEvent"
	KindStreamingDelta      = "StreamingDeltaEvent"
	KindHookExecution       = "HookExecutionEvent"
	KindServerError         = "ServerErrorEvent"
)

// SystemPrompt is the first event of a conversation's first run: what the model is told, and its
// tools. An engine makes it once.
type SystemPrompt struct {
	Head
	SystemPrompt   Text             `json:"system_prompt"`
	Tools          []ToolDefinition `json:"tools"`
	DynamicContext *Text            `json:"dynamic_context"`
}

// Message is a message of the user, the agent or, as a hint to the model, the environment.
type Message struct {
	Head
	LLMMessage      LLMMessage `json:"llm_message"`
	LLMResponseID   *string    `json:"llm_response_id"`
	ActivatedSkills []string   `json:"activated_skills"`
	// ExtendedContent is text for the model that nobody typed, such as a skill's.
	ExtendedContent []Text  `json:"extended_content"`
	Sender          *string `json:"sender"`
	// CriticResult is what upstream's critics say. Nothing here has one.
	CriticResult Any `json:"critic_result"`
}

// Action is one tool call of the model.
type Action struct {
	Head
	Thought                []Text          `json:"thought"`
	ReasoningContent       *string         `json:"reasoning_content"`
	ThinkingBlocks         []ThinkingBlock `json:"thinking_blocks"`
	ResponsesReasoningItem Any             `json:"responses_reasoning_item"`
	// Action is an object with a kind, or null if the call was invalid.
	Action     json.RawMessage `json:"action"`
	ToolName   string          `json:"tool_name"`
	ToolCallID string          `json:"tool_call_id"`
	ToolCall   ToolCall        `json:"tool_call"`
	// LLMResponseID is common to the calls of one answer.
	LLMResponseID string `json:"llm_response_id"`
	// SecurityRisk is UNKNOWN, LOW, MEDIUM or HIGH.
	SecurityRisk string  `json:"security_risk"`
	Summary      *string `json:"summary"`
	// CriticResult is as that of a Message.
	CriticResult Any `json:"critic_result"`
}

// Valid reports whether the call could be read, so that it can be executed.
func (a *Action) Valid() bool { return len(a.Action) > 0 && string(a.Action) != "null" }

// Observation is the result of an Action.
type Observation struct {
	Head
	ToolName   string `json:"tool_name"`
	ToolCallID string `json:"tool_call_id"`
	ActionID   string `json:"action_id"`
	// Observation is an object with kind, content, is_error and the tool's own members.
	Observation     json.RawMessage `json:"observation"`
	ExtendedContent []Text          `json:"extended_content"`
}

// UserReject is the result of an Action that the user or a hook rejected.
type UserReject struct {
	Head
	ToolName        string `json:"tool_name"`
	ToolCallID      string `json:"tool_call_id"`
	ActionID        string `json:"action_id"`
	RejectionReason string `json:"rejection_reason"`
	// RejectionSource is "user" or "hook".
	RejectionSource string `json:"rejection_source"`
}

// AgentError is the result of a tool call that failed before its tool gave one. The run goes on.
type AgentError struct {
	Head
	ToolName       string         `json:"tool_name"`
	ToolCallID     string         `json:"tool_call_id"`
	Error          string         `json:"error"`
	Classification Classification `json:"classification"`
}

// ConversationError says why a run ended as error.
type ConversationError struct {
	Head
	Code           string         `json:"code"`
	Detail         string         `json:"detail"`
	Classification Classification `json:"classification"`
}

// KeyModelQueue is the key of a StateUpdate that is sent and not stored: the place of a request in the
// queue for its model, from 1.
const KeyModelQueue = "model_queue"

// StateUpdate is a change of the conversation's state.
type StateUpdate struct {
	Head
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value"`
}

// Pause says that the user paused the conversation.
type Pause struct{ Head }

// Interrupt says that the user interrupted a run.
type Interrupt struct{ Head }

// CondensationRequest asks for a condensation before the next call of the model.
type CondensationRequest struct{ Head }

// Condensation replaces events by a summary in what the model is shown. The events stay stored.
type Condensation struct {
	Head
	ForgottenEventIDs []string `json:"forgotten_event_ids"`
	Summary           *string  `json:"summary"`
	// SummaryOffset is the summary's place in the view.
	SummaryOffset *int   `json:"summary_offset"`
	LLMResponseID string `json:"llm_response_id"`
}

// ACPToolCall is a tool call of an agent that speaks the Agent Client Protocol: once at its start
// and once at its end, with one ToolCallID.
type ACPToolCall struct {
	Head
	ToolCallID string `json:"tool_call_id"`
	Title      string `json:"title"`
	// Status is pending, in_progress, completed or failed.
	Status    *string `json:"status"`
	ToolKind  *string `json:"tool_kind"`
	RawInput  Any     `json:"raw_input"`
	RawOutput Any     `json:"raw_output"`
	Content   Any     `json:"content"`
	IsError   bool    `json:"is_error"`
}

// StreamingDelta is a part of an answer that the final event supersedes. It is sent, never stored.
type StreamingDelta struct {
	Head
	Content          *string `json:"content"`
	ReasoningContent *string `json:"reasoning_content"`
}

// HookExecution says that a hook ran.
type HookExecution struct {
	Head
	HookEventType     string  `json:"hook_event_type"`
	HookCommand       string  `json:"hook_command"`
	Success           bool    `json:"success"`
	ExitCode          int     `json:"exit_code"`
	Blocked           bool    `json:"blocked"`
	Stdout            string  `json:"stdout"`
	Stderr            string  `json:"stderr"`
	ToolName          *string `json:"tool_name"`
	Reason            *string `json:"reason"`
	AdditionalContext *string `json:"additional_context"`
	Error             *string `json:"error"`
	ActionID          *string `json:"action_id"`
	MessageID         *string `json:"message_id"`
	HookInput         Any     `json:"hook_input"`
}

// ServerError says that a frame of a client could not be processed. It is sent to that client only.
type ServerError struct {
	Head
	Code   string `json:"code"`
	Detail string `json:"detail"`
}
