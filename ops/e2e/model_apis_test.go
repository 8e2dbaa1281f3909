package e2e

import (
	"fmt"
	"net/http"
	"testing"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// TestWork_EachAPI: a conversation of the built-in agent in each API of models goes on while the node
// that carries its model's answer is killed. Who reads it sees the whole answer once. The short form
// asks in Messages alone.
func TestWork_EachAPI(t *testing.T) {
	script := workScript()
	script.Stories = append([]*modeltest.Story{{
		When: modeltest.When{User: "tell me all"},
		Answers: []modeltest.Answer{{
			Text: streamText(), Fault: &modeltest.Fault{Kind: modeltest.SlowChunks, DelayMS: 25},
		}},
	}}, script.Stories...)
	w := startWork(t, agentPath(t), script)
	f := w.f
	apis := []struct{ path, protocol string }{
		{"/messages", "anthropic"}, {"/responses", "responses"}, {"/chat/completions", "chat"},
	}
	if !long() {
		apis = apis[:1]
	}
	for _, api := range apis {
		w.Sure(t, http.MethodPost, "/api/settings", map[string]any{
			"llm_model": "openai/scripted", "llm_api_key": workModelKey, "llm_base_url": w.model.BaseURL() + api.path}, nil)
		w.start(nil)
		asked := len(w.model.Requests())
		w.say("tell me all")
		carrier := carries(t, f)
		carrier.Kill()
		for _, n := range f.Nodes {
			if n.Alive() {
				w.Base = n.Base
			}
		}
		w.becomes("finished")
		w.says(streamText())
		requests := w.model.Requests()[asked:]
		streams := 0
		for _, r := range requests {
			if len(r.Tools) > 0 {
				streams++
				if r.Protocol != api.protocol {
					t.Errorf("%s: the model was asked in %s", api.path, r.Protocol)
				}
			}
		}
		if streams != 2 {
			t.Errorf("%s: the model was asked %d times, want once through each of two nodes", api.path, streams)
		}
		f.Restart(t)
	}
}

// carries returns the node that carries a model's answer now.
func carries(t *testing.T, f *testcluster.Cluster) (node *testcluster.Node) {
	t.Helper()
	testcluster.Eventually(t, "a node carries the answer", func() error {
		for _, n := range f.Nodes {
			m, err := n.Metrics(t.Context())
			if err == nil && m["bivouac_llm_requests_open"] > 0 {
				node = n
				return nil
			}
		}
		return fmt.Errorf("no request is open")
	})
	return node
}
