package raftfix

import (
	"github.com/hashicorp/raft"
)

// SetHeartbeatHandler implements raft.Transport and avoids hashicorp/raft issue 695. Raft handles
// heartbeats on the transport's goroutine, so that a follower with a slow disk still answers. A
// heartbeat of a newer term then changes term and state beside Raft's own goroutine: a leader
// appends an entry with a term it never led, a candidate leads a term without its votes, or a
// raised term falls back.
//
// So Raft's handler is not used: every heartbeat goes through Raft's goroutine. Only a heartbeat
// that changes nothing is answered at once: from the leader this node follows, in its term.
func (i *Inbox) SetHeartbeatHandler(func(raft.RPC)) {}

// heartbeat runs on the goroutine of a connection.
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
	// Raft receives it too, when it is free, to record the contact. The newest one is enough.
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

// follows reports whether this node is a follower of the sender, in the sender's term.
func (i *Inbox) follows(request *raft.AppendEntriesRequest) bool {
	_, leader := i.state.LeaderWithID()
	return leader == raft.ServerID(request.ID) && leader != "" && i.state.CurrentTerm() == request.Term &&
		i.state.State() == raft.Follower
}
