package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/membership"
	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/requestid"
)

const (
	// changeTimeout bounds one membership change.
	changeTimeout = 5 * time.Second
	// helloTimeout bounds one hello.
	helloTimeout = time.Second
)

// member is a node as it introduces itself.
type member struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Address string `json:"address"`
}

// joinRequest asks to become a member, or to have the address corrected.
type joinRequest struct {
	Member member `json:"member"`
	// Protocol is the newest protocol version the node knows.
	Protocol int `json:"protocol"`
}

// changeResponse has the error of a membership change, nil when it was made.
type changeResponse struct {
	Error *fsm.Error `json:"error,omitempty"`
}

func (n *Node) self() member {
	return member{ID: string(n.id), Name: n.cfg.NodeName, Address: n.network.Addr()}
}

// servers returns Raft's latest configuration, nil before Run.
func (n *Node) servers() []raft.Server {
	r := n.raft.Load()
	if r == nil {
		return nil
	}
	return r.GetConfiguration().Configuration().Servers
}

// atLeader runs change on the leader: here, or by a peer call.
func (n *Node) atLeader(
	ctx context.Context, call string, request provable, change func(context.Context, *raft.Raft) error,
) error {
	ctx, leave, err := n.enter(ctx, changeTimeout)
	if err != nil {
		return err
	}
	defer leave()
	l, err := n.awaitLeader(ctx)
	if err != nil {
		return n.orStopping(fsm.Errorf(fsm.CodeNoLeader, "the cluster has no leader; nothing was done"))
	}
	if l.id == n.id {
		if err := n.authorisedCall(ctx, request.proven()); err != nil {
			return err
		}
		return change(ctx, n.raft.Load())
	}
	body, err := withProvenCaller(ctx, request, request.proven())
	if err != nil {
		return err
	}
	raw, err := n.network.Call(peernet.WithRequests(ctx, requestid.Of(ctx)), n.addressOf(l), call, body)
	if err != nil {
		return &fsm.Error{
			Code:       fsm.CodeOutcomeUnknown,
			RetryAfter: retryAfter,
			Message:    fmt.Sprintf("asking the leader: %v", err),
		}
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

// changed turns the error of a membership change into the caller's error.
func (n *Node) changed(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrEnqueueTimeout),
		errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return n.orStopping(fsm.Errorf(fsm.CodeNoLeader, "leadership moved; nothing was done"))
	default:
		return n.orStopping(fsm.Errorf(fsm.CodeOutcomeUnknown, "changing the membership: %v", err))
	}
}

// handleJoin serves callJoin: here on the leader, else by a call to it. A node joins under its own
// name only, and only members forward a join.
func (n *Node) handleJoin(
	ctx context.Context, from string, request joinRequest,
) (changeResponse, error) {
	m := request.Member
	if peernet.NodeName(raft.ServerID(m.ID)) != m.Name {
		return changeResponse{}, fmt.Errorf("node id %q does not belong to the name %q", m.ID, m.Name)
	}
	l, _ := n.leaders.get()
	if _, member := membership.Named(n.servers(), from); from != m.Name && (l.id != n.id || !member) {
		return changeResponse{}, fmt.Errorf("node %q can't join as %q", from, m.Name)
	}
	err := n.atLeader(ctx, callJoin, request, func(ctx context.Context, r *raft.Raft) error {
		return n.admitMember(ctx, r, request)
	})
	return changeResponse{Error: optional(err)}, nil
}

// admitMember adds the node as a nonvoter, or corrects its address. It runs on the leader and can
// be repeated.
func (n *Node) admitMember(ctx context.Context, r *raft.Raft, request joinRequest) error {
	m := request.Member
	id, address := raft.ServerID(m.ID), raft.ServerAddress(m.Address)
	if has := n.store.View().ProtocolVersion(); request.Protocol < has {
		return fsm.Errorf(
			fsm.CodeProtocol, "node %q knows protocol version %d and the cluster uses %d: upgrade the node",
			m.Name, request.Protocol, has,
		)
	}
	servers, err := n.configuration(r)
	if err != nil {
		return n.changed(err)
	}
	own := slices.IndexFunc(servers, func(s raft.Server) bool { return s.ID == id })
	if own >= 0 && servers[own].Address == address {
		return nil
	}
	if own >= 0 {
		if err := n.confirmMove(ctx, m); err != nil {
			return err
		}
		if err := n.stillMember(r, id); err != nil {
			return err
		}
	}
	for _, s := range servers {
		switch {
		case s.ID == id:
		case peernet.NodeName(s.ID) == m.Name:
			err = n.replace(ctx, r, s)
		case s.Address == address:
			err = n.reassignAddress(ctx, r, servers, s, m)
		}
		if err != nil {
			return err
		}
	}
	if own >= 0 && servers[own].Suffrage == raft.Voter {
		n.logger.Info("cluster: node has a new address", "peer", m.Name, "address", m.Address)
		return n.changed(n.await(ctx, r.AddVoter(id, address, 0, changeTimeout)))
	}
	n.logger.Info("cluster: node joins", "peer", m.Name, "address", m.Address)
	return n.changed(n.await(ctx, r.AddNonvoter(id, address, 0, changeTimeout)))
}

// stillMember returns an error if a member was removed meanwhile: a change of its address would add
// it again. Call it right before the change: raft 1.7.3 gives a configuration no index
// (GetConfiguration), so Raft can't reject a change that was decided on an older one.
func (n *Node) stillMember(r *raft.Raft, id raft.ServerID) error {
	servers, err := n.configuration(r)
	if err == nil && !membership.Listed(servers, id) {
		return fsm.Errorf(fsm.CodeConflict, "node %q was removed meanwhile; nothing was done", peernet.NodeName(id))
	}
	return err
}

// replace removes the former member of a name, and returns an error if that member is alive.
func (n *Node) replace(ctx context.Context, r *raft.Raft, former raft.Server) error {
	name := peernet.NodeName(former.ID)
	hello, err := n.hello(ctx, n.currentAddress(former))
	if former.ID == n.id || (err == nil && hello.Member.ID == string(former.ID)) {
		return fsm.Errorf(fsm.CodeConflict, "the name %q belongs to a live node with another id; "+
			"give the new node another name, or remove the old one", name)
	}
	n.logger.Warn("cluster: a node returns with an empty disk; removing its former id", "peer", name)
	return n.changed(n.await(ctx, r.RemoveServer(former.ID, 0, changeTimeout)))
}
