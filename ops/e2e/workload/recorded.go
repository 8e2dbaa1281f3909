package workload

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
)

// Recorded is the profile whose clients record their requests for lincheck.Judge.
type Recorded struct {
	*generator
	once *once
}

// NewRecorded makes clients of the nodes. operator is an operator's key; the seed decides the
// requests.
func NewRecorded(nodes []Endpoint, operator string, seed uint64) *Recorded {
	w := &Recorded{generator: newGenerator(nodes, operator, seed)}
	w.once = &once{work: w}
	return w
}

// user creates a user and returns its key.
func (w *Recorded) user(ctx context.Context, c *client, prefix string) (user, key string, ok bool) {
	user = w.name(prefix)
	var r reply
	// A key whose only answer was lost can not be used: the next request makes another.
	for try := 0; ; try++ {
		once := fmt.Sprintf("key-%s-%d", user, try)
		r, ok = c.sure(ctx, w.operator, http.MethodPost, pathKeys, map[string]string{"user": user, "name": "drill"}, once)
		if ok {
			break
		}
		if r.Status != http.StatusConflict {
			return "", "", false
		}
	}
	var made struct{ Key string }
	if err := json.Unmarshal(r.Body, &made); err != nil {
		return "", "", false
	}
	return user, made.Key, true
}

// Crowd is the number of clients per node, by kind. Once is the number of clients that send
// each POST to all nodes at once.
type Crowd struct {
	Settings, Conversations, Sandboxes, Specs, Once int
}

// Run runs the clients until ctx ends.
func (w *Recorded) Run(ctx context.Context, o Crowd) {
	var wg sync.WaitGroup
	n := len(w.nodes)
	if o.Settings > 0 {
		s := &settingsWork{work: w}
		w.crowd(ctx, &wg, 1, s.renew)
		w.crowd(ctx, &wg, o.Settings*n, s.step)
	}
	if o.Conversations > 0 {
		t := &conversationWork{work: w}
		w.crowd(ctx, &wg, 2, t.renew)
		w.crowd(ctx, &wg, o.Conversations*n, t.step)
	}
	if o.Sandboxes > 0 {
		b := &sandboxWork{work: w}
		w.crowd(ctx, &wg, 1, b.renew)
		w.crowd(ctx, &wg, o.Sandboxes*n, b.step)
	}
	if o.Specs > 0 {
		s := &specWork{work: w}
		w.crowd(ctx, &wg, 1, s.renew)
		w.crowd(ctx, &wg, o.Specs*n, s.step)
	}
	w.crowd(ctx, &wg, o.Once, w.once.run)
	wg.Wait()
}
