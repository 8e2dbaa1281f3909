package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/raftfix"
)

// eligibility says whether this node may lead. Its caller may learn outside the log that it must
// not.
type eligibility struct {
	mu     sync.Mutex
	reason error
	// ineligible is closed while there is a reason, eligible while there is none.
	ineligible, eligible chan struct{}
}

func (e *eligibility) init() { e.ineligible, e.eligible = make(chan struct{}), make(chan struct{}) }

// set changes the reason, nil for none. It reports whether the eligibility changed.
func (e *eligibility) set(reason error) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	was := e.reason
	e.reason = reason
	switch {
	case was == nil && reason != nil:
		close(e.ineligible)
		e.eligible = make(chan struct{})
	case was != nil && reason == nil:
		close(e.eligible)
		e.ineligible = make(chan struct{})
	}
	return (was == nil) != (reason == nil)
}

// watch returns a channel that is closed while the node must not lead, one that is closed while it
// may, and the reason, nil when it may.
func (e *eligibility) watch() (ineligible, eligible <-chan struct{}, reason error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ineligible, e.eligible, e.reason
}

// ForbidLeading keeps this node from leading until AllowLeading is called. It ends its term and
// transfers leadership. While no other voter can take over, the cluster accepts no writes. Ready
// returns the reason.
func (n *Node) ForbidLeading(reason error) {
	if n.eligibility.set(reason) {
		n.logger.Error("cluster: this node must not lead", "error", reason)
	}
}

// AllowLeading undoes ForbidLeading.
func (n *Node) AllowLeading() {
	if n.eligibility.set(nil) {
		n.logger.Info("cluster: this node may lead again")
	}
}

// MustNotLead returns the reason of ForbidLeading, nil when this node may lead.
func (n *Node) MustNotLead() error {
	_, _, why := n.eligibility.watch()
	return why
}

// giveUpLeadership runs while this node leads in Raft and must not. It reports whether the node
// leads on. When no voter takes over within spentAfter of one term, Raft accepts no further
// transfer; the node then stops so that the others elect a leader.
func (n *Node) giveUpLeadership(ctx context.Context, r *raft.Raft) (leads bool) {
	_, eligible, _ := n.eligibility.watch()
	begin := time.Now()
	for {
		tried := make(chan error, 1)
		trying, cancel := context.WithTimeout(ctx, abdicatePause)
		n.futures.Go(func() { tried <- n.transferToAny(trying, r) })
		timer := time.NewTimer(abdicatePause)
		again := false
		select {
		case leads = <-n.notify:
		case <-ctx.Done():
		case <-eligible:
			leads = r.State() == raft.Leader
		case <-timer.C:
			again = true
		}
		timer.Stop()
		cancel()
		if !again {
			return leads
		}
		err := <-tried
		if err != nil {
			n.logger.Warn("cluster: no voter takes over from a node that must not lead", "error", err)
		}
		if errors.Is(err, raftfix.ErrTransferSpent) && time.Since(begin) > spentAfter {
			n.failWith(fmt.Errorf("it must not lead, and could not hand over: %w", err))
		}
	}
}

const (
	// abdicatePause is the pause between two transfers.
	abdicatePause = 2 * time.Second
	// spentAfter bounds the attempts in one term.
	spentAfter = time.Minute
)
