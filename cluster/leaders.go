package cluster

import (
	"context"
	"sync"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/peernet"
)

// leaderWatch tracks the leader that this node knows.
type leaderWatch struct {
	mu      sync.Mutex
	current *leadership
	// changed is closed when current is replaced or this node's term opens.
	changed chan struct{}
}

// leadership is one leader as this node sees it. ctx ends when the node sees another one or none,
// so that a call to a lost leader does not wait for its timeout.
type leadership struct {
	id      raft.ServerID // empty: no leader
	address string
	ctx     context.Context
	end     context.CancelFunc
}

func (w *leaderWatch) init() {
	w.changed = make(chan struct{})
	w.current = &leadership{}
	w.current.ctx, w.current.end = context.WithCancel(context.Background())
}

func (w *leaderWatch) get() (*leadership, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.current, w.changed
}

// refresh reads the leader from Raft.
func (w *leaderWatch) refresh(r *raft.Raft) (changed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	address, id := r.LeaderWithID()
	if id == "" {
		address = ""
	}
	if id == w.current.id && string(address) == w.current.address {
		return false
	}
	w.current.end()
	next := &leadership{id: id, address: string(address)}
	next.ctx, next.end = context.WithCancel(context.Background())
	w.current = next
	w.wake()
	return true
}

// wake wakes all waiters. The caller holds mu.
func (w *leaderWatch) wake() {
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *leaderWatch) touch() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wake()
}

// observeLeader keeps the watch current while Run runs.
func (n *Node) observeLeader(r *raft.Raft, tasks *sync.WaitGroup) *raft.Observer {
	events := make(chan raft.Observation, 1)
	observer := raft.NewObserver(events, false, func(o *raft.Observation) bool {
		_, ok := o.Data.(raft.LeaderObservation)
		return ok
	})
	r.RegisterObserver(observer)
	tasks.Go(func() {
		for {
			n.refreshLeader(r)
			select {
			case <-events: // one that was dropped left one in the channel
			case <-n.stopping.Done():
				return
			}
		}
	})
	return observer
}

func (n *Node) refreshLeader(r *raft.Raft) {
	if !n.leaders.refresh(r) {
		return
	}
	n.metrics.LeaderChanges.Inc()
	if l, _ := n.leaders.get(); l.id != "" {
		n.logger.Info(
			"cluster: leader", "peer", peernet.NodeName(l.id), "address", l.address, "term", r.CurrentTerm(),
		)
	} else {
		n.logger.Warn("cluster: no leader", "term", r.CurrentTerm())
	}
}

// awaitLeader waits for a leader that can be asked: a peer, or this node once its term is open.
func (n *Node) awaitLeader(ctx context.Context) (*leadership, error) {
	for ctx.Err() == nil {
		l, changed := n.leaders.get()
		if l.id != "" && (l.id != n.id || n.terms.get() != nil) {
			return l, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return nil, ctx.Err()
}

// awaitOpen reports whether this node leads, once its term is open. A peer may ask a new leader
// that still opens its term.
func (n *Node) awaitOpen(ctx context.Context) bool {
	for {
		l, changed := n.leaders.get()
		if n.terms.get() != nil {
			return true
		}
		if l.id != n.id {
			return false
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// whileLeads derives a context that also ends when l no longer leads.
func whileLeads(ctx context.Context, l *leadership) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(l.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}
