package replication

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// announceDelay is how long a commit waits for a message to the follower that carries it anyway.
const announceDelay = 3 * time.Millisecond

// commitAnnouncer tells followers what is committed when the last entry for a while has been.
// hashicorp/raft sends a message each CommitTimeout for it, all the time and to each follower. Here
// a message is sent once, when there is something to tell, so CommitTimeout can be long: 3 ms cost
// three nodes at rest 440 messages a second (ops/decisions/0048).
//
// The message is an AppendEntries request that the leader could have sent at that moment, as a
// commit hint is: no entries, behind the last entry that the follower has acknowledged in this term,
// and a commit index that is not above it. It does not count as contact with the follower.
type commitAnnouncer struct {
	send func(raft.ServerID, raft.ServerAddress, *raft.AppendEntriesRequest, *raft.AppendEntriesResponse) error
	done chan struct{}
	end  sync.WaitGroup

	mu sync.Mutex
	// committed is the highest index known to be committed, in a term that this node leads.
	committed logPosition
	followers map[raft.ServerID]*toldFollower
}

// toldFollower is a follower in the term of the leader's last message to it.
type toldFollower struct {
	target raft.ServerAddress
	// behind is a request without entries behind the last entry that the follower acknowledged.
	behind raft.AppendEntriesRequest
	// told is the commit index of the last message that it acknowledged.
	told uint64
	// telling is set while a goroutine tells it.
	telling bool
}

// acknowledged notes a follower's answer to a message.
func (a *commitAnnouncer) acknowledged(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest) {
	request := *args
	request.Entries = nil
	if n := len(args.Entries); n > 0 {
		request.PrevLogEntry, request.PrevLogTerm = args.Entries[n-1].Index, args.Entries[n-1].Term
	}
	if request.PrevLogEntry == 0 {
		return // a heartbeat
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.followers[id]
	switch {
	case f == nil:
		f = &toldFollower{}
		a.followers[id] = f
	case args.Term < f.behind.Term:
		return
	case args.Term > f.behind.Term:
		f.told = 0
	}
	f.target, f.behind, f.told = target, request, max(f.told, min(args.LeaderCommitIndex, request.PrevLogEntry))
	a.tell(id, f)
}

// announce notes an index that is committed in a term that this node leads.
func (a *commitAnnouncer) announce(p logPosition) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.committed = p
	for id, f := range a.followers {
		a.tell(id, f)
	}
}

// Announce notes an index that is committed in a term that this node leads.
func (h *Transport) Announce(index, term uint64) { h.announcer.announce(logPosition{index, term}) }

// news returns what a follower has not been told; 0 for nothing. The caller holds mu.
func (a *commitAnnouncer) news(f *toldFollower) uint64 {
	if upTo := min(a.committed.index, f.behind.PrevLogEntry); f.behind.Term == a.committed.term && upTo > f.told {
		return upTo
	}
	return 0
}

// tell begins to tell a follower, if there are news. The caller holds mu.
func (a *commitAnnouncer) tell(id raft.ServerID, f *toldFollower) {
	if f.telling || a.news(f) == 0 {
		return
	}
	f.telling = true
	a.end.Go(func() {
		select {
		case <-time.After(announceDelay):
		case <-a.done:
			return
		}
		a.mu.Lock()
		request, target, upTo := f.behind, f.target, a.news(f)
		a.mu.Unlock()
		err := error(nil)
		if request.LeaderCommitIndex = upTo; upTo > 0 {
			var response raft.AppendEntriesResponse
			err = a.send(id, target, &request, &response)
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		f.telling = false
		if err == nil && f.behind.Term == request.Term {
			f.told = max(f.told, upTo)
			a.tell(id, f)
		}
	})
}
