package cluster

import (
	"context"
	"strings"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/fsm"
)

// removeRequest names a member to remove.
type removeRequest struct {
	Name string `json:"name"`
	RemoveOptions
}

// RemoveOptions are an operator's wishes about a removal.
type RemoveOptions struct {
	// Force removes the node although the voters that answer and remain are no
	// majority.
	Force bool `json:"force,omitempty"`
	// Revoke refuses the node's certificate from then on, on every node.
	// Fingerprint names it, where the leader has not seen it; see Fingerprint.
	Revoke      bool   `json:"revoke,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`
}

// replaceRequest names a member and the one that takes its place.
type replaceRequest struct {
	Old string `json:"old"`
	New string `json:"new"`
	RemoveOptions
}

// RemoveServer takes the node of that name out of the cluster for good. It may
// be asked of any node. The removed node, if it still runs, must be stopped by
// the operator; to come back it needs an empty data directory. Removing the
// leader hands leadership over first. An unknown name is CodeNotFound. The only
// voter can't be removed, and without Force nobody whose absence would stop the
// cluster (CodeConflict).
func (n *Node) RemoveServer(ctx context.Context, name string, o RemoveOptions) error {
	return n.atLeader(ctx, callRemove, removeRequest{name, o}, func(ctx context.Context, r *raft.Raft) error {
		servers, index, err := n.configuration(r)
		if err != nil {
			return n.changed(err)
		}
		target, found := serverNamed(servers, name)
		switch {
		case !found:
			return fsm.Errorf(fsm.CodeNotFound, "no node %q in the cluster", name)
		case target.Suffrage == raft.Voter && voters(servers) == 1:
			return fsm.Errorf(fsm.CodeConflict, "node %q is the only voter", name)
		}
		if err := n.mayGo(ctx, r, servers, target, o); err != nil {
			return err
		}
		if target.ID == n.id {
			return n.leaveTo(ctx, r, func() error { return n.RemoveServer(ctx, name, o) })
		}
		if err := n.revoke(ctx, target, o); err != nil {
			return err
		}
		n.logger.Info("cluster: removing node", "peer", name)
		return n.changed(n.await(ctx, r.RemoveServer(target.ID, index, changeTimeout)))
	})
}

// ReplaceServer has the node newName vote in the place of the node oldName, which
// is removed: the newcomer is promoted first, so that no configuration on the way
// tolerates less than the one before. It may be asked of any node.
func (n *Node) ReplaceServer(ctx context.Context, oldName, newName string, o RemoveOptions) error {
	return n.atLeader(ctx, callReplace, replaceRequest{oldName, newName, o}, func(ctx context.Context, r *raft.Raft) error {
		servers, index, err := n.configuration(r)
		if err != nil {
			return n.changed(err)
		}
		former, found := serverNamed(servers, oldName)
		if !found {
			return fsm.Errorf(fsm.CodeNotFound, "no node %q in the cluster", oldName)
		}
		next, found := serverNamed(servers, newName)
		switch {
		case !found:
			return fsm.Errorf(fsm.CodeNotFound, "no node %q in the cluster: start it first, with retry_join and without bootstrap_expect, so that it joins", newName)
		case former.ID == next.ID:
			return fsm.Errorf(fsm.CodeInvalid, "node %q can't take its own place", oldName)
		}
		for _, s := range n.seats(r, servers, n.askAll(ctx, servers)) {
			if s.id == next.ID && (!s.alive || !s.voter && !s.ready && next.ID != n.id) {
				return fsm.Errorf(fsm.CodeConflict, "node %q has not caught up, or does not answer; wait until it has (bivouac operator members)", newName)
			}
		}
		if next.Suffrage != raft.Voter {
			n.logger.Info("cluster: node takes the place of another", "peer", newName, "former", oldName)
			if err := n.await(ctx, r.AddVoter(next.ID, n.addressIn(servers, next.ID), index, changeTimeout)); err != nil {
				return n.changed(err)
			}
		}
		return n.RemoveServer(ctx, oldName, o)
	})
}

// mayGo refuses a removal that would leave no majority of living voters.
func (n *Node) mayGo(ctx context.Context, r *raft.Raft, servers []raft.Server, target raft.Server, o RemoveOptions) error {
	if target.Suffrage != raft.Voter || o.Force {
		return nil
	}
	seats := n.seats(r, servers, n.askAll(ctx, servers))
	if removable(seats, target.ID) {
		return nil
	}
	var silent []string
	for _, s := range seats {
		if s.voter && !s.alive && s.id != target.ID {
			silent = append(silent, nodeName(s.id))
		}
	}
	return fsm.Errorf(fsm.CodeConflict,
		"without node %q too few of the other voters would be left to go on: %s does not answer; start or remove it first, or remove %q with force",
		nodeName(target.ID), strings.Join(silent, ", "), nodeName(target.ID))
}

// leaveTo hands leadership over and has the successor do the rest.
func (n *Node) leaveTo(ctx context.Context, r *raft.Raft, rest func() error) error {
	mine, _ := n.leaders.get()
	if err := n.handOn(ctx, r); err != nil {
		return fsm.Errorf(fsm.CodeConflict, "node %q leads and could not hand over: %v; try again", n.cfg.NodeName, err)
	}
	select {
	case <-mine.ctx.Done():
	case <-ctx.Done():
	}
	return rest()
}

// serverNamed finds a member by its name.
func serverNamed(servers []raft.Server, name string) (raft.Server, bool) {
	for _, s := range servers {
		if nodeName(s.ID) == name {
			return s, true
		}
	}
	return raft.Server{}, false
}

// voters counts the voters.
func voters(servers []raft.Server) (count int) {
	for _, s := range servers {
		if s.Suffrage == raft.Voter {
			count++
		}
	}
	return count
}

// transferRequest names the successor; empty is the most advanced follower.
type transferRequest struct {
	To string `json:"to,omitempty"`
}

// TransferLeadership has the leader hand over to the voter of that name, or with
// an empty one to its most advanced follower. It may be asked of any node.
func (n *Node) TransferLeadership(ctx context.Context, to string) error {
	return n.atLeader(ctx, callTransfer, transferRequest{to}, func(ctx context.Context, r *raft.Raft) error {
		mine, _ := n.leaders.get()
		future, err := n.transfer(ctx, r, to)
		if err != nil || future == nil {
			return err
		}
		if err := n.await(ctx, future); err != nil {
			return fsm.Errorf(fsm.CodeConflict, "leadership was not handed over: %v", err)
		}
		return n.succeeded(ctx, mine, to)
	})
}

// succeeded waits for the next leader after mine, and is nil if it is the node of
// that name, or if none is wanted: who is told to stand for election may lose it.
func (n *Node) succeeded(ctx context.Context, mine *leadership, to string) error {
	if to == "" {
		return nil
	}
	select {
	case <-mine.ctx.Done():
	case <-ctx.Done():
	}
	l, err := n.awaitLeader(ctx)
	switch {
	case err != nil:
		return fsm.Errorf(fsm.CodeConflict, "node %q was told to lead, and nobody is known to lead yet; look at the members (bivouac operator members)", to)
	case nodeName(l.id) != to:
		return fsm.Errorf(fsm.CodeConflict, "node %q was told to lead, and node %q was elected; try again", to, nodeName(l.id))
	}
	return nil
}

// transfer begins to hand over; nil when the named node leads already.
func (n *Node) transfer(ctx context.Context, r *raft.Raft, to string) (raft.Future, error) {
	if to == "" {
		return n.begin(r, n.successors(ctx, r))
	}
	servers, _, err := n.configuration(r)
	if err != nil {
		return nil, n.changed(err)
	}
	next, found := serverNamed(servers, to)
	switch {
	case !found:
		return nil, fsm.Errorf(fsm.CodeNotFound, "no node %q in the cluster", to)
	case next.Suffrage != raft.Voter:
		return nil, fsm.Errorf(fsm.CodeConflict, "node %q does not vote and can't lead", to)
	case next.ID == n.id:
		return nil, nil
	}
	return n.begin(r, []raft.Server{next})
}

// errMoved is what a membership change is refused with when another came first.
func errMoved(err error) error {
	if err == nil || !strings.Contains(err.Error(), "configuration changed since") {
		return nil
	}
	return fsm.Errorf(fsm.CodeConflict, "the membership changed meanwhile; nothing was done: look at the members and try again")
}
