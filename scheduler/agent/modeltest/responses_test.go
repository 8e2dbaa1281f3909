package modeltest_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// respond asks for one response. It returns the status and the body of a whole answer, or of the
// event that ends a stream, and the deltas joined by kind.
func respond(t *testing.T, s *modeltest.Server, request map[string]any) (int, map[string]any, map[string]string) {
	t.Helper()
	body, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.BaseURL()+"/responses", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var whole map[string]any
	if request["stream"] != true {
		if err := json.NewDecoder(resp.Body).Decode(&whole); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, whole, nil
	}
	deltas := map[string]string{}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var e struct {
			Type, Delta string
			Response    map[string]any
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatal(err)
		}
		deltas[e.Type] += e.Delta
		if e.Type == "response.completed" || e.Type == "response.incomplete" {
			whole = e.Response
		}
	}
	return resp.StatusCode, whole, deltas
}

// A streamed response ends with what the whole one is, and its parts are the same text.
func TestResponses_WholeAndStreamed(t *testing.T) {
	answer := modeltest.Answer{
		Text: "I look at both files — first.", Reasoning: "Which one is it?", Usage: &modeltest.Usage{
			Prompt:     90,
			Completion: 10,
			Cached:     5,
		},
		Calls: []modeltest.Call{modeltest.Tool("shell", map[string]any{"command": "ls -l"})},
	}
	answer.Calls[0].ID = "call_a"
	request := map[string]any{"model": "m", "instructions": "Be brief.", "input": "Look."}
	_, whole, _ := respond(t, modeltest.New(t, modeltest.Turns(answer)), request)
	request["stream"] = true
	_, streamed, deltas := respond(t, modeltest.New(t, modeltest.Turns(answer)), request)
	if d := cmp.Diff(whole, streamed); d != "" {
		t.Errorf("the whole response and the streamed one differ:\n%s", d)
	}
	for kind, want := range map[string]string{
		"response.output_text.delta":             answer.Text,
		"response.reasoning_summary_text.delta":  answer.Reasoning,
		"response.function_call_arguments.delta": `{"command":"ls -l"}`,
	} {
		if deltas[kind] != want {
			t.Errorf("%s: %q, want %q", kind, deltas[kind], want)
		}
	}
	if n := len(whole["output"].([]any)); n != 3 {
		t.Errorf("%d items, want reasoning, message and call", n)
	}
}

// The items of one answer are one assistant message, so that a story goes on by its turn, and a
// call without its output is refused.
func TestResponses_HistoryIsThatOfChat(t *testing.T) {
	s := modeltest.New(t, modeltest.Turns(modeltest.Text("first"), modeltest.Text("second")))
	call := map[string]any{"type": "function_call", "call_id": "c1", "name": "shell", "arguments": "{}"}
	output := map[string]any{"type": "function_call_output", "call_id": "c1", "output": "fine"}
	history := []any{
		map[string]any{
			"type":    "message",
			"role":    "user",
			"content": []any{map[string]any{"type": "input_text", "text": "Look."}},
		},
		map[string]any{"type": "reasoning", "summary": []any{map[string]any{"type": "summary_text", "text": "Hm."}}},
		call, output,
	}
	status, body, _ := respond(t, s, map[string]any{"model": "m", "input": history})
	if status != http.StatusOK || !strings.Contains(string(mustJSON(t, body)), "second") {
		t.Errorf("%d %v, want the second answer", status, body)
	}
	want := []modeltest.Message{
		{Role: "user", Text: "Look."},
		{Role: "assistant", Reasoning: "Hm.", Calls: []modeltest.Call{{ID: "c1", Name: "shell", Raw: "{}"}}},
		{Role: "tool", Text: "fine", CallID: "c1"},
	}
	if d := cmp.Diff(want, s.Requests()[0].Messages); d != "" {
		t.Errorf("the messages differ:\n%s", d)
	}
	if status, body, _ := respond(t, s,
		map[string]any{"model": "m", "input": history[:3]}); status != http.StatusBadRequest {
		t.Errorf("a call without output: %d %v, want 400", status, body)
	}
	if status, _, _ := respond(t, s,
		map[string]any{"model": "m", "input": "x", "previous_response_id": "resp_1"}); status != http.StatusBadRequest {
		t.Errorf("a stored response: %d, want 400", status)
	}
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
