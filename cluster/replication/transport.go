// Package replication decorates Raft's transport, so that a leader's entries and what is committed
// reach the followers sooner than hashicorp/raft sends them.
package replication

import (
	"errors"
	"io"
	"sync"

	"github.com/hashicorp/raft"
)

// Transport is Raft's transport with commit hints: commit indexes that the leader sends
// in its answers to this node's peer calls. hashicorp/raft reports a commit with the next message
// only, up to twice CommitTimeout later. Without hints every forwarded write and every linearizable
// read on a follower waits for that message.
//
// A hint is an AppendEntries request that the leader could have sent at that moment: no entries,
// and the committed entry as both PrevLogEntry and LeaderCommitIndex. Raft checks it like any other
// request and drops it when it has seen a later term.
type Transport struct {
	raft.Transport
	rpcs chan raft.RPC
	done chan struct{}
	end  sync.WaitGroup
	// Resend reports whether AppendEntries retries a failed request to a peer; nil never retries.
	Resend func(id raft.ServerID, target raft.ServerAddress, term uint64) bool
	// Matched is called with the index up to which a member holds the log of a term's leader.
	Matched func(id raft.ServerID, term, index uint64)
	// announcer tells followers what is committed.
	announcer *commitAnnouncer
	mu        sync.Mutex
	// delivered is the last entry that Raft received. A hint must follow its entry.
	delivered logPosition
	// hint is a commit index whose entry has not arrived yet.
	hint raft.AppendEntriesRequest
	// newerTerm is the highest term of an answer that was later than the request's.
	newerTerm uint64
}

// logPosition is a log entry and the term of the leader that sent it.
type logPosition struct{ index, term uint64 }

// New decorates a transport. Set Resend and Matched before Raft starts.
func New(t raft.Transport) *Transport {
	h := &Transport{Transport: t, rpcs: make(chan raft.RPC), done: make(chan struct{})}
	h.announcer = &commitAnnouncer{send: t.AppendEntries, done: h.done, followers: map[raft.ServerID]*toldFollower{}}
	h.end.Go(h.forward)
	return h
}

// Consumer implements raft.Transport.
func (h *Transport) Consumer() <-chan raft.RPC { return h.rpcs }

// RequestPreVote implements raft.WithPreVote.
func (h *Transport) RequestPreVote(
	id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest,
	resp *raft.RequestPreVoteResponse,
) error {
	if t, ok := h.Transport.(raft.WithPreVote); ok {
		return t.RequestPreVote(id, target, args, resp)
	}
	return errors.New("the transport knows no pre-votes")
}

// Close implements raft.WithClose.
func (h *Transport) Close() error {
	if t, ok := h.Transport.(raft.WithClose); ok {
		return t.Close()
	}
	return nil
}

// Stop ends the transport. Raft must have ended before.
func (h *Transport) Stop() {
	close(h.done)
	h.end.Wait()
	h.announcer.end.Wait()
}

// forward passes the peers' messages to Raft.
func (h *Transport) forward() {
	for {
		select {
		case rpc := <-h.Transport.Consumer():
			h.Take(rpc, nil)
		case <-h.done:
			return
		}
	}
}

// Take passes a peer's message to Raft. It gives up when gone is closed.
func (h *Transport) Take(rpc raft.RPC, gone <-chan struct{}) {
	// Raft owns the message once it is delivered: it must not be read afterwards.
	var last logPosition
	if request, ok := rpc.Command.(*raft.AppendEntriesRequest); ok && len(request.Entries) > 0 {
		last = logPosition{request.Entries[len(request.Entries)-1].Index, request.Term}
	}
	if h.deliver(rpc, gone) && last.index > 0 {
		h.noteDelivered(last)
	}
}

// deliver waits until Raft takes the message, gone is closed or the transport ends.
func (h *Transport) deliver(rpc raft.RPC, gone <-chan struct{}) (taken bool) {
	select {
	case h.rpcs <- rpc:
		return true
	case <-gone:
	case <-h.done:
	}
	return false
}

// noteDelivered records a delivered entry and sends the hint that waited for it.
func (h *Transport) noteDelivered(p logPosition) {
	h.mu.Lock()
	h.delivered = p
	hint := h.hint
	ready := hint.PrevLogEntry > 0 && hint.Term == p.term && hint.PrevLogEntry <= p.index
	if ready || hint.Term < p.term {
		h.hint = raft.AppendEntriesRequest{}
	}
	h.mu.Unlock()
	if ready {
		h.inject(hint)
	}
}

// HintCommitted takes the leader's statement that its term's entry at the index is committed.
func (h *Transport) HintCommitted(
	leader raft.ServerID, address raft.ServerAddress, index, term uint64,
) {
	p := logPosition{index, term}
	hint := raft.AppendEntriesRequest{
		RPCHeader: raft.RPCHeader{
			ProtocolVersion: raft.ProtocolVersionMax,
			ID:              []byte(leader),
			Addr:            h.EncodePeer(leader, address),
		},
		Term: p.term, PrevLogEntry: p.index, PrevLogTerm: p.term, LeaderCommitIndex: p.index,
	}
	h.mu.Lock()
	ready := h.delivered.term == p.term && h.delivered.index >= p.index
	if !ready && (p.term > h.hint.Term || p.term == h.hint.Term && p.index > h.hint.PrevLogEntry) {
		h.hint = hint
	}
	h.mu.Unlock()
	if ready {
		h.inject(hint)
	}
}

// inject delivers a request made here and ignores its answer.
func (h *Transport) inject(request raft.AppendEntriesRequest) {
	h.deliver(raft.RPC{Command: &request, RespChan: make(chan raft.RPCResponse, 1)}, nil)
}

// InstallSnapshot implements raft.Transport. A member that installed a snapshot holds all of it.
func (h *Transport) InstallSnapshot(
	id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest,
	resp *raft.InstallSnapshotResponse, data io.Reader,
) error {
	err := h.Transport.InstallSnapshot(id, target, args, resp, data)
	if err == nil && resp.Success && h.Matched != nil {
		h.Matched(id, args.Term, args.LastLogIndex)
	}
	return err
}

// SeenTerm is the highest term of a peer that refused a leader's message because of it.
func (h *Transport) SeenTerm() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.newerTerm
}

// acknowledged records what a member holds, from its answer to AppendEntries.
func (h *Transport) acknowledged(
	id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse,
) {
	if resp.Term > args.Term {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.newerTerm = max(h.newerTerm, resp.Term)
		return
	}
	if !resp.Success || resp.Term < args.Term {
		return
	}
	h.announcer.acknowledged(id, target, args)
	index := args.PrevLogEntry
	if len(args.Entries) > 0 {
		index = args.Entries[len(args.Entries)-1].Index
	}
	if index > 0 && h.Matched != nil {
		h.Matched(id, args.Term, index)
	}
}
