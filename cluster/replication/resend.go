package replication

import (
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/hashicorp/raft"
)

const (
	// replicateRetryMin and replicateRetryMax bound the pause before entries are sent again to an
	// unreachable peer.
	replicateRetryMin = 10 * time.Millisecond
	replicateRetryMax = 250 * time.Millisecond
	// maxMessageBytes bounds the entries of one message. 64 entries of the maximum size would need 80
	// MB/s to arrive within raftTimeout; a peer on a slower link would never catch up.
	maxMessageBytes = 8 << 20
)

// AppendEntries implements raft.Transport. It retries a leader's entries until the peer answers,
// while this node leads in their term and the peer is a member. hashicorp/raft doubles its pause
// with each failure, up to 10 s. A peer that came back would get heartbeats, so that no node is
// elected, but no entries; a write that needs it would wait. Heartbeats are not retried: Raft sends
// them at half their timeout.
func (h *Transport) AppendEntries(
	id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse,
) error {
	pause := backoff.ExponentialBackOff{
		InitialInterval: replicateRetryMin, MaxInterval: replicateRetryMax, Multiplier: 2,
	}
	// Raft continues after the last entry of the answered request. Heartbeats are not changed: an
	// earlier receiver may still read them.
	if first := within(args.Entries, maxMessageBytes); len(first) < len(args.Entries) {
		args.Entries = first
	}
	for {
		err := h.Transport.AppendEntries(id, target, args, resp)
		if err == nil {
			h.acknowledged(id, target, args, resp)
		}
		if err == nil || args.PrevLogEntry == 0 && len(args.Entries) == 0 || h.Resend == nil ||
			!h.Resend(id, target, args.Term) {
			return err
		}
		select {
		case <-time.After(pause.NextBackOff()):
		case <-h.done:
			return err
		}
	}
}

// within returns the first entries that fit into limit bytes together, at least one.
func within(entries []*raft.Log, limit int) []*raft.Log {
	total := 0
	for i, e := range entries {
		if total += len(e.Data) + len(e.Extensions); total > limit && i > 0 {
			return entries[:i]
		}
	}
	return entries
}
