package history

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"
)

const sandboxesPath = "/api/v1/sandboxes"

const (
	liveBoxes = 3
	boxOps    = 50
)

// boxWork creates, pauses, resumes and deletes sandboxes of one user.
type boxWork struct {
	work *Work
	mu   sync.Mutex
	account
	live []*box
}

// box is one sandbox that is worked on.
type box struct {
	id      string
	used    int
	deleted bool
	// pauses are the keys of pauses that were answered, for replays.
	pauses []string
}

// renew keeps up the number of sandboxes.
func (b *boxWork) renew(ctx context.Context, c *client) {
	user, key, ok := b.work.user(ctx, c, "box")
	if !ok {
		return
	}
	b.mu.Lock()
	b.account = account{user, key}
	b.mu.Unlock()
	for ctx.Err() == nil {
		b.mu.Lock()
		b.live = slices.DeleteFunc(b.live, func(one *box) bool { return one.used > boxOps && one.deleted })
		full := len(b.live) >= liveBoxes
		b.mu.Unlock()
		if !full {
			b.create(ctx, c)
		}
		c.pause(ctx, 100*time.Millisecond, 300*time.Millisecond)
	}
}

func (b *boxWork) create(ctx context.Context, c *client) {
	r, ok := c.sure(ctx, b.key, http.MethodPost, sandboxesPath, nil, b.work.name("box"))
	var made struct{ ID string }
	if !ok || json.Unmarshal(r.Body, &made) != nil {
		return
	}
	op := c.op(Sandbox, made.ID, Create, r)
	op.Out = Value{There: true}
	c.rec.Add(op)
	b.mu.Lock()
	b.live = append(b.live, &box{id: made.ID})
	b.mu.Unlock()
}

func (b *boxWork) pick(c *client) *box {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.live) == 0 {
		return nil
	}
	one := b.live[c.rand.IntN(len(b.live))]
	one.used++
	return one
}

func (b *boxWork) run(ctx context.Context, c *client) {
	for ctx.Err() == nil {
		c.pause(ctx, 50*time.Millisecond, 350*time.Millisecond)
		one := b.pick(c)
		if one == nil {
			continue
		}
		b.mu.Lock()
		end := one.used > boxOps*9/10 && c.rand.IntN(3) == 0
		one.deleted = one.deleted || end
		replays := slices.Clone(one.pauses)
		b.mu.Unlock()
		switch n := c.rand.IntN(12); {
		case end:
			b.change(ctx, c, one, Delete, "")
		case n == 0:
			b.change(ctx, c, one, Pause, b.work.name("pause"))
		case n <= 2:
			b.change(ctx, c, one, Resume, b.work.name("resume"))
		case n == 3 && len(replays) > 0:
			b.change(ctx, c, one, Replay, replays[c.rand.IntN(len(replays))])
		case n <= 5:
			b.list(ctx, c)
		default:
			b.read(ctx, c, one.id)
		}
	}
}

// change asks for another state. A replay is a pause that was answered before.
func (b *boxWork) change(ctx context.Context, c *client, one *box, do, key string) {
	method, path := http.MethodPost, sandboxesPath+"/"+one.id+"/"+do
	switch do {
	case Delete:
		method, path = http.MethodDelete, sandboxesPath+"/"+one.id
	case Replay:
		path = sandboxesPath + "/" + one.id + "/" + Pause
	}
	var header []string
	if key != "" {
		header = []string{"Idempotency-Key", key}
	}
	r := c.do(ctx, c.pick(), c.writePatience(), b.key, method, path, nil, header...)
	op := c.op(Sandbox, one.id, do, r)
	op.Out = Value{There: r.ok()}
	c.rec.Add(op)
	if do == Pause && r.ok() {
		b.mu.Lock()
		one.pauses = append(one.pauses, key)
		b.mu.Unlock()
	}
}

type boxBody struct{ ID, Status string }

func (b *boxWork) read(ctx context.Context, c *client, id string) {
	header, stale := c.staleHeader()
	r := c.do(ctx, c.pick(), c.readPatience(), b.key, http.MethodGet, sandboxesPath+"?id="+url.QueryEscape(id), nil, header...)
	op := c.op(Sandbox, id, Read, r)
	op.Stale = stale
	var got []*boxBody
	switch {
	case !r.ok():
		op.Outcome = Nothing
	case json.Unmarshal(r.Body, &got) != nil || len(got) != 1:
		op.Outcome, op.Error = Unknown, fmt.Sprintf("not a list of one: %s", r.Body)
	case got[0] != nil:
		op.Out = Value{There: true, A: got[0].Status}
	}
	c.rec.Add(op)
}

func (b *boxWork) list(ctx context.Context, c *client) {
	b.mu.Lock()
	var ids []string
	for _, one := range b.live {
		ids = append(ids, one.id)
	}
	b.mu.Unlock()
	header, stale := c.staleHeader()
	r := c.do(ctx, c.pick(), c.readPatience(), b.key, http.MethodGet, sandboxesPath+"/search?limit=100", nil, header...)
	var page struct{ Items []boxBody }
	if !r.ok() || json.Unmarshal(r.Body, &page) != nil {
		return
	}
	for _, id := range ids {
		op := c.op(Sandbox, id, Read, r)
		op.Stale = stale
		if i := slices.IndexFunc(page.Items, func(x boxBody) bool { return x.ID == id }); i >= 0 {
			op.Out = Value{There: true, A: page.Items[i].Status}
		}
		c.rec.Add(op)
	}
}
