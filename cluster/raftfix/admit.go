package raftfix

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

// maxHeld bounds the messages that wait for the proof of their sender. A leader has two in flight.
const maxHeld = 16

// errUnproven refuses a message whose sender could not be judged.
var errUnproven = errors.New("nothing proves that the sender may send this")

// admit judges a message. One that is not admitted is answered, or held for the first time: hold
// says whether it may be.
//
// Raft itself believes every sender. An entry of a newer term makes anybody the leader, a member
// without a configuration votes for any candidate because Raft takes the request for the start of
// its cluster, and TimeoutNow begins an election for everybody. Nothing of a refused message reaches
// Raft, not even its term.
func (i *Inbox) admit(rpc raft.RPC, hold bool) bool {
	if i.Admit == nil {
		return true
	}
	message, ok := rpc.Command.(raft.WithRPCHeader)
	if !ok {
		i.reject(rpc, errors.New("the message names no sender"))
		return false
	}
	prove, err := i.Admit(message)
	switch {
	case err != nil:
		i.reject(rpc, err)
	case prove == nil:
		return true
	case !hold || i.holding.Load() >= maxHeld:
		i.reject(rpc, errUnproven)
	default:
		i.holding.Add(1)
		i.end.Go(func() {
			defer i.holding.Add(-1)
			if err := prove(); err != nil {
				i.reject(rpc, fmt.Errorf("%w: %w", errUnproven, err))
				return
			}
			select {
			case i.proven <- rpc:
			case <-i.done:
			}
		})
	}
	return false
}

// reject answers a message that Raft does not see. Votes are answered as not granted: an error would
// look like a network's.
func (i *Inbox) reject(rpc raft.RPC, err error) {
	switch rpc.Command.(type) {
	case *raft.RequestVoteRequest:
		rpc.Respond(&raft.RequestVoteResponse{RPCHeader: i.header(), Term: i.state.CurrentTerm()}, nil)
	case *raft.RequestPreVoteRequest:
		rpc.Respond(&raft.RequestPreVoteResponse{RPCHeader: i.header(), Term: i.state.CurrentTerm()}, nil)
	case *raft.InstallSnapshotRequest:
		i.refuse(rpc, &raft.InstallSnapshotResponse{RPCHeader: i.header(), Term: i.state.CurrentTerm()}, err)
	default:
		rpc.Respond(nil, err)
	}
}
