package cluster

import (
	"fmt"
	"sync"

	"github.com/hashicorp/raft"
)

// identity is what this node knows of who is who.
type identity struct {
	// start is this process's nonce.
	start string

	mu sync.Mutex
	// starts are the newest nonces heard of members.
	starts map[raft.ServerID]string
	// notMember is the newest index as of which this node was said to be no member,
	// 0 while it is one.
	notMember uint64
}

func (i *identity) init(start string) { i.start, i.starts = start, map[raft.ServerID]string{} }

// heard notes the nonce of a member's process.
func (i *identity) heard(id, start string) {
	if id == "" || start == "" {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.starts[raft.ServerID(id)] = start
}

// startOf gives the newest nonce heard of a member, "" for none.
func (i *identity) startOf(id raft.ServerID) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.starts[id]
}

// outsideSince gives the index as of which this node is no member, 0 while it is
// one. Entries that it has applied beyond that index came from a leader that counts
// it: then who said so was behind.
func (i *identity) outsideSince(applied uint64) uint64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	if applied > i.notMember {
		return 0
	}
	return i.notMember
}

// greet implements host.
func (n *Node) greet(to raft.ServerID) greeting {
	v := n.store.View()
	h := v.History()
	return greeting{Cluster: v.ClusterID(), History: h.ID, Parents: h.Parents, From: string(n.id), To: string(to), Start: n.identity.start}
}

// welcome implements host. A caller that is no member is told so and let in all the
// same: this node's configuration may be older than the caller's.
func (n *Node) welcome(caller greeting) greetingAnswer {
	answer := greetingAnswer{greeting: n.greet(""), NotMember: n.absence(caller.From), Index: n.store.Index()}
	if caller.To != string(n.id) {
		answer.Refused = fmt.Sprintf("this is %s, not %s", n.id, caller.To)
		return answer
	}
	if answer.Refused = stranger(answer.greeting, caller); answer.Refused == "" {
		n.identity.heard(caller.From, caller.Start)
	}
	return answer
}

// met implements host.
func (n *Node) met(to raft.ServerID, address string, answer greetingAnswer) {
	if answer.From != string(to) {
		n.another(to, raft.ServerAddress(address), raft.ServerID(answer.From))
	}
	if stranger(n.greet(""), answer.greeting) != "" {
		return
	}
	n.identity.heard(answer.From, answer.Start)
	n.belongs(answer.NotMember, answer.Index)
}

// speaksOlder implements host.
func (n *Node) speaksOlder() bool { return n.store.View().ProtocolVersion() < identityVersion }

// absence gives the index of this node's store if its configuration lacks the
// member, else 0.
func (n *Node) absence(id string) uint64 {
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

// belongs takes what another node says of this one as of its index: no member when
// notMember is set, else one. The first counts where this node's own log does not go
// further; the second where the other's state is as new as the first.
func (n *Node) belongs(notMember, index uint64) {
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

// outside says why this node is no member of its cluster, nil while it is one.
func (n *Node) outside() error {
	servers := n.servers()
	for _, s := range servers {
		if s.ID != n.id {
			continue
		}
		if index := n.identity.outsideSince(n.raft.Load().AppliedIndex()); index > 0 {
			return fmt.Errorf("this node is not a member of the cluster as of index %d: it was removed; stop it, or empty its data directory to let it join again", index)
		}
		return nil
	}
	if len(servers) > 0 {
		return fmt.Errorf("this node is not a member of the cluster as of index %d: it was removed; stop it, or empty its data directory to let it join again", n.store.Index())
	}
	return nil
}
