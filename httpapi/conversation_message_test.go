package httpapi

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// meanwhileAgents runs a function between a message's delivery and the agent server's response.
type meanwhileAgents struct {
	*fakeAgents
	meanwhile func()
}

func (a *meanwhileAgents) SendMessage(ctx context.Context, baseURL, key, id string, m AgentMessage) error {
	err := a.fakeAgents.SendMessage(ctx, baseURL, key, id, m)
	a.meanwhile()
	return errors.Join(err, ctx.Err())
}

// TestSendMessage_ClientThatLeaves: a client that disconnects during the delivery and retries with
// its Idempotency-Key has sent one message.
func TestSendMessage_ClientThatLeaves(t *testing.T) {
	h := newHarness(t).withSpec()
	_, _, path, _ := h.talking()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	h.server.agents = &meanwhileAgents{h.agents, leave}
	r := httptest.NewRequestWithContext(ctx, "POST", "http://example.org"+path, strings.NewReader(oneMessage))
	r.Header.Set("X-Session-API-Key", h.alice)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", "k")
	h.handler.ServeHTTP(httptest.NewRecorder(), r)
	h.do(h.alice, "POST", path, oneMessage, "Idempotency-Key", "k").want(t, 200)
	if got := h.agents.sent(); len(got) != 1 {
		t.Fatalf("it was delivered %d times", len(got))
	}
}

// TestSendMessage_SlowWake: a message is recorded even if waking its sandbox took longer than
// RequestTimeout.
func TestSendMessage_SlowWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t).withSpec()
		sb, _, path, _ := h.talking()
		h.server.agents = &meanwhileAgents{h.agents, func() { time.Sleep(20 * time.Second) }}
		h.do(h.alice, "POST", pathSandboxes+"/"+sb+"/pause", "").want(t, 200)
		h.observe(sb, fsm.SandboxStatus{State: fsm.SandboxPaused})
		go func() {
			h.awaitDesired(sb, fsm.DesiredRunning)
			time.Sleep(20 * time.Second)
			h.observe(sb, running())
		}()
		h.do(h.alice, "POST", path, oneMessage, "Idempotency-Key", "k").want(t, 200)
		h.do(h.alice, "POST", path, oneMessage, "Idempotency-Key", "k").want(t, 200)
		if got := h.agents.sent(); len(got) != 1 {
			t.Fatalf("it was delivered %d times", len(got))
		}
	})
}

// TestSendMessage_TwiceAtOnce: requests with one Idempotency-Key that meet at the agent server
// deliver one message, and so does a repetition whose first result the cluster lost.
func TestSendMessage_TwiceAtOnce(t *testing.T) {
	h := newHarness(t).withSpec()
	_, _, path, _ := h.talking()
	var arrived sync.WaitGroup
	arrived.Add(3)
	h.server.agents = &meanwhileAgents{h.agents, func() { arrived.Done(); arrived.Wait() }}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { h.do(h.alice, "POST", path, oneMessage, "Idempotency-Key", "k").want(t, 200) })
	}
	wg.Wait()
	if got := h.agents.sent(); len(got) != 1 {
		t.Fatalf("it was delivered %d times", len(got))
	}
	h.server.agents = h.agents
	other := strings.Replace(oneMessage, "go on", "stop", 1)
	h.do(h.alice, "POST", path, other, "Idempotency-Key", "l").want(t, 200)
	h.do(h.alice, "POST", path, oneMessage).want(t, 200)
	h.do(h.alice, "POST", path, oneMessage).want(t, 200)
	if got := h.agents.sent(); len(got) != 4 {
		t.Fatalf("another key and no key: delivered %d messages in all, want 4", len(got))
	}
}
