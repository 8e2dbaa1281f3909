package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// TestLeaderless freezes two of three nodes behind the shipped HAProxy. On the third, open streams
// go on and new ones are refused, stale reads and /alive are answered, and whatever is refused is
// JSON. When the two are back, all is served again.
func TestLeaderless(t *testing.T) {
	testcluster.Need(t, "haproxy", local.HAProxyInstalled() != "")
	d := &rollingDrill{Cluster: testcluster.Start(t, testcluster.Options{LogLevel: "info", Config: balanced})}
	d.balance(t)
	d.converse(t)
	var streams []*websocket.Conn
	for range 9 {
		conn, _, err := d.open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.CloseNow() })
		streams = append(streams, conn)
	}
	leader, followers := d.Leader(t), d.Followers(t)
	third := followers[1]
	frozen := []*testcluster.Node{leader, followers[0]}
	t.Cleanup(func() { signalAll(t, frozen, syscall.SIGCONT) })
	signalAll(t, frozen, syscall.SIGSTOP)
	begin := time.Now()

	testcluster.Eventually(t, "new streams are refused", func() error {
		conn, res, err := d.open(t.Context())
		if err == nil {
			_ = conn.CloseNow()
			return fmt.Errorf("one was opened after %s", time.Since(begin))
		}
		return refusedInJSON(res)
	})
	t.Logf("new streams are refused after %s", time.Since(begin).Round(100*time.Millisecond))
	api := testcluster.Client{Base: d.balancer.Address, Key: d.Nodes[0].Key}
	testcluster.Eventually(t, "writes are refused in JSON", func() error {
		a, err := api.Try(http.MethodPost, "/api/settings", map[string]int{"max_iterations": 7})
		switch {
		case err != nil:
			return err
		case a.Status != http.StatusServiceUnavailable || !json.Valid(a.Body):
			return errors.New(a.String())
		}
		return nil
	})
	for range 20 {
		if err := api.Get("/alive", nil); err != nil {
			t.Error(err)
		}
		if err := api.Do(http.MethodGet, "/api/v1/sandboxes/search", nil, nil, "X-Bivouac-Consistency", "stale"); err != nil {
			t.Error(err)
		}
		if err := api.Get("/api/v1/sandboxes/search?stale=true", nil); err != nil {
			t.Error(err)
		}
	}
	d.talkOn(t, third, streams)
	t.Logf("streams go on after %s without a leader", time.Since(begin).Round(100*time.Millisecond))

	signalAll(t, frozen, syscall.SIGCONT)
	testcluster.Eventually(t, "writes are served again", func() error {
		return api.Do(http.MethodPost, "/api/settings", map[string]int{"max_iterations": 8}, nil)
	})
	testcluster.Eventually(t, "new streams are opened again", func() error {
		conn, _, err := d.open(t.Context())
		if err == nil {
			_ = conn.CloseNow()
		}
		return err
	})
}

// open opens a stream through the balancer.
func (d *rollingDrill) open(ctx context.Context) (*websocket.Conn, *http.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return websocket.Dial(ctx, d.balancer.Address+d.conversation,
		&websocket.DialOptions{HTTPHeader: http.Header{"X-Session-API-Key": {d.Nodes[0].Key}}})
}

func signalAll(t *testing.T, nodes []*testcluster.Node, s syscall.Signal) {
	t.Helper()
	for _, n := range nodes {
		if err := syscall.Kill(n.Pid(), s); err != nil {
			t.Errorf("%s: %v", n.Name, err)
		}
	}
}

// refusedInJSON returns an error unless the response is a 503 in the form of the API.
func refusedInJSON(res *http.Response) error {
	switch {
	case res == nil:
		return errors.New("no response")
	case res.StatusCode != http.StatusServiceUnavailable ||
		!strings.HasPrefix(res.Header.Get("Content-Type"), "application/json"):
		return fmt.Errorf("%s, %s", res.Status, res.Header.Get("Content-Type"))
	}
	return nil
}

// talkOn sends a message over each stream that the node holds, and reads it back.
func (d *rollingDrill) talkOn(t *testing.T, n *testcluster.Node, streams []*websocket.Conn) {
	t.Helper()
	values, err := n.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	held := int(values[`bivouac_proxy_streams_open{port="AGENT_SERVER"}`])
	alive := 0
	for i, conn := range streams {
		text := fmt.Sprintf("said without a leader %d", i)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		message := fmt.Sprintf(`{"role":"user","content":[{"type":"text","text":%q}]}`, text)
		err := conn.Write(ctx, websocket.MessageText, []byte(message))
		for said := false; err == nil && !said; {
			var event []byte
			_, event, err = conn.Read(ctx)
			said = strings.Contains(string(event), text)
		}
		cancel()
		if err == nil {
			alive++
		}
	}
	t.Logf("%s holds %d streams, %d of %d carry messages", n.Name, held, alive, len(streams))
	if held == 0 || alive != held {
		t.Errorf("%d of %s's %d streams carry messages", alive, n.Name, held)
	}
}
