package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// operation is one kind of request with its share of the mix.
type operation struct {
	name   string
	weight int
	do     func(*traffic, context.Context, *user, string) error
}

// mix is what users do; about a quarter of it writes.
func mix() []operation {
	return []operation{
		{"settings write", 20, (*traffic).writeSettings},
		{"conversation patch", 5, (*traffic).patchConversation},
		{"settings read", 25, (*traffic).readSettings},
		{"stale settings read", 10, (*traffic).readStale},
		{"conversation search", 20, get("/api/v1/app-conversations/search?limit=10")},
		{"conversation count", 5, get("/api/v1/app-conversations/count")},
		{"sandbox search", 10, get("/api/v1/sandboxes/search")},
		{"sandbox get", 5, (*traffic).getSandbox},
	}
}

// traffic sends requests and checks their answers.
type traffic struct {
	client *http.Client
	nodes  []string
	users  []*user
	mix    []operation

	done   atomic.Int64
	behind atomic.Int64

	mu     sync.Mutex
	counts map[string]int
	failed map[string]int
	slow   map[string]*latencies
	// wrong are answers that must never be: they end the run.
	wrong []string
}

func newTraffic(nodes []string, users []*user) *traffic {
	return &traffic{
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 512, IdleConnTimeout: time.Minute}, Timeout: 30 * time.Second},
		nodes:  nodes, users: users, mix: mix(),
		counts: map[string]int{}, failed: map[string]int{}, slow: map[string]*latencies{},
	}
}

func (t *traffic) close() { t.client.CloseIdleConnections() }

// pick draws an operation by weight.
func (t *traffic) pick() operation {
	total := 0
	for _, o := range t.mix {
		total += o.weight
	}
	at := rand.IntN(total)
	for _, o := range t.mix {
		if at -= o.weight; at < 0 {
			return o
		}
	}
	return t.mix[0]
}

// one sends one request of the mix, for any user to any node.
func (t *traffic) one(ctx context.Context) {
	o := t.pick()
	u, node := t.users[rand.IntN(len(t.users))], t.nodes[rand.IntN(len(t.nodes))]
	begin := time.Now()
	err := o.do(t, ctx, u, node)
	took := time.Since(begin)
	if ctx.Err() != nil {
		return // what was cut off by our own end tells nothing
	}
	t.done.Add(1)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts[o.name]++
	if t.slow[o.name] == nil {
		t.slow[o.name] = new(latencies)
	}
	t.slow[o.name].add(took)
	var lie *lie
	switch {
	case errors.As(err, &lie):
		t.wrong = append(t.wrong, o.name+": "+err.Error())
	case err != nil:
		t.failed[clipped(o.name+": "+err.Error())]++
	}
}

// clipped makes failures of one kind equal.
func clipped(s string) string {
	if i := strings.Index(s, "http://"); i >= 0 {
		s = s[:i] + "(node)"
	}
	return s[:min(len(s), 160)]
}

// lie is an answer that contradicts one given before.
type lie struct{ text string }

// Error implements error.
func (l *lie) Error() string { return l.text }

// lies gives the wrong answers so far.
func (t *traffic) lies() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.wrong...)
}

// flow sends rate requests per second, evenly, until ctx ends; 0 means as many
// as workers can. A worker that is not free in time makes the request late, not
// lost; behind counts those more than a second late.
func (t *traffic) flow(ctx context.Context, rate float64, workers int) {
	begin := time.Now()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for ctx.Err() == nil {
				if rate > 0 {
					due := begin.Add(time.Duration(float64(next.Add(1)) / rate * float64(time.Second)))
					wait := time.Until(due)
					if wait < -time.Second {
						t.behind.Add(1)
					}
					select {
					case <-time.After(wait):
					case <-ctx.Done():
						return
					}
				}
				t.one(ctx)
			}
		})
	}
	wg.Wait()
}

// send makes one request and gives the body of a 200.
func (t *traffic) send(ctx context.Context, method, url, key string, in any) ([]byte, error) {
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("X-Session-API-Key", key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := t.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%d %s", resp.StatusCode, raw[:min(len(raw), 120)])
	}
	return raw, nil
}

func get(path string) func(*traffic, context.Context, *user, string) error {
	return func(t *traffic, ctx context.Context, u *user, node string) error {
		_, err := t.send(ctx, http.MethodGet, node+path, u.key, nil)
		return err
	}
}

// settingsText is the value that counts the writes of one user's settings.
func settingsText(n int) string { return "v" + strconv.Itoa(n) }

func (t *traffic) writeSettings(ctx context.Context, u *user, node string) error {
	u.writing.Lock()
	defer u.writing.Unlock()
	u.mu.Lock()
	u.sent++
	n := u.sent
	u.mu.Unlock()
	_, err := t.send(ctx, http.MethodPost, node+"/api/settings", u.key, map[string]any{
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

func (t *traffic) settings(ctx context.Context, u *user, url string) (int, error) {
	raw, err := t.send(ctx, http.MethodGet, url, u.key, nil)
	if err != nil {
		return 0, err
	}
	var out struct{ Language string }
	if err := json.Unmarshal(raw, &out); err != nil {
		return 0, &lie{"the settings are not JSON: " + string(raw[:min(len(raw), 120)])}
	}
	n, err := strconv.Atoi(strings.TrimPrefix(out.Language, "v"))
	if err != nil {
		return 0, &lie{"nobody wrote the value " + out.Language}
	}
	if sent, _ := u.noted(); n > sent {
		return 0, &lie{fmt.Sprintf("value %d was read of %s and only %d were sent", n, u.id, sent)}
	}
	return n, nil
}

// readSettings must show every write acknowledged before it began.
func (t *traffic) readSettings(ctx context.Context, u *user, node string) error {
	_, acked := u.noted()
	n, err := t.settings(ctx, u, node+"/api/settings")
	if err == nil && n < acked {
		return &lie{fmt.Sprintf("%s shows value %d of %s after %d was acknowledged", node, n, u.id, acked)}
	}
	return err
}

func (t *traffic) readStale(ctx context.Context, u *user, node string) error {
	_, err := t.settings(ctx, u, node+"/api/settings?stale")
	return err
}

func (t *traffic) patchConversation(ctx context.Context, u *user, node string) error {
	id := u.conversations[rand.IntN(len(u.conversations))]
	_, err := t.send(ctx, http.MethodPatch, node+"/api/v1/app-conversations/"+id, u.key, map[string]any{"title": "A title of " + strconv.Itoa(rand.IntN(1000))})
	return err
}

func (t *traffic) getSandbox(ctx context.Context, u *user, node string) error {
	_, err := t.send(ctx, http.MethodGet, node+"/api/v1/sandboxes?id="+u.sandbox, u.key, nil)
	return err
}

// audit reads every user's settings from one node: nothing acknowledged may be
// missing.
func (t *traffic) audit(ctx context.Context) error {
	users := make(chan *user)
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for u := range users {
				if err := t.readSettings(ctx, u, t.nodes[rand.IntN(len(t.nodes))]); err != nil {
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
