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

const conversationsPath = "/api/v1/app-conversations"

// liveConversations conversations are in use at a time; each ends after conversationOps requests.
// After conversationsOfUser conversations a new user begins: a user's conversations are checked
// together, and no history should grow long.
const (
	liveConversations   = 4
	conversationOps     = 80
	conversationsOfUser = 8
)

// conversationWork starts, renames, lists and deletes conversations of one user after the other. A
// user's conversations share one sandbox.
type conversationWork struct {
	work *Recorded
	// preparing is held while the next user is created.
	preparing sync.Mutex
	mu        sync.Mutex
	now       *talker
	past      []*talker
	live      []*conversation
}

// talker is a user with one conversation that stays: deleting the last one deletes the sandbox.
type talker struct {
	account
	sandbox, anchor string
	started         int
}

// conversation is one conversation in use.
type conversation struct {
	of      *talker
	id      string
	used    int
	deleted bool
}

// talker returns the user of the next conversation.
func (t *conversationWork) talker(ctx context.Context, c *client) (*talker, bool) {
	t.preparing.Lock()
	defer t.preparing.Unlock()
	t.mu.Lock()
	now := t.now
	if now != nil && now.started < conversationsOfUser {
		now.started++
		t.mu.Unlock()
		return now, true
	}
	t.mu.Unlock()
	user, key, ok := t.work.user(ctx, c, "talk")
	if !ok {
		return nil, false
	}
	next := &talker{account: account{user, key}, started: 1}
	r, ok := c.sure(ctx, key, http.MethodPost, sandboxesPath, nil, "sandbox-"+user)
	var made struct{ ID string }
	if !ok || json.Unmarshal(r.Body, &made) != nil {
		return nil, false
	}
	next.sandbox = made.ID
	for ctx.Err() == nil && next.anchor == "" {
		next.anchor, _ = t.start(ctx, c, next, t.work.name("anchor"))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if now != nil {
		t.past = append(t.past, now)
	}
	t.now = next
	return next, next.anchor != ""
}

// start starts one conversation and waits until it is visible. id is the conversation's.
func (t *conversationWork) start(ctx context.Context, c *client, of *talker, title string) (id string, ok bool) {
	begun := c.rec.Now()
	record := func(id string, r reply) {
		r.Call = begun
		op := c.op(lincheck.Conversation, id, lincheck.Create, r)
		op.Of, op.In = of.user, lincheck.Value{There: true, A: title}
		if r.Outcome == lincheck.Done {
			op.Out = op.In
		}
		c.rec.Add(op)
	}
	unknown := func() (string, bool) {
		record("", reply{Outcome: lincheck.Unknown, Return: c.rec.Now()})
		return "", false
	}
	r, ok := c.sure(ctx, of.key, http.MethodPost, conversationsPath,
		map[string]any{"sandbox_id": of.sandbox, "title": title}, title)
	type task struct {
		ID     string
		Status string
		Talk   *string `json:"app_conversation_id"`
	}
	var made task
	if !ok || json.Unmarshal(r.Body, &made) != nil {
		return unknown()
	}
	for ctx.Err() == nil {
		c.pause(ctx, 50*time.Millisecond, 150*time.Millisecond)
		r := c.do(ctx, c.pick(), c.readPatience(), of.key, http.MethodGet, conversationsPath+"/start-tasks?ids="+made.ID, nil)
		var list []*task
		if !r.ok() || json.Unmarshal(r.Body, &list) != nil || len(list) != 1 || list[0] == nil {
			continue
		}
		switch list[0].Status {
		case "READY":
			id := deref(list[0].Talk)
			record(id, r)
			return id, true
		case "ERROR": // no conversation: its sandbox failed, try again
			c.do(ctx, c.pick(), c.writePatience(), of.key, http.MethodPost, sandboxesPath+"/"+of.sandbox+"/resume", nil)
			return "", false
		}
	}
	return unknown()
}

// renew keeps the number of conversations constant and the users small.
func (t *conversationWork) renew(ctx context.Context, c *client) {
	for ctx.Err() == nil {
		t.mu.Lock()
		t.live = slices.DeleteFunc(t.live, func(one *conversation) bool { return one.used > conversationOps && one.deleted })
		full := len(t.live) >= liveConversations
		t.mu.Unlock()
		if !full {
			if of, ok := t.talker(ctx, c); ok {
				t.begin(ctx, c, of)
			}
		}
		if of := t.finished(); of != nil {
			t.change(ctx, c, of, of.anchor, lincheck.Delete)
			t.list(ctx, c, of)
		}
		c.pause(ctx, 100*time.Millisecond, 300*time.Millisecond)
	}
}

// begin starts one conversation for use.
func (t *conversationWork) begin(ctx context.Context, c *client, of *talker) {
	if id, ok := t.start(ctx, c, of, t.work.name("title")); ok {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.live = append(t.live, &conversation{of: of, id: id})
	}
}

// finished removes and returns a former user whose conversations have all ended.
func (t *conversationWork) finished() *talker {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, of := range t.past {
		if !slices.ContainsFunc(t.live, func(one *conversation) bool { return one.of == of }) {
			t.past = slices.Delete(t.past, i, i+1)
			return of
		}
	}
	return nil
}

func (t *conversationWork) pick(c *client) (of *talker, id string, end bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.live) == 0 {
		return nil, "", false
	}
	one := t.live[c.rand.IntN(len(t.live))]
	one.used++
	// It is deleted among the last tenth of its requests; the rest find it gone.
	end = one.used > conversationOps*9/10 && c.rand.IntN(4) == 0
	one.deleted = one.deleted || end
	return one.of, one.id, end
}

func (t *conversationWork) step(ctx context.Context, c *client) {
	c.pause(ctx, 20*time.Millisecond, 120*time.Millisecond)
	of, id, end := t.pick(c)
	switch {
	case of == nil:
	case end:
		t.change(ctx, c, of, id, lincheck.Delete)
	case c.rand.IntN(4) == 0:
		t.change(ctx, c, of, id, lincheck.Rename)
	case c.rand.IntN(3) == 0:
		t.list(ctx, c, of)
	default:
		t.read(ctx, c, of, id)
	}
}

// change renames a conversation, or deletes it.
func (t *conversationWork) change(ctx context.Context, c *client, of *talker, id, do string) {
	method, in, body := http.MethodDelete, lincheck.Value{}, map[string]any(nil)
	if do == lincheck.Rename {
		method, in = http.MethodPatch, lincheck.Value{There: true, A: t.work.name("title")}
		body = map[string]any{"title": in.A}
	}
	r := c.do(ctx, c.pick(), c.writePatience(), of.key, method, conversationsPath+"/"+id, body)
	op := c.op(lincheck.Conversation, id, do, r)
	op.Of, op.In = of.user, in
	if r.ok() {
		op.Out = lincheck.Value{There: true}
		var got struct{ Title *string }
		if do == lincheck.Rename && json.Unmarshal(r.Body, &got) == nil {
			op.Out.A = deref(got.Title)
		}
	}
	c.rec.Add(op)
}

type conversationBody struct {
	ID    string
	Title *string
	Born  time.Time `json:"created_at"`
}

func (t *conversationWork) read(ctx context.Context, c *client, of *talker, id string) {
	header, stale := c.staleHeader()
	r := c.do(ctx, c.pick(), c.readPatience(), of.key, http.MethodGet, conversationsPath+"?ids="+url.QueryEscape(id),
		nil, header...)
	op := c.op(lincheck.Conversation, id, lincheck.Read, r)
	op.Of, op.Stale = of.user, stale
	var got []*conversationBody
	switch {
	case !r.ok():
		op.Outcome = lincheck.Nothing
	case json.Unmarshal(r.Body, &got) != nil || len(got) != 1:
		op.Outcome, op.Error = lincheck.Unknown, fmt.Sprintf("not a list of one: %s", r.Body)
	case got[0] != nil:
		op.Out = lincheck.Value{There: true, A: deref(got[0].Title)}
	}
	c.rec.Add(op)
}

// maxPages bounds a walk, because conversations change meanwhile.
const maxPages = 6

// list reads the user's whole list, or walks through it in short pages.
func (t *conversationWork) list(ctx context.Context, c *client, of *talker) {
	header, stale := c.staleHeader()
	limit, token, after := 100, "", ""
	if c.rand.IntN(3) == 0 {
		limit = 2
	}
	for range maxPages {
		path := fmt.Sprintf("%s/search?limit=%d&page_id=%s", conversationsPath, limit, url.QueryEscape(token))
		r := c.do(ctx, c.pick(), c.readPatience(), of.key, http.MethodGet, path, nil, header...)
		var page struct {
			Items []conversationBody
			Next  *string `json:"next_page_id"`
		}
		if !r.ok() || json.Unmarshal(r.Body, &page) != nil {
			return
		}
		token = deref(page.Next)
		op := c.op(lincheck.Conversation, "", lincheck.List, r)
		op.Of, op.Stale, op.Page = of.user, stale, lincheck.Page{After: after, Limit: limit, More: token != ""}
		for _, b := range page.Items {
			op.Items = append(op.Items, lincheck.Item{ID: b.ID, Value: deref(b.Title), Born: b.Born})
			after = b.ID
		}
		c.rec.Add(op)
		if token == "" {
			return
		}
	}
}
