package cluster

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/raftfix"
	"bivouac.dev/bivouac/fsm"
)

// holdOff gives the network's transport as Raft is to have it: with this node's
// additions, and what holds the library's faults off. What Raft sends goes down
// through it, what peers send comes up, to the inbox last.
func (n *Node) holdOff(logger hclog.Logger) *raftfix.Inbox {
	inner := n.network.Transport(&n.addresses, logger)
	if t, real := inner.(*raft.NetworkTransport); real {
		inner = &diskTransport{t, n.storage.disk, &n.addresses}
	}
	f := newFeed(&raftfix.Answers{Transport: &raftfix.Pipelines{Transport: inner}, Wrong: n.another})
	f.sends, f.matched = n.sends, n.witness.match
	n.feed.Store(f)
	n.inbox = raftfix.NewInbox(f, n.id, n.storage.Logs, n.breaks)
	n.inbox.MayVote = n.mayVote
	return n.inbox
}

// mayVote: a node without state votes only for whom it durably promised to form
// with. With a configuration Raft knows who may be elected.
func (n *Node) mayVote(candidate raft.ServerID) bool {
	if len(n.servers()) > 0 {
		return true
	}
	n.formation.mu.Lock()
	defer n.formation.mu.Unlock()
	return candidate != "" && n.formation.promised == string(candidate)
}

// release undoes holdOff, after Raft's end; it is fine if Raft never began.
func (n *Node) release() {
	if n.inbox == nil {
		return
	}
	n.inbox.Stop()
	n.feed.Load().stop()
}

// successorTimeout bounds looking for whom to hand leadership to.
const successorTimeout = 250 * time.Millisecond

// successors gives the voters that answer and may lead, the most advanced first.
func (n *Node) successors(ctx context.Context, r *raft.Raft) []raft.Server {
	ctx, cancel := context.WithTimeout(ctx, successorTimeout)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	var peers []raft.Server
	applied := map[raft.ServerID]uint64{}
	for _, s := range r.GetConfiguration().Configuration().Servers {
		if s.ID == n.id || s.Suffrage != raft.Voter {
			continue
		}
		wg.Go(func() {
			if hello, err := n.hello(ctx, n.whereIs(s)); err == nil && hello.Member.ID == string(s.ID) && !hello.Unfit {
				mu.Lock()
				defer mu.Unlock()
				peers, applied[s.ID] = append(peers, s), hello.Applied
			}
		})
	}
	wg.Wait()
	slices.SortFunc(peers, func(a, b raft.Server) int {
		return cmp.Or(cmp.Compare(applied[b.ID], applied[a.ID]), cmp.Compare(a.ID, b.ID))
	})
	return peers
}

// begin begins to hand leadership to one of the peers.
func (n *Node) begin(r *raft.Raft, peers []raft.Server) (raft.Future, error) {
	future, err := n.transfers.To(r, peers)
	if err != nil {
		return nil, fsm.Errorf(fsm.CodeConflict, "leadership was not handed over: %v; try again in another term, or stop this node", err)
	}
	return future, nil
}

// handOn hands leadership to the most advanced of the voters that answer.
func (n *Node) handOn(ctx context.Context, r *raft.Raft) error {
	future, err := n.begin(r, n.successors(ctx, r))
	if err != nil {
		return err
	}
	return n.await(ctx, future)
}

// breaks ends the node, because its Raft must be started anew.
func (n *Node) breaks(err error) {
	select {
	case n.broken <- err:
	default: // the node is ending already
	}
}

// answeredByAnother gives what counts the members that answered for another, to
// Raft's messages (raftfix.Answers) or when a connection was made, and logs each
// pair once: a member that is gone is asked several times
// a second until it is removed.
func (n *Node) answeredByAnother() func(asked raft.ServerID, target raft.ServerAddress, answered raft.ServerID) {
	type pair struct{ asked, answered raft.ServerID }
	var mu sync.Mutex
	told := map[pair]bool{}
	return func(asked raft.ServerID, target raft.ServerAddress, answered raft.ServerID) {
		n.metrics.wrongAnswers.Inc()
		mu.Lock()
		first := !told[pair{asked, answered}] && len(told) < helloLimit
		if first {
			told[pair{asked, answered}] = true
		}
		mu.Unlock()
		if first {
			n.logger.Warn("cluster: another member answers where one was asked; its answers count for nothing",
				"peer", string(asked), "address", string(target), "error", "answered by "+string(answered))
		}
	}
}
