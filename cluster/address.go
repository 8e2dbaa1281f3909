package cluster

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/fsm"
)

// addressBook remembers where peers said they are, which may be newer than
// Raft's configuration: when all nodes moved, they could not elect the leader
// that corrects it. It implements raft.ServerAddressProvider.
type addressBook struct {
	// configured gives the addresses in Raft's configuration.
	configured func() []raft.Server

	mu    sync.Mutex
	known map[raft.ServerID]string
}

func (b *addressBook) init(self member, configured func() []raft.Server) {
	b.configured, b.known = configured, map[raft.ServerID]string{raft.ServerID(self.ID): self.Address}
}

func (b *addressBook) learn(m member) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.known[raft.ServerID(m.ID)] = m.Address
}

func (b *addressBook) get(id raft.ServerID) (string, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a, ok := b.known[id]
	return a, ok
}

// ServerAddr implements raft.ServerAddressProvider. The address names the member,
// so that Raft's connections are each for one (greeting.go). It is never an error:
// Raft would fall back to a bare address. One without a place is not called.
func (b *addressBook) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	return raft.ServerAddress(addressFor(id, b.place(id))), nil
}

// place gives where a member is, "" when that is not known.
func (b *addressBook) place(id raft.ServerID) string {
	if a, ok := b.get(id); ok {
		return a
	}
	for _, s := range b.configured() {
		if s.ID == id {
			return located(s.Address)
		}
	}
	return ""
}

func (n *Node) addressOf(l *leadership) string {
	if l.address != "" {
		return addressFor(l.id, l.address)
	}
	return addressFor(l.id, n.addresses.place(l.id))
}

// forget drops an address of a member that is not its own any more.
func (b *addressBook) forget(id raft.ServerID, address string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.known[id] == address {
		delete(b.known, id)
	}
}

// whereIs gives the newest address known of a member, "" for none.
func (n *Node) whereIs(s raft.Server) string {
	if a, ok := n.addresses.get(s.ID); ok {
		return a
	}
	return located(s.Address)
}

// nowhere begins what Raft's configuration has in the place of an address for a
// member whose former address is another node's: Raft wants one, and no two alike.
const nowhere = "nowhere:"

// errNowhere is the answer of a member that can't be called.
var errNowhere = errors.New("its address is not known: another node is where it was")

// located gives an address of Raft's configuration, "" where it is none.
func located(address raft.ServerAddress) string {
	if strings.HasPrefix(string(address), nowhere) {
		return ""
	}
	return string(address)
}

// vacate takes its address from a member at whose place another node answers, so
// that this one can have it. The member stays what it is: no step lowers the
// tolerance. If it lives elsewhere, or comes back there, it is found again.
func (n *Node) vacate(ctx context.Context, r *raft.Raft, former raft.Server, m member) error {
	name := nodeName(former.ID)
	switch hello, err := n.hello(ctx, m.Address); {
	case former.ID == n.id || err == nil && hello.Member.ID == string(former.ID):
		return fsm.Errorf(fsm.CodeConflict, "the address %s of node %q is that of node %q, which lives; give one of them another (peer { advertise })", m.Address, m.Name, name)
	case err != nil:
		return fsm.Errorf(fsm.CodeConflict, "the address %s of node %q was that of node %q, and the leader does not reach it: %v", m.Address, m.Name, name, err)
	case hello.Member.ID != m.ID:
		return fsm.Errorf(fsm.CodeConflict, "at the address %s of node %q, which was that of node %q, node %q answers", m.Address, m.Name, name, hello.Member.Name)
	}
	next := raft.ServerAddress(nowhere + former.ID)
	if a := n.whereIs(former); a != "" && a != m.Address {
		if hello, err := n.hello(ctx, a); err == nil && hello.Member.ID == string(former.ID) {
			next = raft.ServerAddress(a)
		}
	}
	n.logger.Warn("cluster: another node answers at a member's address and gets it; the member stays until it is replaced or removed (bivouac operator replace)",
		"peer", m.Name, "former", name, "address", m.Address)
	n.addresses.forget(former.ID, m.Address)
	change := r.AddNonvoter
	if former.Suffrage == raft.Voter {
		change = r.AddVoter
	}
	return n.changed(n.await(ctx, change(former.ID, next, 0, changeTimeout)))
}
