package modeltest

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// anthropic is Anthropic's messages.
func anthropic() Protocol {
	return Protocol{
		Name:   "anthropic",
		Routes: []string{"POST /v1/messages"},
		Key:    func(r *http.Request) string { return r.Header.Get("X-Api-Key") },
		Parse:  parseAnthropic,
		Whole:  anthropicWhole,
		Chunks: anthropicChunks,
		Error: func(status int, _, message string) any {
			kind := "invalid_request_error"
			switch {
			case status == http.StatusUnauthorized:
				kind = "authentication_error"
			case status == http.StatusTooManyRequests:
				kind = "rate_limit_error"
			case status >= http.StatusInternalServerError:
				kind = "api_error"
			}
			return map[string]any{"type": "error", "error": map[string]any{"type": kind, "message": message}}
		},
	}
}

type anthropicBlock struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	Thinking  string          `json:"thinking"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
	ToolUseID string          `json:"tool_use_id"`
	Content   json.RawMessage `json:"content"`
}

func parseAnthropic(_ *http.Request, req *Request) error {
	var c struct {
		Model    string          `json:"model"`
		Stream   bool            `json:"stream"`
		System   json.RawMessage `json:"system"`
		Messages []struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
		} `json:"messages"`
		Tools []struct {
			Name string `json:"name"`
		} `json:"tools"`
	}
	if err := json.Unmarshal(req.Body, &c); err != nil {
		return fmt.Errorf("the request body is not valid JSON: %w", err)
	}
	req.Model, req.Stream = c.Model, c.Stream
	for _, t := range c.Tools {
		req.Tools = append(req.Tools, t.Name)
	}
	if text := contentText(c.System); text != "" {
		req.Messages = append(req.Messages, Message{Role: "system", Text: text})
	}
	for _, m := range c.Messages {
		req.addBlocks(m.Role, m.Content)
	}
	if len(c.Messages) == 0 {
		return fmt.Errorf("messages: at least one message is required")
	}
	return CheckResults(req.Messages)
}

// addBlocks adds a message of Anthropic's. Each result of a tool in it is a message here.
func (r *Request) addBlocks(role string, content json.RawMessage) {
	var blocks []anthropicBlock
	if json.Unmarshal(content, &blocks) != nil {
		r.Messages = append(r.Messages, Message{Role: role, Text: contentText(content)})
		return
	}
	m := Message{Role: role}
	for _, b := range blocks {
		switch b.Type {
		case "tool_result":
			r.Messages = append(r.Messages, Message{Role: "tool", CallID: b.ToolUseID, Text: contentText(b.Content)})
		case "tool_use":
			m.Calls = append(m.Calls, Call{ID: b.ID, Name: b.Name, Arguments: b.Input})
		case "thinking":
			m.Reasoning += b.Thinking
		default:
			m.Text += b.Text
		}
	}
	if m.Text != "" || m.Reasoning != "" || len(m.Calls) > 0 {
		r.Messages = append(r.Messages, m)
	}
}

// anthropicUsage counts cached input beside the rest, as the vendor does.
func anthropicUsage(u Usage, output int) map[string]any {
	return map[string]any{
		"input_tokens": u.Prompt - u.Cached - u.CacheWrite, "cache_read_input_tokens": u.Cached,
		"cache_creation_input_tokens": u.CacheWrite, "output_tokens": output,
	}
}

func anthropicStop(a Answer) string {
	if reason := map[string]string{
		"length":     "max_tokens",
		"tool_calls": "tool_use",
		"stop":       "end_turn",
	}[finishReason(a)]; reason != "" {
		return reason
	}
	return "refusal"
}

// anthropicBlocks are the blocks of an answer, complete.
func anthropicBlocks(a Answer) []map[string]any {
	blocks := []map[string]any{}
	if a.Reasoning != "" {
		blocks = append(blocks, map[string]any{"type": "thinking", "thinking": a.Reasoning, "signature": "signed"})
	}
	if a.Text != "" {
		blocks = append(blocks, map[string]any{"type": "text", "text": a.Text})
	}
	for _, c := range a.Calls {
		blocks = append(blocks,
			map[string]any{"type": "tool_use", "id": c.ID, "name": c.Name, "input": json.RawMessage(c.ArgumentsText())})
	}
	return blocks
}

func anthropicMessage(r Request, content any, stop any, usage map[string]any) map[string]any {
	return map[string]any{
		"id": fmt.Sprintf("msg_%d", r.Number), "type": "message", "role": "assistant", "model": r.Model,
		"content": content, "stop_reason": stop, "stop_sequence": nil, "usage": usage,
	}
}

func anthropicWhole(r Request, a Answer) any {
	u := r.usage(a)
	return anthropicMessage(r, anthropicBlocks(a), anthropicStop(a), anthropicUsage(u, u.Completion))
}

func anthropicChunks(r Request, a Answer) []Chunk {
	var list []Chunk
	add := func(kind string, members map[string]any) {
		members["type"] = kind
		list = append(list, Chunk{Event: kind, Data: string(mustJSON(members))})
	}
	u := r.usage(a)
	add("message_start", map[string]any{"message": anthropicMessage(r, []any{}, nil, anthropicUsage(u, 1))})
	for i, block := range anthropicBlocks(a) {
		begun, part, member, delta := map[string]any{"type": block["type"]}, a.Text, "text", "text_delta"
		switch block["type"] {
		case "thinking":
			begun["thinking"], begun["signature"] = "", ""
			part, member, delta = a.Reasoning, "thinking", "thinking_delta"
		case "tool_use":
			begun["id"], begun["name"], begun["input"] = block["id"], block["name"], map[string]any{}
			part, member, delta = string(block["input"].(json.RawMessage)), "partial_json", "input_json_delta"
		default:
			begun["text"] = ""
		}
		add("content_block_start", map[string]any{"index": i, "content_block": begun})
		for _, piece := range Pieces(part) {
			add("content_block_delta", map[string]any{"index": i, "delta": map[string]any{"type": delta, member: piece}})
		}
		add("content_block_stop", map[string]any{"index": i})
	}
	add("message_delta",
		map[string]any{
			"delta": map[string]any{"stop_reason": anthropicStop(a), "stop_sequence": nil},
			"usage": map[string]any{"output_tokens": u.Completion},
		})
	add("message_stop", map[string]any{})
	return list
}
