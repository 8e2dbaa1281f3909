package workload

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"
)

// once sends each POST with the same Idempotency-Key to every node at once, until each node has
// responded, and records what must exist afterwards.
type once struct {
	work *Recorded

	mu    sync.Mutex
	ready bool
	account
	sandbox string
	// v0 is the user of V0 starts, which have one sandbox each.
	v0 account
	// kept lists the ids that were created and not deleted, by collection.
	kept map[string][]string
	// requests counts requests, answers their responses.
	requests, answers int
	wrong             []string
}

// The collections that once counts.
const (
	collectionKeys      = "keys"
	collectionSandboxes = "sandboxes"
	collectionTasks     = "start tasks"
	collectionV0        = "V0 start tasks"
	// collectionNone is for requests that create nothing: only their responses count.
	collectionNone = ""
)

// post is one kind of request.
type post struct {
	collection string
	key, path  string
	body       any
}

// prepare makes the user and the sandbox of all start tasks.
func (o *once) prepare(ctx context.Context, c *client) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ready {
		return true
	}
	user, key, ok := o.work.user(ctx, c, "once")
	v0User, v0Key, okToo := o.work.user(ctx, c, "once")
	if !ok || !okToo {
		return false
	}
	o.account, o.v0, o.kept = account{user, key}, account{v0User, v0Key}, map[string][]string{}
	r, ok := c.sure(ctx, key, http.MethodPost, sandboxesPath, nil, "once-sandbox")
	var made struct{ ID string }
	if !ok || json.Unmarshal(r.Body, &made) != nil {
		return false
	}
	settings := map[string]string{"llm_model": "bedrock/once"}
	if _, ok := c.sure(ctx, v0Key, http.MethodPost, "/api/settings", settings, "once-settings"); !ok {
		return false
	}
	o.sandbox, o.ready = made.ID, true
	o.kept[collectionSandboxes] = []string{made.ID}
	return true
}

// run sends one request after the other, each to all nodes at once.
func (o *once) run(ctx context.Context, c *client) {
	if !o.prepare(ctx, c) {
		return
	}
	var hands []*client
	for i := range c.nodes {
		h := o.work.client()
		h.home = i
		hands = append(hands, h)
	}
	for i := 0; ctx.Err() == nil; i++ {
		name := o.work.name("once")
		p := o.choose(c, i, name)
		o.make(ctx, c, p, name, hands)
		c.pause(ctx, 50*time.Millisecond, 500*time.Millisecond)
	}
	for _, h := range hands {
		h.http.CloseIdleConnections()
	}
}

// choose rotates through the kinds; expensive ones are rare.
func (o *once) choose(c *client, turn int, name string) post {
	if turn%25 == 24 {
		return post{collectionV0, o.v0.key, "/api/conversations", map[string]any{"initial_user_msg": name}}
	}
	switch turn % 5 {
	case 0:
		return post{collectionTasks, o.key, conversationsPath, map[string]any{"sandbox_id": o.sandbox, "title": name}}
	case 1:
		return post{collectionSandboxes, o.key, sandboxesPath, nil}
	case 2:
		tokens := map[string]any{"github": map[string]string{"token": name}}
		return post{collectionNone, o.key, "/api/add-git-providers", map[string]any{"provider_tokens": tokens}}
	case 3:
		return post{collectionNone, o.key, sandboxesPath + "/" + o.sandbox + "/resume", nil}
	default:
		return post{collectionKeys, o.work.operator, pathKeys, map[string]string{"user": o.user, "name": name}}
	}
}

// make sends the request to every node at the same time until each responds, and compares the
// responses. The result is counted only when every outcome is known.
func (o *once) make(ctx context.Context, c *client, p post, name string, hands []*client) {
	replies := make([]reply, len(hands))
	var sending sync.WaitGroup
	for i, h := range hands {
		sending.Go(func() {
			for range 2 { // once more after the first response
				if r, ok := h.sure(ctx, p.key, http.MethodPost, p.path, p.body, name); ok || r.Status != 0 {
					replies[i] = r
				}
			}
		})
	}
	sending.Wait()
	got := slices.DeleteFunc(replies, func(r reply) bool { return r.Status == 0 })
	if len(got) == 0 {
		// The outcome is unknown: retry until it is known.
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), surePatience)
		defer cancel()
		r, _ := c.sure(bounded, p.key, http.MethodPost, p.path, p.body, name)
		got = []reply{r}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.requests++
	o.answers += 2 * len(got)
	for _, r := range got {
		if !r.ok() && madeBefore(p, r) == "" {
			o.wrong = append(o.wrong, fmt.Sprintf("POST %s with the key %s: %s answers %q", p.path, name, r.Node, r.Error))
			return
		}
		if p.collection != collectionKeys && !bytes.Equal(r.Body, got[0].Body) || madeBefore(p, r) != madeBefore(p, got[0]) {
			o.wrong = append(o.wrong,
				fmt.Sprintf("POST %s with the key %s: %s answers %s, %s answers %s", p.path, name, got[0].Node, got[0].Body,
					r.Node, r.Body))
		}
	}
	if p.collection == collectionNone {
		return
	}
	var made struct {
		ID   json.RawMessage
		Talk json.RawMessage `json:"conversation_id"`
	}
	if err := json.Unmarshal(got[0].Body, &made); err != nil {
		o.wrong = append(o.wrong, fmt.Sprintf("POST %s: %v: %s", p.path, err, got[0].Body))
		return
	}
	id := string(bytes.Trim(made.ID, `"`))
	if p.collection == collectionKeys {
		id = madeBefore(p, got[0])
	}
	if p.collection == collectionV0 {
		id = string(bytes.Trim(made.Talk, `"`))
	}
	if p.collection == collectionSandboxes && c.rand.IntN(8) > 0 && o.remove(ctx, c, id) {
		return
	}
	o.kept[p.collection] = append(o.kept[p.collection], id)
}

// pathKeys is where operators make and list API keys.
const pathKeys = "/api/v1/operator/keys"

// madeBefore returns the id of the API key that a reply is about, "" for another collection. The
// value of a key is in the first reply only: a repeated request is a conflict that names the key.
func madeBefore(p post, r reply) string {
	if p.collection != collectionKeys {
		return ""
	}
	var body struct {
		ID     int
		Detail string
	}
	if json.Unmarshal(r.Body, &body) != nil {
		return ""
	}
	if r.Status == http.StatusConflict {
		if _, err := fmt.Sscanf(body.Detail, "the key %d was made", &body.ID); err != nil {
			return ""
		}
	}
	return fmt.Sprint(body.ID)
}

// remove deletes a sandbox. It returns false if the outcome is unknown.
func (o *once) remove(ctx context.Context, c *client, id string) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), surePatience)
	defer cancel()
	for try := 0; ctx.Err() == nil; try++ {
		r := c.do(ctx, (c.home+try)%len(c.nodes), 6*time.Second, o.key, http.MethodDelete, sandboxesPath+"/"+id, nil)
		if r.ok() || r.Status == http.StatusNotFound {
			return true
		}
		c.pause(ctx, 20*time.Millisecond, 200*time.Millisecond)
	}
	return false
}

// OnceVerdict is the result of the repeated requests.
type OnceVerdict struct {
	// Requests is the number of distinct requests, Answers the number of their successful
	// responses.
	Requests, Answers int
	// Counts holds the number of existing objects by collection.
	Counts map[string]int
	Wrong  []string
}

// Once compares the existing objects with the requested ones. Call it after the nemesis, when
// the nodes serve.
func (w *Recorded) Once(ctx context.Context) OnceVerdict {
	o, c := w.once, w.client()
	defer c.http.CloseIdleConnections()
	o.mu.Lock()
	defer o.mu.Unlock()
	v := OnceVerdict{Requests: o.requests, Answers: o.answers, Counts: map[string]int{}, Wrong: slices.Clone(o.wrong)}
	if !o.ready {
		v.Wrong = append(v.Wrong, "nothing was asked for")
		return v
	}
	for collection, list := range map[string]func(context.Context, *client) ([]string, error){
		collectionKeys: o.listKeys, collectionSandboxes: o.listSandboxes, collectionTasks: o.listTasks,
		collectionV0: func(ctx context.Context, c *client) ([]string, error) {
			return o.ids(ctx, c, o.v0.key, startTasksPath)
		},
	} {
		found, err := list(ctx, c)
		if err != nil {
			v.Wrong = append(v.Wrong, fmt.Sprintf("listing the %s: %v", collection, err))
			continue
		}
		v.Counts[collection] = len(found)
		want := slices.Clone(o.kept[collection])
		if collection == collectionV0 { // these responses lack the tasks' ids
			if len(found) != len(want) {
				v.Wrong = append(v.Wrong, fmt.Sprintf("%s: %d were asked for and %d are there", collection, len(want), len(found)))
			}
			continue
		}
		slices.Sort(found)
		slices.Sort(want)
		if !slices.Equal(found, want) {
			v.Wrong = append(v.Wrong, fmt.Sprintf("%s: %d were asked for and %d are there; too many: %v, missing: %v",
				collection, len(want), len(found), without(found, want), without(want, found)))
		}
	}
	return v
}

func without(list, other []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(other, s) })
}

// pages reads all items of a collection.
func (o *once) pages(ctx context.Context, c *client, key, path string, each func(raw json.RawMessage) error) error {
	next := ""
	for {
		query := "?limit=100"
		if next != "" {
			query += "&page_id=" + url.QueryEscape(next)
		}
		r := c.do(ctx, c.home, 10*time.Second, key, http.MethodGet, path+query, nil)
		if !r.ok() {
			return fmt.Errorf("%s", r.Error)
		}
		var page struct {
			Items []json.RawMessage
			Next  *string `json:"next_page_id"`
		}
		if err := json.Unmarshal(r.Body, &page); err != nil {
			return err
		}
		for _, raw := range page.Items {
			if err := each(raw); err != nil {
				return err
			}
		}
		if next = deref(page.Next); next == "" {
			return nil
		}
	}
}

func (o *once) listKeys(ctx context.Context, c *client) (ids []string, err error) {
	err = o.pages(ctx, c, o.work.operator, pathKeys, func(raw json.RawMessage) error {
		var k struct {
			ID         int
			User, Name string
		}
		err := json.Unmarshal(raw, &k)
		if k.User == o.user && k.Name != "drill" {
			ids = append(ids, fmt.Sprint(k.ID))
		}
		return err
	})
	return ids, err
}

func (o *once) listSandboxes(ctx context.Context, c *client) ([]string, error) {
	return o.ids(ctx, c, o.key, sandboxesPath+"/search")
}

func (o *once) listTasks(ctx context.Context, c *client) ([]string, error) {
	return o.ids(ctx, c, o.key, startTasksPath)
}

const startTasksPath = conversationsPath + "/start-tasks/search"

// ids lists the ids of a user's collection.
func (o *once) ids(ctx context.Context, c *client, key, path string) (ids []string, err error) {
	err = o.pages(ctx, c, key, path, func(raw json.RawMessage) error {
		var one struct{ ID string }
		err := json.Unmarshal(raw, &one)
		ids = append(ids, one.ID)
		return err
	})
	return ids, err
}
