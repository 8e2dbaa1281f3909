package cluster

import (
	"context"
	"maps"
	"sync"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/membership"
	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/fsm"
)

// addressBook remembers the addresses that peers reported. They may be newer than Raft's
// configuration: if all nodes moved, they could not elect the leader that corrects it. It
// implements raft.ServerAddressProvider.
type addressBook struct {
	// configured returns Raft's configuration.
	configured func() []raft.Server

	self raft.ServerID

	mu    sync.Mutex
	known map[raft.ServerID]string
}

func (b *addressBook) init(self member, configured func() []raft.Server) {
	b.self = raft.ServerID(self.ID)
	b.configured, b.known = configured, map[raft.ServerID]string{raft.ServerID(self.ID): self.Address}
}

// learn takes a member's address, and drops those of nodes that are no members. While this node has
// no configuration, it takes none: then Raft calls nobody.
func (b *addressBook) learn(m member) {
	servers := b.configured()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !membership.Listed(servers, raft.ServerID(m.ID)) {
		return
	}
	b.known[raft.ServerID(m.ID)] = m.Address
	maps.DeleteFunc(b.known, func(id raft.ServerID, _ string) bool {
		return id != b.self && !membership.Listed(servers, id)
	})
}

func (b *addressBook) get(id raft.ServerID) (string, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a, ok := b.known[id]
	return a, ok
}

// ServerAddr implements raft.ServerAddressProvider. The address contains the member's id, so each
// of Raft's connections is for one member (peernet.Greeting). It never fails: Raft would fall back
// to an address without an id. A member without an address is not called.
func (b *addressBook) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	return raft.ServerAddress(peernet.AddressFor(id, b.lookup(id))), nil
}

// lookup returns a member's address, "" when it is not known.
func (b *addressBook) lookup(id raft.ServerID) string {
	if a, ok := b.get(id); ok {
		return a
	}
	for _, s := range b.configured() {
		if s.ID == id {
			return membership.Address(s)
		}
	}
	return ""
}

func (n *Node) addressOf(l *leadership) string {
	if l.address != "" {
		return peernet.AddressFor(l.id, l.address)
	}
	return peernet.AddressFor(l.id, n.addresses.lookup(l.id))
}

// forget drops a member's address if it is still this one.
func (b *addressBook) forget(id raft.ServerID, address string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.known[id] == address {
		delete(b.known, id)
	}
}

// currentAddress returns the newest known address of a member, "" for none.
func (n *Node) currentAddress(s raft.Server) string {
	if a, ok := n.addresses.get(s.ID); ok {
		return a
	}
	return membership.Address(s)
}

// confirmMove returns nil if a member answers at the address to which it is said to have moved. Its
// certificate proves that it is the member, whoever asks for the change.
func (n *Node) confirmMove(ctx context.Context, m member) error {
	switch hello, err := n.hello(ctx, m.Address); {
	case err != nil:
		return fsm.Errorf(fsm.CodeConflict, "the leader does not reach node %q at its new address %s: %v", m.Name,
			m.Address, err)
	case hello.Member.ID != m.ID:
		return fsm.Errorf(fsm.CodeConflict, "node %q answers at the new address %s of node %q", hello.Member.Name,
			m.Address, m.Name)
	}
	return nil
}

// reassignAddress gives a member's address to another node that answers there. The former owner
// stays a member, so the tolerance is unchanged. It gets an address back when it is heard
// elsewhere, and when it took that of another member, once that one has a new one: Raft takes no
// address twice. A newcomer is not refused in its place: members that exchange addresses need it
// all the same, and a dead voter could be replaced by an operator alone (ops/decisions/0022).
func (n *Node) reassignAddress(
	ctx context.Context, r *raft.Raft, servers []raft.Server, former raft.Server, m member,
) error {
	name := peernet.NodeName(former.ID)
	switch hello, err := n.hello(ctx, m.Address); {
	case former.ID == n.id || err == nil && hello.Member.ID == string(former.ID):
		return fsm.Errorf(fsm.CodeConflict,
			"the address %s of node %q is that of node %q, which lives; give one of them another (peer { advertise })",
			m.Address, m.Name, name)
	case err != nil:
		return fsm.Errorf(
			fsm.CodeConflict,
			"the address %s of node %q was that of node %q, and the leader does not reach it: %v", m.Address,
			m.Name, name, err,
		)
	case hello.Member.ID != m.ID:
		return fsm.Errorf(
			fsm.CodeConflict, "at the address %s of node %q, which was that of node %q, node %q answers",
			m.Address, m.Name, name, hello.Member.Name,
		)
	}
	next := membership.Nowhere(former.ID)
	if a := n.currentAddress(former); a != "" && a != m.Address && !membership.At(servers, a) {
		if hello, err := n.hello(ctx, a); err == nil && hello.Member.ID == string(former.ID) {
			next = raft.ServerAddress(a)
		}
	}
	if err := n.stillMember(r, former.ID); err != nil {
		return err
	}
	n.logger.Warn("cluster: another node answers at a member's address and takes it; "+
		"replace or remove the member (bivouac operator replace)",
		"peer", m.Name, "former", name, "address", m.Address)
	n.addresses.forget(former.ID, m.Address)
	change := r.AddNonvoter
	if former.Suffrage == raft.Voter {
		change = r.AddVoter
	}
	return n.changed(n.await(ctx, change(former.ID, next, 0, changeTimeout)))
}
