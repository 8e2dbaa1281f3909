package relay

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/relay/relaytest"
)

func TestRelay_AHugeBodyIsRefused(t *testing.T) {
	t.Parallel()
	n := relaytest.NewNode(t, testKey, []string{convID, otherID}, relaytest.Says200("ok"))
	llm := relayOf(t, n.URL).agent(t, convID, n.Token(convID))
	for _, size := range []int64{MaxBody + 1, -1} {
		body := io.LimitReader(zeros{}, MaxBody+1)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, llm.BaseURL+"/chat/completions", body)
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = size
		req.Header.Set("Authorization", "Bearer "+llm.APIKey)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			continue // the relay had answered and closed before all was sent
		}
		resp.Body.Close()
		if resp.StatusCode != 413 {
			t.Errorf("%d", resp.StatusCode)
		}
	}
	if n.Requests() != 0 {
		t.Error("it reached a node")
	}
	// The places of refused bodies are free again.
	for range 4 {
		if resp, text := relaytest.Chat(t, llm, "x"); resp.StatusCode != 200 {
			t.Fatalf("%d %s", resp.StatusCode, text)
		}
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// Bodies are kept until their answers begin: open streams hold no place.
func TestRelay_StreamsHoldNoBody(t *testing.T) {
	t.Parallel()
	n := relaytest.NewNode(t, testKey, []string{convID, otherID}, func(w http.ResponseWriter, req *http.Request) {
		relaytest.Sends(w, "data: 1\n")
		<-req.Context().Done()
	})
	r := relayOf(t, n.URL)
	llm := r.agent(t, convID, n.Token(convID))
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, llm.BaseURL+"/chat/completions",
			io.MultiReader(strings.NewReader("of unknown length")))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+llm.APIKey)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
	}
}
