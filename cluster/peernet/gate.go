package peernet

import "sync"

// Gate counts calls in progress and can be closed for good: a sync.WaitGroup alone must not
// be added to while a goroutine waits for it.
type Gate struct {
	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

// Enter reports whether the gate is open; if so the caller must call Leave.
func (g *Gate) Enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.running.Add(1)
	return true
}

// Leave ends a call that Enter let in.
func (g *Gate) Leave() { g.running.Done() }

// Close refuses further calls and waits for those in progress.
func (g *Gate) Close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.running.Wait()
}
