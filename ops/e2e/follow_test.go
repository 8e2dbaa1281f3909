package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// follower reads a conversation's events as a browser does: by a WebSocket, which it opens again on
// another node from the last event on.
type follower struct {
	t  *testing.T
	mu sync.Mutex
	// list has the events in the order of their arrival, seen their ids.
	list   []storedEvent
	seen   map[string]bool
	opened int
}

// follow starts a follower, which ends with the test.
func (w *work) follow() *follower {
	w.t.Helper()
	r := &follower{t: w.t, seen: map[string]bool{}}
	inside := w.agentServer()
	path := strings.TrimPrefix(inside.Base, w.Base)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	w.t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		for at := 0; ctx.Err() == nil; at++ {
			node := w.f.Nodes[at%len(w.f.Nodes)]
			r.read(ctx, strings.Replace(node.Base, "http", "ws", 1)+path+"/sockets/events/"+w.conversation, inside.Key)
			testcluster.Pause(ctx, 50*time.Millisecond)
		}
	}()
	testcluster.Eventually(w.t, "a WebSocket opens", func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.opened == 0 {
			return context.DeadlineExceeded
		}
		return nil
	})
	return r
}

// read reads until the connection ends.
func (r *follower) read(ctx context.Context, address, key string) {
	query, since := "?resend_mode=all", ""
	r.mu.Lock()
	if n := len(r.list); n > 0 {
		since = r.list[n-1].Timestamp
		query = "?resend_mode=since&after_timestamp=" + url.QueryEscape(since)
	}
	r.mu.Unlock()
	conn, _, err := websocket.Dial(ctx, address+query,
		&websocket.DialOptions{HTTPHeader: http.Header{"X-Session-API-Key": {key}}})
	if err != nil {
		return
	}
	defer conn.CloseNow() //nolint:errcheck // it is read until an error
	conn.SetReadLimit(16 << 20)
	r.mu.Lock()
	r.opened++
	r.mu.Unlock()
	for {
		_, text, err := conn.Read(ctx)
		if err != nil {
			return
		}
		var e storedEvent
		if err := json.Unmarshal(text, &e); err != nil {
			r.t.Errorf("the stream has %q: %v", text, err)
			return
		}
		r.mu.Lock()
		switch {
		case !r.seen[e.ID]:
			r.seen[e.ID] = true
			r.list = append(r.list, e)
		case e.Timestamp != since: // the time is inclusive
			r.t.Errorf("the stream repeats %+v", e)
		}
		r.mu.Unlock()
	}
}

// hasAll waits until the follower has the stored events, in their order. What is not stored (a
// model's partial answer) is left out.
func (r *follower) hasAll(stored []storedEvent) {
	r.t.Helper()
	known := map[string]bool{}
	for _, e := range stored {
		known[e.ID] = true
	}
	testcluster.Eventually(r.t, "all events arrive", func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		var got []storedEvent
		for _, e := range r.list {
			if known[e.ID] {
				got = append(got, e)
			}
		}
		if !slices.Equal(got, stored) {
			return fmt.Errorf("got %+v, want %+v", got, stored)
		}
		return nil
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.t.Logf("%d events over %d connections", len(stored), r.opened)
}
