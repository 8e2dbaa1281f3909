package cluster

import (
	"sync"

	"github.com/hashicorp/raft"
)

// answeredByAnother gives what counts the answers that raftfix.Answers held off,
// and logs each pair of members once: a member that is gone is asked several times
// a second until it is removed.
func (n *Node) answeredByAnother() func(asked raft.ServerID, target raft.ServerAddress, answered raft.ServerID) {
	type pair struct{ asked, answered raft.ServerID }
	var mu sync.Mutex
	told := map[pair]bool{}
	return func(asked raft.ServerID, target raft.ServerAddress, answered raft.ServerID) {
		n.metrics.wrongAnswers.Inc()
		mu.Lock()
		first := !told[pair{asked, answered}] && len(told) < helloLimit
		if first {
			told[pair{asked, answered}] = true
		}
		mu.Unlock()
		if first {
			n.logger.Warn("cluster: another member answers where one was asked; its answers count for nothing",
				"peer", string(asked), "address", string(target), "error", "answered by "+string(answered))
		}
	}
}
