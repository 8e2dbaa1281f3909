package workload

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"bivouac.dev/bivouac/ops/e2e/lincheck"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// client is a program of one user. It mostly uses its own node over a few connections.
type client struct {
	id    int
	nodes []Endpoint
	home  int
	http  *http.Client
	rec   *lincheck.Recorder
	rand  *rand.Rand
	*tally
}

// reply is the result of one request.
type reply struct {
	Outcome      lincheck.Outcome
	Status       int
	Body         []byte
	Index        uint64
	Node         string
	Life         uint64
	Call, Return time.Duration
	Error        string
	// sent: at least a part of the request was written to a connection.
	sent bool
}

// ok reports whether the request succeeded.
func (r reply) ok() bool { return r.Status/100 == 2 }

// pick chooses a node: the client's own in four of five cases.
func (c *client) pick() int {
	if c.rand.IntN(5) > 0 {
		return c.home
	}
	return c.rand.IntN(len(c.nodes))
}

// life identifies the node's process.
func (c *client) life(node int) uint64 {
	if c.nodes[node].Life == nil {
		return 0
	}
	return c.nodes[node].Life()
}

// do sends one request to one node and classifies the result. header has pairs of names and
// values.
func (c *client) do(
	ctx context.Context,
	node int,
	patience time.Duration,
	key, method, path string,
	body any,
	header ...string,
) reply {
	r := reply{Node: c.nodes[node].Name, Call: c.rec.Now(), Life: c.life(node)}
	err := c.send(ctx, node, patience, key, method, path, body, header, &r)
	r.Return = c.rec.Now()
	if r.Life%2 == 1 || c.life(node) != r.Life {
		r.Life = 0 // restarted meanwhile: the process is unknown
	} else {
		r.Life += 2 // never 0
	}
	r.Outcome = outcomeOf(r.Status, r.Body, r.sent, err)
	if err != nil {
		r.Error = err.Error()
	} else if !r.ok() {
		r.Error = fmt.Sprintf("%d %s", r.Status, bytes.TrimSpace(r.Body))
	}
	c.request(method, path, r)
	return r
}

func (c *client) send(
	ctx context.Context,
	node int,
	patience time.Duration,
	key, method, path string,
	body any,
	header []string,
	r *reply,
) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// Go's client retries a request with an Idempotency-Key by itself when its connection
	// breaks. A refused second attempt says nothing about the first.
	var wrote atomic.Bool
	defer func() { r.sent = wrote.Load() }()
	ctx = httptrace.WithClientTrace(ctx,
		&httptrace.ClientTrace{WroteHeaderField: func(string, []string) { wrote.Store(true) }})
	a, err := testcluster.Client{Base: c.nodes[node].Base, Key: key, HTTP: c.http}.Send(ctx, method, path, body, header...)
	if err != nil {
		return err // a truncated response does not count
	}
	r.Status, r.Body = a.Status, a.Body
	r.Index, _ = strconv.ParseUint(a.Header.Get("X-Bivouac-Index"), 10, 64)
	return nil
}

// outcomeOf trusts the API: a 503 says whether the request may have had an effect.
func outcomeOf(status int, body []byte, sent bool, err error) lincheck.Outcome {
	switch {
	case err != nil && !sent:
		return lincheck.Nothing
	case err != nil, status >= 500 && status != http.StatusServiceUnavailable:
		return lincheck.Unknown
	case status == http.StatusServiceUnavailable && strings.Contains(string(body), "outcome of this request is unknown"):
		return lincheck.Unknown
	case status == http.StatusServiceUnavailable, status == http.StatusTooManyRequests, status == http.StatusConflict,
		status == http.StatusUnauthorized:
		return lincheck.Nothing
	}
	return lincheck.Done
}

// surePatience bounds requests after the faults, when the nodes serve again.
const surePatience = 90 * time.Second

// sure sends one request to one node after the other, with the same Idempotency-Key, until it
// succeeds. It returns false when ctx ends or the request is rejected for good.
func (c *client) sure(ctx context.Context, key, method, path string, body any, idempotency string) (reply, bool) {
	first := c.rec.Now()
	for try := 0; ctx.Err() == nil; try++ {
		r := c.do(ctx, (c.home+try)%len(c.nodes), 6*time.Second, key, method, path, body, "Idempotency-Key", idempotency)
		if r.ok() {
			r.Call = first
			return r, true
		}
		if r.Status/100 == 4 && r.Status != http.StatusTooManyRequests {
			return r, false
		}
		c.pause(ctx, 20*time.Millisecond, 200*time.Millisecond)
	}
	return reply{}, false
}

// pause waits between two requests.
func (c *client) pause(ctx context.Context, low, high time.Duration) {
	testcluster.Pause(ctx, low+time.Duration(c.rand.Int64N(int64(high-low))))
}

// op makes an Op from a reply.
func (c *client) op(object lincheck.Object, key, do string, r reply) lincheck.Op {
	return lincheck.Op{
		Client: c.id, Object: object, Key: key, Do: do, Call: r.Call, Return: r.Return, Outcome: r.Outcome,
		Node: r.Node, Life: r.Life, Index: r.Index, Error: r.Error,
	}
}

// readPatience is short and random: when a paused node resumes, it should have pending reads
// that began after it had lost its term.
func (c *client) readPatience() time.Duration {
	return 300*time.Millisecond + time.Duration(c.rand.IntN(1200))*time.Millisecond
}

// writePatience is random as well, and sometimes longer than the node's own timeout.
func (c *client) writePatience() time.Duration {
	return 500*time.Millisecond + time.Duration(c.rand.IntN(6500))*time.Millisecond
}

// staleHeader asks for a stale read in one of four cases.
func (c *client) staleHeader() (header []string, stale bool) {
	if c.rand.IntN(4) == 0 {
		return []string{"X-Bivouac-Consistency", "stale"}, true
	}
	return nil, false
}
