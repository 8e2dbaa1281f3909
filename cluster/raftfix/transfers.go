package raftfix

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// ErrTransferSpent is in the error of a handover that is not tried again.
var ErrTransferSpent = errors.New("handing over to it was tried in this term already")

// StuckAfter is how long a leader may refuse its own entries because of a handover
// that ended long ago, before its Raft must be started anew.
const StuckAfter = 10 * time.Second

// Leader is what a handover needs of Raft; *raft.Raft has it.
type Leader interface {
	CurrentTerm() uint64
	LeadershipTransferToServer(id raft.ServerID, address raft.ServerAddress) raft.Future
}

// Transfers hands leadership over; it holds off hashicorp/raft issue 696. Raft asks
// the goroutine that sends a peer its entries to bring it up to date, through a
// channel with one place, and nothing takes the question back when the handover
// times out. The next handover to the peer then waits for that place, beyond its
// own timeout and beyond the term, and as long as it waits Raft refuses every
// entry. So each peer is asked once in a term.
type Transfers struct {
	mu    sync.Mutex
	term  uint64
	asked map[raft.ServerID]bool
}

// To begins a handover to the first of the peers that was not asked in this term.
func (t *Transfers) To(r Leader, peers []raft.Server) (raft.Future, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if term := r.CurrentTerm(); term != t.term || t.asked == nil {
		t.term, t.asked = term, map[raft.ServerID]bool{}
	}
	for _, p := range peers {
		if !t.asked[p.ID] {
			t.asked[p.ID] = true
			return r.LeadershipTransferToServer(p.ID, p.Address), nil
		}
	}
	if len(peers) == 0 {
		return nil, errors.New("no other voter that may lead answers")
	}
	return nil, fmt.Errorf("%s: %w", peers[0].ID, ErrTransferSpent)
}

// Stuck reports whether a leader that has got err for its entries since begin is
// one that issue 696 keeps from ever writing again.
func Stuck(err error, since time.Duration) bool {
	return errors.Is(err, raft.ErrLeadershipTransferInProgress) && since > StuckAfter
}
