package raftfix

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// ErrTransferSpent is in the error of a leadership transfer that can't be repeated in this term.
var ErrTransferSpent = errors.New("handing over to it was tried in this term already")

// stuckAfter is how long a leader may refuse its own entries because of a finished transfer before
// its Raft must be restarted.
const stuckAfter = 10 * time.Second

// Leader is what a transfer needs of Raft; *raft.Raft implements it.
type Leader interface {
	CurrentTerm() uint64
	LeadershipTransferToServer(id raft.ServerID, address raft.ServerAddress) raft.Future
}

// Transfers begins leadership transfers; it avoids hashicorp/raft issue 696. Raft asks a peer's
// replication goroutine to bring the peer up to date, through a channel of capacity one. When the
// transfer times out, the request stays in the channel. The next transfer to the peer then blocks
// beyond its timeout and its term, and Raft refuses every entry meanwhile. So each peer is asked
// once in a term.
type Transfers struct {
	mu    sync.Mutex
	term  uint64
	asked map[raft.ServerID]bool
}

// To begins a transfer to the first of the peers that was not asked in this term.
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

// Stuck reports whether issue 696 blocks a leader whose entries have failed with err since that
// long ago.
func Stuck(err error, since time.Duration) bool {
	return errors.Is(err, raft.ErrLeadershipTransferInProgress) && since > stuckAfter
}
