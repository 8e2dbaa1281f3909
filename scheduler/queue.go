package scheduler

import (
	"sync"
	"time"
)

// queue distributes sandbox ids to workers. One worker at a time works on an id. An id that is
// added meanwhile comes again afterwards, and one that is added twice while it waits comes once.
type queue struct {
	mu      sync.Mutex
	cond    *sync.Cond
	order   []string
	waiting map[string]bool
	working map[string]bool
	again   map[string]bool
	timers  map[string]*wakeup
	closed  bool
}

type wakeup struct {
	at    time.Time
	timer *time.Timer
}

func newQueue() *queue {
	q := &queue{
		waiting: map[string]bool{}, working: map[string]bool{}, again: map[string]bool{}, timers: map[string]*wakeup{},
	}
	q.cond = sync.NewCond(&q.mu)
	return q
}

// add makes the id due now.
func (q *queue) add(id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.addLocked(id)
}

func (q *queue) addLocked(id string) {
	switch {
	case q.closed, q.waiting[id]:
	case q.working[id]:
		q.again[id] = true
	default:
		q.waiting[id] = true
		q.order = append(q.order, id)
		q.cond.Signal()
	}
}

// addAt makes the id due at the given time, or earlier when an earlier time is set already.
func (q *queue) addAt(id string, at time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	if w := q.timers[id]; w != nil {
		if !at.Before(w.at) {
			return
		}
		w.timer.Stop()
	}
	w := &wakeup{at: at}
	w.timer = time.AfterFunc(time.Until(at), func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.timers[id] == w {
			delete(q.timers, id)
			q.addLocked(id)
		}
	})
	q.timers[id] = w
}

// get waits for an id; false when the queue is closed.
func (q *queue) get() (string, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.order) == 0 && !q.closed {
		q.cond.Wait()
	}
	if q.closed {
		return "", false
	}
	id := q.order[0]
	q.order = q.order[1:]
	delete(q.waiting, id)
	q.working[id] = true
	return id, true
}

// done ends the work on an id from get.
func (q *queue) done(id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.working, id)
	if q.again[id] {
		delete(q.again, id)
		q.addLocked(id)
	}
}

// close makes every get return false and stops the timers.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	for _, w := range q.timers {
		w.timer.Stop()
	}
	q.timers = map[string]*wakeup{}
	q.cond.Broadcast()
}
