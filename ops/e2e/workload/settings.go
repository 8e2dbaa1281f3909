package workload

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"bivouac.dev/bivouac/ops/e2e/lincheck"
)

const (
	// liveUsers share the settings clients. Every userLife/liveUsers one of them is replaced,
	// so that no history grows long.
	liveUsers = 4
	userLife  = 6 * time.Second
)

// settingsWork writes and reads a few users' settings through all nodes at once.
type settingsWork struct {
	work *Recorded
	mu   sync.Mutex
	live []account
}

// account is a user and its key.
type account struct{ user, key string }

// renew replaces the users, one after the other.
func (s *settingsWork) renew(ctx context.Context, c *client) {
	for ctx.Err() == nil {
		user, key, ok := s.work.user(ctx, c, "set")
		if !ok {
			return
		}
		s.mu.Lock()
		s.live = append(s.live, account{user, key})
		full := len(s.live) >= liveUsers
		if len(s.live) > liveUsers {
			s.live = s.live[1:]
		}
		s.mu.Unlock()
		if full {
			c.pause(ctx, userLife/liveUsers, userLife/liveUsers+time.Second)
		}
	}
}

func (s *settingsWork) pick(c *client) (account, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.live) == 0 {
		return account{}, false
	}
	return s.live[c.rand.IntN(len(s.live))], true
}

func (s *settingsWork) step(ctx context.Context, c *client) {
	a, there := s.pick(c)
	switch {
	case !there:
		c.pause(ctx, 20*time.Millisecond, 50*time.Millisecond)
		return
	case c.rand.IntN(3) == 0:
		s.put(ctx, c, a)
	default:
		s.read(ctx, c, a)
	}
	c.pause(ctx, 5*time.Millisecond, 60*time.Millisecond)
}

// put writes settings: with all members, or without one, which then keeps its value, and rarely
// with one that is stored in the secret store.
func (s *settingsWork) put(ctx context.Context, c *client, a account) {
	id := s.work.name("v")
	in := lincheck.Value{A: "model-" + id, B: "name-" + id}
	body := map[string]any{"git_user_name": in.B, "llm_model": in.A}
	if c.rand.IntN(3) == 0 {
		in.A, in.Keep = "", true
		delete(body, "llm_model")
	}
	if c.rand.IntN(6) == 0 {
		in.C = "http://mcp.test/" + id
		body["mcp_config"] = map[string]any{"shttp_servers": []any{map[string]any{"url": in.C}}}
	}
	var header []string
	keyed := c.rand.IntN(2) == 0
	if keyed {
		header = []string{"Idempotency-Key", id}
	}
	r := c.do(ctx, c.pick(), c.writePatience(), a.key, http.MethodPost, "/api/settings", body, header...)
	op := c.op(lincheck.Settings, a.user, lincheck.Put, r)
	op.In = in
	c.rec.Add(op)
	if keyed && r.ok() && c.rand.IntN(4) == 0 {
		c.pause(ctx, 0, 300*time.Millisecond)
		// Other clients have written meanwhile: the replay must not undo that.
		again := c.do(ctx, c.rand.IntN(len(c.nodes)), c.writePatience(), a.key, http.MethodPost, "/api/settings", body,
			header...)
		c.rec.Add(c.op(lincheck.Settings, a.user, lincheck.Replay, again))
	}
}

func (s *settingsWork) read(ctx context.Context, c *client, a account) {
	header, stale := c.staleHeader()
	r := c.do(ctx, c.pick(), c.readPatience(), a.key, http.MethodGet, "/api/settings", nil, header...)
	op := c.op(lincheck.Settings, a.user, lincheck.Read, r)
	op.Stale = stale
	switch {
	case r.ok():
		var got struct {
			Model *string `json:"llm_model"`
			Name  *string `json:"git_user_name"`
			MCP   *struct {
				Servers []struct {
					URL string `json:"url"`
				} `json:"shttp_servers"`
			} `json:"mcp_config"`
		}
		if err := json.Unmarshal(r.Body, &got); err != nil {
			op.Outcome, op.Error = lincheck.Unknown, err.Error()
			break
		}
		op.Out = lincheck.Value{There: true, A: deref(got.Model), B: deref(got.Name)}
		if got.MCP != nil && len(got.MCP.Servers) > 0 {
			op.Out.C = got.MCP.Servers[0].URL
		}
	case r.Status != http.StatusNotFound:
		op.Outcome = lincheck.Nothing
	}
	c.rec.Add(op)
}

func deref(p *string) string {
	if p == nil {
		return ""
	}
	return *p
}
