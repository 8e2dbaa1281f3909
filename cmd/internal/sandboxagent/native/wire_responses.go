package native

import (
	"cmp"
	"encoding/json"
	"strings"

	openai "github.com/sashabaranov/go-openai"

	"bivouac.dev/bivouac/scheduler/agent/preset"
)

type responsesRequest struct {
	Model        string              `json:"model"`
	Instructions string              `json:"instructions,omitempty"`
	Tools        []responsesTool     `json:"tools,omitempty"`
	Input        []responsesItem     `json:"input"`
	ToolChoice   any                 `json:"tool_choice,omitempty"`
	Stream       bool                `json:"stream,omitempty"`
	Store        bool                `json:"store"` // the history is here
	Include      []string            `json:"include,omitempty"`
	Reasoning    *responsesReasoning `json:"reasoning,omitempty"`
	MaxTokens    int                 `json:"max_output_tokens,omitempty"`
	Temperature  float32             `json:"temperature,omitempty"`
	TopP         float32             `json:"top_p,omitempty"`
}

type responsesReasoning struct {
	Effort  string `json:"effort,omitempty"`
	Summary string `json:"summary,omitempty"`
}

type responsesTool struct {
	Type        string `json:"type"`
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Parameters  any    `json:"parameters"`
	Strict      bool   `json:"strict"`
}

// responsesItem is an item that is sent. Ids of items are left out: an item with one is refused without
// the items that were beside it.
type responsesItem struct {
	Type      string          `json:"type"`
	Role      string          `json:"role,omitempty"`
	Content   []responsesPart `json:"content,omitempty"`
	CallID    string          `json:"call_id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Arguments string          `json:"arguments,omitempty"`
	Output    string          `json:"output,omitempty"`
	// Summary is wanted in thoughts, and may be empty.
	Summary   *[]responsesPart `json:"summary,omitempty"`
	Encrypted string           `json:"encrypted_content,omitempty"`
}

type responsesPart struct {
	Type     string `json:"type"`
	Text     string `json:"text,omitempty"`
	ImageURL string `json:"image_url,omitempty"`
}

// storedItem is a reasoning item in the form in which upstream's events have it.
type storedItem struct {
	ID        *string  `json:"id"`
	Summary   []string `json:"summary"`
	Content   []string `json:"content"`
	Encrypted *string  `json:"encrypted_content"`
	Status    *string  `json:"status"`
}

// responsesRequest writes a fitted request as one of Responses.
func (d dialect) responsesRequest(r *openai.ChatCompletionRequest, t thoughts) responsesRequest {
	out := responsesRequest{
		Model: r.Model, Stream: r.Stream, Temperature: r.Temperature, TopP: r.TopP, ToolChoice: r.ToolChoice,
		MaxTokens: cmp.Or(r.MaxTokens, r.MaxCompletionTokens), //nolint:staticcheck // as in request
		Input:     []responsesItem{},
	}
	for _, tool := range r.Tools {
		f := tool.Function
		out.Tools = append(out.Tools, responsesTool{
			Type: "function", Name: f.Name, Description: f.Description, Parameters: f.Parameters,
		})
	}
	if (preset.Reasons(r.Model) || r.ReasoningEffort != "") && !d.noEffort {
		out.Reasoning = &responsesReasoning{Effort: r.ReasoningEffort, Summary: "auto"}
		if d.noSummary {
			out.Reasoning.Summary = ""
		}
		if !d.noEncrypted {
			out.Include = []string{"reasoning.encrypted_content"}
		}
	}
	for i, m := range r.Messages {
		if m.Role == openai.ChatMessageRoleSystem && i == 0 {
			out.Instructions = m.Content
			continue
		}
		out.Input = append(out.Input, responsesItems(m, t)...)
	}
	return out
}

// responsesItems is a message as items: thoughts, text and calls.
func responsesItems(m openai.ChatCompletionMessage, t thoughts) (list []responsesItem) {
	if m.Role == openai.ChatMessageRoleTool {
		return []responsesItem{{Type: "function_call_output", CallID: m.ToolCallID, Output: m.Content}}
	}
	spoken := responsesItem{Type: "message", Role: m.Role}
	kind := "input_text"
	if m.Role == openai.ChatMessageRoleAssistant {
		kind = "output_text"
	}
	for _, p := range partsOf(m) {
		switch {
		case p.ImageURL != nil:
			spoken.Content = append(spoken.Content, responsesPart{Type: "input_image", ImageURL: p.ImageURL.URL})
		case p.Text != "":
			spoken.Content = append(spoken.Content, responsesPart{Type: kind, Text: p.Text})
		}
	}
	for i, c := range m.ToolCalls {
		if thought, is := t[c.ID].sent(); is {
			list = append(list, thought)
		}
		if i == 0 && len(spoken.Content) > 0 {
			list = append(list, spoken)
		}
		list = append(list, responsesItem{
			Type: "function_call", CallID: c.ID, Name: c.Function.Name, Arguments: c.Function.Arguments,
		})
	}
	if len(m.ToolCalls) == 0 && len(spoken.Content) > 0 {
		list = append(list, spoken)
	}
	return list
}

// sent is the item of thoughts; false where its server gave nothing that it could read again.
func (k kept) sent() (responsesItem, bool) {
	var s storedItem
	if json.Unmarshal(k.item, &s) != nil || s.Encrypted == nil || *s.Encrypted == "" {
		return responsesItem{}, false
	}
	summary := []responsesPart{}
	for _, text := range s.Summary {
		summary = append(summary, responsesPart{Type: "summary_text", Text: text})
	}
	return responsesItem{Type: "reasoning", Summary: &summary, Encrypted: *s.Encrypted}, true
}

// responsesFrame is an event of a stream, or a whole answer.
type responsesFrame struct {
	// Response is that of the events about all of it; a whole answer has its members itself.
	Response *responsesFrame `json:"response"`
	ID       loose           `json:"id"`
	Status   loose           `json:"status"`
	Output   []responsesOut  `json:"output"`
	Usage    json.RawMessage `json:"usage"`
	Error    json.RawMessage `json:"error"`
	Why      struct {
		Reason loose `json:"reason"`
	} `json:"incomplete_details"`

	Index *amount       `json:"output_index"`
	Delta loose         `json:"delta"`
	Item  *responsesOut `json:"item"`
}

// responsesOut is an item of an answer.
type responsesOut struct {
	Type      loose     `json:"type"`
	ID        loose     `json:"id"`
	Status    loose     `json:"status"`
	Content   content   `json:"content"`
	Summary   partTexts `json:"summary"`
	CallID    loose     `json:"call_id"`
	Name      loose     `json:"name"`
	Arguments loose     `json:"arguments"`
	Encrypted loose     `json:"encrypted_content"`
}

// partTexts are the texts of a list of parts.
type partTexts []string

// UnmarshalJSON implements json.Unmarshaler.
func (t *partTexts) UnmarshalJSON(b []byte) error {
	var list []content
	_ = json.Unmarshal(b, &list) // what is no list has no texts
	for _, c := range list {
		if c.text != "" {
			*t = append(*t, c.text)
		}
	}
	return nil
}

func isResponses(kind string) bool { return strings.HasPrefix(kind, "response.") }

// addResponses appends an event of Responses.
func (a *parts) addResponses(kind string, data []byte) error {
	var f responsesFrame
	if err := json.Unmarshal(data, &f); err != nil {
		return err
	}
	a.api = preset.Responses
	switch kind {
	case "response.output_text.delta", "response.refusal.delta":
		a.streamed(f.Index)
		a.say(&said{Content: content{text: string(f.Delta)}})
	case "response.reasoning_summary_text.delta", "response.reasoning_text.delta":
		a.streamed(f.Index)
		a.say(&said{ReasoningContent: content{text: string(f.Delta)}})
	case "response.function_call_arguments.delta":
		a.addCall(callPart{Index: f.Index, Function: function{Arguments: f.Delta}})
	case "response.output_item.added":
		if f.Item != nil && f.Item.Type == "function_call" {
			a.addCall(callPart{Index: f.Index, ID: f.Item.CallID, Function: function{Name: f.Item.Name}})
		}
	case "response.output_item.done":
		if f.Item != nil {
			a.addItem(f.Index, *f.Item)
		}
	case "response.failed", "response.completed", "response.incomplete", "response.created", "":
		whole := f.Response
		if whole == nil {
			whole = &f
		}
		return a.addResponse(kind, whole)
	}
	return nil
}

// addResponse reads what an event says of the whole answer. A server may leave out the items at the end
// that it streamed before.
func (a *parts) addResponse(kind string, f *responsesFrame) error {
	a.id = cmp.Or(bounded(f.ID), a.id)
	a.countResponses(f.Usage)
	if kind == "response.created" {
		return nil
	}
	if f.Status == "failed" || kind == "response.failed" {
		return failedWith(f.Error)
	}
	if len(a.calls) == 0 && a.text.Len() == 0 {
		for i, item := range f.Output {
			n := amount(i)
			a.addItem(&n, item)
		}
	}
	a.ended = kind != ""
	switch {
	case f.Why.Reason == "content_filter":
		a.finish = "content_filter"
	case f.Status == "incomplete" || kind == "response.incomplete":
		a.finish = cutOff
	default:
		a.finish = "stop"
	}
	return nil
}

// streamed keeps that an item came in parts.
func (a *parts) streamed(index *amount) {
	if index != nil {
		if a.streams == nil {
			a.streams = map[amount]bool{}
		}
		a.streams[*index] = true
	}
}

// addItem appends a whole item, or what its parts did not say.
func (a *parts) addItem(index *amount, item responsesOut) {
	came := index != nil && a.streams[*index]
	switch item.Type {
	case "message":
		if !came {
			a.say(&said{Content: item.Content})
		}
	case "reasoning":
		if !came {
			text := strings.Join(item.Summary, "\n")
			a.say(&said{ReasoningContent: content{text: cmp.Or(text, item.Content.text)}})
		}
		stored := storedItem{
			ID: optional(bounded(item.ID)), Summary: item.Summary, Encrypted: optional(string(item.Encrypted)),
			Status: optional(bounded(item.Status)),
		}
		if item.Content.text != "" {
			stored.Content = []string{item.Content.text}
		}
		a.item, _ = json.Marshal(stored) // texts encode
		a.size += len(a.item)
	case "function_call":
		at := len(a.calls) - 1
		for at >= 0 && (index == nil || a.calls[at].index == nil || *a.calls[at].index != *index) &&
			(item.CallID == "" || a.calls[at].id != string(item.CallID)) {
			at--
		}
		if at < 0 {
			a.addCall(callPart{Index: index, ID: item.CallID, Function: function{Name: item.Name}})
			at = len(a.calls) - 1
		}
		c := a.calls[at]
		c.whole, c.item, a.item = []byte(item.Arguments), a.item, nil
		a.size += len(item.Arguments)
	}
}

// countResponses keeps the tokens that were counted.
func (a *parts) countResponses(raw json.RawMessage) {
	var c struct {
		Input   amount `json:"input_tokens"`
		Output  amount `json:"output_tokens"`
		Details struct {
			Cached amount `json:"cached_tokens"`
		} `json:"input_tokens_details"`
		OutputDetails struct {
			Reasoning amount `json:"reasoning_tokens"`
		} `json:"output_tokens_details"`
	}
	if json.Unmarshal(raw, &c) != nil || c.Input+c.Output == 0 {
		return // what can't be read counts as nothing
	}
	counted := counts{Prompt: c.Input, Completion: c.Output}
	counted.PromptDetails.Cached, counted.CompletionDetails.Reasoning = c.Details.Cached, c.OutputDetails.Reasoning
	a.usage = counted.usage()
}
