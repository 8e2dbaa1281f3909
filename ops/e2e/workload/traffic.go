package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// mix is what users do; about a quarter are writes.
func mix() []request {
	return []request{
		{20, (*traffic).writeSettings},
		{5, (*traffic).patchConversation},
		{25, (*traffic).readSettings},
		{10, (*traffic).readStale},
		{20, get("/api/v1/app-conversations/search?limit=10")},
		{5, get("/api/v1/app-conversations/count")},
		{10, get("/api/v1/sandboxes/search")},
		{5, (*traffic).getSandbox},
	}
}

// request is one kind of request with its weight in the mix. do sends it for a user.
type request struct {
	weight int
	do     func(*traffic, context.Context, *client, *user) error
}

// traffic sends requests of many users to random nodes and checks their answers.
type traffic struct {
	*generator
	users []*user
	mix   []request

	done, behind atomic.Int64

	// wrong lists impossible responses, which end the run.
	wrong []string
}

func newTraffic(nodes []Endpoint, users []*user) *traffic {
	return &traffic{generator: newGenerator(nodes, "", rand.Uint64()), users: users, mix: mix()}
}

// pick draws a request by weight.
func (t *traffic) pick(c *client) request {
	total := 0
	for _, r := range t.mix {
		total += r.weight
	}
	at := c.rand.IntN(total)
	for _, r := range t.mix {
		if at -= r.weight; at < 0 {
			return r
		}
	}
	return t.mix[0]
}

// step sends one request of the mix for a random user.
func (t *traffic) step(ctx context.Context, c *client) {
	err := t.pick(c).do(t, ctx, c, t.users[c.rand.IntN(len(t.users))])
	if ctx.Err() != nil {
		return // cancelled by the end of the run
	}
	t.done.Add(1)
	var lie *lie
	switch {
	case errors.As(err, &lie):
		t.mu.Lock()
		defer t.mu.Unlock()
		t.wrong = append(t.wrong, err.Error())
	case err != nil:
		t.failed(clipped(err.Error()))
	}
}

// maximum measures how many requests a second the plan's workers send when they don't wait.
func (t *traffic) maximum(ctx context.Context, p Plan) (rate float64) {
	// The first pass fills connections and caches.
	for _, length := range []time.Duration{p.Measure / 4, p.Measure} {
		before, phase := t.done.Load(), time.Now()
		within(ctx, length, func(ctx context.Context) { t.flow(ctx, 0, p.Workers) })
		rate = float64(t.done.Load()-before) / time.Since(phase).Seconds()
	}
	return rate
}

// flow sends rate requests per second until ctx ends, as paced does.
func (t *traffic) flow(ctx context.Context, rate float64, workers int) {
	var wg sync.WaitGroup
	t.crowd(ctx, &wg, workers, paced(rate, &t.behind, t.step))
	wg.Wait()
}

// clipped makes failures of one kind equal.
func clipped(s string) string {
	if i := strings.Index(s, "http://"); i >= 0 {
		s = s[:i] + "(node)"
	}
	return s[:min(len(s), 160)]
}

// lie is a response that contradicts an earlier one.
type lie struct{ text string }

// Error implements error.
func (l *lie) Error() string { return l.text }

// lies returns the wrong responses so far.
func (t *traffic) lies() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.wrong...)
}

// ask sends one request to a random node and returns the response to a success.
func (t *traffic) ask(ctx context.Context, c *client, method, path, key string, in any) (reply, error) {
	r := c.do(ctx, c.rand.IntN(len(c.nodes)), 30*time.Second, key, method, path, in)
	if !r.ok() {
		return r, errors.New(requestName(method, path) + ": " + r.Error)
	}
	return r, nil
}

func get(path string) func(*traffic, context.Context, *client, *user) error {
	return func(t *traffic, ctx context.Context, c *client, u *user) error {
		_, err := t.ask(ctx, c, http.MethodGet, path, u.key, nil)
		return err
	}
}

// settingsText is the value that counts the writes of one user's settings.
func settingsText(n int) string { return "v" + strconv.Itoa(n) }

func (t *traffic) writeSettings(ctx context.Context, c *client, u *user) error {
	u.writing.Lock()
	defer u.writing.Unlock()
	u.mu.Lock()
	u.sent++
	n := u.sent
	u.mu.Unlock()
	_, err := t.ask(ctx, c, http.MethodPost, "/api/settings", u.key, map[string]any{
		"language": settingsText(n), "llm_model": "a model of some name", "agent": "CodeActAgent", "max_iterations": 100,
		"git_user_name": u.id, "git_user_email": u.id + "@example.org",
	})
	if err == nil {
		u.mu.Lock()
		u.acked = n
		u.mu.Unlock()
	}
	return err
}

func (t *traffic) settings(ctx context.Context, c *client, u *user, path string) (n int, node string, err error) {
	r, err := t.ask(ctx, c, http.MethodGet, path, u.key, nil)
	if err != nil {
		return 0, r.Node, err
	}
	var out struct{ Language string }
	if err := json.Unmarshal(r.Body, &out); err != nil {
		return 0, r.Node, &lie{"the settings are not JSON: " + string(r.Body[:min(len(r.Body), 120)])}
	}
	n, err = strconv.Atoi(strings.TrimPrefix(out.Language, "v"))
	if err != nil {
		return 0, r.Node, &lie{"nobody wrote the value " + out.Language}
	}
	if sent, _ := u.noted(); n > sent {
		return 0, r.Node, &lie{fmt.Sprintf("value %d was read of %s and only %d were sent", n, u.id, sent)}
	}
	return n, r.Node, nil
}

// readSettings checks that a read shows every write acknowledged before it began.
func (t *traffic) readSettings(ctx context.Context, c *client, u *user) error {
	_, acked := u.noted()
	n, node, err := t.settings(ctx, c, u, "/api/settings")
	if err == nil && n < acked {
		return &lie{fmt.Sprintf("%s shows value %d of %s after %d was acknowledged", node, n, u.id, acked)}
	}
	return err
}

func (t *traffic) readStale(ctx context.Context, c *client, u *user) error {
	_, _, err := t.settings(ctx, c, u, "/api/settings?"+staleQuery)
	return err
}

func (t *traffic) patchConversation(ctx context.Context, c *client, u *user) error {
	id := u.conversations[c.rand.IntN(len(u.conversations))]
	_, err := t.ask(ctx, c, http.MethodPatch, conversationsPath+"/"+id, u.key,
		map[string]any{"title": "A title of " + strconv.Itoa(c.rand.IntN(1000))})
	return err
}

func (t *traffic) getSandbox(ctx context.Context, c *client, u *user) error {
	_, err := t.ask(ctx, c, http.MethodGet, sandboxesPath+"?id="+u.sandbox, u.key, nil)
	return err
}

// audit reads every user's settings from one node. No acknowledged write may be missing.
func (t *traffic) audit(ctx context.Context) error {
	users := make(chan *user)
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	for range 16 {
		c := t.client()
		wg.Go(func() {
			defer c.http.CloseIdleConnections()
			for u := range users {
				if err := t.readSettings(ctx, c, u); err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
			}
		})
	}
	for _, u := range t.users {
		users <- u
	}
	close(users)
	wg.Wait()
	if len(errs) > 0 {
		return fmt.Errorf("%d of %d users' settings are not as acknowledged, the first: %w", len(errs), len(t.users), errs[0])
	}
	return nil
}
