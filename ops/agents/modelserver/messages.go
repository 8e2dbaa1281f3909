package modelserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// block is a block of a message of Messages.
type block struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	Thinking  string          `json:"thinking"`
	Signature string          `json:"signature"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
	ToolUseID string          `json:"tool_use_id"`
	Content   string          `json:"content"`
	Source    struct {
		Kind string `json:"media_type"`
		Data string `json:"data"`
		URL  string `json:"url"`
	} `json:"source"`
}

// parseMessages reads a request of Messages, as strictly as its maker does.
func parseMessages(r *Request, body []byte) error {
	var typed struct {
		MaxTokens int     `json:"max_tokens"`
		System    []block `json:"system"`
		Messages  []struct {
			Role    string  `json:"role"`
			Content []block `json:"content"`
		} `json:"messages"`
		Tools []struct {
			Name   string         `json:"name"`
			Schema map[string]any `json:"input_schema"`
		} `json:"tools"`
	}
	if err := json.Unmarshal(body, &typed); err != nil {
		return err
	}
	switch {
	case r.Header.Get("Anthropic-Version") == "" || r.Header.Get("X-Api-Key") == "":
		return fmt.Errorf("anthropic-version: header is required")
	case typed.MaxTokens <= 0:
		return fmt.Errorf("max_tokens: Field required")
	case len(typed.Messages) == 0 || typed.Messages[0].Role != "user":
		return fmt.Errorf("messages: first message must use the %q role", "user")
	case strings.Count(string(body), `"cache_control"`) > 4:
		return fmt.Errorf("a maximum of 4 blocks with cache_control may be provided")
	}
	for _, t := range typed.Tools {
		if t.Schema["type"] != "object" {
			return fmt.Errorf("tools.0.custom.input_schema.type: Input should be 'object'")
		}
		r.Tools = append(r.Tools, t.Name)
	}
	for _, b := range typed.System {
		r.Messages = append(r.Messages, Message{Role: "system", Text: b.Text})
	}
	for i, m := range typed.Messages {
		if err := r.addBlocks(i, m.Role, m.Content); err != nil {
			return err
		}
	}
	return nil
}

// addBlocks adds a message. Each result in it is a message here.
func (r *Request) addBlocks(i int, role string, blocks []block) error {
	one := Message{Role: role}
	for n, b := range blocks {
		switch b.Type {
		case "text":
			if strings.TrimSpace(b.Text) == "" {
				return fmt.Errorf("messages.%d.content.%d: text content blocks must be non-empty", i, n)
			}
			one.Text += b.Text
		case "image":
			url := b.Source.URL
			if url == "" {
				url = "data:" + b.Source.Kind + ";base64," + b.Source.Data
			}
			one.Pictures = append(one.Pictures, url)
		case "thinking":
			one.Reasoning, one.Thought = true, b.Thinking+"|"+b.Signature
		case "tool_use":
			one.Calls = append(one.Calls, Call{b.ID, b.Name, string(b.Input)})
		case "tool_result":
			if one.Text != "" || len(one.Pictures) > 0 {
				return fmt.Errorf("messages.%d: tool_use ids were found without tool_result blocks immediately after", i)
			}
			r.Messages = append(r.Messages, Message{Role: "tool", CallID: b.ToolUseID, Text: b.Content})
		default:
			return fmt.Errorf("messages.%d.content.%d: Input tag %q found using 'type' is not expected", i, n, b.Type)
		}
	}
	one.Empty = one.Text == "" && len(one.Pictures) == 0
	if !one.Empty || len(one.Calls) > 0 {
		r.Messages = append(r.Messages, one)
	}
	return nil
}

// messagesStream writes a stream of Messages.
type messagesStream struct {
	a     *Reply
	begun bool
	index int
	open  string // the type of the open block, "" for none
}

// begin begins the stream.
func (s *messagesStream) begin() {
	if s.begun {
		return
	}
	s.begun = true
	message := map[string]any{
		"id": fmt.Sprintf("msg_%d", s.a.R.Number), "type": "message", "role": "assistant", "model": "scripted",
		"content": []any{}, "stop_reason": nil, "usage": messagesUsage(1),
	}
	s.a.named("message_start", map[string]any{"message": message})
}

func messagesUsage(output int) map[string]any {
	return map[string]any{
		"input_tokens": 20, "cache_creation_input_tokens": 30, "cache_read_input_tokens": 50, "output_tokens": output,
	}
}

// start begins a block and ends the one before it.
func (s *messagesStream) start(block map[string]any) {
	s.stop()
	s.open, _ = block["type"].(string)
	s.a.named("content_block_start", map[string]any{"index": s.index, "content_block": block})
}

func (s *messagesStream) stop() {
	if s.open != "" {
		s.a.named("content_block_stop", map[string]any{"index": s.index})
		s.index++
	}
	s.open = ""
}

func (s *messagesStream) delta(kind, member, text string) {
	s.a.named("content_block_delta", map[string]any{
		"index": s.index, "delta": map[string]any{"type": kind, member: text},
	})
}

// thinks writes a thought, with its signature.
func (s *messagesStream) thinks(text, signature string) {
	s.begin()
	s.start(map[string]any{"type": "thinking", "thinking": "", "signature": ""})
	s.delta("thinking_delta", "thinking", text)
	s.delta("signature_delta", "signature", signature)
	s.stop()
}

// part implements stream.
func (s *messagesStream) part(p part) {
	s.begin()
	if p.text != "" {
		if s.open != "text" {
			s.start(map[string]any{"type": "text", "text": ""})
		}
		s.delta("text_delta", "text", p.text)
	}
	for _, c := range p.calls {
		if c.ID != "" || c.Name != "" {
			s.start(map[string]any{"type": "tool_use", "id": c.ID, "name": c.Name, "input": map[string]any{}})
		}
		if c.Arguments != "" {
			s.delta("input_json_delta", "partial_json", c.Arguments)
		}
	}
}

// end implements stream.
func (s *messagesStream) end(finish string) {
	s.begin()
	s.stop()
	s.a.named("message_delta", map[string]any{
		"delta": map[string]any{"stop_reason": messagesStop(finish), "stop_sequence": nil},
		"usage": map[string]any{"output_tokens": 10},
	})
	s.a.named("message_stop", map[string]any{})
}

func messagesStop(finish string) string {
	switch finish {
	case "length":
		return "max_tokens"
	case "tool_calls":
		return "tool_use"
	}
	return "end_turn"
}

// whole implements stream.
func (s *messagesStream) whole(p part, finish string) {
	blocks := []any{}
	if p.text != "" {
		blocks = append(blocks, map[string]any{"type": "text", "text": p.text})
	}
	for _, c := range p.calls {
		blocks = append(blocks, map[string]any{"type": "tool_use", "id": c.ID, "name": c.Name, "input": c.object()})
	}
	s.a.JSON(http.StatusOK, map[string]any{
		"id": fmt.Sprintf("msg_%d", s.a.R.Number), "type": "message", "role": "assistant", "model": "scripted",
		"content": blocks, "stop_reason": messagesStop(finish), "usage": messagesUsage(10),
	})
}
