package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// rollingDrill is a cluster behind the shipped HAProxy, and clients that never repeat a request.
type rollingDrill struct {
	*testcluster.Cluster
	balancer *local.HAProxy
	ca       *x509.CertPool
	// conversation is the path of a conversation's WebSocket.
	conversation string

	requests, closed atomic.Int64
	mu               sync.Mutex
	failures         []string
}

// balanced trusts the balancer, whose address all clients have in common.
const balanced = "limits {\n  trusted_proxies = [\"127.0.0.1/32\"]\n}\n"

// formerRaft has a program that chooses between two log stores take the one that this tree's has, so
// that it can be put back (bivouac runbook upgrade).
const formerRaft = `
  log_store          = "wal"
  snapshot_threshold = 64
  snapshot_interval  = "2s"
  trailing_logs      = 64
`

// TestRollingRestart restarts the nodes one after the other with SIGTERM, behind the shipped
// HAProxy, under writes, reads and streams over HTTP/1.1, HTTP/2 and TLS. No request may fail, and
// streams may be closed with 1012 only. Its short form is a part of TestRollingUpgrade, which starts
// each node with another program.
func TestRollingRestart(t *testing.T) {
	if !long() {
		t.Skip("TestRollingUpgrade restarts the nodes in the short form")
	}
	d := startRolling(t, "")
	d.underLoad(t, func() {
		for range 5 {
			d.round(t, "")
		}
	})
}

// startRolling starts a cluster behind HAProxy, with a conversation. program is that of the nodes, ""
// for this tree's.
func startRolling(t *testing.T, program string) *rollingDrill {
	t.Helper()
	testcluster.Need(t, "haproxy", local.HAProxyInstalled() != "")
	d := &rollingDrill{
		Cluster: testcluster.Start(t,
			testcluster.Options{Program: program, LogLevel: "info", Config: balanced, Drain: 5 * time.Second,
				Raft: formerRaft}),
	}
	d.balance(t)
	d.converse(t)
	return d
}

// underLoad does something while the clients are at work. No request of theirs may fail.
func (d *rollingDrill) underLoad(t *testing.T, do func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer clients.Wait()
	defer stop()
	for i, way := range d.ways() {
		key := d.Nodes[0].NewKey(t, fmt.Sprintf("user%d", i))
		clients.Go(func() { d.write(ctx, way, key) })
		clients.Go(func() { d.read(ctx, way, key, "") })
		clients.Go(func() { d.read(ctx, way, key, "stale") })
	}
	for range 4 {
		clients.Go(func() { d.stream(ctx, d.balancer.Address, nil) })
		clients.Go(func() { d.stream(ctx, d.balancer.TLSAddress, d.ca) })
	}
	do()
	testcluster.Pause(ctx, time.Second)
	stop()
	clients.Wait()
	t.Logf("%d requests, %d streams closed with 1012, %d failures", d.requests.Load(), d.closed.Load(), len(d.failures))
	for _, f := range d.failures[:min(len(d.failures), 20)] {
		t.Error(f)
	}
	if d.closed.Load() == 0 || d.requests.Load() < 100 {
		t.Error("too little was under way to show anything")
	}
}

// round restarts every node once with a program, the leader first.
func (d *rollingDrill) round(t *testing.T, program string) {
	t.Helper()
	order := append([]*testcluster.Node{d.Leader(t)}, d.Followers(t)...)
	for _, n := range order {
		d.restart(t, n, program)
	}
}

// restart stops a node and starts it with a program, "" for the cluster's.
func (d *rollingDrill) restart(t *testing.T, n *testcluster.Node, program string) {
	t.Helper()
	n.Stop(testcluster.Patience)
	n.Program = program
	n.Start(t)
	n.Ready(t)
	testcluster.Pause(t.Context(), 2*time.Second) // for the balancer's next check
}

// balance starts HAProxy with a certificate.
func (d *rollingDrill) balance(t *testing.T) {
	t.Helper()
	dir := filepath.Join(d.Dir, "tls")
	d.Run(t, "tls", "issue", "--dir", dir, "--node", "balancer", "--host", "127.0.0.1")
	var both []byte
	for _, file := range []string{"balancer.pem", "balancer-key.pem"} {
		raw, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		both = append(both, raw...)
	}
	front := filepath.Join(d.Dir, "front.pem")
	if err := os.WriteFile(front, both, 0o600); err != nil {
		t.Fatal(err)
	}
	authority, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	d.ca = x509.NewCertPool()
	d.ca.AppendCertsFromPEM(authority)
	var nodes []string
	for _, n := range d.Nodes {
		nodes = append(nodes, strings.TrimPrefix(n.Base, "http://"))
	}
	d.balancer, err = local.StartHAProxy(t.Context(),
		local.HAProxyOptions{Dir: t.TempDir(), Nodes: nodes, Certificate: front})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.balancer.Close(); err != nil {
			t.Error(err)
		}
	})
	testcluster.Eventually(t, "the balancer has a node", testcluster.Client{Base: d.balancer.Address}.Serves)
}

// converse starts a conversation, whose events the streams follow.
func (d *rollingDrill) converse(t *testing.T) {
	t.Helper()
	n := d.Nodes[0]
	task := n.AwaitTask(t, n.StartConversation(t))
	d.conversation = "/sandboxes/" + *task.SandboxID + "/AGENT_SERVER/sockets/events/" + *task.ConversationID
}

// way is one protocol to the balancer.
type way struct {
	name, base string
	transport  *http.Transport
}

func (d *rollingDrill) ways() []way {
	over := func(p func(*http.Protocols)) *http.Transport {
		protocols := new(http.Protocols)
		p(protocols)
		return &http.Transport{Protocols: protocols, TLSClientConfig: &tls.Config{RootCAs: d.ca}}
	}
	one := func(p *http.Protocols) { p.SetHTTP1(true) }
	two := func(p *http.Protocols) { p.SetHTTP2(true) }
	return []way{
		{"HTTP/1.1", d.balancer.Address, over(one)},
		{"HTTP/1.1 over TLS", d.balancer.TLSAddress, over(one)},
		{"HTTP/2 over TLS", d.balancer.TLSAddress, over(two)},
	}
}

// once sends a request and reads the answer. It is an error if the transport sent it again.
func (w way) once(ctx context.Context, method, path, key, consistency string, body []byte) error {
	sent := 0
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent++ }})
	var in io.Reader
	if body != nil {
		in = io.MultiReader(bytes.NewReader(body)) // no GetBody, so that it can't be sent again
	}
	r, err := http.NewRequestWithContext(ctx, method, w.base+path, in)
	if err != nil {
		return err
	}
	r.ContentLength = int64(len(body))
	r.Header.Set("X-Session-API-Key", key)
	r.Header.Set("Content-Type", "application/json")
	if consistency != "" {
		r.Header.Set("X-Bivouac-Consistency", consistency)
	}
	res, err := w.transport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	switch {
	case err != nil:
		return err
	case res.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: %s", res.Status, raw)
	case sent != 1:
		return fmt.Errorf("it was sent %d times", sent)
	}
	return nil
}

// pace is the pause between two requests of a client.
const pace = 5 * time.Millisecond

func (d *rollingDrill) write(ctx context.Context, w way, key string) {
	for i := 1; ctx.Err() == nil; i++ {
		body := fmt.Appendf(nil, `{"max_iterations": %d}`, i)
		d.done(ctx, "a write over "+w.name,
			w.once(context.WithoutCancel(ctx), http.MethodPost, "/api/settings", key, "", body))
		testcluster.Pause(ctx, pace)
	}
}

func (d *rollingDrill) read(ctx context.Context, w way, key, consistency string) {
	for ctx.Err() == nil {
		what := strings.TrimSpace("a " + consistency + " read")
		d.done(ctx, what+" over "+w.name,
			w.once(context.WithoutCancel(ctx), http.MethodGet, "/api/v1/sandboxes/search", key, consistency, nil))
		testcluster.Pause(ctx, pace)
	}
}

// done counts a request.
func (d *rollingDrill) done(_ context.Context, what string, err error) {
	d.requests.Add(1)
	if err == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failures = append(d.failures, fmt.Sprintf("%s %s: %v", time.Now().Format("15:04:05.000"), what, err))
}

// stream follows the conversation and connects again after each 1012.
func (d *rollingDrill) stream(ctx context.Context, base string, ca *x509.CertPool) {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca}}}
	header := http.Header{"X-Session-API-Key": {d.Nodes[0].Key}}
	for ctx.Err() == nil {
		conn, _, err := websocket.Dial(ctx, base+d.conversation,
			&websocket.DialOptions{HTTPClient: client, HTTPHeader: header})
		if err != nil && ctx.Err() == nil {
			d.done(ctx, "opening a stream", err)
			testcluster.Pause(ctx, time.Second)
			continue
		}
		for err == nil {
			_, _, err = conn.Read(ctx)
		}
		if ctx.Err() != nil {
			break
		}
		if closed := (websocket.CloseError{}); errors.As(err, &closed) && closed.Code == websocket.StatusServiceRestart {
			d.closed.Add(1)
			continue
		}
		d.done(ctx, "a stream over "+base, err)
	}
}
