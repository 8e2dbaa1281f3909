package native

import (
	"crypto/sha256"
	"encoding/base32"
	"regexp"
	"slices"
	"strings"

	openai "github.com/sashabaranov/go-openai"
)

// What servers refuse is left out or put in other words here, last of all, so that a history is
// stored as it was and is sent as each server takes it.

const (
	// anyMax is the limit of output for a server that wants one, in tokens, where the model's is unknown.
	anyMax = 8192
	// mostMax bounds it, since the window has to have room for it.
	mostMax    = 32_000
	goOn       = "Go on."
	goesOn     = "(The conversation goes on.)"
	understood = "Understood."
	noName     = "unknown_tool"
)

var (
	badInName = regexp.MustCompile(`[^a-zA-Z0-9_-]+`)       //nolint:gochecknoglobals // compiled once, read-only
	goodID    = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,40}$`) //nolint:gochecknoglobals // compiled once, read-only
)

// fit makes a request one that the server takes. The messages of r are not changed.
func (d dialect) fit(r openai.ChatCompletionRequest) *openai.ChatCompletionRequest {
	d.parameters(&r)
	if d.plainSchemas {
		r.Tools = plainTools(r.Tools)
	}
	r.Messages = slices.Clone(r.Messages)
	for i := range r.Messages {
		m := &r.Messages[i]
		d.pictures(m)
		if d.noThoughts || !d.thoughts {
			m.ReasoningContent = ""
		}
		m.ToolCalls = slices.Clone(m.ToolCalls)
		for j := range m.ToolCalls {
			c := &m.ToolCalls[j]
			c.ID, c.Function.Name = d.callID(c.ID), callName(c.Function.Name)
			if d.thoughts && !d.noThoughts && m.ReasoningContent == "" {
				m.ReasoningContent = " " // some want it in every message with calls
			}
		}
		if m.ToolCallID != "" {
			m.ToolCallID = d.callID(m.ToolCallID)
		}
	}
	switch {
	case d.written:
		writeTools(&r)
	case d.told:
		r.Messages = writeCalls(r.Messages)
	}
	d.order(&r)
	if d.fullContent {
		for i := range r.Messages {
			if m := &r.Messages[i]; strings.TrimSpace(m.Content) == "" && len(m.MultiContent) == 0 {
				m.Content = "(no text)"
			}
		}
	}
	return &r
}

// parameters leaves out what is refused beside the messages.
func (d dialect) parameters(r *openai.ChatCompletionRequest) {
	if r.Stream = r.Stream && !d.noStream; r.Stream && !d.noStreamOptions {
		r.StreamOptions = &openai.StreamOptions{IncludeUsage: true}
	}
	if d.noToolChoice && r.ToolChoice != nil {
		r.ToolChoice, r.Tools = nil, nil // no call is wanted
		r.Messages = writeCalls(r.Messages)
	}
	if d.noSampling {
		r.Temperature, r.TopP = 0, 0
	}
	if d.noEffort {
		r.ReasoningEffort = ""
	}
	//nolint:staticcheck // what servers other than OpenAI's know
	switch {
	case d.someMax && !limited(r):
		r.MaxTokens = d.most
	case d.noMax:
		r.MaxTokens, r.MaxCompletionTokens = 0, 0
	case d.otherMax:
		r.MaxTokens, r.MaxCompletionTokens = r.MaxCompletionTokens, r.MaxTokens
	}
}

// order puts the roles into the order that the server takes. A request never ends with an answer:
// some servers refuse that, and others write it on.
func (d dialect) order(r *openai.ChatCompletionRequest) {
	if d.noSystem {
		for i := range r.Messages {
			if r.Messages[i].Role == openai.ChatMessageRoleSystem {
				r.Messages[i].Role = openai.ChatMessageRoleUser
			}
		}
	}
	if n := len(r.Messages); n > 0 && r.Messages[n-1].Role == openai.ChatMessageRoleAssistant {
		r.Messages = append(r.Messages, userText(goOn))
	}
	if !d.alternate {
		return
	}
	var list []openai.ChatCompletionMessage
	for _, m := range r.Messages {
		var last openai.ChatCompletionMessage
		if len(list) > 0 {
			last = list[len(list)-1]
		}
		switch {
		case m.Role == last.Role && m.Role != openai.ChatMessageRoleTool && len(last.ToolCalls) == 0:
			list[len(list)-1] = joined(last, m)
			continue
		case m.Role == openai.ChatMessageRoleUser && last.Role == openai.ChatMessageRoleTool:
			list = append(list, openai.ChatCompletionMessage{Role: openai.ChatMessageRoleAssistant, Content: understood})
		case m.Role == openai.ChatMessageRoleAssistant && (last.Role == "" || last.Role == openai.ChatMessageRoleSystem):
			list = append(list, userText(goesOn))
		}
		list = append(list, m)
	}
	r.Messages = list
}

// joined is two messages of one role as one.
func joined(a, b openai.ChatCompletionMessage) openai.ChatCompletionMessage {
	if len(a.MultiContent) == 0 && len(b.MultiContent) == 0 {
		a.Content = strings.TrimSpace(a.Content + "\n\n" + b.Content)
	} else {
		a.MultiContent, a.Content = slices.Concat(partsOf(a), partsOf(b)), ""
	}
	a.ToolCalls = slices.Concat(a.ToolCalls, b.ToolCalls)
	if a.ReasoningContent == "" {
		a.ReasoningContent = b.ReasoningContent
	}
	return a
}

func partsOf(m openai.ChatCompletionMessage) []openai.ChatMessagePart {
	if len(m.MultiContent) > 0 || m.Content == "" {
		return m.MultiContent
	}
	return []openai.ChatMessagePart{{Type: openai.ChatMessagePartTypeText, Text: m.Content}}
}

// callName is a name that every server takes: a model may have called a tool that there is not.
func callName(name string) string {
	name = strings.Trim(badInName.ReplaceAllString(name, "_"), "_")
	if name == "" {
		return noName
	}
	return name[:min(len(name), 64)]
}

// callID is an id that the server takes. It is the same for a call and its result, and each time.
func (d dialect) callID(id string) string {
	if !d.shortIDs && goodID.MatchString(id) {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	hash := base32.StdEncoding.EncodeToString(sum[:])
	if d.shortIDs {
		return hash[:9]
	}
	return "call_" + hash[:20]
}
