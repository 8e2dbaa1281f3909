package workload

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"bivouac.dev/bivouac/ops/e2e/lincheck"
)

const sandboxesPath = "/api/v1/sandboxes"

const (
	liveSandboxes = 3
	sandboxOps    = 50
)

// sandboxWork creates, pauses, resumes and deletes one user's sandboxes.
type sandboxWork struct {
	work *Recorded
	mu   sync.Mutex
	account
	live []*sandbox
}

// sandbox is one sandbox in use.
type sandbox struct {
	id      string
	used    int
	deleted bool
	// pauses are the keys of acknowledged pauses, for replays.
	pauses []string
}

// renew keeps the number of sandboxes constant.
func (s *sandboxWork) renew(ctx context.Context, c *client) {
	user, key, ok := s.work.user(ctx, c, "sandbox")
	if !ok {
		return
	}
	s.mu.Lock()
	s.account = account{user, key}
	s.mu.Unlock()
	for ctx.Err() == nil {
		s.mu.Lock()
		s.live = slices.DeleteFunc(s.live, func(one *sandbox) bool { return one.used > sandboxOps && one.deleted })
		full := len(s.live) >= liveSandboxes
		s.mu.Unlock()
		if !full {
			s.create(ctx, c)
		}
		c.pause(ctx, 100*time.Millisecond, 300*time.Millisecond)
	}
}

func (s *sandboxWork) create(ctx context.Context, c *client) {
	r, ok := c.sure(ctx, s.key, http.MethodPost, sandboxesPath, nil, s.work.name("sandbox"))
	var made struct{ ID string }
	if !ok || json.Unmarshal(r.Body, &made) != nil {
		return
	}
	op := c.op(lincheck.Sandbox, made.ID, lincheck.Create, r)
	op.Out = lincheck.Value{There: true}
	c.rec.Add(op)
	s.mu.Lock()
	s.live = append(s.live, &sandbox{id: made.ID})
	s.mu.Unlock()
}

func (s *sandboxWork) pick(c *client) *sandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.live) == 0 {
		return nil
	}
	one := s.live[c.rand.IntN(len(s.live))]
	one.used++
	return one
}

func (s *sandboxWork) step(ctx context.Context, c *client) {
	c.pause(ctx, 50*time.Millisecond, 350*time.Millisecond)
	one := s.pick(c)
	if one == nil {
		return
	}
	s.mu.Lock()
	end := one.used > sandboxOps*9/10 && c.rand.IntN(3) == 0
	one.deleted = one.deleted || end
	replays := slices.Clone(one.pauses)
	s.mu.Unlock()
	switch n := c.rand.IntN(12); {
	case end:
		s.change(ctx, c, one, lincheck.Delete, "")
	case n == 0:
		s.change(ctx, c, one, lincheck.Pause, s.work.name("pause"))
	case n <= 2:
		s.change(ctx, c, one, lincheck.Resume, s.work.name("resume"))
	case n == 3 && len(replays) > 0:
		s.change(ctx, c, one, lincheck.Replay, replays[c.rand.IntN(len(replays))])
	case n <= 5:
		s.list(ctx, c)
	default:
		s.read(ctx, c, one.id)
	}
}

// change requests another state. A replay repeats an acknowledged pause.
func (s *sandboxWork) change(ctx context.Context, c *client, one *sandbox, do, key string) {
	method, path := http.MethodPost, sandboxesPath+"/"+one.id+"/"+do
	switch do {
	case lincheck.Delete:
		method, path = http.MethodDelete, sandboxesPath+"/"+one.id
	case lincheck.Replay:
		path = sandboxesPath + "/" + one.id + "/" + lincheck.Pause
	}
	var header []string
	if key != "" {
		header = []string{"Idempotency-Key", key}
	}
	r := c.do(ctx, c.pick(), c.writePatience(), s.key, method, path, nil, header...)
	op := c.op(lincheck.Sandbox, one.id, do, r)
	op.Out = lincheck.Value{There: r.ok()}
	c.rec.Add(op)
	if do == lincheck.Pause && r.ok() {
		s.mu.Lock()
		one.pauses = append(one.pauses, key)
		s.mu.Unlock()
	}
}

type sandboxBody struct{ ID, Status string }

func (s *sandboxWork) read(ctx context.Context, c *client, id string) {
	header, stale := c.staleHeader()
	r := c.do(ctx, c.pick(), c.readPatience(), s.key, http.MethodGet, sandboxesPath+"?id="+url.QueryEscape(id), nil,
		header...)
	op := c.op(lincheck.Sandbox, id, lincheck.Read, r)
	op.Stale = stale
	var got []*sandboxBody
	switch {
	case !r.ok():
		op.Outcome = lincheck.Nothing
	case json.Unmarshal(r.Body, &got) != nil || len(got) != 1:
		op.Outcome, op.Error = lincheck.Unknown, fmt.Sprintf("not a list of one: %s", r.Body)
	case got[0] != nil:
		op.Out = lincheck.Value{There: true, A: got[0].Status}
	}
	c.rec.Add(op)
}

func (s *sandboxWork) list(ctx context.Context, c *client) {
	s.mu.Lock()
	var ids []string
	for _, one := range s.live {
		ids = append(ids, one.id)
	}
	s.mu.Unlock()
	header, stale := c.staleHeader()
	r := c.do(ctx, c.pick(), c.readPatience(), s.key, http.MethodGet, sandboxesPath+"/search?limit=100", nil, header...)
	var page struct{ Items []sandboxBody }
	if !r.ok() || json.Unmarshal(r.Body, &page) != nil {
		return
	}
	for _, id := range ids {
		op := c.op(lincheck.Sandbox, id, lincheck.Read, r)
		op.Stale = stale
		if i := slices.IndexFunc(page.Items, func(x sandboxBody) bool { return x.ID == id }); i >= 0 {
			op.Out = lincheck.Value{There: true, A: page.Items[i].Status}
		}
		c.rec.Add(op)
	}
}
