package modeltest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// chat is OpenAI's chat completions. Like the vendors' servers it refuses a history in which a
// tool call has not exactly one result.
func chat() Protocol {
	return Protocol{
		Name:   "chat",
		Routes: []string{"POST /v1/chat/completions"},
		Key:    bearer,
		Parse:  parseChat,
		Whole:  chatWhole,
		Chunks: chatChunks,
		Error: func(_ int, code, message string) any {
			return map[string]any{
				"error": map[string]any{"message": message, "type": errorType(code), "param": nil, "code": code},
			}
		},
	}
}

func bearer(r *http.Request) string {
	key, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return key
}

func errorType(code string) string {
	if code == "server_error" || code == "insufficient_quota" {
		return code
	}
	return "invalid_request_error"
}

type chatRequest struct {
	Model    string `json:"model"`
	Stream   bool   `json:"stream"`
	Messages []struct {
		Role      string          `json:"role"`
		Content   json.RawMessage `json:"content"`
		Reasoning string          `json:"reasoning_content"`
		CallID    string          `json:"tool_call_id"`
		ToolCalls []struct {
			ID       string `json:"id"`
			Function struct {
				Name      string `json:"name"`
				Arguments string `json:"arguments"`
			} `json:"function"`
		} `json:"tool_calls"`
	} `json:"messages"`
	Tools []struct {
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	} `json:"tools"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

func parseChat(_ *http.Request, req *Request) error {
	var c chatRequest
	if err := json.Unmarshal(req.Body, &c); err != nil {
		return fmt.Errorf("we could not parse the JSON body of your request: %w", err)
	}
	req.Model, req.Stream = c.Model, c.Stream
	for _, t := range c.Tools {
		req.Tools = append(req.Tools, t.Function.Name)
	}
	for _, m := range c.Messages {
		message := Message{Role: m.Role, Text: contentText(m.Content), Reasoning: m.Reasoning, CallID: m.CallID}
		for _, call := range m.ToolCalls {
			message.Calls = append(message.Calls, Call{ID: call.ID, Name: call.Function.Name, Raw: call.Function.Arguments})
		}
		req.Messages = append(req.Messages, message)
	}
	if len(req.Messages) == 0 {
		return fmt.Errorf("'messages' must not be empty")
	}
	return CheckResults(req.Messages)
}

// contentText is the text of a content, which is text or a list of blocks.
func contentText(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var blocks []struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(raw, &blocks) != nil {
		return ""
	}
	var b strings.Builder
	for _, block := range blocks {
		b.WriteString(block.Text)
	}
	return b.String()
}

// CheckResults reports a tool call without exactly one result right after its message, a result
// without its call, and arguments that are not a JSON object.
func CheckResults(messages []Message) error {
	var open []string
	for i, m := range messages {
		if m.Role == "tool" {
			at := slices.Index(open, m.CallID)
			if at < 0 {
				return fmt.Errorf("messages[%d]: the tool message %q does not answer an open tool call", i, m.CallID)
			}
			open = slices.Delete(open, at, at+1)
			continue
		}
		if len(open) > 0 {
			return fmt.Errorf("messages[%d]: tool_call_ids without a response: %s", i, strings.Join(open, ", "))
		}
		for _, c := range m.Calls {
			var object map[string]any
			if c.ID == "" || slices.Contains(open, c.ID) || json.Unmarshal([]byte(c.ArgumentsText()), &object) != nil {
				return fmt.Errorf("messages[%d]: the tool call %q of %s is not valid: %s", i, c.ID, c.Name, c.ArgumentsText())
			}
			open = append(open, c.ID)
		}
	}
	if len(open) > 0 {
		return fmt.Errorf("tool_call_ids without a response: %s", strings.Join(open, ", "))
	}
	return nil
}

func finishReason(a Answer) string {
	switch {
	case a.Finish != "":
		return a.Finish
	case len(a.Calls) > 0:
		return "tool_calls"
	}
	return "stop"
}

func chatUsage(u Usage) any {
	return map[string]any{
		"prompt_tokens": u.Prompt, "completion_tokens": u.Completion, "total_tokens": u.Prompt + u.Completion,
		"prompt_tokens_details":     map[string]any{"cached_tokens": u.Cached},
		"completion_tokens_details": map[string]any{"reasoning_tokens": u.Reasoning},
	}
}

func chatCall(c Call) map[string]any {
	return map[string]any{
		"id":       c.ID,
		"type":     "function",
		"function": map[string]any{"name": c.Name, "arguments": c.ArgumentsText()},
	}
}

func chatID(r Request) string { return fmt.Sprintf("chatcmpl-%d", r.Number) }

func chatWhole(r Request, a Answer) any {
	message := map[string]any{"role": "assistant", "content": nil}
	if a.Text != "" {
		message["content"] = a.Text
	}
	if a.Reasoning != "" {
		message["reasoning_content"] = a.Reasoning
	}
	var calls []any
	for _, c := range a.Calls {
		calls = append(calls, chatCall(c))
	}
	if calls != nil {
		message["tool_calls"] = calls
	}
	return map[string]any{
		"id": chatID(r), "object": "chat.completion", "created": 1, "model": r.Model,
		"choices": []any{map[string]any{"index": 0, "message": message, "finish_reason": finishReason(a)}},
		"usage":   chatUsage(r.usage(a)),
	}
}

func chatChunks(r Request, a Answer) []Chunk {
	var list []Chunk
	add := func(choices []any, usage any) {
		list = append(list, Chunk{Data: string(mustJSON(map[string]any{
			"id": chatID(r), "object": "chat.completion.chunk", "created": 1, "model": r.Model, "choices": choices,
			"usage": usage,
		}))})
	}
	delta := func(d map[string]any, finish any) {
		add([]any{map[string]any{"index": 0, "delta": d, "finish_reason": finish}}, nil)
	}
	delta(map[string]any{"role": "assistant", "content": ""}, nil)
	for _, piece := range Pieces(a.Reasoning) {
		delta(map[string]any{"reasoning_content": piece}, nil)
	}
	for _, piece := range Pieces(a.Text) {
		delta(map[string]any{"content": piece}, nil)
	}
	for i, c := range a.Calls {
		head := chatCall(Call{ID: c.ID, Name: c.Name, Raw: " "})
		head["index"] = i
		head["function"].(map[string]any)["arguments"] = ""
		delta(map[string]any{"tool_calls": []any{head}}, nil)
		for _, piece := range Pieces(c.ArgumentsText()) {
			delta(map[string]any{
				"tool_calls": []any{map[string]any{"index": i, "function": map[string]any{"arguments": piece}}},
			}, nil)
		}
	}
	delta(map[string]any{}, finishReason(a))
	var options chatRequest
	if json.Unmarshal(r.Body, &options) == nil && options.StreamOptions.IncludeUsage {
		add([]any{}, chatUsage(r.usage(a)))
	}
	return append(list, Chunk{Data: "[DONE]"})
}

// Pieces cuts a text into what a server streams at a time: 12 characters.
func Pieces(text string) []string {
	var list []string
	for runes := range slices.Chunk([]rune(text), 12) {
		list = append(list, string(runes))
	}
	return list
}
