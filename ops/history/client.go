package history

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Endpoint is one node as clients see it.
type Endpoint struct {
	Name, Base string
	// Life tells the node's processes apart; odd while there is none.
	Life func() uint64
}

// client is one user's program: it speaks to its own node mostly, over a few
// connections, and notes what it is told.
type client struct {
	id    int
	nodes []Endpoint
	home  int
	http  *http.Client
	rec   *Recorder
	rand  *rand.Rand
	tally *tally
}

// reply is what came of one request.
type reply struct {
	Outcome      Outcome
	Status       int
	Body         []byte
	Index        uint64
	Node         string
	Life         uint64
	Call, Return time.Duration
	Error        string
	// sent is set when any of the request was written to a connection.
	sent bool
}

// ok reports whether the request did what it was for.
func (r reply) ok() bool { return r.Status/100 == 2 }

// pick chooses a node: the client's own, four times in five.
func (c *client) pick() int {
	if c.rand.IntN(5) > 0 {
		return c.home
	}
	return c.rand.IntN(len(c.nodes))
}

// do makes one request of one node and classifies what comes back. header is
// pairs of names and values.
func (c *client) do(ctx context.Context, node int, patience time.Duration, key, method, path string, body any, header ...string) reply {
	r := reply{Node: c.nodes[node].Name, Call: c.rec.Now(), Life: c.nodes[node].Life()}
	err := c.send(ctx, c.nodes[node].Base+path, patience, key, method, body, header, &r)
	r.Return = c.rec.Now()
	if r.Life%2 == 1 || c.nodes[node].Life() != r.Life {
		r.Life = 0 // the node was restarted meanwhile: which process it was is not known
	} else {
		r.Life += 2 // never 0
	}
	r.Outcome = outcomeOf(r.Status, r.Body, r.sent, err)
	if err != nil {
		r.Error = err.Error()
	} else if !r.ok() {
		r.Error = fmt.Sprintf("%d %s", r.Status, bytes.TrimSpace(r.Body))
	}
	c.tally.count(method, path, r)
	return r
}

func (c *client) send(ctx context.Context, url string, patience time.Duration, key, method string, body any, header []string, r *reply) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var reader io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return err
		}
		reader = bytes.NewReader(raw)
	}
	// Go's client sends a request with an Idempotency-Key again by itself when its
	// connection breaks: that the second try reached nobody says nothing of the
	// first.
	var wrote atomic.Bool
	defer func() { r.sent = wrote.Load() }()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaderField: func(string, []string) { wrote.Store(true) }})
	req, err := http.NewRequestWithContext(ctx, method, url, reader)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Session-API-Key", key)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return err // an answer that was cut off is none
	}
	r.Status, r.Body = resp.StatusCode, raw
	r.Index, _ = strconv.ParseUint(resp.Header.Get("X-Bivouac-Index"), 10, 64)
	return nil
}

// outcomeOf believes the API: a 503 says whether anything may have been done.
func outcomeOf(status int, body []byte, sent bool, err error) Outcome {
	switch {
	case err != nil && !sent:
		return Nothing
	case err != nil, status >= 500 && status != http.StatusServiceUnavailable:
		return Unknown
	case status == http.StatusServiceUnavailable && strings.Contains(string(body), "outcome of this request is unknown"):
		return Unknown
	case status == http.StatusServiceUnavailable, status == http.StatusTooManyRequests, status == http.StatusConflict,
		status == http.StatusUnauthorized:
		return Nothing
	}
	return Done
}

// surePatience bounds what must be known in the end, when the nodes serve again.
const surePatience = 90 * time.Second

// sure makes one request until it is answered with a success, of one node after
// the other, with the same Idempotency-Key. false when ctx ended first, or with
// a refusal that no repetition can turn into a success.
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
	t := time.NewTimer(low + time.Duration(c.rand.Int64N(int64(high-low))))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// op begins an Op from a reply.
func (c *client) op(object Object, key, do string, r reply) Op {
	return Op{
		Client: c.id, Object: object, Key: key, Do: do, Call: r.Call, Return: r.Return, Outcome: r.Outcome,
		Node: r.Node, Life: r.Life, Index: r.Index, Error: r.Error,
	}
}

// readPatience is short and varied: when a node that was paused goes on, there
// are to be reads at its door that began after it had lost its term.
func (c *client) readPatience() time.Duration {
	return 300*time.Millisecond + time.Duration(c.rand.IntN(1200))*time.Millisecond
}

// writePatience likewise; it is sometimes longer than the node's own.
func (c *client) writePatience() time.Duration {
	return 500*time.Millisecond + time.Duration(c.rand.IntN(6500))*time.Millisecond
}

// staleHeader asks for a stale read, one time in four.
func (c *client) staleHeader() (header []string, stale bool) {
	if c.rand.IntN(4) == 0 {
		return []string{"X-Bivouac-Consistency", "stale"}, true
	}
	return nil, false
}
