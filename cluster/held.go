package cluster

import (
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/raftfix"
)

// holdOff gives the network's transport as Raft is to have it: with this node's
// additions, and what holds the library's faults off. What Raft sends goes down
// through it, what peers send comes up, to the inbox last.
func (n *Node) holdOff(logger hclog.Logger) *raftfix.Inbox {
	inner := n.network.Transport(&n.addresses, logger)
	if t, real := inner.(*raft.NetworkTransport); real && n.storage.disk != nil {
		inner = &diskTransport{t, n.storage.disk}
	}
	f := newFeed(&raftfix.Answers{Transport: inner, Wrong: n.answeredByAnother()})
	f.sends = n.sends
	n.feed.Store(f)
	n.inbox = raftfix.NewInbox(f, n.id, n.storage.Logs, n.breaks)
	return n.inbox
}

// release undoes holdOff, after Raft's end.
func (n *Node) release() {
	n.inbox.Stop()
	n.feed.Load().stop()
}

// breaks ends the node, because its Raft must be started anew.
func (n *Node) breaks(err error) {
	select {
	case n.broken <- err:
	default: // the node is ending already
	}
}

// answeredByAnother gives what counts the answers that raftfix.Answers held off,
// and logs each pair of members once: a member that is gone is asked several times
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
