package history

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Work is a set of clients at work on one fleet, each recording what it does.
type Work struct {
	// Rec is the record, for Judge.
	Rec *Recorder

	nodes    []Endpoint
	operator string
	seed     uint64
	tally    *tally
	clients  atomic.Int64
	names    atomic.Int64
	once     *once
}

// NewWork prepares clients of the nodes; operator is an operator's key, the seed
// decides what they ask.
func NewWork(nodes []Endpoint, operator string, seed uint64) *Work {
	w := &Work{Rec: NewRecorder(), nodes: nodes, operator: operator, seed: seed, tally: newTally()}
	w.once = &once{work: w}
	return w
}

// Summary is a line for each kind of request.
func (w *Work) Summary() string { return w.tally.String() }

// Gap is the longest time without an acknowledged write, and when it began.
func (w *Work) Gap() (longest, begin time.Duration) { return w.tally.gap() }

// Broken lists answers that no client should ever get: a 5xx other than 503, or
// a refusal of a right request.
func (w *Work) Broken() []string {
	w.tally.mu.Lock()
	defer w.tally.mu.Unlock()
	return w.tally.broken
}

// client makes one more client.
func (w *Work) client() *client {
	id := int(w.clients.Add(1)) - 1
	return &client{
		id: id, nodes: w.nodes, home: id % len(w.nodes), rec: w.Rec, tally: w.tally,
		rand: rand.New(rand.NewPCG(w.seed, uint64(id))),
		http: &http.Client{Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: 2 * time.Second}).DialContext,
			MaxIdleConnsPerHost: 4, IdleConnTimeout: 10 * time.Second,
		}},
	}
}

// name makes one that nothing else has.
func (w *Work) name(prefix string) string { return fmt.Sprintf("%s-%d", prefix, w.names.Add(1)) }

// user makes a user with a key.
func (w *Work) user(ctx context.Context, c *client, prefix string) (user, key string, ok bool) {
	user = w.name(prefix)
	r, ok := c.sure(ctx, w.operator, http.MethodPost, "/api/v1/operator/keys", map[string]string{"user": user, "name": "drill"}, "key-"+user)
	if !ok {
		return "", "", false
	}
	var made struct{ Key string }
	if err := json.Unmarshal(r.Body, &made); err != nil {
		return "", "", false
	}
	return user, made.Key, true
}

// crowd runs one function in several clients until all have ended.
func (w *Work) crowd(wg *sync.WaitGroup, clients int, run func(c *client)) {
	for range clients {
		c := w.client()
		wg.Go(func() {
			run(c)
			c.http.CloseIdleConnections()
		})
	}
}

// Crowd says how many clients of each kind there are on each node, and how many
// repeat POSTs on all nodes at once.
type Crowd struct {
	Settings, Conversations, Sandboxes, Specs, Once int
}

// Run works until ctx ends.
func (w *Work) Run(ctx context.Context, o Crowd) {
	var wg sync.WaitGroup
	n := len(w.nodes)
	if o.Settings > 0 {
		s := &settingsWork{work: w}
		w.crowd(&wg, 1, func(c *client) { s.renew(ctx, c) })
		w.crowd(&wg, o.Settings*n, func(c *client) { s.run(ctx, c) })
	}
	if o.Conversations > 0 {
		t := &talkWork{work: w}
		w.crowd(&wg, 2, func(c *client) { t.renew(ctx, c) })
		w.crowd(&wg, o.Conversations*n, func(c *client) { t.run(ctx, c) })
	}
	if o.Sandboxes > 0 {
		b := &boxWork{work: w}
		w.crowd(&wg, 1, func(c *client) { b.renew(ctx, c) })
		w.crowd(&wg, o.Sandboxes*n, func(c *client) { b.run(ctx, c) })
	}
	if o.Specs > 0 {
		s := &specWork{work: w}
		w.crowd(&wg, 1, func(c *client) { s.renew(ctx, c) })
		w.crowd(&wg, o.Specs*n, func(c *client) { s.run(ctx, c) })
	}
	if o.Once > 0 {
		w.crowd(&wg, o.Once, func(c *client) { w.once.run(ctx, c) })
	}
	wg.Wait()
}
