package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/google/uuid"
	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/cluster/raftfix"
	"bivouac.dev/bivouac/cluster/raftfsm"
	"bivouac.dev/bivouac/cluster/raftmetrics"
	"bivouac.dev/bivouac/fsm"
)

const (
	// openRetry is the pause between attempts to open a term.
	openRetry = 20 * time.Millisecond
	// leadRetryMin and leadRetryMax bound the pause before a failed Lead function runs again in the
	// same term.
	leadRetryMin = 100 * time.Millisecond
	leadRetryMax = 10 * time.Second
)

// term is an open term that this node leads: its first command is applied to this store. ctx ends
// with the term.
type term struct {
	number uint64
	ctx    context.Context
}

// termWatch holds the open term, nil while this node does not lead.
type termWatch struct {
	mu      sync.Mutex
	current *term
}

func (w *termWatch) get() *term {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.current
}

// set publishes a term, nil for none. A term that has ended is not published: openTerm may be late.
func (w *termWatch) set(t *term) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t == nil || t.ctx.Err() == nil {
		w.current = t
	}
}

// Lead runs fn once for each term this node leads, until ctx ends or the node stops; then it
// returns nil. fn starts when this store holds everything committed before the term. Its context
// ends with the term, at the latest LeaderLeaseTimeout after a majority was last heard. Runs never
// overlap: Lead waits until fn has returned. An error of fn is logged and fn runs again, with
// growing pauses, while the term lasts. nil ends fn's work for the term.
func (n *Node) Lead(ctx context.Context, fn func(ctx context.Context, term uint64) error) error {
	ctx, leave, err := n.enter(ctx, 0)
	if err != nil {
		return nil
	}
	defer leave()
	for {
		t := n.nextTerm(ctx)
		if t == nil {
			return nil
		}
		n.leadTerm(ctx, t, fn)
		select {
		case <-t.ctx.Done():
		case <-ctx.Done():
			return nil
		}
	}
}

// nextTerm waits for an open term; nil when ctx ends first.
func (n *Node) nextTerm(ctx context.Context) *term {
	for {
		_, changed := n.leaders.get()
		if t := n.terms.get(); t != nil && t.ctx.Err() == nil {
			return t
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// leadTerm runs fn until it returns nil or the term ends.
func (n *Node) leadTerm(ctx context.Context, t *term, fn func(context.Context, uint64) error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(t.ctx, cancel)
	defer stop()
	n.leading.RLock()
	defer n.leading.RUnlock()
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = leadRetryMin, leadRetryMax
	for ctx.Err() == nil {
		err := fn(ctx, t.number)
		if err == nil || ctx.Err() != nil {
			return
		}
		wait := pause.NextBackOff()
		n.logger.Error(
			"cluster: leader loop failed, restarting", "term", t.number, "error", err, "duration", wait,
		)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// watchTerms opens each term that this node wins and closes it when it is lost. Raft waits until
// each notice is received, so "lost and won again" arrives as two notices.
func (n *Node) watchTerms(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case leads := <-n.notify:
			for leads {
				leads = n.holdTerm(ctx)
			}
		}
	}
}

// holdTerm runs for one term of this node's leadership. It ends early when the disk stalls or a
// restore replaces the state. It reports whether this node still leads: a new term began, or the
// disk answers again and no other node was elected.
func (n *Node) holdTerm(ctx context.Context) (leads bool) {
	r := n.raft.Load()
	termCtx, end := context.WithCancel(ctx)
	var opening sync.WaitGroup
	defer func() {
		end()
		opening.Wait()
		n.terms.set(nil)
		n.refreshLeader(r)
	}()
	n.refreshLeader(r)
	ineligible, _, why := n.eligibility.watch()
	if why != nil {
		return n.giveUpLeadership(ctx, r)
	}
	opening.Go(func() { n.openTerm(termCtx, r) })
	defer n.countLoss(ctx, r, r.CurrentTerm())
	stalled, _ := n.storage.Watchdog().Stall()
	select {
	case leads = <-n.notify:
	case <-ctx.Done():
	case p := <-n.pauses:
		end()
		n.terms.set(nil)
		opening.Wait()
		close(p.begun)
		<-p.over
		leads = r.State() == raft.Leader
	case <-ineligible:
		end()
		n.terms.set(nil)
		leads = n.giveUpLeadership(ctx, r)
	case <-stalled:
		end()
		n.terms.set(nil)
		_, healed := n.storage.Watchdog().Stall()
		select {
		case leads = <-n.notify:
		case <-ctx.Done():
		case <-healed:
			leads = true
		}
	}
	return leads
}

// countLoss counts the end of this node's leadership of a term, unless the node stops or leads on.
func (n *Node) countLoss(ctx context.Context, r *raft.Raft, number uint64) {
	if ctx.Err() != nil || r.State() == raft.Leader && r.CurrentTerm() == number {
		return
	}
	reason := n.lossReason(r, number)
	n.metrics.LeadershipLost.WithLabelValues(reason).Inc()
	if reason == raftmetrics.LossLease {
		n.logger.Warn("cluster: leadership lost: no majority of the voters answered within the lease",
			"term", number, "duration", n.cfg.LeaderLeaseTimeout)
	}
}

// lossReason returns why this node leads the term no more. hashicorp/raft does not tell.
func (n *Node) lossReason(r *raft.Raft, number uint64) string {
	if r.CurrentTerm() > number || n.hints.Load().SeenTerm() > number {
		return raftmetrics.LossNewerTerm
	}
	for _, s := range n.servers() {
		if s.ID == n.id && s.Suffrage == raft.Voter {
			return raftmetrics.LossLease
		}
	}
	return raftmetrics.LossOther
}

// openTerm applies term.open and publishes the term. Before that this node serves no linearizable
// reads: the no-op that begins a term never reaches the store, so a read could wait for its index
// without end.
//
// A leader whose Raft refuses entries because of a transfer that never ends can't recover. The node
// stops so that another one leads.
func (n *Node) openTerm(ctx context.Context, r *raft.Raft) {
	begin := time.Now()
	for ctx.Err() == nil {
		number := r.CurrentTerm()
		err := n.applyTermOpen(ctx, r, number)
		// The entry belongs to this term if the term has not changed meanwhile.
		if err == nil && r.State() == raft.Leader && r.CurrentTerm() == number {
			n.terms.set(&term{number: number, ctx: ctx})
			n.leaders.touch()
			n.logger.Info("cluster: leading", "term", number)
			return
		}
		if err != nil && ctx.Err() == nil {
			n.logger.Warn("cluster: opening the term", "term", number, "error", err)
		}
		if raftfix.Stuck(err, time.Since(begin)) {
			n.failWith(fmt.Errorf("opening term %d: %w", number, err))
			return
		}
		select {
		case <-time.After(openRetry):
		case <-ctx.Done():
		}
	}
}

func (n *Node) applyTermOpen(ctx context.Context, r *raft.Raft, number uint64) error {
	cmd := fsm.NewCommand(uuid.NewString(), n.clock(), "", &fsm.TermOpenBody{
		Term: number, Node: n.cfg.NodeName, ClusterID: uuid.NewString(), Nonce: uuid.NewString()[:13],
	})
	data, err := cmd.Encode()
	if err != nil {
		return err
	}
	future := r.Apply(data, n.cfg.ProposeTimeout)
	if err := n.await(ctx, future); err != nil {
		return err
	}
	switch response := future.Response().(type) {
	case []raftfsm.Applied:
		if response[0].Err != nil {
			return response[0].Err
		}
		return n.store.Wait(ctx, response[0].Index)
	case error:
		return response
	}
	return nil
}

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
	if l, _ := n.leaders.get(); l.id != "" {
		n.metrics.LeaderChanges.Inc()
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
