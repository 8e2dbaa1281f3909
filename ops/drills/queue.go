package main

import (
	"slices"
	"time"
)

// drill is a test that waits for its turn.
type drill struct {
	name string
	cost
}

// queue holds the tests that have not begun. It is not safe for concurrent use.
type queue struct {
	waiting []drill
	running map[string]cost
	side    int
	load    float64
}

// newQueue orders the tests so that those that take the longest begin first: a long one at the end
// would run beside nothing.
func newQueue(names []string, known times, side int, load float64) *queue {
	q := &queue{running: map[string]cost{}, side: side, load: load}
	for _, name := range names {
		q.waiting = append(q.waiting, drill{name, known.of(name)})
	}
	slices.SortStableFunc(q.waiting, func(a, b drill) int { return int((b.wall - a.wall) / time.Millisecond) })
	return q
}

// next removes the first test that the machine has room for beside those that run. It returns
// false if there is none at present. With nothing running there is room for every test.
func (q *queue) next() (drill, bool) {
	if len(q.running) >= q.side {
		return drill{}, false
	}
	sum := 0.0
	for _, c := range q.running {
		if c.alone {
			return drill{}, false
		}
		sum += c.cpus()
	}
	for i, d := range q.waiting {
		if len(q.running) > 0 && (d.alone || sum+d.cpus() > q.load) {
			continue
		}
		q.waiting = slices.Delete(q.waiting, i, i+1)
		q.running[d.name] = d.cost
		return d, true
	}
	return drill{}, false
}

// done makes room.
func (q *queue) done(name string) { delete(q.running, name) }
