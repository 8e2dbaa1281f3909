package native

import (
	"cmp"
	"encoding/json"
	"strings"

	openai "github.com/sashabaranov/go-openai"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

const (
	// messagesMax is the limit of output, which Messages wants, where the settings have none. Models that
	// allow less name theirs; fewestMax is what all allow.
	messagesMax, fewestMax = 16_384, 4096
	// leastBudget is the smallest budget for thoughts that Messages takes.
	leastBudget = 1024
)

type messagesRequest struct {
	Model       string            `json:"model"`
	MaxTokens   int               `json:"max_tokens"`
	Tools       []messagesTool    `json:"tools,omitempty"`
	System      []messagesBlock   `json:"system,omitempty"`
	Messages    []messagesMessage `json:"messages"`
	ToolChoice  *typed            `json:"tool_choice,omitempty"`
	Stream      bool              `json:"stream,omitempty"`
	Temperature float32           `json:"temperature,omitempty"`
	TopP        float32           `json:"top_p,omitempty"`
	Thinking    *messagesThinking `json:"thinking,omitempty"`
	Output      *messagesOutput   `json:"output_config,omitempty"`
}

type typed struct {
	Type string `json:"type"`
}

type messagesThinking struct {
	Type    string `json:"type"`
	Budget  int    `json:"budget_tokens,omitempty"`
	Display string `json:"display,omitempty"`
}

type messagesOutput struct {
	Effort string `json:"effort"`
}

type messagesTool struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Schema      any    `json:"input_schema"`
}

type messagesMessage struct {
	Role    string          `json:"role"`
	Content []messagesBlock `json:"content"`
}

type messagesBlock struct {
	Type      string          `json:"type"`
	Text      string          `json:"text,omitempty"`
	Thinking  *string         `json:"thinking,omitempty"` // may be empty, beside its signature
	Signature *string         `json:"signature,omitempty"`
	Data      string          `json:"data,omitempty"`
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Input     json.RawMessage `json:"input,omitempty"`
	ToolUseID string          `json:"tool_use_id,omitempty"`
	Content   string          `json:"content,omitempty"`
	Source    *messagesSource `json:"source,omitempty"`
	Cache     *typed          `json:"cache_control,omitempty"`
}

type messagesSource struct {
	Type      string `json:"type"`
	MediaType string `json:"media_type,omitempty"`
	Data      string `json:"data,omitempty"`
	URL       string `json:"url,omitempty"`
}

// messagesRequest writes a fitted request as one of Messages.
func (d dialect) messagesRequest(r *openai.ChatCompletionRequest, t thoughts) messagesRequest {
	m := messagesRequest{
		Model: r.Model, Stream: r.Stream, Temperature: r.Temperature, TopP: r.TopP,
		MaxTokens: cmp.Or(r.MaxTokens, r.MaxCompletionTokens, messagesMax), //nolint:staticcheck // as in request
	}
	for _, tool := range r.Tools {
		f := tool.Function
		m.Tools = append(m.Tools, messagesTool{f.Name, f.Description, f.Parameters})
	}
	if r.ToolChoice != nil {
		m.ToolChoice = &typed{"none"}
	}
	d.think(&m, r.ReasoningEffort)
	for _, one := range r.Messages {
		if one.Role == openai.ChatMessageRoleSystem {
			m.System = append(m.System, messagesBlock{Type: "text", Text: one.Content})
			continue
		}
		role, blocks := messagesBlocks(one, t)
		if n := len(m.Messages); n > 0 && m.Messages[n-1].Role == role {
			m.Messages[n-1].Content = append(m.Messages[n-1].Content, blocks...)
		} else if len(blocks) > 0 {
			m.Messages = append(m.Messages, messagesMessage{role, blocks})
		}
	}
	if len(m.Messages) > 0 && m.Messages[0].Role == openai.ChatMessageRoleAssistant {
		begin := messagesMessage{openai.ChatMessageRoleUser, []messagesBlock{{Type: "text", Text: goesOn}}}
		m.Messages = append([]messagesMessage{begin}, m.Messages...)
	}
	if !d.noCache {
		m.mark()
	}
	return m
}

// think asks for thoughts: as much as the model finds good, or with a budget, which older ones want.
func (d dialect) think(m *messagesRequest, effort string) {
	switch {
	case effort == "":
	case d.thoughtBudget:
		budget := map[string]int{"low": leastBudget, "medium": 4 * leastBudget}[effort]
		m.Thinking = &messagesThinking{Type: "enabled", Budget: cmp.Or(budget, 16*leastBudget)}
		m.MaxTokens += m.Thinking.Budget
	default:
		m.Thinking, m.Output = &messagesThinking{Type: "adaptive", Display: "summarized"}, &messagesOutput{effort}
	}
	if m.Thinking != nil {
		m.Temperature, m.TopP = 0, 0
	}
	if d.smallMax {
		m.MaxTokens = min(m.MaxTokens, fewestMax)
		if m.Thinking != nil && m.Thinking.Budget > 0 {
			m.Thinking.Budget = leastBudget
		}
	}
}

// mark says how far a prompt is to be cached: up to the end of what never changes, up to what the last
// request ended with, and to the end.
func (m *messagesRequest) mark() {
	cache := &typed{"ephemeral"}
	if n := len(m.System); n > 0 {
		m.System[n-1].Cache = cache
	}
	marked := 0
	for i := len(m.Messages) - 1; i >= 0 && marked < 2; i-- {
		if one := m.Messages[i]; one.Role == openai.ChatMessageRoleUser {
			one.Content[len(one.Content)-1].Cache = cache
			marked++
		}
	}
}

// messagesBlocks is a message as its role and blocks. A result is a message of the user's.
func messagesBlocks(m openai.ChatCompletionMessage, t thoughts) (role string, blocks []messagesBlock) {
	if m.Role == openai.ChatMessageRoleTool {
		return openai.ChatMessageRoleUser, []messagesBlock{
			{Type: "tool_result", ToolUseID: m.ToolCallID, Content: m.Content},
		}
	}
	if len(m.ToolCalls) > 0 {
		for _, b := range t[m.ToolCalls[0].ID].blocks {
			one := messagesBlock{Type: b.Type, Data: b.Data}
			if b.Type == "thinking" {
				one.Thinking, one.Signature = &b.Thinking, b.Signature
			}
			blocks = append(blocks, one)
		}
	}
	for _, p := range partsOf(m) {
		switch {
		case p.ImageURL != nil:
			blocks = append(blocks, messagesBlock{Type: "image", Source: messagesPicture(p.ImageURL.URL)})
		case strings.TrimSpace(p.Text) != "": // an empty block is refused
			blocks = append(blocks, messagesBlock{Type: "text", Text: p.Text})
		}
	}
	for _, c := range m.ToolCalls {
		blocks = append(blocks, messagesBlock{
			Type: "tool_use", ID: c.ID, Name: c.Function.Name, Input: json.RawMessage(c.Function.Arguments),
		})
	}
	return m.Role, blocks
}

// messagesPicture is the source of a picture whose address was fitted.
func messagesPicture(url string) *messagesSource {
	kind, data, inline := strings.Cut(strings.TrimPrefix(url, "data:"), ";base64,")
	if !inline {
		return &messagesSource{Type: "url", URL: url}
	}
	return &messagesSource{Type: "base64", MediaType: kind, Data: data}
}

// messagesFrame is an event of a stream, or a whole answer.
type messagesFrame struct {
	// Message is that of message_start; a whole answer has its members itself.
	Message *messagesFrame  `json:"message"`
	ID      loose           `json:"id"`
	Content []messagesPart  `json:"content"`
	Index   *amount         `json:"index"`
	Block   *messagesPart   `json:"content_block"`
	Delta   messagesPart    `json:"delta"`
	Stop    loose           `json:"stop_reason"`
	Usage   json.RawMessage `json:"usage"`
}

// messagesPart is a block, or a part of one or of the message.
type messagesPart struct {
	Type      loose           `json:"type"`
	Text      content         `json:"text"`
	Thinking  content         `json:"thinking"`
	Signature loose           `json:"signature"`
	Data      loose           `json:"data"`
	ID        loose           `json:"id"`
	Name      loose           `json:"name"`
	Input     json.RawMessage `json:"input"`
	JSON      loose           `json:"partial_json"`
	Stop      loose           `json:"stop_reason"`
}

func isMessages(kind string) bool {
	return strings.HasPrefix(kind, "message") || strings.HasPrefix(kind, "content_block") || kind == "ping"
}

// addMessages appends an event of Messages.
func (a *parts) addMessages(kind string, data []byte) error {
	var f messagesFrame
	if err := json.Unmarshal(data, &f); err != nil {
		return err
	}
	stop := cmp.Or(f.Stop, f.Delta.Stop)
	switch kind {
	case "message_start":
		if f.Message != nil {
			a.id = cmp.Or(bounded(f.Message.ID), a.id)
			a.countMessages(f.Message.Usage)
		}
	case "message":
		a.id = cmp.Or(bounded(f.ID), a.id)
		for i, b := range f.Content {
			n := amount(i)
			a.addBlock(&n, b)
		}
		a.done = true
	case "content_block_start":
		if f.Block != nil {
			a.addBlock(f.Index, *f.Block)
		}
	case "content_block_delta":
		a.addBlockPart(f.Index, f.Delta)
	case "message_stop":
		a.ended = true
		a.done = a.done || len(a.calls) > 0 || a.text.Len() > 0
	}
	a.countMessages(f.Usage)
	switch stop {
	case "":
	case "max_tokens", "model_context_window_exceeded":
		a.finish = cutOff
	case "refusal":
		a.finish = "content_filter"
	default: // end_turn, stop_sequence, tool_use, pause_turn
		a.finish = "stop"
	}
	return nil
}

// addBlock begins a block.
func (a *parts) addBlock(index *amount, b messagesPart) {
	switch b.Type {
	case "tool_use":
		a.addCall(callPart{Index: index, ID: b.ID, Function: function{Name: b.Name}})
		if c := a.calls[len(a.calls)-1]; string(b.Input) != "{}" && objectError(string(b.Input)) == nil {
			c.whole = b.Input
			a.size += len(b.Input)
		}
	case "thinking", "redacted_thinking":
		a.block = len(a.blocks)
		a.blocks = append(a.blocks, event.ThinkingBlock{Type: string(b.Type), Data: string(b.Data)})
		a.size += leastPart + len(b.Data)
		a.addBlockPart(index, b)
	default:
		a.say(&said{Content: b.Text})
	}
}

// addBlockPart appends a part of a block.
func (a *parts) addBlockPart(index *amount, p messagesPart) {
	if p.JSON != "" {
		a.addCall(callPart{Index: index, Function: function{Arguments: p.JSON}})
		return
	}
	if p.Thinking.text != "" || p.Signature != "" {
		if len(a.blocks) == 0 { // it had no beginning
			a.blocks = append(a.blocks, event.ThinkingBlock{Type: "thinking"})
		}
		b := &a.blocks[a.block]
		b.Thinking += p.Thinking.text
		if p.Signature != "" {
			signature := string(p.Signature)
			if b.Signature != nil {
				signature = *b.Signature + signature
			}
			b.Signature = &signature
			a.size += len(p.Signature)
		}
	}
	a.say(&said{Content: p.Text, ReasoningContent: p.Thinking})
}

// countMessages keeps the tokens that were counted: those of the input come first, in three parts.
func (a *parts) countMessages(raw json.RawMessage) {
	var c struct {
		Input   amount `json:"input_tokens"`
		Output  amount `json:"output_tokens"`
		Read    amount `json:"cache_read_input_tokens"`
		Written amount `json:"cache_creation_input_tokens"`
	}
	if json.Unmarshal(raw, &c) != nil {
		return // what can't be read counts as nothing
	}
	if n := int(c.Input + c.Read + c.Written); n > 0 {
		a.usage.PromptTokens = n
		a.usage.PromptTokensDetails = &openai.PromptTokensDetails{CachedTokens: int(c.Read)}
		a.cached = int(c.Written)
	}
	a.usage.CompletionTokens = max(a.usage.CompletionTokens, int(c.Output))
	a.usage.TotalTokens = a.usage.PromptTokens + a.usage.CompletionTokens
}
