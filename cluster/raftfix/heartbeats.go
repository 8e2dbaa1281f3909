package raftfix

import (
	"github.com/hashicorp/raft"
)

// SetHeartbeatHandler implements raft.Transport; it holds off hashicorp/raft
// issue 695. Raft would have heartbeats handled on the transport's goroutine, so
// that a follower whose disk is slow still answers them. A heartbeat of a newer
// term then changes term and state while Raft's own goroutine is elsewhere: a
// leader writes an entry with a term that it never led, a candidate leads a term
// whose votes it does not have, and a term that was raised meanwhile is taken back.
//
// So Raft's handler is not used. Every heartbeat passes through Raft's own
// goroutine. The only one that is answered at once is one that changes nothing: of
// the leader that this node follows, in its term.
func (i *Inbox) SetHeartbeatHandler(func(raft.RPC)) {}

// heartbeat is called by the transport, on the goroutine of a connection.
func (i *Inbox) heartbeat(rpc raft.RPC) {
	request, ok := rpc.Command.(*raft.AppendEntriesRequest)
	if !ok || !i.follows(request) {
		select {
		case i.beats <- rpc:
		case <-i.done:
		}
		return
	}
	rpc.Respond(&raft.AppendEntriesResponse{
		RPCHeader: i.header(), Term: request.Term, LastLog: i.state.LastIndex(), Success: true,
	}, nil)
	// Raft gets it too, when it has time, to know that the leader was heard. One
	// is enough, the newest.
	again := raft.RPC{Command: request, RespChan: make(chan raft.RPCResponse, 1)}
	for {
		select {
		case i.known <- again:
			return
		default:
		}
		select {
		case <-i.known:
		default:
		}
	}
}

// follows reports whether this node is a follower of the sender, in its term.
func (i *Inbox) follows(request *raft.AppendEntriesRequest) bool {
	_, leader := i.state.LeaderWithID()
	return leader == raft.ServerID(request.ID) && leader != "" && i.state.CurrentTerm() == request.Term && i.state.State() == raft.Follower
}
