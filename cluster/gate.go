package cluster

import "sync"

// gate counts calls in progress and can be closed for good: a sync.WaitGroup
// alone must not be added to while somebody waits.
type gate struct {
	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

// enter reports whether the gate was open; if so the caller owes a leave.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.running.Add(1)
	return true
}

func (g *gate) leave() { g.running.Done() }

// close refuses further calls and waits for those inside.
func (g *gate) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.running.Wait()
}
