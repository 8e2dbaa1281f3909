package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// streamText is the answer of TestModelStream: more than a hundred chunks.
func streamText() string { return strings.Repeat("twelve chars", 120) }

// modelAsker asks models through the gateway of a node, as a sandbox's agent server does.
type modelAsker struct {
	t                 *testing.T
	key, conversation string
}

func (m modelAsker) send(node *testcluster.Node, path string, body any, header, value string) *http.Response {
	m.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		m.t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(m.t.Context(), http.MethodPost, node.Base+path, bytes.NewReader(b))
	if err != nil {
		m.t.Fatal(err)
	}
	r.Header.Set(header, value)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		m.t.Fatalf("%s: %v", path, err)
	}
	m.t.Cleanup(func() { res.Body.Close() })
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(res.Body)
		m.t.Fatalf("%s of %s: %d %s", path, node.Name, res.StatusCode, text)
	}
	return res
}

// token gets a token from a node.
func (m modelAsker) token(node *testcluster.Node) string {
	m.t.Helper()
	var out struct{ Token string }
	if err := json.NewDecoder(m.send(node, "/llm/token", map[string]string{"conversation_id": m.conversation},
		"X-Session-API-Key", m.key).Body).Decode(&out); err != nil {
		m.t.Fatal(err)
	}
	return out.Token
}

// stream begins a streamed answer.
func (m modelAsker) stream(node *testcluster.Node, token string) *modelStream {
	m.t.Helper()
	res := m.send(node, "/llm/v1/chat/completions",
		map[string]any{
			"model":    "scripted",
			"stream":   true,
			"messages": []any{map[string]string{"role": "user", "content": "go on"}},
		}, "Authorization", "Bearer "+token)
	return &modelStream{lines: bufio.NewScanner(res.Body)}
}

// modelStream is a streamed answer.
type modelStream struct {
	lines *bufio.Scanner
	text  strings.Builder
	done  bool
}

// next reads one event; false at the end.
func (s *modelStream) next() bool {
	for s.lines.Scan() {
		data, is := strings.CutPrefix(s.lines.Text(), "data: ")
		if !is {
			continue
		}
		if s.done = data == "[DONE]"; s.done {
			continue
		}
		var event struct {
			Choices []struct{ Delta struct{ Content string } }
		}
		if json.Unmarshal([]byte(data), &event) == nil && len(event.Choices) > 0 {
			s.text.WriteString(event.Choices[0].Delta.Content)
		}
		return true
	}
	return false
}

// rest reads to the end and checks that the answer came whole.
func (s *modelStream) rest(t *testing.T, what string) {
	t.Helper()
	for s.next() {
	}
	if err := s.lines.Err(); err != nil || !s.done || s.text.String() != streamText() {
		t.Errorf("%s: %d of %d bytes came, [DONE] %t: %v", what, s.text.Len(), len(streamText()), s.done, err)
	}
}

// TestModelStream streams answers of a model through a follower while the leader is killed, and begins
// others while there is no leader: all come whole, and all are counted once.
func TestModelStream(t *testing.T) {
	f := testcluster.Start(t, testcluster.Options{})
	model := modeltest.New(t, &modeltest.Script{Key: workModelKey, Stories: modeltest.Turns(modeltest.Answer{
		Text: streamText(), Fault: &modeltest.Fault{
			Kind:    modeltest.SlowChunks,
			DelayMS: 25,
		}, Usage: &modeltest.Usage{Prompt: 100, Completion: 200},
	}).Stories})
	operator := f.Leader(t)
	operator.Sure(t, http.MethodPut, "/api/v1/operator/config", map[string]any{"llm": map[string]any{
		"hosts": []string{"127.0.0.1"}, "prices": []any{
			map[string]any{"model": "*", "input": 1, "output": 10},
		}, "budgets": map[string]any{"per_user_day": 100},
	}}, nil)
	node := f.Followers(t)[0]
	user := testcluster.Client{Base: node.Base, Key: f.Nodes[0].NewKey(t, "ada")}
	user.Sure(t, http.MethodPost, "/api/settings",
		map[string]any{"llm_model": "openai/scripted", "llm_api_key": workModelKey, "llm_base_url": model.BaseURL()}, nil)
	var task testcluster.StartTask
	user.Sure(t, http.MethodPost, "/api/v1/app-conversations", map[string]any{}, &task)
	task = user.AwaitTask(t, task.ID)
	m := modelAsker{t, user.AwaitSandbox(t, *task.SandboxID, "RUNNING").Inside().Key, *task.ConversationID}

	token := m.token(node)
	first := m.stream(node, token)
	first.next()
	f.Leader(t).Kill()
	begun := m.stream(node, token) // before anybody can have noticed
	begun.next()
	first.rest(t, "the stream during the leader's death")
	begun.rest(t, "the stream begun after it")

	// With one node of three there is no leader at all.
	for _, n := range f.Nodes {
		if n != node && n.Alive() {
			n.Kill()
		}
	}
	testcluster.Eventually(t, "the node knows of no leader", func() error {
		if status, err := node.Status(); err != nil || status.Leader != "" {
			return fmt.Errorf("leader %q %w", status.Leader, err)
		}
		return nil
	})
	m.stream(node, token).rest(t, "a stream without a leader")
	m.stream(node, m.token(node)).rest(t, "a stream with a token of a node without a leader")

	f.Restart(t)
	testcluster.Eventually(t, "all is counted", func() error {
		var page struct {
			Items []struct {
				Requests    int
				InputTokens int `json:"input_tokens"`
				Cost        float64
			}
		}
		if err := f.Nodes[0].Get("/api/v1/operator/usage?by=conversation&user=ada", &page); err != nil {
			return err
		}
		if len(page.Items) != 1 || page.Items[0].Requests < 4 {
			return fmt.Errorf("%+v", page.Items)
		}
		if u := page.Items[0]; u.Requests != 4 || u.InputTokens != 400 || u.Cost < 0.0083 || u.Cost > 0.0085 {
			t.Errorf("counted %+v", u)
		}
		return nil
	})
	if asked := len(model.Requests()); asked != 4 {
		t.Errorf("the endpoint was asked %d times", asked)
	}
}
