package raftfix

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// State is what Inbox reads from Raft; *raft.Raft implements it.
type State interface {
	State() raft.RaftState
	CurrentTerm() uint64
	LeaderWithID() (raft.ServerAddress, raft.ServerID)
	LastIndex() uint64
	AppliedIndex() uint64
}

// Inbox is a transport that passes messages to Raft one at a time, from one goroutine and through
// one channel: Raft has handled a message before the next one is judged. It checks heartbeats and
// snapshots against issues 695 and 697 (heartbeats.go, snapshots.go). It must be the outermost
// decorator, so that no message reaches Raft by another way.
type Inbox struct {
	raft.Transport
	self raft.ServerID
	logs raft.LogStore
	// broken is called with the reason that Raft must be restarted. No message passes after it.
	broken func(error)
	// Admit judges a message before Raft sees anything of it; nil passes all. An error refuses the
	// message. prove, if not nil, takes its time to find out more about the sender: the message is
	// held until then, and judged again when prove returns nil. Set it before Open.
	Admit func(message raft.WithRPCHeader) (prove func() error, err error)

	state State
	rpcs  chan raft.RPC
	// beats are heartbeats that Raft must judge, known those already answered.
	beats, known chan raft.RPC
	// proven are held messages whose sender is known better now; holding counts those that are held.
	proven  chan raft.RPC
	holding atomic.Int32
	done    chan struct{}
	shut    sync.Once
	end     sync.WaitGroup
}

var _ raft.WithPreVote = (*Inbox)(nil)

// NewInbox makes the inbox of the member self, whose log is logs. No message passes before Open.
func NewInbox(t raft.Transport, self raft.ServerID, logs raft.LogStore, broken func(error)) *Inbox {
	return &Inbox{
		Transport: t, self: self, logs: logs, broken: broken,
		rpcs: make(chan raft.RPC), beats: make(chan raft.RPC), known: make(chan raft.RPC, 1),
		proven: make(chan raft.RPC), done: make(chan struct{}),
	}
}

// Open starts to pass messages to Raft. Call it once.
func (i *Inbox) Open(state State) {
	i.state = state
	i.Transport.SetHeartbeatHandler(i.heartbeat)
	i.end.Go(i.pass)
}

// Shut stops the passing of messages. Call it after Raft's shutdown has begun and before the
// transport is closed: the transport's goroutines wait for the inbox.
func (i *Inbox) Shut() { i.shut.Do(func() { close(i.done) }) }

// Stop waits until the inbox has ended. Raft and the transport must have ended before.
func (i *Inbox) Stop() {
	i.Shut()
	i.end.Wait()
}

// Consumer implements raft.Transport.
func (i *Inbox) Consumer() <-chan raft.RPC { return i.rpcs }

// RequestPreVote implements raft.WithPreVote.
func (i *Inbox) RequestPreVote(
	id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest,
	resp *raft.RequestPreVoteResponse,
) error {
	return preVoteOf(i.Transport, id, target, args, resp)
}

// Close implements raft.WithClose.
func (i *Inbox) Close() error { return closeOf(i.Transport) }

func (i *Inbox) pass() {
	for {
		var rpc raft.RPC
		admitted := false
		select {
		case rpc = <-i.Transport.Consumer():
			admitted = i.admit(rpc, true)
		case rpc = <-i.beats:
			admitted = i.admit(rpc, true)
		case rpc = <-i.proven:
			admitted = i.admit(rpc, false)
		case rpc = <-i.known:
			admitted = true
		case <-i.done:
			return
		}
		if !admitted {
			continue
		}
		switch request := rpc.Command.(type) {
		case *raft.InstallSnapshotRequest:
			if err := i.snapshot(rpc, request); err != nil {
				i.broken(err)
				return
			}
		case *raft.AppendEntriesRequest:
			rpc.Command = i.ahead(request)
			i.put(rpc)
		default:
			i.put(rpc)
		}
	}
}

// put waits until Raft has taken the message.
func (i *Inbox) put(rpc raft.RPC) (taken bool) {
	select {
	case i.rpcs <- rpc:
		return true
	case <-i.done:
		return false
	}
}

// ask sends Raft a message of the inbox's own and waits for the answer.
func (i *Inbox) ask(request *raft.AppendEntriesRequest) (*raft.AppendEntriesResponse, error) {
	answer := make(chan raft.RPCResponse, 1)
	if !i.put(raft.RPC{Command: request, RespChan: answer}) {
		return nil, raft.ErrRaftShutdown
	}
	select {
	case a := <-answer:
		response, ok := a.Response.(*raft.AppendEntriesResponse)
		if a.Error == nil && !ok {
			return nil, errors.New("raft gave no answer")
		}
		return response, a.Error
	case <-i.done:
		return nil, raft.ErrRaftShutdown
	}
}

// header is the header of this member's answers.
func (i *Inbox) header() raft.RPCHeader {
	return raft.RPCHeader{
		ProtocolVersion: raft.ProtocolVersionMax,
		ID:              []byte(i.self),
		Addr:            i.EncodePeer(i.self, i.LocalAddr()),
	}
}

// refuse reads the snapshot to its end, as the sender expects, and then answers. It runs beside the
// messages that follow.
func (i *Inbox) refuse(rpc raft.RPC, response *raft.InstallSnapshotResponse, err error) {
	i.end.Go(func() {
		if rpc.Reader != nil {
			_, _ = io.Copy(io.Discard, rpc.Reader) // its end, or that of the connection
		}
		rpc.Respond(response, err)
	})
}
