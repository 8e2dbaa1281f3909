package cluster

import (
	"errors"
	"sync"

	"github.com/hashicorp/raft"
)

// feed is the transport as Raft sees it. Beside what peers send it hands Raft
// the commit indexes this node hears from the leader in answers to its calls:
// hashicorp/raft tells a follower what is committed with the next message only,
// after a pause (CommitTimeout) or, under load, behind the disk write that comes
// with that message. A node waits for its own store after every write it
// forwarded and every linearizable read, so each would wait for that too.
//
// What it hands in is a message the leader could have sent at that moment: no
// entries, and as both the entry before them and the commit index the entry the
// leader spoke of. Raft checks it like any other, and drops it if it has seen a
// later term.
type feed struct {
	raft.Transport
	rpcs chan raft.RPC
	done chan struct{}
	end  sync.WaitGroup
	// sends tells whether entries of a term still have to reach a peer; see
	// AppendEntries. Nil means that Raft decides.
	sends func(id raft.ServerID, target raft.ServerAddress, term uint64) bool
	// matched hears up to which index a member has the log of a term's leader.
	matched func(id raft.ServerID, term, index uint64)

	mu sync.Mutex
	// passed is the last entry that has been handed to Raft; a message for it or
	// an earlier one comes behind.
	passed position
	// hint is a commit index whose entry has not come yet.
	hint raft.AppendEntriesRequest
}

// position is an entry and the leader's term it was sent in.
type position struct{ index, term uint64 }

func newFeed(t raft.Transport) *feed {
	f := &feed{Transport: t, rpcs: make(chan raft.RPC), done: make(chan struct{})}
	f.end.Go(f.pass)
	return f
}

// Consumer implements raft.Transport.
func (f *feed) Consumer() <-chan raft.RPC { return f.rpcs }

// RequestPreVote implements raft.WithPreVote.
func (f *feed) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	if t, ok := f.Transport.(raft.WithPreVote); ok {
		return t.RequestPreVote(id, target, args, resp)
	}
	return errors.New("the transport knows no pre-votes")
}

// Close implements raft.WithClose.
func (f *feed) Close() error {
	if t, ok := f.Transport.(raft.WithClose); ok {
		return t.Close()
	}
	return nil
}

// stop ends the feed; Raft must have ended before.
func (f *feed) stop() {
	close(f.done)
	f.end.Wait()
}

// pass hands on what peers send.
func (f *feed) pass() {
	for {
		select {
		case rpc := <-f.Transport.Consumer():
			// Once handed on the message is not ours any more, not even to read.
			var last position
			if request, ok := rpc.Command.(*raft.AppendEntriesRequest); ok && len(request.Entries) > 0 {
				last = position{request.Entries[len(request.Entries)-1].Index, request.Term}
			}
			f.put(rpc)
			if last.index > 0 {
				f.follow(last)
			}
		case <-f.done:
			return
		}
	}
}

func (f *feed) put(rpc raft.RPC) {
	select {
	case f.rpcs <- rpc:
	case <-f.done:
	}
}

// follow notes what has been handed on, and sends the hint behind that waited
// for it.
func (f *feed) follow(p position) {
	f.mu.Lock()
	f.passed = p
	hint := f.hint
	ready := hint.PrevLogEntry > 0 && hint.Term == p.term && hint.PrevLogEntry <= p.index
	if ready || hint.Term < p.term {
		f.hint = raft.AppendEntriesRequest{}
	}
	f.mu.Unlock()
	if ready {
		f.inject(hint)
	}
}

// committed takes the leader's word, given in its term, that the entry of that
// term at index is committed.
func (f *feed) committed(leader raft.ServerID, address raft.ServerAddress, p position) {
	hint := raft.AppendEntriesRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(leader), Addr: f.EncodePeer(leader, address)},
		Term:      p.term, PrevLogEntry: p.index, PrevLogTerm: p.term, LeaderCommitIndex: p.index,
	}
	f.mu.Lock()
	ready := f.passed.term == p.term && f.passed.index >= p.index
	if !ready && (p.term > f.hint.Term || p.term == f.hint.Term && p.index > f.hint.PrevLogEntry) {
		f.hint = hint
	}
	f.mu.Unlock()
	if ready {
		f.inject(hint)
	}
}

// inject hands in a message of our own; nobody waits for its answer.
func (f *feed) inject(request raft.AppendEntriesRequest) {
	f.put(raft.RPC{Command: &request, RespChan: make(chan raft.RPCResponse, 1)})
}

// learnCommit tells Raft what an answer of the leader implies: that the entry is
// committed.
func (n *Node) learnCommit(l *leadership, index, term uint64) {
	f := n.feed.Load()
	if f == nil || term == 0 || n.store.Index() >= index {
		return
	}
	f.committed(l.id, raft.ServerAddress(l.address), position{index, term})
}
