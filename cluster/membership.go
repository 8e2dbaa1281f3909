package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/fsm"
)

const (
	// changeTimeout bounds one membership change.
	changeTimeout = 5 * time.Second
	// helloTimeout bounds one hello.
	helloTimeout = time.Second
	// tendInterval is how often the leader looks after the members.
	tendInterval = time.Second
	// promoteWithin is how many entries a nonvoter may lack and still be
	// promoted: what the leader writes in a moment.
	promoteWithin = 256
)

// member is a node as it introduces itself.
type member struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Address string `json:"address"`
}

// joinRequest asks to be a member, or to have one's address corrected.
type joinRequest struct {
	Member member `json:"member"`
	// Protocol is the newest protocol version the node knows.
	Protocol int `json:"protocol"`
}

// removeRequest names a member to remove.
type removeRequest struct {
	Name string `json:"name"`
}

// changeResponse says whether a membership change was made.
type changeResponse struct {
	Error *fsm.Error `json:"error,omitempty"`
}

// nodeName gives the name in a node id.
func nodeName(id raft.ServerID) string {
	name, _, _ := strings.Cut(string(id), ".")
	return name
}

func (n *Node) self() member {
	return member{ID: string(n.id), Name: n.cfg.NodeName, Address: n.network.Addr()}
}

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

// ServerAddr implements raft.ServerAddressProvider. On an error Raft uses its
// configuration too, but complains about it.
func (b *addressBook) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	if a, ok := b.get(id); ok {
		return raft.ServerAddress(a), nil
	}
	for _, s := range b.configured() {
		if s.ID == id {
			return s.Address, nil
		}
	}
	return "", fmt.Errorf("no address of %s", id)
}

func (n *Node) addressOf(l *leadership) string {
	if l.address != "" {
		return l.address
	}
	a, _ := n.addresses.get(l.id)
	return a
}

// servers gives Raft's latest configuration, nil before Run.
func (n *Node) servers() []raft.Server {
	r := n.raft.Load()
	if r == nil {
		return nil
	}
	return r.GetConfiguration().Configuration().Servers
}

// atLeader runs change on the leader: here, or by the peer call.
func (n *Node) atLeader(ctx context.Context, call string, request any, change func(context.Context, *raft.Raft) error) error {
	ctx, leave, err := n.enter(ctx, changeTimeout)
	if err != nil {
		return err
	}
	defer leave()
	l, err := n.awaitLeader(ctx)
	if err != nil {
		return n.gaveUp(fsm.Errorf(fsm.CodeNoLeader, "the cluster has no leader; nothing was done"))
	}
	if l.id == n.id {
		return change(ctx, n.raft.Load())
	}
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	raw, err := n.network.Call(ctx, n.addressOf(l), call, body)
	if err != nil {
		return &fsm.Error{Code: fsm.CodeOutcomeUnknown, RetryAfter: retryAfter, Message: fmt.Sprintf("asking the leader: %v", err)}
	}
	var response changeResponse
	if err := json.Unmarshal(raw, &response); err != nil {
		return err
	}
	if response.Error != nil {
		return response.Error
	}
	return nil
}

// RemoveServer takes the node of that name out of the cluster for good. It may
// be asked of any node. The removed node, if it still runs, must be stopped by
// the operator; to come back it needs an empty data directory. Removing the
// leader hands leadership over first. An unknown name is CodeNotFound; the only
// voter can't be removed (CodeConflict).
func (n *Node) RemoveServer(ctx context.Context, name string) error {
	return n.atLeader(ctx, callRemove, removeRequest{name}, func(ctx context.Context, r *raft.Raft) error {
		servers := r.GetConfiguration().Configuration().Servers
		target, voters := raft.Server{}, 0
		for _, s := range servers {
			if s.Suffrage == raft.Voter {
				voters++
			}
			if nodeName(s.ID) == name {
				target = s
			}
		}
		switch {
		case target.ID == "":
			return fsm.Errorf(fsm.CodeNotFound, "no node %q in the cluster", name)
		case target.Suffrage == raft.Voter && voters == 1:
			return fsm.Errorf(fsm.CodeConflict, "node %q is the only voter", name)
		case target.ID == n.id:
			mine, _ := n.leaders.get()
			if err := n.await(ctx, r.LeadershipTransfer()); err != nil {
				return fsm.Errorf(fsm.CodeConflict, "node %q leads and could not hand over: %v; try again", name, err)
			}
			select { // the successor removes this node
			case <-mine.ctx.Done():
			case <-ctx.Done():
			}
			return n.RemoveServer(ctx, name)
		}
		n.logger.Info("cluster: removing node", "peer", name)
		return n.changed(n.await(ctx, r.RemoveServer(target.ID, 0, changeTimeout)))
	})
}

// TransferLeadership has the leader hand over to its most advanced follower.
// It may be asked of any node.
func (n *Node) TransferLeadership(ctx context.Context) error {
	return n.atLeader(ctx, callTransfer, struct{}{}, func(ctx context.Context, r *raft.Raft) error {
		if err := n.await(ctx, r.LeadershipTransfer()); err != nil {
			return fsm.Errorf(fsm.CodeConflict, "leadership was not handed over: %v", err)
		}
		return nil
	})
}

// changed turns the error of a membership change into one for the caller.
func (n *Node) changed(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrEnqueueTimeout), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return n.gaveUp(fsm.Errorf(fsm.CodeNoLeader, "leadership moved; nothing was done"))
	default:
		return n.gaveUp(fsm.Errorf(fsm.CodeOutcomeUnknown, "changing the membership: %v", err))
	}
}

// handleJoin answers callJoin, forwarding it to the leader. Only the node
// itself may ask for itself.
func (n *Node) handleJoin(ctx context.Context, from string, request joinRequest) (changeResponse, error) {
	m := request.Member
	if nodeName(raft.ServerID(m.ID)) != m.Name {
		return changeResponse{}, fmt.Errorf("node id %q does not belong to the name %q", m.ID, m.Name)
	}
	l, _ := n.leaders.get()
	if from != m.Name && l.id != n.id {
		return changeResponse{}, fmt.Errorf("node %q can't join as %q", from, m.Name)
	}
	err := n.atLeader(ctx, callJoin, request, func(ctx context.Context, r *raft.Raft) error {
		return n.admitMember(ctx, r, request)
	})
	return changeResponse{Error: optional(err)}, nil
}

// admitMember adds the node as a nonvoter, or corrects its address. It runs on
// the leader and is safe to repeat.
func (n *Node) admitMember(ctx context.Context, r *raft.Raft, request joinRequest) error {
	m := request.Member
	id, address := raft.ServerID(m.ID), raft.ServerAddress(m.Address)
	if has := n.store.View().ProtocolVersion(); request.Protocol < has {
		return fsm.Errorf(fsm.CodeProtocol, "node %q knows protocol version %d and the cluster uses %d: upgrade the node", m.Name, request.Protocol, has)
	}
	n.addresses.learn(m)
	for _, s := range r.GetConfiguration().Configuration().Servers {
		switch {
		case s.ID == id && s.Address == address:
			return nil
		case s.ID == id && s.Suffrage == raft.Voter:
			n.logger.Info("cluster: node has a new address", "peer", m.Name, "address", m.Address)
			return n.changed(n.await(ctx, r.AddVoter(id, address, 0, changeTimeout)))
		case s.ID != id && nodeName(s.ID) == m.Name:
			if err := n.replace(ctx, r, s); err != nil {
				return err
			}
		case s.ID != id && s.Address == address:
			n.logger.Warn("cluster: two members have one address", "peer", m.Name, "address", m.Address)
		}
	}
	n.logger.Info("cluster: node joins", "peer", m.Name, "address", m.Address)
	return n.changed(n.await(ctx, r.AddNonvoter(id, address, 0, changeTimeout)))
}

// replace removes the former owner of a name, unless it is alive.
func (n *Node) replace(ctx context.Context, r *raft.Raft, former raft.Server) error {
	name := nodeName(former.ID)
	hello, err := n.hello(ctx, n.whereIs(former))
	if former.ID == n.id || (err == nil && hello.Member.ID == string(former.ID)) {
		return fsm.Errorf(fsm.CodeConflict, "the name %q belongs to a live node with another id; give the new node another name, or remove the old one", name)
	}
	n.logger.Warn("cluster: a node comes back without its data; its former self is removed", "peer", name)
	return n.changed(n.await(ctx, r.RemoveServer(former.ID, 0, changeTimeout)))
}

// whereIs gives the newest address known of a member.
func (n *Node) whereIs(s raft.Server) string {
	if a, ok := n.addresses.get(s.ID); ok {
		return a
	}
	return string(s.Address)
}

// tend is the leader's care for the members, for one term: nonvoters that have
// caught up become voters, and the protocol version rises when all know a
// higher one.
func (n *Node) tend(ctx context.Context, _ uint64) error {
	for {
		if err := n.tendOnce(ctx); err != nil {
			return err
		}
		select {
		case <-time.After(tendInterval):
		case <-ctx.Done():
			return nil
		}
	}
}

func (n *Node) tendOnce(ctx context.Context) error {
	r := n.raft.Load()
	version := n.store.View().ProtocolVersion()
	known := []int{fsm.ProtocolVersion}
	for _, s := range r.GetConfiguration().Configuration().Servers {
		if s.ID == n.id || (s.Suffrage == raft.Voter && version >= fsm.ProtocolVersion) {
			continue
		}
		hello, err := n.hello(ctx, n.whereIs(s))
		if err != nil || hello.Member.ID != string(s.ID) {
			known = append(known, 0)
			continue
		}
		known = append(known, hello.Protocol)
		if s.Suffrage != raft.Voter && promotable(hello.Applied, r.CommitIndex()) {
			n.logger.Info("cluster: node has caught up and votes from now on", "peer", nodeName(s.ID))
			if err := n.await(ctx, r.AddVoter(s.ID, raft.ServerAddress(hello.Member.Address), 0, changeTimeout)); err != nil {
				return fmt.Errorf("promoting %s: %w", nodeName(s.ID), err)
			}
		}
	}
	next := raisedVersion(version, known)
	if next == version {
		return nil
	}
	cmd := fsm.NewCommand(uuid.NewString(), time.Now(), "", &fsm.ProtocolRaiseBody{Version: next})
	if _, err := n.Propose(ctx, cmd); err != nil {
		return fmt.Errorf("raising the protocol version: %w", err)
	}
	n.logger.Info("cluster: protocol version raised", "version", next)
	return nil
}

// raisedVersion is the newest version every member knows; known has 0 for those
// that did not answer. A version never falls.
func raisedVersion(current int, known []int) int {
	return max(current, slices.Min(known))
}

// promotable tells whether a nonvoter may vote: a voter far behind could not
// help to commit anything for a while.
func promotable(applied, commit uint64) bool {
	return applied > 0 && applied+promoteWithin >= commit
}
