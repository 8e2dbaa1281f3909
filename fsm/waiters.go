package fsm

import (
	"container/heap"
	"sync"
)

// waiters holds the callers of Store.Wait, lowest index first, so that a batch wakes only those
// whose index is reached.
type waiters struct {
	mu   sync.Mutex
	heap waiterHeap
}

// waiter is one caller of Store.Wait.
type waiter struct {
	index   uint64
	reached chan struct{}
	// at is its position in the heap, -1 after removal.
	at int
}

func (w *waiters) add(index uint64) *waiter {
	n := &waiter{index: index, reached: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	heap.Push(&w.heap, n)
	return n
}

// remove forgets a caller. One that was woken is already removed.
func (w *waiters) remove(n *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n.at >= 0 {
		heap.Remove(&w.heap, n.at)
	}
}

// wake releases every caller whose index is reached.
func (w *waiters) wake(index uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.heap) > 0 && w.heap[0].index <= index {
		close(heap.Pop(&w.heap).(*waiter).reached)
	}
}

// waiterHeap implements heap.Interface.
type waiterHeap []*waiter

func (h waiterHeap) Len() int           { return len(h) }
func (h waiterHeap) Less(i, j int) bool { return h[i].index < h[j].index }

func (h waiterHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// Push implements heap.Interface.
func (h *waiterHeap) Push(x any) {
	n := x.(*waiter)
	n.at = len(*h)
	*h = append(*h, n)
}

// Pop implements heap.Interface.
func (h *waiterHeap) Pop() any {
	old := *h
	n := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	n.at = -1
	return n
}
