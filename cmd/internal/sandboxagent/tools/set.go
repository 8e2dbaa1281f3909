package tools

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

// The names of the tools for the model.
const (
	TerminalName    = "terminal"
	FileEditorName  = "file_editor"
	TaskTrackerName = "task_tracker"
	ThinkName       = "think"
	FinishName      = "finish"
	// A planning agent has these beside think and finish.
	PlanEditorName = "planning_file_editor"
	GlobName       = "glob"
	GrepName       = "grep"
)

// Config is what the tools of one conversation need.
type Config struct {
	// WorkingDir is the directory that the terminal begins in.
	WorkingDir string
	// StateDir is the conversation's own directory, for the list of tasks; empty keeps it in memory.
	StateDir string
	// Environ is the terminal's environment. The server's keys are removed from it.
	Environ []string
	// Secrets returns the values by name. It is called for each action; nil is none.
	Secrets func() map[string]string
	// Credential is the user that commands run as and files are changed as. nil is the process's own.
	Credential *syscall.Credential
	// SoftTimeout is the time without output after which the terminal returns while the command
	// goes on; 0 is 30 s.
	SoftTimeout time.Duration
	// LongTimeout is the time after which it returns while there is output; 0 is 10 min.
	LongTimeout time.Duration
}

// Set are the tools of one conversation.
type Set struct {
	tools    []Tool
	terminal *Terminal
}

// Open returns the tools of a conversation. Nothing is started until a tool is used.
func Open(c Config) *Set {
	if c.Secrets == nil {
		c.Secrets = func() map[string]string { return nil }
	}
	c.SoftTimeout = cmp.Or(c.SoftTimeout, 30*time.Second)
	c.LongTimeout = cmp.Or(c.LongTimeout, 10*time.Minute)
	t := newTerminal(c)
	return &Set{terminal: t, tools: []Tool{
		t, newFileEditor(c), newTaskTracker(c), globTool{c}, grepTool{c}, newPlanEditor(c), think{}, finish{},
	}}
}

// Tools returns the tools in the order in which a model is shown them.
func (s *Set) Tools() []Tool { return s.tools }

// Close ends the terminal and every process that was started in it, and waits for them. Calls that
// run return.
func (s *Set) Close() { s.terminal.close() }

// think lets a model write down a thought.
type think struct{}

type thinkAction struct {
	Kind    string `json:"kind" tool:"-"`
	Thought string `json:"thought" tool:"required" jsonschema:"The thought."`
}

// Definition implements Tool.
func (think) Definition() Definition {
	return Definition{
		Name: ThinkName, Title: ThinkName, Kind: "ThinkTool", ActionType: "ThinkAction", ObservationType: "ThinkObservation",
		Description: "Write down a thought. Nothing is read or changed. Use it to compare ways to solve a problem, " +
			"to work out why a test fails, or to plan a larger change before you make it.",
		Parameters:  Parameters(SchemaOf[thinkAction]()),
		Annotations: &event.ToolAnnotations{Title: ThinkName, ReadOnlyHint: true, IdempotentHint: true},
	}
}

// Parse implements Tool.
func (think) Parse(arguments string) (Call, error) {
	return parse(arguments, "ThinkAction", &thinkAction{})
}

// Run implements Tool.
func (think) Run(context.Context, json.RawMessage) Observation {
	return Observation{
		Kind:    "ThinkObservation",
		Content: []event.Content{event.TextContent("Your thought has been logged.")},
	}
}

// finish ends a run with the agent's answer.
type finish struct{}

type finishAction struct {
	Kind    string `json:"kind" tool:"-"`
	Message string `json:"message" tool:"required" jsonschema:"The final message to the user."`
}

// Definition implements Tool.
func (finish) Definition() Definition {
	return Definition{
		Name: FinishName, Title: FinishName, Kind: "FinishTool", ActionType: "FinishAction",
		ObservationType: "FinishObservation",
		Description: "Say that the task is done, or that it can't go on without the user. The message says what was done, " +
			"what came out of it, and what the user should do or decide next. It ends your turn.",
		Parameters:  Parameters(SchemaOf[finishAction]()),
		Annotations: &event.ToolAnnotations{Title: FinishName, ReadOnlyHint: true, IdempotentHint: true},
	}
}

// Parse implements Tool.
func (finish) Parse(arguments string) (Call, error) {
	return parse(arguments, "FinishAction", &finishAction{})
}

// Run implements Tool.
func (finish) Run(_ context.Context, action json.RawMessage) Observation {
	var a finishAction
	if err := json.Unmarshal(action, &a); err != nil {
		return failed("FinishObservation", fmt.Sprintf("The action can't be read: %v", err), nil)
	}
	return Observation{Kind: "FinishObservation", Content: []event.Content{event.TextContent(a.Message)}}
}

// withoutKeys removes the server's keys and what would change a shell's start from an environment.
func withoutKeys(environ []string) []string {
	var out []string
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		switch {
		case strings.HasPrefix(name, "OH_SESSION_API_KEYS"), name == "SESSION_API_KEY", name == "OH_SECRET_KEY":
		case name == "PS1", name == "PROMPT_COMMAND", name == "SHELLOPTS", name == "BASHOPTS", name == "HISTFILE":
		default:
			out = append(out, kv)
		}
	}
	return out
}
