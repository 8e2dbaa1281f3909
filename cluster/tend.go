package cluster

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/fsm"
)

const (
	// tendInterval is how often the leader looks after the members.
	tendInterval = time.Second
	// promoteWithin is how many entries a nonvoter may lack and still be
	// promoted: what the leader writes in a moment.
	promoteWithin = 256
	// stableAfter is how long a newcomer must have answered before it takes the
	// place of a dead voter.
	stableAfter = 10 * time.Second
)

// contact is what a leader knows of one member.
type contact struct {
	// hello is its last answer, and heard when that came; zero for none in this
	// leader's term.
	hello helloResponse
	heard time.Time
	// ahead is how far its clock was ahead of this node's then.
	ahead time.Duration
	// since is when it began to answer, or to be silent.
	since time.Time
	alive bool
}

// lookout is a leader's memory of the members, for one term.
type lookout struct {
	mu    sync.Mutex
	term  uint64
	known map[raft.ServerID]contact
}

// begin forgets what is from another term, and takes over since when the leader
// before found members silent.
func (l *lookout) begin(term uint64, silent map[raft.ServerID]time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term == term && l.known != nil {
		return
	}
	l.term, l.known = term, map[raft.ServerID]contact{}
	for id, since := range silent {
		l.known[id] = contact{since: since}
	}
}

// note takes what became of one question, and gives what is known now. clock is this
// node's wall clock, now what durations are counted from.
func (l *lookout) note(id raft.ServerID, hello helloResponse, alive bool, now, clock time.Time) contact {
	l.mu.Lock()
	defer l.mu.Unlock()
	c, had := l.known[id]
	if !had || c.alive != alive {
		c.since, c.alive = now, alive
	}
	if alive {
		c.hello, c.heard, c.ahead = hello, now, hello.Time.Sub(clock)
	}
	if l.known != nil {
		l.known[id] = c
	}
	return c
}

// ages gives how many milliseconds ago each member was heard in the term.
func (l *lookout) ages(term uint64, now time.Time) map[string]int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	ages := map[string]int64{}
	if l.term != term {
		return ages
	}
	for id, c := range l.known {
		if !c.heard.IsZero() {
			ages[string(id)] = now.Sub(c.heard).Milliseconds()
		}
	}
	return ages
}

// tend is the leader's care for the members, for one term: nonvoters that have
// caught up become voters, dead members make room for them, and the protocol
// version rises when all know a higher one.
func (n *Node) tend(ctx context.Context, term uint64) error {
	n.lookout.begin(term, n.silences.get(time.Now()))
	told := map[raft.ServerID]map[raft.ServerID]record{}
	for {
		if err := n.tendOnce(ctx, told); err != nil {
			return err
		}
		select {
		case <-time.After(tendInterval):
		case <-ctx.Done():
			return nil
		}
	}
}

func (n *Node) tendOnce(ctx context.Context, told map[raft.ServerID]map[raft.ServerID]record) error {
	r := n.raft.Load()
	servers, index, err := n.configuration(r)
	if err != nil {
		return err
	}
	contacts := n.askAll(ctx, servers)
	if ctx.Err() != nil {
		return nil
	}
	if err := n.spread(ctx, servers, contacts, told); err != nil {
		return err
	}
	seats := n.seats(r, servers, contacts)
	if err := n.makeMove(ctx, r, servers, index, nextMove(seats, n.wantedVoters())); err != nil {
		return err
	}
	return n.raiseVersion(ctx, seats, contacts)
}

// configuration gives Raft's latest members and the log index they are from.
func (n *Node) configuration(r *raft.Raft) ([]raft.Server, uint64, error) {
	future := r.GetConfiguration()
	if err := future.Error(); err != nil {
		return nil, 0, fmt.Errorf("reading the membership: %w", err)
	}
	return future.Configuration().Servers, future.Index(), nil
}

// askAll says hello to every other member, all at the same time.
func (n *Node) askAll(ctx context.Context, servers []raft.Server) map[raft.ServerID]contact {
	var mu sync.Mutex
	var wg sync.WaitGroup
	contacts := map[raft.ServerID]contact{}
	for _, s := range servers {
		if s.ID == n.id {
			continue
		}
		wg.Go(func() {
			hello, err := n.hello(ctx, n.whereIs(s))
			if ctx.Err() != nil {
				return
			}
			c := n.lookout.note(s.ID, hello, err == nil && hello.Member.ID == string(s.ID), time.Now(), n.clock())
			mu.Lock()
			defer mu.Unlock()
			contacts[s.ID] = c
		})
	}
	wg.Wait()
	return contacts
}

// seats gives the members as the decisions see them, from what askAll gave.
func (n *Node) seats(r *raft.Raft, servers []raft.Server, contacts map[raft.ServerID]contact) []seat {
	now := time.Now()
	seats := make([]seat, 0, len(servers))
	for _, s := range servers {
		voter := s.Suffrage == raft.Voter
		if s.ID == n.id {
			seats = append(seats, seat{id: s.ID, voter: voter, alive: true, stable: true})
			continue
		}
		c := contacts[s.ID]
		age := now.Sub(c.since)
		seats = append(seats, seat{
			id: s.ID, voter: voter, alive: c.alive,
			ready:  c.alive && promotable(c.hello.Applied, r.CommitIndex()),
			stable: c.alive && age >= stableAfter,
			dead:   !c.alive && !c.since.IsZero() && n.cfg.DeadAfter > 0 && age >= n.cfg.DeadAfter,
		})
	}
	return seats
}

// wantedVoters is the number of voters that removing dead ones must not go below,
// 0 where nothing says it.
func (n *Node) wantedVoters() int {
	if n.cfg.Voters > 0 {
		return n.cfg.Voters
	}
	return n.cfg.BootstrapExpect
}

// makeMove carries a move out, on the configuration that it was decided for.
func (n *Node) makeMove(ctx context.Context, r *raft.Raft, servers []raft.Server, index uint64, m move) error {
	if m.promote != "" {
		n.logger.Info("cluster: node has caught up and votes from now on", "peer", nodeName(m.promote))
		future := r.AddVoter(m.promote, n.addressIn(servers, m.promote), index, changeTimeout)
		if err := n.await(ctx, future); err != nil {
			return fmt.Errorf("promoting %s: %w", nodeName(m.promote), err)
		}
		index = future.Index()
	}
	if m.remove != "" {
		n.logger.Warn("cluster: a member has been silent for long and is removed; to come back it needs an empty data directory",
			"peer", nodeName(m.remove), "duration", n.cfg.DeadAfter)
		if err := n.await(ctx, r.RemoveServer(m.remove, index, changeTimeout)); err != nil {
			return fmt.Errorf("removing %s: %w", nodeName(m.remove), err)
		}
	}
	return nil
}

// addressIn is where a member said it is, else where the configuration has it.
func (n *Node) addressIn(servers []raft.Server, id raft.ServerID) raft.ServerAddress {
	for _, s := range servers {
		if s.ID == id {
			return raft.ServerAddress(n.whereIs(s))
		}
	}
	return ""
}

// raiseVersion raises the protocol version to what all members know. Dead ones are
// not waited for: a node that knows less refuses to go on when it sees the version.
func (n *Node) raiseVersion(ctx context.Context, seats []seat, contacts map[raft.ServerID]contact) error {
	version := n.store.View().ProtocolVersion()
	known := []int{fsm.ProtocolVersion}
	for _, s := range seats {
		switch {
		case s.id == n.id || s.dead:
		case s.alive:
			known = append(known, contacts[s.id].hello.Protocol)
		default:
			known = append(known, 0)
		}
	}
	next := raisedVersion(version, known)
	if next == version {
		return nil
	}
	cmd := fsm.NewCommand(uuid.NewString(), n.clock(), "", &fsm.ProtocolRaiseBody{Version: next})
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
