package bash

import (
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/wire"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/scheduler/agent"
)

const (
	kindCommand = "BashCommand"
	kindOutput  = "BashOutput"
)

// wakeup wakes goroutines that wait for something new. The zero value is ready; wake on nil does
// nothing.
type wakeup struct {
	mu sync.Mutex
	ch chan struct{}
}

// wait returns a channel that the next wake closes.
func (w *wakeup) wait() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ch == nil {
		w.ch = make(chan struct{})
	}
	return w.ch
}

func (w *wakeup) wake() {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ch != nil {
		close(w.ch)
		w.ch = nil
	}
}

// entry is a BashCommand or a BashOutput, with the members that a search compares.
type entry struct {
	id, kind, time, command string
	order                   int
	body                    any
}

// events seals the open output and returns a command's events: the BashCommand, if this process
// started the command, and the outputs. skip drops as many from the front, the BashCommand counted.
func (c *command) events(skip int) []entry {
	var out []entry
	if skip == 0 && c.info.Kind != "" {
		out = append(out, entry{id: c.info.ID, kind: kindCommand, time: c.info.Timestamp, body: c.info})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.finished {
		c.seal(false)
	}
	for _, e := range c.outputs[min(max(0, skip-1), len(c.outputs)):] {
		out = append(out,
			entry{id: e.ID, kind: kindOutput, time: e.Timestamp, command: e.CommandID, order: e.Order, body: e})
	}
	return out
}

// list returns the commands in memory, oldest first.
func (b *Runner) list() []*command {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]*command, 0, len(b.order))
	for _, id := range b.order {
		out = append(out, b.commands[id])
	}
	return out
}

// clear drops the finished commands with their output and returns how many events it dropped.
func (b *Runner) clear() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, gone := 0, map[string]bool{}
	b.order = slices.DeleteFunc(b.order, func(id string) bool {
		c := b.commands[id]
		c.mu.Lock()
		finished := c.finished
		c.mu.Unlock()
		if finished {
			n += len(c.events(0))
			gone[id] = true
			delete(b.commands, id)
		}
		return finished
	})
	if len(gone) > 0 {
		b.ids.forget(gone)
	}
	return n
}

// filter is the query of a search.
type filter struct {
	kind, command string
	from, before  string
	after         int
	descending    bool
}

func readFilter(w http.ResponseWriter, q url.Values) (filter, bool) {
	var problems decode.Problems
	query := decode.Query{Values: q, Problems: &problems}
	f := filter{kind: q.Get("kind__eq"), after: -1}
	if kinds := []string{kindCommand, kindOutput}; f.kind != "" && !slices.Contains(kinds, f.kind) {
		problems.List = append(problems.List, decode.NotOneOf(kinds).At(f.kind, "query", "kind__eq"))
	}
	if id := q.Get("command_id__eq"); id != "" {
		uuid, fault := decode.ToUUID(id)
		if fault != nil {
			problems.List = append(problems.List, fault.At(id, "query", "command_id__eq"))
		}
		f.command = uuid
	}
	if q.Get("order__gt") != "" {
		f.after = int(query.Integer("order__gt", -1, math.MinInt32, math.MaxInt32))
	}
	orders := []string{"TIMESTAMP", "TIMESTAMP_DESC"}
	if order := q.Get("sort_order"); order != "" && !slices.Contains(orders, order) {
		problems.List = append(problems.List, decode.NotOneOf(orders).At(order, "query", "sort_order"))
	}
	f.descending = q.Get("sort_order") == orders[1]
	for _, bound := range []struct {
		name string
		to   *string
	}{{"timestamp__gte", &f.from}, {"timestamp__lt", &f.before}} {
		if text := q.Get(bound.name); text != "" {
			at, fault := decode.ToTime(text)
			if fault != nil {
				problems.List = append(problems.List, fault.At(text, "query", bound.name))
				continue
			}
			*bound.to = at.UTC().Format(timeFormat)
		}
	}
	if problems.Err() != nil {
		wire.WriteInvalid(w, problems.List)
		return f, false
	}
	return f, true
}

func (f filter) fits(e entry) bool {
	return (f.kind == "" || e.kind == f.kind) && (f.command == "" || e.command == f.command) &&
		(e.kind != kindOutput || e.order > f.after) &&
		(f.from == "" || e.time >= f.from) && (f.before == "" || e.time < f.before)
}

// search returns the matching events in their order. command_id__eq matches the outputs of a
// command and not its BashCommand.
func (b *Runner) search(f filter) []entry {
	commands := b.list()
	if f.command != "" {
		commands = nil
		if c := b.get(f.command); c != nil {
			commands = []*command{c}
		}
	}
	var out []entry
	for _, c := range commands {
		for _, e := range c.events(0) {
			if f.fits(e) {
				out = append(out, e)
			}
		}
	}
	slices.SortStableFunc(out, func(x, y entry) int { return strings.Compare(x.time, y.time) })
	if f.descending {
		slices.Reverse(out)
	}
	return out
}

// HandleSearch handles GET /api/bash/bash_events/search.
func (b *Runner) HandleSearch(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	limit, ok := wire.ReadLimit(w, q)
	if !ok {
		return
	}
	f, ok := readFilter(w, q)
	if !ok {
		return
	}
	found := b.search(f)
	if token := q.Get("page_id"); token != "" {
		// An unknown token means the first page.
		found = found[max(0, slices.IndexFunc(found, func(e entry) bool { return e.id == token })):]
	}
	out := agent.Page[any]{Items: []any{}}
	for i, e := range found {
		if i == limit {
			out.NextPageID = &e.id
			break
		}
		out.Items = append(out.Items, e.body)
	}
	wire.WriteJSON(w, http.StatusOK, out)
}

// byID returns the events with the ids, nil for an unknown one.
func (b *Runner) byID(ids []string) []any {
	at := map[string][]int{}
	for i, id := range ids {
		if id, ok := decode.ParseUUID(id); ok {
			at[id] = append(at[id], i)
		}
	}
	out := make([]any, len(ids))
	for _, c := range b.list() {
		for _, e := range c.events(0) {
			for _, i := range at[e.id] {
				out[i] = e.body
			}
		}
	}
	return out
}

// HandleEventGet handles GET /api/bash/bash_events/{event}.
func (b *Runner) HandleEventGet(w http.ResponseWriter, r *http.Request) {
	e := b.byID([]string{r.PathValue("event")})[0]
	if e == nil {
		wire.WriteDetail(w, http.StatusNotFound, "Not Found")
		return
	}
	wire.WriteJSON(w, http.StatusOK, e)
}

// HandleEventBatch handles GET /api/bash/bash_events/. Its body is a JSON array of event ids.
func (b *Runner) HandleEventBatch(w http.ResponseWriter, r *http.Request) {
	if ids, ok := wire.ReadIDs(w, r); ok {
		wire.WriteJSON(w, http.StatusOK, b.byID(ids))
	}
}

// HandleEventsDelete handles DELETE /api/bash/bash_events. Events of running commands stay.
func (b *Runner) HandleEventsDelete(w http.ResponseWriter, _ *http.Request) {
	wire.WriteJSON(w, http.StatusOK, map[string]int{"cleared_count": b.clear()})
}
