package native

import (
	"fmt"
	"slices"
	"strings"

	openai "github.com/sashabaranov/go-openai"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/tools"
)

// summary stands in a view for the events that a Condensation forgot.
type summary struct {
	event.Head
	text string
}

// summaryID is the id by which a later condensation forgets the summary of an earlier one.
func summaryID(c *event.Condensation) string { return c.ID + "-summary" }

// view returns the events that the model is shown, oldest first: those with a content for it,
// without the forgotten ones, and with the summaries in their places. Results of calls that are
// not in the view are left out.
func view(events []event.Event) []event.Event {
	var shown []event.Event
	for _, e := range events {
		switch e := e.(type) {
		case *event.SystemPrompt:
			// It is first even if the server stored the user's message before the first run.
			shown = slices.Insert(shown, 0, event.Event(e))
		case *event.Message, *event.Action, *event.Observation, *event.UserReject, *event.AgentError:
			shown = append(shown, e)
		case *event.StateUpdate:
			shown = moved(shown, e)
		case *event.Condensation:
			shown = condensed(shown, e)
		}
	}
	return paired(shown)
}

// condensed applies a condensation to a view.
func condensed(shown []event.Event, c *event.Condensation) []event.Event {
	forgotten := make(map[string]bool, len(c.ForgottenEventIDs))
	for _, id := range c.ForgottenEventIDs {
		forgotten[id] = true
	}
	kept := slices.DeleteFunc(slices.Clone(shown), func(e event.Event) bool { return forgotten[e.Envelope().ID] })
	if c.Summary == nil || *c.Summary == "" {
		return kept
	}
	at := 0
	if c.SummaryOffset != nil {
		at = min(max(*c.SummaryOffset, 0), len(kept))
	}
	s := &summary{Head: event.Head{ID: summaryID(c), Source: event.SourceEnvironment}, text: *c.Summary}
	return slices.Insert(kept, at, event.Event(s))
}

// resultOf returns the id of the call that the event is a result of.
func resultOf(e event.Event) (string, bool) {
	switch e := e.(type) {
	case *event.Observation:
		return e.ToolCallID, true
	case *event.UserReject:
		return e.ToolCallID, true
	case *event.AgentError:
		return e.ToolCallID, true
	}
	return "", false
}

// batch is the calls of one answer, with the result of each.
type batch struct {
	event.Head
	calls   []*event.Action
	results []event.Event // nil where a call has none
	// short means that long results are shortened.
	short bool
}

// paired puts each answer's calls and results together: a result belongs to the first open call
// before it with its id. Results without a call are left out.
func paired(shown []event.Event) []event.Event {
	var list []event.Event
	var open []*batch // batches that lack results
	for _, e := range shown {
		if a, ok := e.(*event.Action); ok {
			b := last[*batch](list)
			if b == nil || b.calls[0].LLMResponseID != a.LLMResponseID || a.LLMResponseID == "" {
				b = &batch{Head: a.Head}
				list, open = append(list, b), append(open, b)
			}
			b.calls, b.results = append(b.calls, a), append(b.results, nil)
			continue
		}
		id, isResult := resultOf(e)
		if !isResult {
			list = append(list, e)
			continue
		}
		for _, b := range open {
			if b.take(id, e) {
				break
			}
		}
		// The last batch may still grow: an invalid call has its error before the next call.
		newest := last[*batch](list)
		open = slices.DeleteFunc(open, func(b *batch) bool { return b != newest && !slices.Contains(b.results, nil) })
	}
	return list
}

// last returns the last event if it is of the type.
func last[T event.Event](list []event.Event) T {
	var none T
	if len(list) == 0 {
		return none
	}
	if e, ok := list[len(list)-1].(T); ok {
		return e
	}
	return none
}

// take stores a result with the first open call of its id.
func (b *batch) take(id string, result event.Event) bool {
	for i, a := range b.calls {
		if a.ToolCallID == id && b.results[i] == nil {
			b.results[i] = result
			return true
		}
	}
	return false
}

// noResult is shown for a call whose result was lost.
const noResult = "The tool call has no result: it was interrupted. Look whether it had an effect before you repeat it."

// messages turns a view into what a model is sent. Every tool call has exactly one result, right
// after its message, and no id is used twice.
func messages(shown []event.Event, reasoning bool) []openai.ChatCompletionMessage {
	var list []openai.ChatCompletionMessage
	used := map[string]bool{}
	for _, e := range shown {
		switch e := e.(type) {
		case *event.SystemPrompt:
			text := e.SystemPrompt.Text
			if e.DynamicContext != nil && e.DynamicContext.Text != "" {
				text += "\n\n" + e.DynamicContext.Text
			}
			list = append(list, openai.ChatCompletionMessage{Role: openai.ChatMessageRoleSystem, Content: text})
		case *summary:
			list = append(list, userText("Earlier parts of this conversation were replaced by this summary:\n\n"+e.text))
		case *event.Message:
			list = append(list, message(e, reasoning)...)
		case *batch:
			list = append(list, e.messages(used, reasoning)...)
		}
	}
	return list
}

func userText(text string) openai.ChatCompletionMessage {
	return openai.ChatCompletionMessage{Role: openai.ChatMessageRoleUser, Content: text}
}

// message is a message event as a model is sent it; none if it has no content.
func message(e *event.Message, reasoning bool) []openai.ChatCompletionMessage {
	if e.Source == event.SourceAgent || e.LLMMessage.Role == "assistant" {
		text := e.LLMMessage.Text()
		if text == "" {
			return nil // vendors refuse an empty answer, and the hint after it says what it was
		}
		m := openai.ChatCompletionMessage{Role: openai.ChatMessageRoleAssistant, Content: text}
		if r := e.LLMMessage.ReasoningContent; reasoning && r != nil {
			m.ReasoningContent = *r
		}
		return []openai.ChatCompletionMessage{m}
	}
	content := slices.Clone(e.LLMMessage.Content)
	for _, t := range e.ExtendedContent {
		content = append(content, event.TextContent(t.Text))
	}
	if m, ok := userContent(content); ok {
		return []openai.ChatCompletionMessage{m}
	}
	return nil
}

// userContent is a user message of texts and images; false if it is empty.
func userContent(content []event.Content) (openai.ChatCompletionMessage, bool) {
	m := openai.ChatCompletionMessage{Role: openai.ChatMessageRoleUser}
	text, images := split(content)
	if len(images) == 0 {
		m.Content = text
		return m, strings.TrimSpace(text) != ""
	}
	if text != "" {
		m.MultiContent = append(m.MultiContent, openai.ChatMessagePart{Type: openai.ChatMessagePartTypeText, Text: text})
	}
	for _, url := range images {
		m.MultiContent = append(m.MultiContent, openai.ChatMessagePart{
			Type: openai.ChatMessagePartTypeImageURL, ImageURL: &openai.ChatMessageImageURL{URL: url},
		})
	}
	return m, true
}

// split separates texts and images.
func split(content []event.Content) (text string, images []string) {
	var texts []string
	for _, c := range content {
		if c.Type == "image" {
			images = append(images, c.ImageURLs...)
		} else if c.Text != "" {
			texts = append(texts, c.Text)
		}
	}
	return strings.Join(texts, "\n"), images
}

// messages is the answer and its results. Images of results follow in a user message, since the
// protocol has none in results.
func (b *batch) messages(used map[string]bool, reasoning bool) []openai.ChatCompletionMessage {
	first := b.calls[0]
	var thought []string
	for _, t := range first.Thought {
		thought = append(thought, t.Text)
	}
	m := openai.ChatCompletionMessage{Role: openai.ChatMessageRoleAssistant, Content: strings.Join(thought, "\n")}
	if reasoning && first.ReasoningContent != nil {
		m.ReasoningContent = *first.ReasoningContent
	}
	list := make([]openai.ChatCompletionMessage, 1, len(b.calls)+2)
	var images []string
	for i, a := range b.calls {
		id := unused(used, a.ToolCallID)
		m.ToolCalls = append(m.ToolCalls, openai.ToolCall{
			ID: id, Type: openai.ToolTypeFunction,
			Function: openai.FunctionCall{Name: a.ToolName, Arguments: object(a.ToolCall.Arguments)},
		})
		text, more := resultText(b.results[i])
		if b.short {
			text = shortText(text)
		}
		images = append(images, more...)
		list = append(list, openai.ChatCompletionMessage{Role: openai.ChatMessageRoleTool, ToolCallID: id, Content: text})
	}
	list[0] = m
	if len(images) > 0 {
		content := []event.Content{event.TextContent("The images of the tool's result:"), {Type: "image", ImageURLs: images}}
		if m, ok := userContent(content); ok {
			list = append(list, m)
		}
	}
	return list
}

// unused returns the id, or another one if it was used before.
func unused(used map[string]bool, id string) string {
	free := id
	for n := 2; used[free] || free == ""; n++ {
		free = fmt.Sprintf("%s_%d", id, n)
	}
	used[free] = true
	return free
}

// resultText is what the model is shown of a result. It is never empty.
func resultText(result event.Event) (text string, images []string) {
	switch r := result.(type) {
	case *event.Observation:
		content := tools.ForModel(r.Observation)
		for _, t := range r.ExtendedContent {
			content = append(content, event.TextContent(t.Text))
		}
		text, images = split(content)
	case *event.UserReject:
		text = "Action rejected: " + r.RejectionReason
	case *event.AgentError:
		text = r.Error
	default:
		text = noResult
	}
	if strings.TrimSpace(text) == "" {
		text = "(no output)"
	}
	return text, images
}
