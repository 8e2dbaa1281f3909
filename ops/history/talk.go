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

const conversationsPath = "/api/v1/app-conversations"

// liveTalks are worked on at the same time; each ends after talkOps requests.
const (
	liveTalks = 4
	talkOps   = 80
)

// talkWork starts, renames, lists and deletes conversations of one user, all in
// one sandbox.
type talkWork struct {
	work *Work
	mu   sync.Mutex
	account
	sandbox string
	live    []*talk
}

// talk is one conversation that is worked on.
type talk struct {
	id      string
	used    int
	deleted bool
}

// prepare makes the user, its sandbox and a conversation that stays: with its
// last conversation a sandbox goes.
func (t *talkWork) prepare(ctx context.Context, c *client) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sandbox != "" {
		return true
	}
	user, key, ok := t.work.user(ctx, c, "talk")
	if !ok {
		return false
	}
	t.account = account{user, key}
	r, ok := c.sure(ctx, key, http.MethodPost, "/api/v1/sandboxes", nil, "talk-sandbox")
	var made struct{ ID string }
	if !ok || json.Unmarshal(r.Body, &made) != nil {
		return false
	}
	for ctx.Err() == nil {
		if _, ok := t.start(ctx, c, made.ID, t.work.name("anchor")); ok {
			t.sandbox = made.ID
			return true
		}
	}
	return false
}

// start starts one conversation and waits until it can be seen; the id is the
// conversation's.
func (t *talkWork) start(ctx context.Context, c *client, sandbox, title string) (id string, ok bool) {
	r, ok := c.sure(ctx, t.key, http.MethodPost, conversationsPath, map[string]any{"sandbox_id": sandbox, "title": title}, title)
	var task struct {
		ID     string
		Status string
		Talk   *string `json:"app_conversation_id"`
	}
	if !ok || json.Unmarshal(r.Body, &task) != nil {
		return "", false
	}
	begun := r.Call
	for ctx.Err() == nil {
		c.pause(ctx, 50*time.Millisecond, 150*time.Millisecond)
		r := c.do(ctx, c.pick(), c.readPatience(), t.key, http.MethodGet, conversationsPath+"/start-tasks?ids="+task.ID, nil)
		list := []*struct {
			ID     string
			Status string
			Talk   *string `json:"app_conversation_id"`
		}{}
		if !r.ok() || json.Unmarshal(r.Body, &list) != nil || len(list) != 1 || list[0] == nil {
			continue
		}
		switch list[0].Status {
		case "READY":
			r.Call = begun
			op := c.op(Conversation, deref(list[0].Talk), Create, r)
			op.In, op.Out = Value{There: true, A: title}, Value{There: true, A: title}
			c.rec.Add(op)
			return op.Key, true
		case "ERROR": // a sandbox that failed in the turmoil is tried again
			c.do(ctx, c.pick(), c.writePatience(), t.key, http.MethodPost, "/api/v1/sandboxes/"+sandbox+"/resume", nil)
			return "", false
		}
	}
	return "", false
}

// renew keeps up the number of conversations.
func (t *talkWork) renew(ctx context.Context, c *client) {
	if !t.prepare(ctx, c) {
		return
	}
	for ctx.Err() == nil {
		t.mu.Lock()
		t.live = slices.DeleteFunc(t.live, func(one *talk) bool { return one.used > talkOps && one.deleted })
		full := len(t.live) >= liveTalks
		t.mu.Unlock()
		if !full {
			if id, ok := t.start(ctx, c, t.sandbox, t.work.name("title")); ok {
				t.mu.Lock()
				t.live = append(t.live, &talk{id: id})
				t.mu.Unlock()
			}
		}
		c.pause(ctx, 100*time.Millisecond, 300*time.Millisecond)
	}
}

func (t *talkWork) pick(c *client) (id string, end bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.live) == 0 {
		return "", false
	}
	one := t.live[c.rand.IntN(len(t.live))]
	one.used++
	// The last tenth of its requests finds it gone.
	end = one.used > talkOps*9/10 && c.rand.IntN(4) == 0
	one.deleted = one.deleted || end
	return one.id, end
}

func (t *talkWork) run(ctx context.Context, c *client) {
	for ctx.Err() == nil {
		c.pause(ctx, 20*time.Millisecond, 120*time.Millisecond)
		id, end := t.pick(c)
		switch {
		case id == "":
		case end:
			t.change(ctx, c, id, Delete)
		case c.rand.IntN(4) == 0:
			t.change(ctx, c, id, Rename)
		case c.rand.IntN(3) == 0:
			t.list(ctx, c)
		default:
			t.read(ctx, c, id)
		}
	}
}

// change renames a conversation, or deletes it.
func (t *talkWork) change(ctx context.Context, c *client, id, do string) {
	method, in, body := http.MethodDelete, Value{}, map[string]any(nil)
	if do == Rename {
		method, in = http.MethodPatch, Value{There: true, A: t.work.name("title")}
		body = map[string]any{"title": in.A}
	}
	r := c.do(ctx, c.pick(), c.writePatience(), t.key, method, conversationsPath+"/"+id, body)
	op := c.op(Conversation, id, do, r)
	op.In = in
	if r.ok() {
		op.Out = Value{There: true}
		var got struct{ Title *string }
		if do == Rename && json.Unmarshal(r.Body, &got) == nil {
			op.Out.A = deref(got.Title)
		}
	}
	c.rec.Add(op)
}

type talkBody struct {
	ID    string
	Title *string
}

func (t *talkWork) read(ctx context.Context, c *client, id string) {
	header, stale := c.staleHeader()
	r := c.do(ctx, c.pick(), c.readPatience(), t.key, http.MethodGet, conversationsPath+"?ids="+url.QueryEscape(id), nil, header...)
	op := c.op(Conversation, id, Read, r)
	op.Stale = stale
	var got []*talkBody
	switch {
	case !r.ok():
		op.Outcome = Nothing
	case json.Unmarshal(r.Body, &got) != nil || len(got) != 1:
		op.Outcome, op.Error = Unknown, fmt.Sprintf("not a list of one: %s", r.Body)
	case got[0] != nil:
		op.Out = Value{There: true, A: deref(got[0].Title)}
	}
	c.rec.Add(op)
}

// list reads the whole list: that is a read of every conversation at once.
func (t *talkWork) list(ctx context.Context, c *client) {
	t.mu.Lock()
	var ids []string
	for _, one := range t.live {
		ids = append(ids, one.id)
	}
	t.mu.Unlock()
	header, stale := c.staleHeader()
	r := c.do(ctx, c.pick(), c.readPatience(), t.key, http.MethodGet, conversationsPath+"/search?limit=100", nil, header...)
	var page struct{ Items []talkBody }
	if !r.ok() || json.Unmarshal(r.Body, &page) != nil {
		return
	}
	for _, id := range ids {
		op := c.op(Conversation, id, Read, r)
		op.Stale = stale
		if i := slices.IndexFunc(page.Items, func(b talkBody) bool { return b.ID == id }); i >= 0 {
			op.Out = Value{There: true, A: deref(page.Items[i].Title)}
		}
		c.rec.Add(op)
	}
}
