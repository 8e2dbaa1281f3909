package raftfix

import "github.com/hashicorp/raft"

// vote answers a vote or pre-vote request that MayVote refuses, and reports whether it did. A
// member without a configuration would otherwise vote for any candidate, because Raft takes the
// request for the start of its cluster. Nothing of a refused request reaches Raft, not even its
// term.
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
			rpc.Respond(
				&raft.RequestPreVoteResponse{RPCHeader: i.header(), Term: i.state.CurrentTerm()}, nil,
			)
		}
	}
	return refused
}
