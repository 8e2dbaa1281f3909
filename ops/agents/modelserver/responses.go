package modelserver

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// parseResponses reads a request of Responses, as strictly as its maker does.
func parseResponses(r *Request, body []byte) error {
	var typed struct {
		Instructions string          `json:"instructions"`
		Store        *bool           `json:"store"`
		Input        []responsesItem `json:"input"`
		Tools        []struct {
			Type string `json:"type"`
			Name string `json:"name"`
		} `json:"tools"`
	}
	if err := json.Unmarshal(body, &typed); err != nil {
		return err
	}
	for _, t := range typed.Tools {
		if t.Type != "function" {
			return fmt.Errorf("invalid value: %q for 'tools[0].type'", t.Type)
		}
		r.Tools = append(r.Tools, t.Name)
	}
	if typed.Instructions != "" {
		r.Messages = append(r.Messages, Message{Role: "system", Text: typed.Instructions})
	}
	return r.addItems(typed.Input)
}

// responsesItem is an item of a request.
type responsesItem struct {
	Type      string          `json:"type"`
	Role      string          `json:"role"`
	Content   []responsesPart `json:"content"`
	CallID    string          `json:"call_id"`
	Name      string          `json:"name"`
	Arguments string          `json:"arguments"`
	Output    string          `json:"output"`
	Summary   []responsesPart `json:"summary"`
	Encrypted string          `json:"encrypted_content"`
}

// addItems adds the items of an input to the messages.
func (r *Request) addItems(list []responsesItem) error {
	thought := ""
	for i, item := range list {
		switch item.Type {
		case "reasoning":
			if item.Summary == nil {
				return fmt.Errorf("missing required parameter: 'input[%d].summary'", i)
			}
			if i+1 == len(list) || list[i+1].Type == "reasoning" || list[i+1].Role == "user" {
				return fmt.Errorf("item 'rs_%d' of type 'reasoning' was provided without its required following item", i)
			}
			thought = item.Encrypted
		case "message":
			one := Message{Role: item.Role}
			for _, p := range item.Content {
				if want := map[bool]string{true: "output_text", false: "input_text"}[item.Role == "assistant"]; p.Type != want &&
					p.Type != "input_image" {
					return fmt.Errorf("invalid value: %q for 'input[%d].content[0]'. Supported values are: %q", p.Type, i, want)
				}
				if one.Text += p.Text; p.ImageURL != "" {
					one.Pictures = append(one.Pictures, p.ImageURL)
				}
			}
			one.Empty = one.Text == "" && len(one.Pictures) == 0
			r.Messages = append(r.Messages, one)
		case "function_call":
			n := len(r.Messages)
			if n == 0 || r.Messages[n-1].Role != "assistant" {
				r.Messages = append(r.Messages, Message{Role: "assistant", Empty: true})
				n++
			}
			m := &r.Messages[n-1]
			m.Calls = append(m.Calls, Call{item.CallID, item.Name, item.Arguments})
			if thought != "" {
				m.Thought, m.Reasoning, thought = thought, true, ""
			}
		case "function_call_output":
			r.Messages = append(r.Messages, Message{Role: "tool", CallID: item.CallID, Text: item.Output})
		default:
			return fmt.Errorf("invalid value: %q for 'input[%d].type'", item.Type, i)
		}
	}
	return nil
}

type responsesPart struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	ImageURL string `json:"image_url"`
}

// responsesStream writes a stream of Responses.
type responsesStream struct {
	a      *Reply
	begun  bool
	output []map[string]any // the last one is open
	open   bool
}

func (s *responsesStream) response(status string) map[string]any {
	return map[string]any{
		"id": fmt.Sprintf("resp_%d", s.a.R.Number), "object": "response", "status": status, "model": "scripted",
		"error": nil, "incomplete_details": nil, "output": []any{}, "usage": nil,
	}
}

func (s *responsesStream) begin() {
	if !s.begun {
		s.begun = true
		s.a.named("response.created", map[string]any{"response": s.response("in_progress")})
	}
}

// at is the index of the open item.
func (s *responsesStream) at() int { return len(s.output) - 1 }

func (s *responsesStream) start(item map[string]any) {
	s.stop()
	s.output, s.open = append(s.output, item), true
	s.a.named("response.output_item.added", map[string]any{"output_index": s.at(), "item": item})
}

func (s *responsesStream) stop() {
	if s.open {
		s.open = false
		s.a.named("response.output_item.done", map[string]any{"output_index": s.at(), "item": s.output[s.at()]})
	}
}

func (s *responsesStream) delta(kind, text string) {
	s.a.named("response."+kind+".delta", map[string]any{"output_index": s.at(), "content_index": 0, "delta": text})
}

// thinks writes a thought that only its maker can read.
func (s *responsesStream) thinks(text, encrypted string) {
	s.begin()
	s.start(map[string]any{"type": "reasoning", "id": fmt.Sprintf("rs_%d", s.a.R.Number), "summary": []any{}})
	s.delta("reasoning_summary_text", text)
	s.output[s.at()]["summary"] = []any{map[string]any{"type": "summary_text", "text": text}}
	s.output[s.at()]["encrypted_content"] = encrypted
	s.stop()
}

// part implements stream.
func (s *responsesStream) part(p part) {
	s.begin()
	if p.text != "" {
		if !s.open || s.output[s.at()]["type"] != "message" {
			s.start(map[string]any{"type": "message", "role": "assistant", "content": []any{}})
		}
		s.delta("output_text", p.text)
		item := s.output[s.at()]
		said, _ := item["said"].(string)
		item["said"] = said + p.text
		item["content"] = []any{map[string]any{"type": "output_text", "text": said + p.text}}
	}
	for _, c := range p.calls {
		if c.ID != "" || c.Name != "" {
			s.start(map[string]any{"type": "function_call", "call_id": c.ID, "name": c.Name, "arguments": ""})
		}
		if c.Arguments != "" {
			s.delta("function_call_arguments", c.Arguments)
			item := s.output[s.at()]
			item["arguments"] = item["arguments"].(string) + c.Arguments
		}
	}
}

// end implements stream.
func (s *responsesStream) end(finish string) {
	s.begin()
	s.stop()
	r := s.finished(finish)
	s.a.named("response."+r["status"].(string), map[string]any{"response": r})
}

// finished is the response at its end.
func (s *responsesStream) finished(finish string) map[string]any {
	r := s.response("completed")
	if finish == "length" {
		r["status"], r["incomplete_details"] = "incomplete", map[string]any{"reason": "max_output_tokens"}
	}
	r["output"] = s.output
	r["usage"] = map[string]any{
		"input_tokens": 100, "input_tokens_details": map[string]any{"cached_tokens": 50},
		"output_tokens": 10, "output_tokens_details": map[string]any{"reasoning_tokens": 4},
	}
	return r
}

// whole implements stream.
func (s *responsesStream) whole(p part, finish string) {
	if p.text != "" {
		text := map[string]any{"type": "output_text", "text": p.text}
		s.output = append(s.output, map[string]any{"type": "message", "role": "assistant", "content": []any{text}})
	}
	for _, c := range p.calls {
		s.output = append(s.output, map[string]any{
			"type": "function_call", "call_id": c.ID, "name": c.Name, "arguments": c.Arguments,
		})
	}
	s.a.JSON(http.StatusOK, s.finished(finish))
}
