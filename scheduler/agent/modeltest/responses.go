package modeltest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
)

// responses is OpenAI's Responses, without stored responses: a request has its whole history.
func responses() Protocol {
	p := chat()
	p.Name, p.Routes = "responses", []string{"POST /v1/responses"}
	p.Parse, p.Whole, p.Chunks = parseResponses, responsesWhole, responsesChunks
	return p
}

type responsesRequest struct {
	Model        string          `json:"model"`
	Stream       bool            `json:"stream"`
	Instructions string          `json:"instructions"`
	Previous     *string         `json:"previous_response_id"`
	Input        json.RawMessage `json:"input"`
	Tools        []struct {
		Type string `json:"type"`
		Name string `json:"name"`
	} `json:"tools"`
}

// responsesItem is one item of a request's input.
type responsesItem struct {
	Type      string          `json:"type"`
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	CallID    string          `json:"call_id"`
	Name      string          `json:"name"`
	Arguments string          `json:"arguments"`
	// Input is the text of a custom tool's call.
	Input   string          `json:"input"`
	Output  json.RawMessage `json:"output"`
	Summary json.RawMessage `json:"summary"`
}

func parseResponses(_ *http.Request, req *Request) error {
	var c responsesRequest
	if err := json.Unmarshal(req.Body, &c); err != nil {
		return fmt.Errorf("we could not parse the JSON body of your request: %w", err)
	}
	if c.Previous != nil {
		return fmt.Errorf("previous response with id %q not found", *c.Previous)
	}
	req.Model, req.Stream = c.Model, c.Stream
	for _, t := range c.Tools {
		if t.Name == "" {
			t.Name = t.Type // a tool of the vendor's own, such as web_search
		}
		req.Tools = append(req.Tools, t.Name)
	}
	if c.Instructions != "" {
		req.Messages = append(req.Messages, Message{Role: "system", Text: c.Instructions})
	}
	var text string
	if json.Unmarshal(c.Input, &text) == nil {
		req.Messages = append(req.Messages, Message{Role: "user", Text: text})
		return nil
	}
	var items []responsesItem
	if err := json.Unmarshal(c.Input, &items); err != nil {
		return fmt.Errorf("invalid type for 'input': %w", err)
	}
	for _, item := range items {
		req.addItem(item)
	}
	if len(req.Messages) == 0 {
		return fmt.Errorf("'input' must not be empty")
	}
	return CheckResults(req.Messages)
}

// addItem adds an item to the messages. The items of one answer are one assistant message, as in
// chat completions.
func (r *Request) addItem(item responsesItem) {
	switch item.Type {
	case "", "message":
		if item.Role == "assistant" {
			m := r.assistant()
			m.Text += contentText(item.Content)
			return
		}
		r.Messages = append(r.Messages, Message{Role: item.Role, Text: contentText(item.Content)})
	case "reasoning":
		r.assistant().Reasoning += contentText(item.Summary)
	case "function_call":
		m := r.assistant()
		m.Calls = append(m.Calls, Call{ID: item.CallID, Name: item.Name, Raw: item.Arguments})
	case "custom_tool_call":
		m := r.assistant()
		m.Calls = append(m.Calls,
			Call{ID: item.CallID, Name: item.Name, Raw: string(mustJSON(map[string]string{"input": item.Input}))})
	case "function_call_output", "custom_tool_call_output":
		r.Messages = append(r.Messages, Message{Role: "tool", CallID: item.CallID, Text: contentText(item.Output)})
	}
}

// assistant returns the assistant message at the end, and adds one if there is none.
func (r *Request) assistant() *Message {
	if n := len(r.Messages); n == 0 || r.Messages[n-1].Role != "assistant" {
		r.Messages = append(r.Messages, Message{Role: "assistant"})
	}
	return &r.Messages[len(r.Messages)-1]
}

func responsesWhole(r Request, a Answer) any {
	return responsesBody(r, a, "completed", responsesItems(r, a))
}

func responsesBody(r Request, a Answer, status string, output []map[string]any) map[string]any {
	body := map[string]any{
		"id": fmt.Sprintf("resp_%d", r.Number), "object": "response", "created_at": 1, "model": r.Model,
		"status": status, "error": nil, "incomplete_details": nil, "output": output, "usage": nil,
	}
	if status == "in_progress" {
		return body
	}
	u := r.usage(a)
	body["usage"] = map[string]any{
		"input_tokens": u.Prompt, "output_tokens": u.Completion, "total_tokens": u.Prompt + u.Completion,
		"input_tokens_details":  map[string]any{"cached_tokens": u.Cached},
		"output_tokens_details": map[string]any{"reasoning_tokens": u.Reasoning},
	}
	if reason := map[string]string{
		"length":         "max_output_tokens",
		"content_filter": "content_filter",
	}[a.Finish]; reason != "" {
		body["status"], body["incomplete_details"] = "incomplete", map[string]any{"reason": reason}
	}
	return body
}

// responsesItems are the items of an answer, complete.
func responsesItems(r Request, a Answer) []map[string]any {
	items := []map[string]any{}
	if a.Reasoning != "" {
		items = append(items, map[string]any{"type": "reasoning", "id": fmt.Sprintf("rs_%d", r.Number),
			"summary": []any{map[string]any{"type": "summary_text", "text": a.Reasoning}}})
	}
	if a.Text != "" {
		items = append(items, map[string]any{"type": "message", "id": fmt.Sprintf("msg_%d", r.Number), "role": "assistant",
			"status":  "completed",
			"content": []any{map[string]any{"type": "output_text", "text": a.Text, "annotations": []any{}}}})
	}
	for i, c := range a.Calls {
		items = append(items, map[string]any{"type": "function_call", "id": fmt.Sprintf("fc_%d_%d", r.Number,
			i+1), "status": "completed",
			"call_id": c.ID, "name": c.Name, "arguments": c.ArgumentsText()})
	}
	return items
}

func responsesChunks(r Request, a Answer) []Chunk {
	var list []Chunk
	add := func(kind string, members map[string]any) {
		members["type"], members["sequence_number"] = kind, len(list)
		list = append(list, Chunk{Event: kind, Data: string(mustJSON(members))})
	}
	add("response.created", map[string]any{"response": responsesBody(r, a, "in_progress", nil)})
	items := responsesItems(r, a)
	for i, item := range items {
		begun := map[string]any{}
		maps.Copy(begun, item)
		part, delta, empty := "", "", any([]any{})
		switch item["type"] {
		case "reasoning":
			part, delta = a.Reasoning, "response.reasoning_summary_text.delta"
			begun["summary"] = empty
		case "message":
			part, delta = a.Text, "response.output_text.delta"
			begun["content"], begun["status"] = empty, "in_progress"
		case "function_call":
			part, delta = item["arguments"].(string), "response.function_call_arguments.delta"
			begun["arguments"], begun["status"] = "", "in_progress"
		}
		add("response.output_item.added", map[string]any{"output_index": i, "item": begun})
		for _, piece := range Pieces(part) {
			add(delta,
				map[string]any{"item_id": item["id"], "output_index": i, "content_index": 0, "summary_index": 0, "delta": piece})
		}
		add("response.output_item.done", map[string]any{"output_index": i, "item": item})
	}
	body := responsesBody(r, a, "completed", items)
	add("response."+body["status"].(string), map[string]any{"response": body})
	return list
}
