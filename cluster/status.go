package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/membership"
	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/cluster/raftmetrics"
	"bivouac.dev/bivouac/fsm"
)

// The states of Status.State; before and after Run it is StateStopped.
const (
	StateLeader    = "leader"
	StateFollower  = "follower"
	StateCandidate = "candidate"
	StateStopped   = "stopped"
)

// Status is what one node knows about the cluster without asking another.
type Status struct {
	// Node and ID are this node's.
	Node string `json:"node"`
	ID   string `json:"id"`
	// State is one of the State constants.
	State string `json:"state"`
	Term  uint64 `json:"term"`
	// Leader, LeaderID and LeaderAddress are empty when there is none.
	Leader        string `json:"leader,omitempty"`
	LeaderID      string `json:"leader_id,omitempty"`
	LeaderAddress string `json:"leader_address,omitempty"`
	CommitIndex   uint64 `json:"commit_index"`
	// AppliedIndex is the store's.
	AppliedIndex uint64 `json:"applied_index"`
	// LastContact is when the leader was last heard: now on the leader, zero for never.
	LastContact time.Time `json:"last_contact"`
	Servers     []Server  `json:"servers"`
	// EventsMissing is how many bytes of events this node lacks, negative for not known yet.
	EventsMissing int64 `json:"events_missing,omitempty"`
	// ProtocolVersion is the cluster's, KnownVersion this program's newest.
	ProtocolVersion int `json:"protocol_version"`
	KnownVersion    int `json:"known_version"`
}

// Server is a member in Raft's configuration.
type Server struct {
	Name string `json:"name"`
	ID   string `json:"id"`
	// Address is empty while another node uses the member's former address.
	Address string `json:"address"`
	Voter   bool   `json:"voter"`
}

// ServersOf lists the members of a configuration.
func ServersOf(servers []raft.Server) []Server {
	list := []Server{}
	for _, s := range servers {
		list = append(list, Server{
			Name: peernet.NodeName(s.ID), ID: string(s.ID), Address: membership.Address(s), Voter: s.Suffrage == raft.Voter,
		})
	}
	slices.SortFunc(list, func(a, b Server) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Status reports what this node knows.
func (n *Node) Status() Status {
	v := n.store.View()
	s := Status{
		Node: n.cfg.NodeName, ID: string(n.id), State: StateStopped,
		AppliedIndex: v.Index(), ProtocolVersion: v.ProtocolVersion(), KnownVersion: fsm.ProtocolVersion,
		Servers: []Server{},
	}
	r := n.raft.Load()
	if r == nil {
		return s
	}
	// State and term are read together: a leader that just lost its term must not appear to lead the
	// next.
	for settled := false; !settled; settled = r.CurrentTerm() == s.Term {
		s.Term = r.CurrentTerm()
		s.State = stateName(r.State())
	}
	s.CommitIndex = r.CommitIndex()
	s.EventsMissing = n.eventsMissing()
	if l, _ := n.leaders.get(); l.id != "" {
		s.Leader, s.LeaderID, s.LeaderAddress = peernet.NodeName(l.id), string(l.id), l.address
	}
	s.LastContact = r.LastContact()
	if s.State == StateLeader {
		s.LastContact = time.Now()
	}
	s.Servers = ServersOf(n.servers())
	return s
}

// reading is what the metrics read from this node.
func (n *Node) reading() raftmetrics.Reading {
	s := n.Status()
	now := raftmetrics.Reading{
		State:           s.State,
		LeaderKnown:     s.LeaderID != "",
		Ready:           n.Ready() == nil,
		Term:            s.Term,
		CommitIndex:     s.CommitIndex,
		AppliedIndex:    s.AppliedIndex,
		ProtocolVersion: s.ProtocolVersion,
		KnownVersion:    s.KnownVersion,
		Lag:             map[string]uint64{},
		EventsMissing:   s.EventsMissing,
		EventsFull:      n.room.low.Load(),
	}
	switch {
	case s.State == StateLeader:
	case s.LastContact.IsZero():
		now.SinceContact = time.Since(n.born)
	default:
		now.SinceContact = time.Since(s.LastContact)
	}
	for _, server := range s.Servers {
		if server.Voter {
			now.Voters++
		} else {
			now.Nonvoters++
		}
		if s.State == StateLeader {
			acked := n.records.Get(raft.ServerID(server.ID), s.Term, s.CommitIndex).Acked
			if server.ID == s.ID {
				acked = s.CommitIndex
			}
			now.Lag[server.Name] = s.CommitIndex - min(acked, s.CommitIndex)
		}
	}
	now.LogBytes, _, _ = n.storage.LogBytes(0)
	return now
}

func stateName(s raft.RaftState) string {
	switch s {
	case raft.Leader:
		return StateLeader
	case raft.Candidate:
		return StateCandidate
	case raft.Follower:
		return StateFollower
	}
	return StateStopped
}

// electionGrace is how long a node without a leader still counts as able to write: writes wait for an
// election, which is no reason to send them elsewhere.
const electionGrace = 2 * time.Second

// Ready is nil when this node can serve writes and linearizable reads: it knows a leader, or did
// moments ago, and its store once reached what was committed at its start.
func (n *Node) Ready() error {
	if err := n.storage.Watchdog().Trouble(); err != nil {
		return err
	}
	if err := n.fit(); err != nil {
		return err
	}
	if l, _ := n.leaders.get(); l.id == "" && time.Since(n.raft.Load().LastContact()) > electionGrace {
		return n.leaderless()
	}
	return n.behind()
}

// ReadyStale is nil when this node can serve reads of its own store, with a leader or without: the
// store once reached what was committed at its start.
func (n *Node) ReadyStale() error {
	if err := n.fit(); err != nil {
		return err
	}
	return n.behind()
}

// fit returns why this node can not serve clients, nil if it can.
func (n *Node) fit() error {
	if err := n.raftFSM.Failure(); err != nil {
		return err
	}
	if why := n.MustNotLead(); why != nil {
		return why
	}
	if n.raft.Load() == nil || n.stopping.Err() != nil {
		return errors.New("the node does not run")
	}
	return n.notMemberError()
}

// behind returns an error until the store has caught up.
func (n *Node) behind() error {
	if !n.caughtUp.Load() {
		return fmt.Errorf("the store is still catching up: index %d", n.store.Index())
	}
	return nil
}

// leaderless says why no leader is known, where the node can tell.
func (n *Node) leaderless() error {
	if n.credentials != nil {
		if end := n.credentials.Leaf().NotAfter; n.clock().After(end) {
			return fmt.Errorf(
				"no leader is known, and peers refuse this node: its certificate expired on %s (bivouac runbook certificates)",
				end.Format(time.RFC3339),
			)
		}
	}
	if err := n.senders.Stranded(); err != nil {
		return err
	}
	return errors.New("no leader is known")
}

// catchUp sets caughtUp once the store reaches a read index.
func (n *Node) catchUp(ctx context.Context) {
	for ctx.Err() == nil {
		if index, err := n.reads.join(ctx, n.stopping); err == nil && n.store.Wait(ctx, index) == nil {
			n.caughtUp.Store(true)
			n.logger.Info("cluster: the store has caught up", "index", index)
			return
		}
		select {
		case <-time.After(retryMax):
		case <-ctx.Done():
		}
	}
}

// Snapshot takes a Raft snapshot now, regardless of SnapshotThreshold. It is no error when there is
// nothing new.
func (n *Node) Snapshot(ctx context.Context) error {
	ctx, leave, err := n.enter(ctx, peernet.MaxCallTimeout)
	if err != nil {
		return err
	}
	defer leave()
	r := n.raft.Load()
	if r == nil {
		return errStopping()
	}
	if err := n.await(ctx, r.Snapshot()); err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return fmt.Errorf("taking a snapshot: %w", err)
	}
	return nil
}

// Progress returns nil when Raft's main loop answers, an error when it does not before ctx ends. A
// watchdog of the process asks it. The loop waits for the disk and, through a short queue, for the
// store: it stops answering when one of them does. A node that starts or stops is not asked.
func (n *Node) Progress(ctx context.Context) error {
	ctx, leave, err := n.enter(ctx, 0)
	if err != nil {
		return nil // it stops
	}
	defer leave()
	r := n.raft.Load()
	if r == nil {
		return nil
	}
	answered := make(chan struct{})
	n.futures.Go(func() {
		_ = r.VerifyLeader().Error() // every answer is one, that of a follower too
		close(answered)
	})
	select {
	case <-answered:
		return nil
	case <-ctx.Done():
		if n.stopping.Err() != nil {
			return nil
		}
		return errors.New("raft's main loop does not answer")
	}
}
