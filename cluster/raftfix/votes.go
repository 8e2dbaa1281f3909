package raftfix

import "github.com/hashicorp/raft"

// vote judges a request for a vote or a pre-vote: a member without a configuration
// would give Raft's vote to whoever asks, because it takes that for the beginning
// of its cluster. MayVote says for whom that is right. It reports whether the
// message was refused; nothing of it reaches Raft then, not even its term.
func (i *Inbox) vote(rpc raft.RPC) (refused bool) {
	if i.MayVote == nil {
		return false
	}
	switch request := rpc.Command.(type) {
	case *raft.RequestVoteRequest:
		if refused = !i.MayVote(raft.ServerID(request.ID)); refused {
			rpc.Respond(&raft.RequestVoteResponse{RPCHeader: i.header(), Term: i.state.CurrentTerm()}, nil)
		}
	case *raft.RequestPreVoteRequest:
		if refused = !i.MayVote(raft.ServerID(request.ID)); refused {
			rpc.Respond(&raft.RequestPreVoteResponse{RPCHeader: i.header(), Term: i.state.CurrentTerm()}, nil)
		}
	}
	return refused
}
