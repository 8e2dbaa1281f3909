package scheduler

import (
	"container/heap"
	"time"
)

// agenda says when sandboxes are due to be looked at. Of two times for one the earlier counts. It
// costs what is due, and not what there is.
type agenda struct {
	of   map[string]*appointment
	heap appointments
}

type appointment struct {
	id string
	at time.Time
	// place is its index in the heap.
	place int
}

func newAgenda() *agenda { return &agenda{of: map[string]*appointment{}} }

// set makes an id due at a time; the zero time is now.
func (a *agenda) set(id string, at time.Time) {
	switch x := a.of[id]; {
	case x == nil:
		x = &appointment{id: id, at: at}
		a.of[id] = x
		heap.Push(&a.heap, x)
	case at.Before(x.at):
		x.at = at
		heap.Fix(&a.heap, x.place)
	}
}

// take removes and returns what is due.
func (a *agenda) take(now time.Time) (ids []string) {
	for len(a.heap) > 0 && !now.Before(a.heap[0].at) {
		x := heap.Pop(&a.heap).(*appointment)
		delete(a.of, x.id)
		ids = append(ids, x.id)
	}
	return ids
}

// next is the earliest time; false when nothing is due ever.
func (a *agenda) next() (at time.Time, ok bool) {
	if len(a.heap) == 0 {
		return time.Time{}, false
	}
	return a.heap[0].at, true
}

// appointments implements heap.Interface.
type appointments []*appointment

func (h appointments) Len() int           { return len(h) }
func (h appointments) Less(i, j int) bool { return h[i].at.Before(h[j].at) }

func (h appointments) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push implements heap.Interface.
func (h *appointments) Push(x any) {
	n := x.(*appointment)
	n.place = len(*h)
	*h = append(*h, n)
}

// Pop implements heap.Interface.
func (h *appointments) Pop() any {
	old := *h
	n := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return n
}
