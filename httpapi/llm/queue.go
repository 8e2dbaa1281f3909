package llm

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// maxQueue is how many requests wait for one server, userQueue how many of one user.
const maxQueue, userQueue = 256, 16

// queue has the requests of this node for a server with a bounded number of slots. A slot that is
// free goes to the user who has the fewest there, of those to the one whose turn was the longest ago,
// and to that user's request that came first.
type queue struct {
	mu      sync.Mutex
	slots   int
	all     int
	turns   turns
	waiting []*waiter
	// places are those of all that wait, nil once they changed: found once for all who ask.
	places map[*waiter]int
}

// turns are the slots that users have, and when each had a turn: the count of turns by then. A user
// who comes counts as the one whose turn was before the last: behind those who wait.
type turns struct {
	used, had map[string]int
	count     int
}

// waiter is a request that waits. granted is closed when it has its slot.
type waiter struct {
	user    string
	granted chan struct{}
}

// queueOf returns the queue of a server. It waits for no queue: every model request needs g.mu.
func (g *Gateway) queueOf(host string) *queue {
	g.mu.Lock()
	defer g.mu.Unlock()
	q := g.queues[host]
	if q == nil {
		q = &queue{turns: turns{used: map[string]int{}, had: map[string]int{}}}
		g.queues[host] = q
	}
	return q
}

// resize sets the number of slots.
func (q *queue) resize(slots int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.slots = int(slots)
	q.grant()
}

// enter waits for a slot. told is called with the place, at once and ever so often. leave gives the
// slot back.
func (q *queue) enter(
	ctx context.Context, user string, every time.Duration, told func(place int),
) (leave func(), err error) {
	w := &waiter{user: user, granted: make(chan struct{})}
	if !q.join(w) {
		return nil, errBusy("requests that wait for the model's server")
	}
	leave = sync.OnceFunc(func() { q.leave(w) })
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-w.granted:
			return leave, nil
		default:
			told(q.place(w))
		}
		select {
		case <-w.granted:
			return leave, nil
		case <-ctx.Done():
			leave()
			return nil, ctx.Err()
		case <-ticker.C:
		}
	}
}

// join adds a request, unless too many wait.
func (q *queue) join(w *waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	own := 0
	for _, o := range q.waiting {
		if o.user == w.user {
			own++
		}
	}
	if q.all >= q.slots && (len(q.waiting) >= maxQueue || own >= userQueue) {
		return false
	}
	if _, known := q.turns.used[w.user]; !known {
		q.turns.used[w.user], q.turns.had[w.user] = 0, q.turns.count-1
	}
	q.waiting, q.places = append(q.waiting, w), nil
	q.grant()
	return true
}

// leave ends a request, whether it has a slot or waits.
func (q *queue) leave(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.places = nil
	if i := slices.Index(q.waiting, w); i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
	} else {
		q.all--
		q.turns.used[w.user]--
		q.grant()
	}
	q.forget()
}

// forget drops the users who have no request. The caller holds the mutex.
func (q *queue) forget() {
	for user, n := range q.turns.used {
		if n == 0 && !slices.ContainsFunc(q.waiting, func(w *waiter) bool { return w.user == user }) {
			delete(q.turns.used, user)
			delete(q.turns.had, user)
		}
	}
}

// grant gives the free slots away. The caller holds the mutex.
func (q *queue) grant() {
	for q.all < q.slots && len(q.waiting) > 0 {
		i := q.turns.take(q.waiting)
		close(q.waiting[i].granted)
		q.waiting, q.places = slices.Delete(q.waiting, i, i+1), nil
		q.all++
	}
}

// take gives the next turn to one of those that wait, and returns which.
func (t *turns) take(waiting []*waiter) int {
	best := 0
	for i, w := range waiting {
		b := waiting[best]
		if c := cmp.Compare(t.used[w.user], t.used[b.user]); c < 0 || c == 0 && t.had[w.user] < t.had[b.user] {
			best = i
		}
	}
	t.count++
	t.used[waiting[best].user]++
	t.had[waiting[best].user] = t.count
	return best
}

// place is the number of w's turn, from 1, if no other request comes or ends; 0 if it had it.
func (q *queue) place(w *waiter) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.places == nil {
		q.places = q.turns.places(q.waiting)
	}
	return q.places[w]
}

// lane has the requests of one user among those that wait, by their indices.
type lane struct {
	used, had int
	waiting   []int
}

// places returns the turns of all that wait, as take would give them.
func (t *turns) places(waiting []*waiter) map[*waiter]int {
	byUser, lanes := map[string]*lane{}, []*lane{}
	for i, w := range waiting {
		l := byUser[w.user]
		if l == nil {
			l = &lane{used: t.used[w.user], had: t.had[w.user]}
			byUser[w.user], lanes = l, append(lanes, l)
		}
		l.waiting = append(l.waiting, i)
	}
	places := make(map[*waiter]int, len(waiting))
	for n := 1; len(lanes) > 0; n++ {
		next := slices.MinFunc(lanes, func(a, b *lane) int {
			return cmp.Or(a.used-b.used, a.had-b.had, a.waiting[0]-b.waiting[0])
		})
		places[waiting[next.waiting[0]]] = n
		next.used, next.had, next.waiting = next.used+1, t.count+n, next.waiting[1:]
		if len(next.waiting) == 0 {
			lanes = slices.DeleteFunc(lanes, func(l *lane) bool { return l == next })
		}
	}
	return places
}

// slot waits for a slot of the request's server, where it has a bounded number. The place is told by
// informational responses to who asks for them: some clients and proxies take one for the answer.
func (q *request) slot(ctx context.Context, w http.ResponseWriter, r *http.Request) (leave func(), err error) {
	s := serverAt(q.policy, q.target.URL)
	if s == nil || s.Slots == 0 || !q.generates {
		return func() {}, nil
	}
	g := q.gateway
	g.metrics.waiting.Inc()
	defer g.metrics.waiting.Dec()
	at, told := g.queueOf(s.Host), func(int) {}
	if r.Header.Get(preset.HeaderPlace) != "" && g.server.Informs(r) {
		told = func(place int) {
			w.Header().Set(preset.HeaderPlace, strconv.Itoa(place))
			w.WriteHeader(http.StatusProcessing)
			w.Header().Del(preset.HeaderPlace)
		}
	}
	at.resize(s.Slots)
	if leave, err = at.enter(ctx, q.row.UserID, g.cfg.PlaceEvery, told); err != nil {
		return nil, err
	}
	if !g.stands(q.grant) { // the wait may have been long
		leave()
		return nil, errToken()
	}
	return leave, nil
}
