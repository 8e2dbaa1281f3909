package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

// shownOutput is how many lines of a tool's output are shown.
const shownOutput = 12

// shownDelta bounds what is kept of the line that the agent is writing, in bytes.
const shownDelta = 4 << 10

// transcript is what the person at the terminal has seen.
type transcript struct {
	// current: what is shown is what is so now.
	current, interrupting bool
	// doing is what the agent does, delta the end of what it says meanwhile.
	doing, delta string
	// said is the agent's last message, call the id of the last call of an ACP agent.
	said, call string
	calls      map[string]bool // the calls of an ACP agent that were shown
}

// activity is what the agent does now, in one line.
func (s *transcript) activity() string {
	switch {
	case s.interrupting:
		return "interrupting"
	case strings.TrimSpace(s.delta) != "":
		return strings.TrimSpace(s.delta)
	case s.doing != "":
		first, _, _ := strings.Cut(s.doing, "\n")
		return first
	}
	return "thinking"
}

// text is what people see of an event, "" for nothing.
func (s *transcript) text(e event.Event) string {
	if delta, is := e.(*event.StreamingDelta); is {
		s.stream(deref(delta.Content))
		return ""
	}
	switch e := e.(type) {
	case *event.Message:
		return s.message(e)
	case *event.Action:
		s.delta = ""
		return s.action(e)
	case *event.Observation:
		s.doing = ""
		return observation(e)
	case *event.UserReject:
		return "rejected: " + e.RejectionReason
	case *event.AgentError:
		s.doing = ""
		return e.ToolName + ": " + strings.TrimSpace(cut(e.Error))
	case *event.ConversationError:
		return "error " + e.Code + ": " + e.Detail
	case *event.Condensation:
		return "the conversation's history was shortened"
	case *event.ACPToolCall:
		return s.acpCall(e)
	case *event.HookExecution:
		if e.Blocked {
			return "a hook forbids it: " + deref(e.Reason)
		}
	case *event.StateUpdate:
		var place int
		if e.Key == event.KeyModelQueue && json.Unmarshal(e.Value, &place) == nil && place > 0 {
			s.delta, s.doing = "", fmt.Sprintf("waits for the model's server, place %d in the queue", place)
		}
	case *event.ServerError:
		return "error " + e.Code + ": " + e.Detail
	}
	return ""
}

// stream keeps the end of the line that the agent is writing.
func (s *transcript) stream(part string) {
	s.delta += part
	if most := len(s.delta) - shownDelta; most > 0 {
		s.delta = strings.ToValidUTF8(s.delta[most:], "")
	}
	if i := strings.LastIndex(strings.TrimRight(s.delta, "\n"), "\n"); i >= 0 {
		s.delta = s.delta[i+1:]
	}
}

func (s *transcript) message(e *event.Message) string {
	s.delta = ""
	text := e.LLMMessage.Text()
	switch e.Source {
	case event.SourceUser:
		s.said = ""
		return "> " + strings.ReplaceAll(text, "\n", "\n> ")
	case event.SourceAgent:
		s.said = text
		return text
	}
	return ""
}

// action shows what the agent thought, and what it does.
func (s *transcript) action(e *event.Action) string {
	var lines []string
	for _, t := range e.Thought {
		if text := strings.TrimSpace(t.Text); text != "" {
			lines = append(lines, text)
		}
	}
	if does := doing(e); does != "" {
		s.doing = does
		lines = append(lines, does)
	}
	return strings.Join(lines, "\n")
}

// doing is an action in a line. What finish says is the answer, which comes at the end.
func doing(e *event.Action) string {
	var a struct {
		Command string `json:"command"`
		Path    string `json:"path"`
		Thought string `json:"thought"`
		IsInput bool   `json:"is_input"`
	}
	if !e.Valid() || json.Unmarshal(e.Action, &a) != nil {
		return e.ToolName + " " + e.ToolCall.Arguments
	}
	switch {
	case e.ToolName == "finish":
		return ""
	case e.ToolName == "think":
		return a.Thought
	case e.ToolName == "terminal" && a.IsInput:
		return "$ < " + a.Command
	case e.ToolName == "terminal":
		return "$ " + strings.ReplaceAll(a.Command, "\n", "\n  ")
	case a.Path != "":
		return strings.TrimSpace(e.ToolName + ": " + a.Command + " " + a.Path)
	}
	return e.ToolName + " " + e.ToolCall.Arguments
}

// observation shows the end of a command's output, and what failed.
func observation(e *event.Observation) string {
	var o struct {
		Content  []event.Content `json:"content"`
		IsError  bool            `json:"is_error"`
		ExitCode *int            `json:"exit_code"`
		Timeout  bool            `json:"timeout"`
	}
	if json.Unmarshal(e.Observation, &o) != nil {
		return ""
	}
	text := cut(event.LLMMessage{Content: o.Content}.Text())
	switch {
	case e.ToolName == "terminal" && o.ExitCode != nil && *o.ExitCode > 0:
		return strings.TrimLeft(text+fmt.Sprintf("\n  exit %d", *o.ExitCode), "\n")
	case e.ToolName == "terminal" || o.IsError:
		return text
	}
	return ""
}

// acpCall shows a call of an ACP agent when it begins, and where it fails.
func (s *transcript) acpCall(e *event.ACPToolCall) string {
	s.call, s.delta, s.doing = e.ID, "", e.Title
	if s.calls == nil {
		s.calls = map[string]bool{}
	}
	if status := deref(e.Status); status == "completed" || status == "failed" {
		s.doing = ""
		if e.IsError || status == "failed" {
			return "failed: " + e.Title
		}
	}
	if s.calls[e.ToolCallID] {
		return ""
	}
	s.calls[e.ToolCallID] = true
	return "* " + e.Title
}

// cut indents the end of an output.
func cut(text string) string {
	text = strings.TrimRight(strings.ReplaceAll(text, "\r\n", "\n"), "\n \t")
	if text == "" {
		return ""
	}
	lines := strings.Split(text, "\n")
	if left := len(lines) - shownOutput; left > 0 {
		lines = append([]string{fmt.Sprintf("... %d lines", left)}, lines[left:]...)
	}
	return "  " + strings.Join(lines, "\n  ")
}
