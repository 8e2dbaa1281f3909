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

// fitness is whether this node may lead, as far as its caller knows: whoever
// leads learns things outside the log that forbid it.
type fitness struct {
	mu     sync.Mutex
	reason error
	// unfit is closed while there is a reason, fit while there is none.
	unfit, fit chan struct{}
}

func (f *fitness) init() { f.unfit, f.fit = make(chan struct{}), make(chan struct{}) }

// set changes the reason; nil for none. It reports whether that is news.
func (f *fitness) set(reason error) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.reason
	f.reason = reason
	switch {
	case was == nil && reason != nil:
		close(f.unfit)
		f.fit = make(chan struct{})
	case was != nil && reason == nil:
		close(f.fit)
		f.unfit = make(chan struct{})
	}
	return (was == nil) != (reason == nil)
}

// watch gives a channel that is closed while the node must not lead, one that is
// closed when it may again, and why it must not, nil when it may.
func (f *fitness) watch() (unfit, fit <-chan struct{}, reason error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.unfit, f.fit, f.reason
}

// Unfit has this node not lead, for the reason given, until Fit is called: it
// ends its term and hands leadership over. While nobody else can take it, the
// cluster takes no writes. Ready says the reason.
func (n *Node) Unfit(reason error) {
	if n.fitness.set(reason) {
		n.logger.Error("cluster: this node must not lead", "error", reason)
	}
}

// Fit ends what Unfit began.
func (n *Node) Fit() {
	if n.fitness.set(nil) {
		n.logger.Info("cluster: this node may lead again")
	}
}

// MustNotLead is why this node must not lead, nil when it may.
func (n *Node) MustNotLead() error {
	_, _, why := n.fitness.watch()
	return why
}

// abdicate lasts while this node is Raft's leader and must not lead. It reports
// whether it leads on. Where those that answer do not take over for spentAfter in
// one term, Raft can't be asked again, and the node ends so that they elect another.
func (n *Node) abdicate(ctx context.Context, r *raft.Raft) (leads bool) {
	_, fit, _ := n.fitness.watch()
	begin := time.Now()
	for {
		tried := make(chan error, 1)
		trying, cancel := context.WithTimeout(ctx, abdicatePause)
		n.futures.Go(func() { tried <- n.yield(trying, r) })
		timer := time.NewTimer(abdicatePause)
		again := false
		select {
		case leads = <-n.notify:
		case <-ctx.Done():
		case <-fit:
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
			n.logger.Warn("cluster: nobody takes the lead from a node that must not lead", "error", err)
		}
		if errors.Is(err, raftfix.ErrTransferSpent) && time.Since(begin) > spentAfter {
			n.breaks(fmt.Errorf("it must not lead, and could not hand over: %w", err))
		}
	}
}

// yield is handOn with the handover's own error.
func (n *Node) yield(ctx context.Context, r *raft.Raft) error {
	future, err := n.transfers.To(r, n.successors(ctx, r))
	if err != nil {
		return err
	}
	return n.await(ctx, future)
}

const (
	// abdicatePause is the time between two tries to hand leadership over.
	abdicatePause = 2 * time.Second
	// spentAfter is how long they are made in one term.
	spentAfter = time.Minute
)
