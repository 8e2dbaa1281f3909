package cluster

import (
	"time"

	"github.com/hashicorp/raft"
)

const (
	// replicateRetryMin and replicateRetryMax bound the pause before entries are
	// sent again to a peer that was not reached.
	replicateRetryMin = 10 * time.Millisecond
	replicateRetryMax = 250 * time.Millisecond
)

// AppendEntries implements raft.Transport. A leader's entries are sent again
// until the peer has answered, as long as this node leads in their term and the
// peer is a member: hashicorp/raft doubles its pause with every failure, up to
// 10 s, and nothing ends it early. A peer that was away and is back would have
// the leader's heartbeats at once, so that nobody is elected, and no entries for
// up to that long; when the majority needs it, no write is acknowledged
// meanwhile. Heartbeats have a bound of their own, half their timeout.
func (f *feed) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	pause := replicateRetryMin
	for {
		err := f.Transport.AppendEntries(id, target, args, resp)
		if err == nil {
			f.acknowledged(id, args, resp)
		}
		if err == nil || args.PrevLogEntry == 0 && len(args.Entries) == 0 || f.sends == nil || !f.sends(id, target, args.Term) {
			return err
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, replicateRetryMax)
		case <-f.done:
			return err
		}
	}
}

// sends reports whether this node leads in that term and the peer is a member,
// at that address.
func (n *Node) sends(id raft.ServerID, target raft.ServerAddress, term uint64) bool {
	r := n.raft.Load()
	if r == nil || r.State() != raft.Leader || r.CurrentTerm() != term {
		return false
	}
	for _, s := range r.GetConfiguration().Configuration().Servers {
		if s.ID == id {
			return s.Address == target
		}
	}
	return false
}
