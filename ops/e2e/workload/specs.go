package workload

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"bivouac.dev/bivouac/ops/e2e/lincheck"
)

const (
	specsPath = "/api/v1/operator/specs"
	// specLife is how long a set of specs is in use.
	specLife = 8 * time.Second
	// specMember is the environment variable in a spec that identifies the writer.
	specMember = "DRILL"
)

// specWork applies sets of specs, completely and in part, and lists them. No read may show a
// part of one request's changes.
type specWork struct {
	work *Recorded

	mu sync.Mutex
	// template is the base of all specs; live is the current set.
	template map[string]any
	live     []string
}

// specRow is the part of a spec that is checked.
type specRow struct {
	ID       string         `json:"id"`
	Template map[string]any `json:"template"`
}

// renew replaces the set of specs and removes unused ones.
func (s *specWork) renew(ctx context.Context, c *client) {
	var before []string
	for ctx.Err() == nil {
		s.mu.Lock()
		ready := s.template != nil
		s.mu.Unlock()
		if !ready {
			s.learn(ctx, c)
			c.pause(ctx, 100*time.Millisecond, 300*time.Millisecond)
			continue
		}
		name := s.work.name("nemesis-drill-spec")
		next := []string{name + "-a", name + "-b", name + "-c"}
		s.mu.Lock()
		unused := before
		before, s.live = s.live, next
		s.mu.Unlock()
		for _, id := range unused { // no request for them is in progress
			c.do(ctx, c.pick(), c.writePatience(), s.work.operator, http.MethodDelete, specsPath+"/"+id, nil)
		}
		c.pause(ctx, specLife, specLife+time.Second)
	}
}

// learn uses the first existing spec as the template.
func (s *specWork) learn(ctx context.Context, c *client) {
	r := c.do(ctx, c.pick(), c.readPatience(), s.work.operator, http.MethodGet, specsPath, nil)
	var list struct{ Items []specRow }
	if r.ok() && json.Unmarshal(r.Body, &list) == nil && len(list.Items) > 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.template = list.Items[0].Template
	}
}

func (s *specWork) step(ctx context.Context, c *client) {
	c.pause(ctx, 30*time.Millisecond, 150*time.Millisecond)
	s.mu.Lock()
	live, template := s.live, s.template
	s.mu.Unlock()
	switch {
	case live == nil:
	case c.rand.IntN(3) == 0:
		s.apply(ctx, c, live, template)
	default:
		s.list(ctx, c, live)
	}
}

// specSet names a set by its first spec.
func specSet(ids []string) string { return ids[0] }

// apply writes a part of the set, or all of it, in one request.
func (s *specWork) apply(ctx context.Context, c *client, ids []string, template map[string]any) {
	in := lincheck.Value{There: true, A: s.work.name("spec")}
	own := maps.Clone(template)
	own["env"] = map[string]string{specMember: in.A}
	some := slices.Clone(ids)
	c.rand.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
	var rows []specRow
	var items []lincheck.Item
	for _, id := range some[:1+c.rand.IntN(len(some))] {
		rows, items = append(rows, specRow{id, own}), append(items, lincheck.Item{ID: id, Value: in.A})
	}
	body := map[string]any{"specs": rows}
	var header []string
	keyed := c.rand.IntN(2) == 0
	if keyed {
		header = []string{"Idempotency-Key", in.A}
	}
	r := c.do(ctx, c.pick(), c.writePatience(), s.work.operator, http.MethodPost, specsPath, body, header...)
	op := c.op(lincheck.Spec, "", lincheck.Put, r)
	op.Of, op.In, op.Items = specSet(ids), in, items
	c.rec.Add(op)
	if keyed && r.ok() && c.rand.IntN(3) == 0 {
		c.pause(ctx, 0, 300*time.Millisecond)
		// Other clients have applied theirs meanwhile: the replay must not undo that.
		again := c.do(ctx, c.rand.IntN(len(c.nodes)), c.writePatience(), s.work.operator, http.MethodPost, specsPath, body,
			header...)
		op := c.op(lincheck.Spec, "", lincheck.Replay, again)
		op.Of = specSet(ids)
		c.rec.Add(op)
	}
}

// list reads all specs and records the set's.
func (s *specWork) list(ctx context.Context, c *client, ids []string) {
	header, stale := c.staleHeader()
	r := c.do(ctx, c.pick(), c.readPatience(), s.work.operator, http.MethodGet, specsPath, nil, header...)
	var list struct{ Items []specRow }
	if !r.ok() || json.Unmarshal(r.Body, &list) != nil {
		return
	}
	op := c.op(lincheck.Spec, "", lincheck.List, r)
	op.Of, op.Stale = specSet(ids), stale
	for _, row := range list.Items {
		if slices.Contains(ids, row.ID) {
			env, _ := row.Template["env"].(map[string]any)
			op.Items = append(op.Items, lincheck.Item{ID: row.ID, Value: fmt.Sprint(env[specMember])})
		}
	}
	slices.SortFunc(op.Items, lincheck.ListedBefore)
	c.rec.Add(op)
}
