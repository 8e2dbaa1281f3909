package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/membership"
	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/cluster/records"
)

const (
	// reconcileInterval is how often the leader reconciles the members.
	reconcileInterval = time.Second
	// stableAfter is how long a nonvoter must have answered before it replaces a dead voter.
	stableAfter = 10 * time.Second
	// handOverAfter is how long a leader has lacked events, or has not known yet, before it hands over. A
	// few it fetches sooner.
	handOverAfter = 3 * time.Second
)

// contact is what a leader knows about one member.
type contact struct {
	// hello is the last answer and heard its time; both are zero when none came in this term.
	hello helloResponse
	heard time.Time
	// ahead is how far the member's clock was ahead of this node's.
	ahead time.Duration
	// since is when the member began to answer, or to be silent.
	since time.Time
	alive bool
}

// contactBook holds a leader's contacts for one term.
type contactBook struct {
	mu    sync.Mutex
	term  uint64
	known map[raft.ServerID]contact
}

// begin drops the contacts of another term.
func (l *contactBook) begin(term uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term == term && l.known != nil {
		return
	}
	l.term, l.known = term, map[raft.ServerID]contact{}
}

// note records the result of one hello and returns the contact. clock is this node's wall clock;
// now measures durations.
func (l *contactBook) note(
	id raft.ServerID, hello helloResponse, alive bool, now, clock time.Time,
) contact {
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

// ages returns the milliseconds since each member was heard in the term.
func (l *contactBook) ages(term uint64, now time.Time) map[string]int64 {
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

// reconcileMembers runs on the leader for one term. It promotes nonvoters that have caught up,
// replaces dead members, and raises the protocol version of a new cluster.
func (n *Node) reconcileMembers(ctx context.Context, term uint64) error {
	n.contacts.begin(term)
	sent := map[raft.ServerID]map[raft.ServerID]records.Record{}
	announced := 0
	lacks := time.Time{}
	for {
		if err := n.reconcileOnce(ctx, sent, &announced); err != nil {
			return err
		}
		switch {
		case n.eventsMissing() == 0:
			lacks = time.Time{}
		case lacks.IsZero():
			lacks = time.Now()
		case time.Since(lacks) >= handOverAfter:
			n.handOver(ctx)
		}
		select {
		case <-time.After(reconcileInterval):
		case <-ctx.Done():
			return nil
		}
	}
}

func (n *Node) reconcileOnce(
	ctx context.Context, sent map[raft.ServerID]map[raft.ServerID]records.Record, announced *int,
) error {
	r := n.raft.Load()
	servers, err := n.configuration(r)
	if err != nil {
		return err
	}
	contacts := n.pollMembers(ctx, servers)
	if ctx.Err() != nil {
		return nil
	}
	n.noteRoom(servers, contacts)
	if err := n.shareRecords(ctx, servers, contacts, sent); err != nil {
		return err
	}
	states := n.memberStates(r, servers, contacts)
	if err := n.changeMembers(ctx, r, servers, membership.NextChange(states, n.wantedVoters())); err != nil {
		return err
	}
	return n.raiseVersion(ctx, states, contacts, announced)
}

// handOver transfers leadership from a leader that lacks events to a voter that lacks none: until this
// node has fetched them it would refuse events of each conversation that it lacks some of.
func (n *Node) handOver(ctx context.Context) {
	r := n.raft.Load()
	peers, whole := n.successors(ctx, r)
	if whole == 0 {
		return
	}
	future, err := n.transfers.To(r, peers[:whole])
	if err == nil {
		n.logger.Info("cluster: this leader lacks events and hands over to a voter that has all")
		err = n.await(ctx, future)
	}
	if err != nil && ctx.Err() == nil {
		n.logger.Warn("cluster: this leader lacks events, and no voter that has all takes over", "error", err)
	}
}

// configuration returns Raft's latest members. Changes don't name it: raft 1.7.3 tells nobody its
// index (ops/decisions/0022).
func (n *Node) configuration(r *raft.Raft) ([]raft.Server, error) {
	future := r.GetConfiguration()
	if err := future.Error(); err != nil {
		return nil, fmt.Errorf("reading the membership: %w", err)
	}
	return future.Configuration().Servers, nil
}

// pollMembers says hello to all other members in parallel.
func (n *Node) pollMembers(ctx context.Context, servers []raft.Server) map[raft.ServerID]contact {
	var mu sync.Mutex
	var wg sync.WaitGroup
	contacts := map[raft.ServerID]contact{}
	for _, s := range servers {
		if s.ID == n.id {
			continue
		}
		wg.Go(func() {
			hello, err := n.hello(ctx, n.currentAddress(s))
			if ctx.Err() != nil {
				return
			}
			c := n.contacts.note(
				s.ID, hello, err == nil && hello.Member.ID == string(s.ID), time.Now(), n.clock(),
			)
			mu.Lock()
			defer mu.Unlock()
			contacts[s.ID] = c
		})
	}
	wg.Wait()
	return contacts
}

// memberStates turns the polled contacts into the input of membership.NextChange.
func (n *Node) memberStates(
	r *raft.Raft, servers []raft.Server, contacts map[raft.ServerID]contact,
) []membership.State {
	now := time.Now()
	states := make([]membership.State, 0, len(servers))
	for _, s := range servers {
		voter := s.Suffrage == raft.Voter
		if s.ID == n.id {
			states = append(states, membership.State{
				ID: s.ID, Voter: voter, Alive: true, Stable: true, Lacks: n.eventsMissing() != 0,
			})
			continue
		}
		c := contacts[s.ID]
		age := now.Sub(c.since)
		states = append(states, membership.State{
			ID: s.ID, Voter: voter, Alive: c.alive,
			Ready: c.alive && membership.Promotable(c.hello.Applied, r.CommitIndex()) &&
				c.hello.EventsMissing == 0,
			Lacks:  c.alive && c.hello.EventsMissing != 0,
			Stable: c.alive && age >= stableAfter,
			Dead:   !c.alive && !c.since.IsZero() && n.cfg.DeadAfter > 0 && age >= n.cfg.DeadAfter,
		})
	}
	return states
}

// wantedVoters is the number of voters that the removal of dead ones must keep, 0 when not
// configured.
func (n *Node) wantedVoters() int {
	if n.cfg.Voters > 0 {
		return n.cfg.Voters
	}
	return n.cfg.BootstrapExpect
}

// changeMembers carries out a change.
func (n *Node) changeMembers(
	ctx context.Context, r *raft.Raft, servers []raft.Server, m membership.Change,
) error {
	if m.Promote != "" {
		n.logger.Info(
			"cluster: nonvoter caught up, promoting it to voter", "peer", peernet.NodeName(m.Promote),
		)
		if err := n.await(ctx, r.AddVoter(m.Promote, n.addressIn(servers, m.Promote), 0, changeTimeout)); err != nil {
			return fmt.Errorf("promoting %s: %w", peernet.NodeName(m.Promote), err)
		}
	}
	if m.Remove != "" {
		n.logger.Warn("cluster: removing a member that was silent for too long; "+
			"to come back it needs an empty data directory",
			"peer", peernet.NodeName(m.Remove), "duration", n.cfg.DeadAfter)
		if err := n.await(ctx, r.RemoveServer(m.Remove, 0, changeTimeout)); err != nil {
			return fmt.Errorf("removing %s: %w", peernet.NodeName(m.Remove), err)
		}
	}
	return nil
}

// addressIn is the address a member reported, else the configured one.
func (n *Node) addressIn(servers []raft.Server, id raft.ServerID) raft.ServerAddress {
	for _, s := range servers {
		if s.ID == id {
			return raft.ServerAddress(n.currentAddress(s))
		}
	}
	return ""
}

// maxClockSpread is the largest accepted difference between a voter's clock and the leader's.
const maxClockSpread = time.Minute

// ClocksAgree is nil when, by their last answers, the clocks of a majority of the voters are within
// a minute of this leader's. An answer without a time counts as right.
func (n *Node) ClocksAgree(context.Context) error {
	voters, right, wrong := 0, 0, ""
	for _, s := range n.servers() {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		c, heard := n.contacts.get(s.ID)
		switch {
		case s.ID == n.id:
			right++
		case !heard || c.heard.IsZero():
		case c.hello.Time.IsZero(), c.ahead.Abs() <= maxClockSpread:
			right++
		default:
			wrong = fmt.Sprintf(
				"; that of %s is off by %s", peernet.NodeName(s.ID), c.ahead.Round(time.Second),
			)
		}
	}
	if right > voters/2 {
		return nil
	}
	return fmt.Errorf(
		"the clocks of %d of %d voters are known to be within %s of this node's%s", right, voters,
		maxClockSpread, wrong,
	)
}

// get returns a member's contact.
func (l *contactBook) get(id raft.ServerID) (contact, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c, ok := l.known[id]
	return c, ok
}

// clock is this node's wall clock.
func (n *Node) clock() time.Time {
	if n.cfg.Clock != nil {
		return n.cfg.Clock()
	}
	return time.Now()
}
