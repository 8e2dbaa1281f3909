package cluster

import (
	"fmt"
	"sync"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/fsm"
)

// identity tracks the processes behind the members' ids.
type identity struct {
	// start is this process's nonce.
	start string

	mu sync.Mutex
	// starts are the newest nonces of members.
	starts map[raft.ServerID]string
	// notMember is the newest index as of which a peer reported that this node is no member, 0 while
	// it is one.
	notMember uint64
}

func (i *identity) init(start string) { i.start, i.starts = start, map[raft.ServerID]string{} }

// heard records the nonce of a member's process.
func (i *identity) heard(id, start string) {
	if id == "" || start == "" {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.starts[raft.ServerID(id)] = start
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
	return peernet.Greeting{Cluster: v.ClusterID(), History: h.ID, Parents: h.Parents, From: string(n.id), To: string(to), Start: n.identity.start}
}

// peerHost is the node as its peer port sees it. It implements peernet.Host.
type peerHost struct{ *Node }

// Greet implements peernet.Host.
func (n peerHost) Greet(to raft.ServerID) peernet.Greeting { return n.greet(to) }

// Welcome implements peernet.Host. A caller that is no member is told so in the answer and stays
// connected: this node's configuration may be older than the caller's.
func (n peerHost) Welcome(caller peernet.Greeting) peernet.GreetingAnswer {
	answer := peernet.GreetingAnswer{Greeting: n.greet(""), NotMember: n.notMemberAsOf(caller.From), Index: n.store.Index()}
	if caller.To != string(n.id) {
		answer.Refused = fmt.Sprintf("this is %s, not %s", n.id, caller.To)
		return answer
	}
	if answer.Refused = peernet.Mismatch(answer.Greeting, caller); answer.Refused == "" {
		n.identity.heard(caller.From, caller.Start)
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
	n.identity.heard(answer.From, answer.Start)
	n.noteMembership(answer.NotMember, answer.Index)
}

// SpeaksOlder implements peernet.Host.
func (n peerHost) SpeaksOlder() bool { return !n.store.View().Active(fsm.VersionHistory) }

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

// noteMembership takes a peer's report about this node as of the peer's index. "No member" counts
// unless this node's own log is longer. "Member" counts if the peer's state is as recent as the "no
// member" report.
func (n *Node) noteMembership(notMember, index uint64) {
	r := n.raft.Load()
	if r == nil || len(n.servers()) == 0 {
		return
	}
	n.identity.mu.Lock()
	defer n.identity.mu.Unlock()
	switch was := n.identity.notMember; {
	case notMember == 0 && index >= was:
		n.identity.notMember = 0
	case notMember >= r.LastIndex() && notMember > was:
		n.identity.notMember = notMember
		if was == 0 {
			n.logger.Error("cluster: this node is not a member of the cluster any more; stop it, or empty its data directory to let it join again", "index", notMember)
		}
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
			return fmt.Errorf("this node is not a member of the cluster as of index %d: it was removed; stop it, or empty its data directory to let it join again", index)
		}
		return nil
	}
	if len(servers) > 0 {
		return fmt.Errorf("this node is not a member of the cluster as of index %d: it was removed; stop it, or empty its data directory to let it join again", n.store.Index())
	}
	return nil
}
