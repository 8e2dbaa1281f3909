package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/fsm"
)

// Consistency is how new a View must be.
type Consistency int

const (
	// Linearizable shows every command acknowledged anywhere before the call.
	Linearizable Consistency = iota
	// Stale shows what this node has, without asking anybody.
	Stale
)

const (
	// roundTimeout bounds one round, so that an answer that was lost costs the
	// requests that shared it little.
	roundTimeout = time.Second
	// retryMin and retryMax bound the pause between attempts of one call.
	retryMin = 10 * time.Millisecond
	retryMax = 250 * time.Millisecond
	// retryAfter is what clients are told when there is no leader: an election
	// takes half a second.
	retryAfter = time.Second
)

// askPatience is how long the voters that were asked first may take before the
// others are asked as well.
const askPatience = 5 * time.Millisecond

// errNotLeader is the answer of a node that can't decide: it does not lead, or
// not any more, or its term is not open yet.
var errNotLeader = errors.New("not the leader")

// View returns a picture of the store. Stale never fails. Linearizable fails,
// within ReadTimeout, with CodeNoLeader when no leader could confirm, with
// CodeTimeout when this node's store lags behind the leader's answer, and with
// CodeShuttingDown.
//
// The linearizable read is Ongaro's read index (dissertation, section 6.4): the
// leader notes its commit index, makes sure that a majority is in no later term
// than its own, and answers the index; the asking node waits for its own store.
func (n *Node) View(ctx context.Context, c Consistency) (*fsm.View, error) {
	if c == Stale {
		return n.store.View(), nil
	}
	if !n.calls.enter() {
		return nil, errStopping()
	}
	defer n.calls.leave()
	n.metrics.readWaiters.Inc()
	defer n.metrics.readWaiters.Dec()
	deadline := time.Now().Add(n.cfg.ReadTimeout)
	// Two rounds, one in progress and its own, are all a read waits for as a rule:
	// they end in time by themselves.
	if n.cfg.ReadTimeout > 2*roundTimeout {
		if index, err := n.reads.join(ctx, n.stopping); err == nil {
			return n.viewAt(ctx, index, deadline)
		}
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	for wait := retryMin; ; wait = min(2*wait, retryMax) {
		if index, err := n.reads.join(ctx, n.stopping); err == nil {
			return n.viewAt(ctx, index, deadline)
		}
		select {
		case <-time.After(wait):
			continue
		case <-ctx.Done():
		case <-n.stopping.Done():
		}
		return nil, n.gaveUp(fsm.Errorf(fsm.CodeNoLeader, "no leader answered the read in time"))
	}
}

// StateSnapshot gives the whole state at one index, to be written to a file. It
// is at least as new as View's answer of the same consistency would be, and
// fails as View does.
func (n *Node) StateSnapshot(ctx context.Context, c Consistency) (*fsm.Snapshot, error) {
	if _, err := n.View(ctx, c); err != nil {
		return nil, err
	}
	if err := n.machine.failure(); err != nil {
		return nil, fmt.Errorf("no snapshot of a stopped store: %w", err)
	}
	return n.store.Snapshot(), nil
}

// viewAt gives a picture that shows the index.
func (n *Node) viewAt(ctx context.Context, index uint64, deadline time.Time) (*fsm.View, error) {
	if n.store.Index() >= index || n.catchUpTo(ctx, index, deadline) {
		return n.store.View(), nil
	}
	return nil, n.gaveUp(fsm.Errorf(fsm.CodeTimeout, "this node is behind: it has index %d and the read needs %d", n.store.Index(), index))
}

// catchUpTo waits until this node's store has the index, and reports whether it
// came to that before the deadline, the end of ctx and the node's.
func (n *Node) catchUpTo(ctx context.Context, index uint64, deadline time.Time) bool {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	stop := context.AfterFunc(n.stopping, cancel)
	defer stop()
	return n.store.Wait(ctx, index) == nil
}

// gaveUp is e, or that the node is stopping.
func (n *Node) gaveUp(e *fsm.Error) error {
	if n.stopping.Err() != nil {
		return errStopping()
	}
	e.RetryAfter = retryAfter
	return e
}

// readIndex runs one round of this node's reads: on the leader itself, or by a
// call to it.
func (n *Node) readIndex() (uint64, error) {
	ctx, cancel := context.WithTimeout(n.stopping, roundTimeout)
	defer cancel()
	l, err := n.awaitLeader(ctx)
	if err != nil {
		return 0, err
	}
	ctx, done := whileLeads(ctx, l)
	defer done()
	if l.id == n.id {
		return n.indexes.join(ctx, n.stopping)
	}
	r := n.raft.Load()
	if r == nil {
		return 0, errNotLeader
	}
	// This node's own term, told after the round began, is one answer less for the
	// leader to wait for.
	request, err := json.Marshal(indexRequest{Voter: termResponse{ID: string(n.id), Term: r.CurrentTerm()}})
	if err != nil {
		return 0, err
	}
	answer, err := n.network.Call(ctx, n.addressOf(l), callIndex, request)
	if err != nil {
		return 0, err
	}
	var response indexResponse
	if err := json.Unmarshal(answer, &response); err != nil {
		return 0, fmt.Errorf("reading the leader's index: %w", err)
	}
	if !response.Leads {
		return 0, errNotLeader
	}
	n.learnCommit(l, response.Index, response.Term)
	return response.Index, nil
}

// verifiedIndex runs one round of the leader: its answer was the commit index
// of the whole cluster at some moment of the round.
func (n *Node) verifiedIndex() (uint64, error) { return n.verified(termResponse{}) }

// verified is verifiedIndex with one voter's own word on its term, if it has an
// id; that was given after the reads began which wait for the index.
func (n *Node) verified(told termResponse) (uint64, error) {
	t := n.terms.get()
	r := n.raft.Load()
	if t == nil || r == nil || t.ctx.Err() != nil {
		return 0, errNotLeader
	}
	index := r.CommitIndex()
	if err := n.confirm(t, r.GetConfiguration().Configuration().Servers, told); err != nil {
		return 0, err
	}
	if r.State() != raft.Leader || r.CurrentTerm() != t.number {
		return 0, errNotLeader
	}
	return index, nil
}

// confirm makes sure that a majority of the voters, this node included, is in no
// later term than t: then nobody can have been elected before the asking began. It
// asks as many as it takes, those that answered last time first, and the others
// when one fails or is slow. told is what one voter has said without being asked.
// raft.VerifyLeader would do with answers to heartbeats that were sent before, and so
// rests on timing; a handover, which waits for no timeout, could slip between.
func (n *Node) confirm(t *term, servers []raft.Server, told termResponse) error {
	ctx, cancel := context.WithTimeout(t.ctx, roundTimeout)
	defer cancel()
	voters, granted := 0, 0
	var others []raft.Server
	for _, s := range servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		switch {
		case s.ID == n.id, told.ID == string(s.ID) && told.Term <= t.number:
			granted++
		case told.ID == string(s.ID):
			return fmt.Errorf("%w: %w", errNotLeader, errNewerTerm)
		default:
			others = append(others, s)
		}
	}
	if granted > voters/2 {
		return nil
	}
	return n.askTerms(ctx, t, n.quickest.order(others), voters/2+1-granted)
}

// askTerms asks voters, in order, until as many as needed have answered that they
// are in no later term.
func (n *Node) askTerms(ctx context.Context, t *term, voters []raft.Server, needed int) error {
	type reply struct {
		from raft.ServerID
		err  error
	}
	answers := make(chan reply, len(voters))
	asked, failed := 0, 0
	ask := func(count int) {
		for ; count > 0 && asked < len(voters); count-- {
			s := voters[asked]
			asked++
			n.futures.Go(func() { answers <- reply{s.ID, n.askTerm(ctx, s, t.number)} })
		}
	}
	ask(needed)
	slow := time.NewTimer(askPatience)
	defer slow.Stop()
	var errs []error
	for granted := 0; granted < needed; {
		if len(voters)-failed < needed {
			return fmt.Errorf("%w: %w", errNotLeader, errors.Join(errs...))
		}
		select {
		case a := <-answers:
			switch {
			case a.err == nil:
				granted++
				n.quickest.answered(a.from)
			case errors.Is(a.err, errNewerTerm):
				return fmt.Errorf("%w: %w", errNotLeader, a.err)
			default:
				failed++
				errs = append(errs, a.err)
				ask(1)
			}
		case <-slow.C:
			ask(len(voters))
		}
	}
	return nil
}

// quickest remembers which voter answered last, to ask it first.
type quickest struct{ id atomic.Value }

func (q *quickest) answered(id raft.ServerID) { q.id.Store(id) }

// order gives the voters with that one first.
func (q *quickest) order(voters []raft.Server) []raft.Server {
	for i, s := range voters {
		if s.ID == q.id.Load() {
			voters[0], voters[i] = voters[i], voters[0]
		}
	}
	return voters
}

// errNewerTerm: a voter is in a later term than the one who asks.
var errNewerTerm = errors.New("a voter has moved to a newer term")

// askTerm asks one voter whether it has moved past the term.
func (n *Node) askTerm(ctx context.Context, s raft.Server, number uint64) error {
	var response termResponse
	if err := n.ask(ctx, addressFor(s.ID, n.whereIs(s)), callTerm, struct{}{}, &response); err != nil {
		return err
	}
	switch {
	case response.ID != string(s.ID):
		return fmt.Errorf("%s answers in the place of %s", response.ID, s.ID)
	case response.Term > number:
		return errNewerTerm
	}
	return nil // an older term: it has not voted for anybody newer either
}

// handleTerm answers callTerm. Raft stores a new term before it acts on it, a
// vote included, so "still in the old term" is never said too late.
func (n *Node) handleTerm() (termResponse, error) {
	r := n.raft.Load()
	if r == nil {
		return termResponse{}, errors.New("the node does not run")
	}
	return termResponse{ID: string(n.id), Term: r.CurrentTerm()}, nil
}

// rounds lets calls that wait at the same time share one run of an expensive
// question. A call may only share a run that starts after the call arrived: an
// answer from before could be too old for it.
type rounds struct {
	run func() (uint64, error)
	// spawn starts the goroutine that runs rounds.
	spawn func(func())
	// started, if set, is called for each run.
	started func()

	mu      sync.Mutex
	next    *round // gathers calls; nil when nobody waits for a run to start
	running bool
}

type round struct {
	done  chan struct{}
	calls int // that share it; the rounds' mu guards it
	index uint64
	err   error
}

// join waits for the answer of the next run, or for the end of either context.
func (s *rounds) join(ctx, stopping context.Context) (uint64, error) {
	s.mu.Lock()
	r := s.next
	if r == nil {
		r = &round{done: make(chan struct{})}
		s.next = r
	}
	r.calls++
	if !s.running {
		s.running = true
		s.spawn(s.loop)
	}
	s.mu.Unlock()
	select {
	case <-r.done:
		return r.index, r.err
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-stopping.Done():
		return 0, stopping.Err()
	}
}

// gather lets calls join that are ready to run: a round costs as much as many.
func (s *rounds) gather() {
	gather(func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.next == nil {
			return 0
		}
		return s.next.calls
	})
}

// loop runs rounds, one after the other, while calls wait.
func (s *rounds) loop() {
	for {
		s.gather()
		s.mu.Lock()
		r := s.next
		s.next = nil
		if r == nil {
			s.running = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		if s.started != nil {
			s.started()
		}
		r.index, r.err = s.run()
		close(r.done)
	}
}
