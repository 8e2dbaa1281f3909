package cluster

import (
	"fmt"
	"maps"
	"sync"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/membership"
	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/cluster/raftmetrics"
	"bivouac.dev/bivouac/fsm"
)

// identity tracks the processes behind the members' ids.
type identity struct {
	// start is this process's nonce.
	start string

	mu sync.Mutex
	// starts are the newest nonces of members.
	starts map[raft.ServerID]string
	// reports are what the voters say about this node's membership.
	reports map[raft.ServerID]membershipReport
	// notMember is the newest index as of which most of them reported that this node is no member, 0
	// while it is one.
	notMember uint64
}

// membershipReport is a voter's report about this node: as of an index, which says that it is no
// member, or that it is one.
type membershipReport struct{ notMember, index uint64 }

func (i *identity) init(start string) {
	i.start, i.starts, i.reports = start, map[raft.ServerID]string{}, map[raft.ServerID]membershipReport{}
}

// heard records the nonce of a member's process, and drops those of others.
func (i *identity) heard(id, start string, servers []raft.Server) {
	if start == "" || !membership.Listed(servers, raft.ServerID(id)) {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.starts[raft.ServerID(id)] = start
	maps.DeleteFunc(i.starts, func(id raft.ServerID, _ string) bool { return !membership.Listed(servers, id) })
}

// startOf returns a member's newest nonce, "" for none.
func (i *identity) startOf(id raft.ServerID) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.starts[id]
}

// notMemberSince returns the index as of which this node is no member, 0 while it is one. Entries
// applied beyond that index came from a leader that counts this node as a member, so the report was
// outdated.
func (i *identity) notMemberSince(applied uint64) uint64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	if applied > i.notMember {
		return 0
	}
	return i.notMember
}

// greet returns this node's greeting.
func (n *Node) greet(to raft.ServerID) peernet.Greeting {
	v := n.store.View()
	h := v.History()
	return peernet.Greeting{
		Cluster: v.ClusterID(),
		History: h.ID,
		Parents: h.Parents,
		From:    string(n.id),
		To:      string(to),
		Start:   n.identity.start,
	}
}

// peerHost is the node as its peer port sees it. It implements peernet.Host.
type peerHost struct{ *Node }

// Greet implements peernet.Host.
func (n peerHost) Greet(to raft.ServerID) peernet.Greeting { return n.greet(to) }

// Welcome implements peernet.Host. A caller that is no member is told so in the answer and stays
// connected: this node's configuration may be older than the caller's.
func (n peerHost) Welcome(caller peernet.Greeting) peernet.GreetingAnswer {
	answer := peernet.GreetingAnswer{
		Greeting:  n.greet(""),
		NotMember: n.notMemberAsOf(caller.From),
		Index:     n.store.Index(),
	}
	if caller.To != string(n.id) {
		answer.Refused = fmt.Sprintf("this is %s, not %s", n.id, caller.To)
		return answer
	}
	if answer.Refused = peernet.Mismatch(answer.Greeting, caller); answer.Refused == "" {
		n.identity.heard(caller.From, caller.Start, n.servers())
	}
	return answer
}

// Met implements peernet.Host.
func (n peerHost) Met(to raft.ServerID, address string, answer peernet.GreetingAnswer) {
	if answer.From != string(to) {
		n.onWrongMember(to, raft.ServerAddress(address), raft.ServerID(answer.From))
	}
	if peernet.Mismatch(n.greet(""), answer.Greeting) != "" {
		return
	}
	if answer.From != string(to) {
		return
	}
	n.identity.heard(answer.From, answer.Start, n.servers())
	n.noteMembership(to, answer.NotMember, answer.Index)
}

// SpeaksOlder implements peernet.Host.
func (n peerHost) SpeaksOlder() bool { return !n.store.View().Active(fsm.VersionHistory) }

// Forged counts a message that names another member than its connection. It implements a part of
// peernet.Host.
func (n peerHost) Forged(member, named string) {
	n.metrics.RefusedMessages.WithLabelValues(raftmetrics.RefusedForged).Inc()
	n.logger.Debug("cluster: a peer sent a message in the name of another", "peer", member, "name", named)
}

// notMemberAsOf returns this store's index if the configuration lacks the member, else 0.
func (n *Node) notMemberAsOf(id string) uint64 {
	servers := n.servers()
	for _, s := range servers {
		if string(s.ID) == id {
			return 0
		}
	}
	if len(servers) == 0 {
		return 0
	}
	return n.store.Index()
}

// noteMembership takes a voter's report about this node as of the voter's index. This node is no
// member if most of the voters that reported say so, as of an index that its own log does not pass.
func (n *Node) noteMembership(from raft.ServerID, notMember, index uint64) {
	r := n.raft.Load()
	if r == nil || from == n.id {
		return
	}
	own := r.GetConfiguration().Configuration().Servers
	if !membership.HasVoter(own, from) {
		return
	}
	i := &n.identity
	i.mu.Lock()
	defer i.mu.Unlock()
	i.reports[from] = membershipReport{notMember, index}
	maps.DeleteFunc(i.reports, func(id raft.ServerID, _ membershipReport) bool { return !membership.HasVoter(own, id) })
	against, newest := 0, uint64(0)
	for _, report := range i.reports {
		if report.notMember > 0 && report.notMember >= r.LastIndex() {
			against++
			newest = max(newest, report.notMember)
		}
	}
	was := i.notMember
	if i.notMember = 0; 2*against > len(i.reports) {
		i.notMember = newest
	}
	if was == 0 && i.notMember > 0 {
		n.logger.Error(
			"cluster: this node is not a member of the cluster any more; stop it, "+
				"or empty its data directory to let it join again",
			"index",
			i.notMember,
		)
	}
}

// notMemberError says why this node is no member of its cluster, nil while it is one.
func (n *Node) notMemberError() error {
	servers := n.servers()
	for _, s := range servers {
		if s.ID != n.id {
			continue
		}
		if index := n.identity.notMemberSince(n.raft.Load().AppliedIndex()); index > 0 {
			return fmt.Errorf(
				"this node is not a member of the cluster as of index %d: it was removed; stop it, "+
					"or empty its data directory to let it join again",
				index,
			)
		}
		return nil
	}
	if len(servers) > 0 {
		return fmt.Errorf(
			"this node is not a member of the cluster as of index %d: it was removed; stop it, "+
				"or empty its data directory to let it join again",
			n.store.Index(),
		)
	}
	return nil
}
