package cluster

import (
	"context"
	"crypto/x509"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/membership"
	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/fsm"
)

// removeRequest names a member to remove.
type removeRequest struct {
	Name string `json:"name"`
	RemoveOptions
}

// RemoveOptions are the operator's options for a removal.
type RemoveOptions struct {
	// Force removes the node even if the remaining living voters are no majority.
	Force bool `json:"force,omitempty"`
	// Revoke makes every node refuse the node's certificate from then on. Fingerprint names the
	// certificate when the leader has not seen it; see peernet.Fingerprint.
	Revoke      bool   `json:"revoke,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`
}

// replaceRequest names a member and its replacement.
type replaceRequest struct {
	Old string `json:"old"`
	New string `json:"new"`
	RemoveOptions
}

// RemoveServer removes the named node from the cluster for good. Every node accepts it. The
// operator stops the removed node; it needs an empty data directory to come back. The leader
// transfers leadership before it is removed. Errors: CodeNotFound for an unknown name; CodeConflict
// for the only voter, for the only member with all events while it answers and, without Force, for a node
// whose removal would leave no majority.
func (n *Node) RemoveServer(ctx context.Context, name string, o RemoveOptions) error {
	return n.atLeader(ctx, callRemove, removeRequest{name, o}, func(ctx context.Context, r *raft.Raft) error {
		servers, err := n.configuration(r)
		if err != nil {
			return n.changed(err)
		}
		target, found := membership.Named(servers, name)
		switch {
		case !found:
			return fsm.Errorf(fsm.CodeNotFound, "no node %q in the cluster", name)
		case target.Suffrage == raft.Voter && membership.Voters(servers) == 1:
			return fsm.Errorf(fsm.CodeConflict, "node %q is the only voter", name)
		}
		if err := n.checkRemovable(ctx, r, servers, target, o); err != nil {
			return err
		}
		if target.ID == n.id {
			return n.transferThen(ctx, r, func() error { return n.RemoveServer(ctx, name, o) })
		}
		if err := n.revoke(ctx, target, o); err != nil {
			return err
		}
		n.logger.Info("cluster: removing node", "peer", name)
		return n.changed(n.await(ctx, r.RemoveServer(target.ID, 0, changeTimeout)))
	})
}

// ReplaceServer makes the node newName vote in place of the node oldName, which is removed. The new
// node is promoted first, so no intermediate configuration tolerates fewer failures. Every node
// accepts it.
func (n *Node) ReplaceServer(ctx context.Context, oldName, newName string, o RemoveOptions) error {
	return n.atLeader(ctx, callReplace, replaceRequest{
		oldName,
		newName,
		o,
	}, func(ctx context.Context, r *raft.Raft) error {
		servers, err := n.configuration(r)
		if err != nil {
			return n.changed(err)
		}
		former, found := membership.Named(servers, oldName)
		if !found {
			return fsm.Errorf(fsm.CodeNotFound, "no node %q in the cluster", oldName)
		}
		next, found := membership.Named(servers, newName)
		switch {
		case !found:
			return fsm.Errorf(fsm.CodeNotFound,
				"no node %q in the cluster: start it first, with retry_join and without bootstrap_expect, so that it joins",
				newName)
		case former.ID == next.ID:
			return fsm.Errorf(fsm.CodeInvalid, "node %q can't take its own place", oldName)
		}
		states := n.memberStates(r, servers, n.pollMembers(ctx, servers))
		if next.Suffrage == raft.Voter && !o.Force && membership.Weakens(states, former.ID) {
			return fsm.Errorf(fsm.CodeConflict, "node %q votes already, "+
				"so without node %q the cluster would tolerate one failure less: "+
				"start a new node to replace it, or remove it (bivouac operator remove)", newName, oldName)
		}
		for _, s := range states {
			if s.ID == next.ID && (!s.Alive || s.Lacks || !s.Voter && !s.Ready && next.ID != n.id) {
				return fsm.Errorf(
					fsm.CodeConflict,
					"node %q has not caught up, lacks events, or does not answer; wait until it has all (bivouac operator members)",
					newName,
				)
			}
		}
		if next.Suffrage != raft.Voter {
			n.logger.Info("cluster: node takes the place of another", "peer", newName, "former", oldName)
			if err := n.await(ctx, r.AddVoter(next.ID, n.addressIn(servers, next.ID), 0, changeTimeout)); err != nil {
				return n.changed(err)
			}
		}
		return n.RemoveServer(ctx, oldName, o)
	})
}

// checkRemovable refuses a removal that leaves no majority of voters that live and have all events, and
// that of the only member that has them.
func (n *Node) checkRemovable(
	ctx context.Context, r *raft.Raft, servers []raft.Server, target raft.Server, o RemoveOptions,
) error {
	states := n.memberStates(r, servers, n.pollMembers(ctx, servers))
	name := peernet.NodeName(target.ID)
	var silent, lacking []string
	answers := false
	for _, s := range states {
		switch {
		case s.ID == target.ID:
			answers = s.Alive
		case s.Lacks:
			lacking = append(lacking, peernet.NodeName(s.ID)+" lacks events")
		case s.Voter && !s.Alive:
			silent = append(silent, peernet.NodeName(s.ID)+" does not answer")
		}
	}
	why := strings.Join(append(silent, lacking...), ", ")
	switch {
	// Force is for a member that is lost, with what it had.
	case len(lacking) > 0 && membership.OnlyHolder(states, target.ID) && (answers || !o.Force):
		return fsm.Errorf(fsm.CodeConflict, "node %q may be the only one that has all events: %s; "+
			"wait until another member has them (bivouac operator members). A node that is lost for good, "+
			"with its events, is removed with force", name, why)
	case target.Suffrage != raft.Voter, o.Force, membership.Removable(states, target.ID):
		return nil
	}
	return fsm.Errorf(fsm.CodeConflict,
		"without node %q too few of the other voters would be left to go on: %s; "+
			"start or remove what does not answer, wait for what lacks events, or remove %q with force",
		name, why, name)
}

// transferThen transfers leadership; the successor runs rest.
func (n *Node) transferThen(ctx context.Context, r *raft.Raft, rest func() error) error {
	mine, _ := n.leaders.get()
	if err := n.transferToAny(ctx, r); err != nil {
		return fsm.Errorf(
			fsm.CodeConflict,
			"node %q leads and could not hand over: %v; try again in another term, or stop that node",
			n.cfg.NodeName, err,
		)
	}
	select {
	case <-mine.ctx.Done():
	case <-ctx.Done():
	}
	return rest()
}

// transferRequest names the successor, "" for the most advanced follower.
type transferRequest struct {
	To string `json:"to,omitempty"`
}

// TransferLeadership moves leadership to the named voter, or to the most advanced follower if to is
// empty. Every node accepts it. A successor has all events, unless the leader lacks some.
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
		return n.awaitSuccessor(ctx, mine, to)
	})
}

// awaitSuccessor waits for the leader after mine. It is an error when another node than to was
// elected: a successor may lose its election.
func (n *Node) awaitSuccessor(ctx context.Context, mine *leadership, to string) error {
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
		return fsm.Errorf(fsm.CodeConflict, "node %q was asked to lead, and no leader is known yet; "+
			"look at the members (bivouac operator members)", to)
	case peernet.NodeName(l.id) != to:
		return fsm.Errorf(
			fsm.CodeConflict, "node %q was asked to lead, and node %q was elected; try again", to,
			peernet.NodeName(l.id),
		)
	}
	return nil
}

// transfer begins the leadership transfer; nil when the named node leads already.
func (n *Node) transfer(ctx context.Context, r *raft.Raft, to string) (raft.Future, error) {
	if to == "" {
		peers, whole := n.successors(ctx, r)
		if n.eventsMissing() == 0 {
			peers = peers[:whole]
		}
		return n.beginTransfer(r, peers)
	}
	servers, err := n.configuration(r)
	if err != nil {
		return nil, n.changed(err)
	}
	next, found := membership.Named(servers, to)
	switch {
	case !found:
		return nil, fsm.Errorf(fsm.CodeNotFound, "no node %q in the cluster", to)
	case next.Suffrage != raft.Voter:
		return nil, fsm.Errorf(fsm.CodeConflict, "node %q does not vote and can't lead", to)
	case next.ID == n.id:
		return nil, nil
	}
	// A leader that lacks events refuses some, so it is no better successor than this node.
	hello, err := n.hello(ctx, n.currentAddress(next))
	if err == nil && hello.EventsMissing != 0 && n.eventsMissing() == 0 {
		return nil, fsm.Errorf(fsm.CodeConflict,
			"node %q lacks events and fetches them; wait until it has all (bivouac operator members)", to)
	}
	return n.beginTransfer(r, []raft.Server{next})
}

// revokedEvery is how often open connections are checked for revoked certificates.
const revokedEvery = time.Second

// certificateNetwork is a Network with certificates: peernet.Port.
type certificateNetwork interface {
	// Shown returns the fingerprint of the certificate that the named node showed last, "" for none.
	Shown(name string) string
	// Revoke makes the network refuse new connections with certificates for which revoked is true.
	// DropRevoked closes the open ones.
	Revoke(revoked func(*x509.Certificate) bool)
	DropRevoked()
}

// refuses reports whether the store lists a certificate as revoked.
func (n *Node) refuses(c *x509.Certificate) bool {
	revoked := n.store.View().RevokedCertificates()
	if len(revoked) == 0 {
		return false
	}
	print, names := peernet.Fingerprint(c), peernet.NodesOf(c)
	return slices.ContainsFunc(revoked, func(r fsm.RevokedCertificate) bool {
		return r.Covers(print, names)
	})
}

// watchRevoked closes connections with revoked certificates while the node runs.
func (n *Node) watchRevoked(tasks *sync.WaitGroup) {
	p, ok := n.network.(certificateNetwork)
	if !ok {
		return
	}
	p.Revoke(n.refuses)
	tasks.Go(func() {
		every(n.stopping, revokedEvery, func() {
			if len(n.store.View().RevokedCertificates()) > 0 {
				p.DropRevoked()
			}
		})
	})
}

// revoke records a member's certificates as revoked, before its removal. It runs on the leader.
// Without a fingerprint it is the name: a node that renews its certificate shows another one soon.
func (n *Node) revoke(ctx context.Context, target raft.Server, o RemoveOptions) error {
	if !o.Revoke {
		return nil
	}
	name, print := peernet.NodeName(target.ID), o.Fingerprint
	byName := n.store.View().Active(fsm.VersionRotate)
	if p, ok := n.network.(certificateNetwork); ok && print == "" && !byName {
		print = p.Shown(name)
	}
	if print == "" && !byName {
		return fsm.Errorf(fsm.CodeConflict,
			"the leader has not seen the certificate of node %q since it started; nothing was done: "+
				"give the certificate's fingerprint too", name)
	}
	cmd := fsm.NewCommand(
		uuid.NewString(), n.clock(), "", &fsm.CertificateRevokeBody{Fingerprint: print, Node: name},
	)
	n.attribute(ctx, &cmd)
	if _, err := n.Propose(ctx, cmd); err != nil {
		return err
	}
	n.logger.Warn("cluster: a certificate is revoked", "peer", name, "fingerprint", print)
	return nil
}
