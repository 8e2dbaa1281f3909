package llm

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

func newQueue(slots int) *queue {
	g := &Gateway{queues: map[string]*queue{}}
	q := g.queueOf("x")
	q.resize(int64(slots))
	return q
}

func has(w *waiter) bool {
	select {
	case <-w.granted:
		return true
	default:
		return false
	}
}

// TestQueue_EachUserHasATurn: a user who asks for much does not hold another one up, and each is
// served in the place that it was told.
func TestQueue_EachUserHasATurn(t *testing.T) {
	t.Parallel()
	q := newQueue(1)
	var all []*waiter
	for _, user := range []string{"ada", "ada", "ada", "ada", "bob", "bob", "eve"} {
		w := &waiter{user: user, granted: make(chan struct{})}
		if !q.join(w) {
			t.Fatal("refused")
		}
		all = append(all, w)
	}
	var places, order []string
	for _, w := range all {
		places = append(places, fmt.Sprint(q.place(w)))
	}
	if got := strings.Join(places, " "); got != "0 3 5 6 1 4 2" {
		t.Errorf("the places are %s", got)
	}
	for len(all) > 0 {
		i := slices.IndexFunc(all, has)
		if i < 0 || slices.ContainsFunc(all[i+1:], has) {
			t.Fatalf("after %v there is not one slot in use", order)
		}
		order = append(order, all[i].user)
		q.leave(all[i])
		all = slices.Delete(all, i, i+1)
	}
	if got := strings.Join(order, " "); got != "ada bob eve ada bob ada ada" {
		t.Errorf("served %s", got)
	}
	if q.all != 0 || len(q.turns.used)+len(q.turns.had)+len(q.waiting) != 0 {
		t.Errorf("left %+v", q)
	}
}

// TestQueue_ItsPlacesHoldNobodyUp: a queue is found while another one works in it, and the places
// are found once until they change.
func TestQueue_ItsPlacesHoldNobodyUp(t *testing.T) {
	t.Parallel()
	g := &Gateway{queues: map[string]*queue{}}
	q := g.queueOf("x")
	q.mu.Lock()
	found := make(chan *queue)
	go func() { found <- g.queueOf("x") }()
	select {
	case is := <-found:
		if is != q {
			t.Error("another queue")
		}
	case <-time.After(20 * time.Second):
		t.Error("the gateway waits for a queue")
	}
	q.mu.Unlock()
	first, second := &waiter{user: "ada"}, &waiter{user: "bob"}
	if !q.join(first) || q.place(first) != 1 {
		t.Fatal("the first request has no place")
	}
	const kept = 7
	q.places[first] = kept
	if got := q.place(first); got != kept {
		t.Errorf("the places are found again though nothing changed: %d", got)
	}
	if !q.join(second) || q.place(first) != 1 || q.place(second) != 2 {
		t.Errorf("after a second request: %v", q.places)
	}
	if q.leave(first); q.place(second) != 1 {
		t.Errorf("after the first left: %v", q.places)
	}
}

// TestQueue_IsBounded: a user has a part of it, and who gives up leaves.
func TestQueue_IsBounded(t *testing.T) {
	t.Parallel()
	q := newQueue(1)
	for n := range userQueue + 1 {
		if !q.join(&waiter{user: "ada", granted: make(chan struct{})}) {
			t.Fatalf("request %d is refused", n)
		}
	}
	told := 0
	_, err := q.enter(t.Context(), "ada", time.Hour, func(int) { told++ })
	var refused *refusal
	if !errors.As(err, &refused) || refused.reason != reasonBusy || told != 0 {
		t.Errorf("one more: %v, told %d times", err, told)
	}
	ctx, cancel := context.WithCancel(t.Context())
	place := 0
	_, err = q.enter(ctx, "bob", time.Hour, func(n int) { place = n; cancel() })
	if !errors.Is(err, context.Canceled) || place != 1 {
		t.Errorf("who gives up at place %d: %v", place, err)
	}
	if len(q.waiting) != userQueue {
		t.Errorf("%d wait", len(q.waiting))
	}
}

// TestQueue_WhoComesBackStandsBehindThoseWhoWait: users who ask again and again, one request at a
// time, hold up nobody who always has one waiting.
func TestQueue_WhoComesBackStandsBehindThoseWhoWait(t *testing.T) {
	t.Parallel()
	q := newQueue(1)
	var all []*waiter
	var order []string
	ask := func(user string) {
		w := &waiter{user: user, granted: make(chan struct{})}
		if !q.join(w) {
			t.Fatal("refused")
		}
		all = append(all, w)
	}
	for _, user := range []string{"ada", "bob", "eve", "ada"} {
		ask(user)
	}
	for range 9 {
		i := slices.IndexFunc(all, has)
		user := all[i].user
		order = append(order, user)
		q.leave(all[i])
		all = slices.Delete(all, i, i+1)
		ask(user)
	}
	if got := strings.Join(order, " "); got != "ada bob eve ada bob eve ada bob eve" {
		t.Errorf("served %s", got)
	}
}

// TestSlot_ThePlaceIsToldToWhoAsks, and to nobody where a proxy may take it for the answer.
func TestSlot_ThePlaceIsToldToWhoAsks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		asks, informs bool
		want          string
	}{
		"asks": {true, true, "[102]"}, "asks behind a proxy": {true, false, "[]"}, "asks not": {false, true, "[]"},
	} {
		g := &Gateway{
			cfg: DefaultConfig(), queues: map[string]*queue{}, metrics: newMetrics(prometheus.NewRegistry()),
			server: Server{Informs: func(*http.Request) bool { return c.informs }},
		}
		q := &request{operation: operation{generates: true}, gateway: g, grant: &grant{
			row:    &fsm.Sandbox{UserID: "ada"},
			policy: fsm.LLM{Servers: []fsm.ModelServer{{Host: "llm.example.org", Slots: 1}}},
		}}
		q.target.URL = &url.URL{Scheme: "https", Host: "llm.example.org"}
		g.queueOf("llm.example.org").all = 1 // another request has the slot
		r := httptest.NewRequest(http.MethodPost, Path, nil)
		if c.asks {
			r.Header.Set(preset.HeaderPlace, "1")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // it gives up at once
		w := &statuses{ResponseWriter: httptest.NewRecorder()}
		if _, err := q.slot(ctx, w, r); !errors.Is(err, context.Canceled) || fmt.Sprint(w.all) != c.want {
			t.Errorf("%s: got %v, want %s; %v", name, w.all, c.want, err)
		}
	}
}

// statuses keeps the statuses that are written.
type statuses struct {
	http.ResponseWriter
	all []int
}

func (s *statuses) WriteHeader(status int) { s.all = append(s.all, status) }
