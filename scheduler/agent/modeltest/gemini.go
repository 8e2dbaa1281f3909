package modeltest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// gemini is Gemini's generateContent, and streamGenerateContent with server-sent events.
func gemini() Protocol {
	return Protocol{
		Name:   "gemini",
		Routes: []string{"POST /v1beta/models/{call}"},
		Key:    func(r *http.Request) string { return r.Header.Get("X-Goog-Api-Key") },
		Parse:  parseGemini,
		Whole:  func(r Request, a Answer) any { return geminiAnswer(r, a, geminiParts(a), true) },
		Chunks: geminiChunks,
		Error: func(status int, _, message string) any {
			return map[string]any{
				"error": map[string]any{
					"code":    status,
					"message": message,
					"status":  strings.ToUpper(strings.ReplaceAll(http.StatusText(status), " ", "_")),
				},
			}
		},
	}
}

type geminiPart struct {
	Text         string `json:"text"`
	FunctionCall *struct {
		Name string          `json:"name"`
		Args json.RawMessage `json:"args"`
	} `json:"functionCall"`
	FunctionResponse *struct {
		Name     string          `json:"name"`
		Response json.RawMessage `json:"response"`
	} `json:"functionResponse"`
}

func parseGemini(r *http.Request, req *Request) error {
	type content struct {
		Role  string       `json:"role"`
		Parts []geminiPart `json:"parts"`
	}
	var c struct {
		System   content   `json:"systemInstruction"`
		Contents []content `json:"contents"`
		Tools    []struct {
			Functions []struct {
				Name string `json:"name"`
			} `json:"functionDeclarations"`
		} `json:"tools"`
	}
	if err := json.Unmarshal(req.Body, &c); err != nil {
		return fmt.Errorf("invalid JSON payload received: %w", err)
	}
	model, method, _ := strings.Cut(r.PathValue("call"), ":")
	req.Model, req.Stream = model, method == "streamGenerateContent"
	for _, t := range c.Tools {
		for _, f := range t.Functions {
			req.Tools = append(req.Tools, f.Name)
		}
	}
	c.System.Role = "system"
	for i, one := range append([]content{c.System}, c.Contents...) {
		m := Message{Role: one.Role}
		if m.Role == "model" {
			m.Role = "assistant"
		}
		for _, p := range one.Parts {
			switch {
			case p.FunctionCall != nil:
				m.Calls = append(m.Calls, Call{ID: p.FunctionCall.Name, Name: p.FunctionCall.Name, Arguments: p.FunctionCall.Args})
			case p.FunctionResponse != nil:
				req.Messages = append(req.Messages,
					Message{Role: "tool", CallID: p.FunctionResponse.Name, Text: string(p.FunctionResponse.Response)})
			default:
				m.Text += p.Text
			}
		}
		if i > 0 && len(one.Parts) == 0 {
			return fmt.Errorf("contents[%d]: contents must not be empty", i-1)
		}
		if m.Text != "" || len(m.Calls) > 0 {
			req.Messages = append(req.Messages, m)
		}
	}
	return nil
}

func geminiParts(a Answer) []any {
	parts := []any{}
	if a.Reasoning != "" {
		parts = append(parts, map[string]any{"text": a.Reasoning, "thought": true})
	}
	if a.Text != "" {
		parts = append(parts, map[string]any{"text": a.Text})
	}
	for _, c := range a.Calls {
		parts = append(parts,
			map[string]any{"functionCall": map[string]any{"name": c.Name, "args": json.RawMessage(c.ArgumentsText())}})
	}
	return parts
}

// geminiAnswer is a whole answer, or one of a stream. Each has the usage so far.
func geminiAnswer(r Request, a Answer, parts []any, last bool) map[string]any {
	u := r.usage(a)
	candidate := map[string]any{"index": 0, "content": map[string]any{"role": "model", "parts": parts}}
	usage := map[string]any{"promptTokenCount": u.Prompt, "cachedContentTokenCount": u.Cached, "totalTokenCount": u.Prompt}
	if last {
		candidate["finishReason"] = map[bool]string{true: "MAX_TOKENS", false: "STOP"}[a.Finish == "length"]
		usage["candidatesTokenCount"], usage["thoughtsTokenCount"] = u.Completion-u.Reasoning, u.Reasoning
		usage["totalTokenCount"] = u.Prompt + u.Completion
	}
	return map[string]any{
		"candidates":    []any{candidate},
		"usageMetadata": usage,
		"modelVersion":  r.Model,
		"responseId":    fmt.Sprintf("r%d", r.Number),
	}
}

func geminiChunks(r Request, a Answer) []Chunk {
	var list []Chunk
	add := func(parts []any, last bool) {
		list = append(list, Chunk{Data: string(mustJSON(geminiAnswer(r, a, parts, last)))})
	}
	for _, piece := range Pieces(a.Reasoning) {
		add([]any{map[string]any{"text": piece, "thought": true}}, false)
	}
	for _, piece := range Pieces(a.Text) {
		add([]any{map[string]any{"text": piece}}, false)
	}
	add(geminiParts(Answer{Calls: a.Calls}), true)
	return list
}
