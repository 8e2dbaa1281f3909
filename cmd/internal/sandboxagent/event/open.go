package event

import "slices"

// OpenActions returns the valid actions that have no result, in their order. An observation, a
// rejection and an error are results; they pair by the tool call's id. Some models use an id again,
// so a result belongs to the open action before it.
func OpenActions(events []Event) []*Action {
	var open []*Action
	for _, e := range events {
		switch e := e.(type) {
		case *Action:
			if e.Valid() {
				open = append(open, e)
			}
		case *Observation:
			open = without(open, e.ToolCallID)
		case *UserReject:
			open = without(open, e.ToolCallID)
		case *AgentError:
			open = without(open, e.ToolCallID)
		}
	}
	return open
}

// without returns the actions without the first one of a tool call.
func without(actions []*Action, toolCallID string) []*Action {
	n := slices.IndexFunc(actions, func(a *Action) bool { return a.ToolCallID == toolCallID })
	if n < 0 {
		return actions
	}
	return slices.Delete(actions, n, n+1)
}

// OpenCalls returns the calls of an ACP agent that have begun and not ended, as they are now, in the
// order of their start.
func OpenCalls(events []Event) []*ACPToolCall {
	var open []*ACPToolCall
	for _, e := range events {
		c, is := e.(*ACPToolCall)
		if !is {
			continue
		}
		n := slices.IndexFunc(open, func(o *ACPToolCall) bool { return o.ToolCallID == c.ToolCallID })
		switch over := c.Ended(); {
		case over && n >= 0:
			open = slices.Delete(open, n, n+1)
		case !over && n >= 0:
			open[n] = c
		case !over:
			open = append(open, c)
		}
	}
	return open
}

// Ended reports whether the call has its end.
func (c *ACPToolCall) Ended() bool {
	return c.Status != nil && (*c.Status == "completed" || *c.Status == "failed")
}

// Failed returns the ends of calls that nobody carries out any more. An output that is not nil
// replaces theirs.
func Failed(open []*ACPToolCall, output Any) (list []Event) {
	failed := "failed"
	for _, c := range open {
		end := *c
		end.Head, end.Status, end.IsError = Head{Source: SourceAgent}, &failed, true
		if output != nil {
			end.RawOutput = output
		}
		list = append(list, &end)
	}
	return list
}

// FinalResponse returns the message of the last finish action, or the text of the agent's last
// message, whichever is later; empty without either.
func FinalResponse(events []Event) string {
	for i := len(events) - 1; i >= 0; i-- {
		switch e := events[i].(type) {
		case *Action:
			if text, ok := finishMessage(e); ok {
				return text
			}
		case *Message:
			if e.Source == SourceAgent {
				return e.LLMMessage.Text()
			}
		}
	}
	return ""
}
