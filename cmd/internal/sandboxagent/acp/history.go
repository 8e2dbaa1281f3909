package acp

import (
	"encoding/json"
	"slices"
	"strings"

	sdk "github.com/coder/acp-go-sdk"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

const (
	// maxHistory is the most bytes of a history that goes into a prompt. Its end is kept.
	maxHistory = 60_000
	// maxHistoryItem is the most characters of one entry of it.
	maxHistoryItem = 8_000
)

const resumeNote = "The turn for this message was broken off. Some of it may be done: look before you do it again.\n\n"

// unanswered returns the messages that the agent has not answered: those after its last answer, and
// those that came while it wrote one and that it was not given. prompted is the last that it was.
func unanswered(events []event.Event, prompted string) (list []*event.Message) {
	first := 0
	for i, e := range slices.Backward(events) {
		if a, ok := e.(*event.Action); ok && a.ToolName == "finish" {
			first = i + 1
			break
		}
	}
	given := slices.IndexFunc(events, func(e event.Event) bool { return e.Envelope().ID == prompted })
	for i, e := range events {
		m, ok := e.(*event.Message)
		if !ok || m.LLMMessage.Role != "user" || i < first && (given < 0 || i <= given) {
			continue
		}
		list = append(list, m)
	}
	return list
}

// promptOf returns the prompt for the messages that have no answer, empty if there are none. note is
// more for a turn that begins again.
func (e *Engine) promptOf(s *session, events []event.Event, note string) []sdk.ContentBlock {
	open := unanswered(events, s.info.Prompted)
	if len(open) == 0 {
		return nil
	}
	fresh := open
	given := slices.IndexFunc(open, func(m *event.Message) bool { return m.ID == s.info.Prompted })
	if given >= 0 {
		fresh = open[given+1:]
	}
	resumed := len(fresh) == 0
	if resumed {
		fresh, note = open[len(open)-1:], resumeNote+note
	}
	var blocks []sdk.ContentBlock
	if !s.loaded {
		if text := history(events, fresh); text != "" {
			blocks = append(blocks, sdk.TextBlock(text))
		}
	}
	for _, m := range fresh {
		blocks = append(blocks, messageBlocks(m, note, s.images)...)
		note = ""
	}
	if suffix := e.setup.Agent.Suffix; suffix != "" && !s.info.Suffix {
		blocks = append(blocks, sdk.TextBlock(suffix))
	}
	return blocks
}

// messageBlocks returns a message's blocks. An image that the agent can't take becomes a note.
func messageBlocks(m *event.Message, note string, images bool) []sdk.ContentBlock {
	var blocks []sdk.ContentBlock
	text := note
	flush := func() {
		if text != "" {
			blocks = append(blocks, sdk.TextBlock(text))
		}
		text = ""
	}
	for _, c := range m.LLMMessage.Content {
		if c.Type != "image" {
			text += c.Text
			flush()
			continue
		}
		for _, u := range c.ImageURLs {
			head, data, inline := strings.Cut(strings.TrimPrefix(u, "data:"), ";base64,")
			if images && inline && strings.HasPrefix(u, "data:") {
				flush()
				blocks = append(blocks, sdk.ImageBlock(data, head))
			} else if inline {
				text += "[an image that this agent can't take]\n"
			} else {
				text += "[image: " + u + "]\n"
			}
		}
	}
	for _, x := range m.ExtendedContent {
		text += x.Text
		flush()
	}
	flush()
	return blocks
}

// history tells a conversation to an agent that does not know it, without the messages that follow
// as the prompt.
func history(events []event.Event, but []*event.Message) string {
	var items []string
	add := func(who, text string) {
		if text = strings.TrimSpace(text); text == "" {
			return
		}
		if r := []rune(text); len(r) > maxHistoryItem {
			text = string(r[:maxHistoryItem]) + " [cut]"
		}
		items = append(items, who+": "+text)
	}
	for _, e := range events {
		switch e := e.(type) {
		case *event.Message:
			if !slices.Contains(but, e) {
				add(map[bool]string{true: "User", false: "You"}[e.LLMMessage.Role == "user"], e.LLMMessage.Text())
			}
		case *event.Action:
			if text, ok := finishText(e); ok {
				add("You", text)
			}
		case *event.ACPToolCall:
			if e.Ended() {
				add("You used a tool ("+*e.Status+")", e.Title)
			}
		}
	}
	size, from := 0, len(items)
	for from > 0 && size+len(items[from-1]) <= maxHistory {
		from--
		size += len(items[from])
	}
	if len(items) == 0 {
		return ""
	}
	text := "This conversation began before. What was said and done:\n\n"
	if from > 0 {
		text += "[the beginning is left out]\n\n"
	}
	return text + strings.Join(items[from:], "\n\n") + "\n\nThe conversation goes on with the next message."
}

func finishText(a *event.Action) (string, bool) {
	var f struct {
		Message string `json:"message"`
	}
	return f.Message, a.ToolName == "finish" && json.Unmarshal(a.Action, &f) == nil
}
