package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"runtime/debug"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

// Tool is something that a model can do. Its methods are safe for concurrent use; calls that can't
// run beside each other wait for each other.
type Tool interface {
	// Definition describes the tool. It does not change.
	Definition() Definition

	// Parse checks a model's arguments, which are the text of a JSON object, and removes those that
	// every tool has. The error says what to change; it is for the model.
	Parse(arguments string) (Call, error)

	// Run executes the action of a Call, or one that was stored. It does not panic. It returns soon
	// after ctx ends, at most some seconds later, with what the tool did until then.
	Run(ctx context.Context, action json.RawMessage) Observation
}

// Definition describes a tool to a model and to the readers of events.
type Definition struct {
	// Name is the function's name for the model.
	Name        string
	Title       string
	Description string
	// Kind, ActionType and ObservationType are the names of upstream's classes.
	Kind            string
	ActionType      string
	ObservationType string
	// Parameters is the JSON schema of the arguments, with summary and security_risk.
	Parameters  json.RawMessage
	Annotations *event.ToolAnnotations
	// OnlyNamed is a tool that a conversation has only if its request names it.
	OnlyNamed bool
}

// Event returns the definition as a SystemPromptEvent lists it.
func (d Definition) Event() event.ToolDefinition {
	return event.ToolDefinition{
		Kind: d.Kind, Description: d.Description, ActionType: d.ActionType,
		ObservationType: d.ObservationType, Annotations: d.Annotations, Title: d.Title,
	}
}

// Call is a tool call whose arguments were checked.
type Call struct {
	// Action is the object that an ActionEvent has.
	Action json.RawMessage
	// Summary is the model's own; empty if it gave none.
	Summary string
	// SecurityRisk is the model's LOW, MEDIUM or HIGH, else UNKNOWN.
	SecurityRisk string
	// Ignored are the arguments that the tool does not have.
	Ignored []string
}

// Observation is the result of a tool call.
type Observation struct {
	Kind    string
	Content []event.Content
	IsError bool
	// Members are those that the kind has beside content and is_error.
	Members map[string]any
}

// MarshalJSON encodes the object that an ObservationEvent has.
func (o Observation) MarshalJSON() ([]byte, error) {
	all := make(map[string]any, len(o.Members)+3)
	maps.Copy(all, o.Members)
	content := o.Content
	if content == nil {
		content = []event.Content{}
	}
	all["kind"], all["content"], all["is_error"] = o.Kind, content, o.IsError
	return json.Marshal(all)
}

// errorHeader precedes the result of a failed call for the model.
const errorHeader = "[An error occurred during execution.]\n"

// ForModel returns what the model is shown of an observation, as it was stored.
func ForModel(observation json.RawMessage) []event.Content {
	var o struct {
		Kind     string          `json:"kind"`
		Content  []event.Content `json:"content"`
		IsError  bool            `json:"is_error"`
		Metadata Metadata        `json:"metadata"`
	}
	if err := json.Unmarshal(observation, &o); err != nil {
		return []event.Content{event.TextContent(string(observation))}
	}
	content := o.Content
	if o.Kind == terminalObservation && len(content) > 0 {
		content = append([]event.Content{event.TextContent(o.Metadata.around(content[0].Text))}, content[1:]...)
	}
	if o.IsError {
		content = append([]event.Content{event.TextContent(errorHeader)}, content...)
	}
	return content
}

// failed returns an observation that says what was wrong.
func failed(kind, text string, members map[string]any) Observation {
	return Observation{Kind: kind, Content: []event.Content{event.TextContent(text)}, IsError: true, Members: members}
}

// Guard calls run and turns a panic into a failed observation of the kind.
func Guard(kind string, run func() Observation) (o Observation) {
	defer func() {
		if p := recover(); p != nil {
			o = failed(kind, fmt.Sprintf("The tool failed unexpectedly: %v\n%s", p, firstFrames(debug.Stack())), nil)
		}
	}()
	return run()
}

// firstFrames bounds a stack for an observation.
func firstFrames(stack []byte) []byte { return stack[:min(len(stack), 2000)] }

// Within calls run in a goroutine of its own and returns its observation, or late's when ctx ends
// first. It is for calls into the kernel that may hang, such as those of a network file system.
func Within(ctx context.Context, kind string, run func() Observation, late func() Observation) Observation {
	done := make(chan Observation, 1)
	go func() { done <- Guard(kind, run) }()
	select {
	case o := <-done:
		return o
	case <-ctx.Done():
	}
	select {
	case o := <-done: // both were ready
		return o
	default:
		return late()
	}
}
