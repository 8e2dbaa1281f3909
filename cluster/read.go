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

	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/fsm"
)

// Consistency is how recent a View must be.
type Consistency int

const (
	// Linearizable shows every command that any node acknowledged before the call.
	Linearizable Consistency = iota
	// Stale shows this node's store without asking another node, and what was acknowledged here.
	Stale
	// Local is Stale without what was acknowledged here a moment ago. It never waits. It is for
	// decisions that are made again in the log or in a later view.
	Local
)

const (
	// roundTimeout bounds one round, so that a lost answer delays the reads that share it only
	// briefly.
	roundTimeout = time.Second
	// retryMin and retryMax bound the pause between attempts of one call.
	retryMin = 10 * time.Millisecond
	retryMax = 250 * time.Millisecond
	// retryAfter is the delay that clients get when there is no leader. An election takes half a
	// second.
	retryAfter = time.Second
)

// slowVoterAfter is how long the first voters asked may take before all others are asked too.
const slowVoterAfter = 5 * time.Millisecond

// errNotLeader: this node does not lead, or its term is not open yet.
var errNotLeader = errors.New("not the leader")

// View returns an immutable view of the store. Local and Stale never fail. Stale waits, for
// ProposeTimeout at most, until this node's store has what Propose acknowledged here. Linearizable
// fails within ReadTimeout: CodeNoLeader when no leader confirmed the read, CodeTimeout when this
// node's store is behind the read index, and CodeShuttingDown.
//
// A linearizable read is Ongaro's read index (dissertation, section 6.4). The leader notes its
// commit index, verifies that a majority is in no later term, and returns the index. The reading
// node waits until its own store reaches it.
func (n *Node) View(ctx context.Context, c Consistency) (*fsm.View, error) {
	switch c {
	case Local:
		return n.store.View(), nil
	case Stale:
		n.awaitAcknowledged(ctx)
		return n.store.View(), nil
	}
	begin := time.Now()
	v, err := n.linearizableView(ctx)
	n.metrics.ReadDuration.Observe(time.Since(begin).Seconds())
	return v, err
}

// linearizableView is View for Linearizable.
func (n *Node) linearizableView(ctx context.Context) (*fsm.View, error) {
	if !n.calls.Enter() {
		return nil, errStopping()
	}
	defer n.calls.Leave()
	n.metrics.ReadWaiters.Inc()
	defer n.metrics.ReadWaiters.Dec()
	deadline := time.Now().Add(n.cfg.ReadTimeout)
	// A read waits for two rounds as a rule: the current one and its own. Both end by themselves, so
	// this path needs no timer.
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
		return nil, n.orStopping(fsm.Errorf(fsm.CodeNoLeader, "no leader answered the read in time"))
	}
}

// fence is the index of the newest entry that Propose acknowledged on this node, which may be ahead
// of the node's store: the leader's answer does not wait for it.
type fence struct {
	index atomic.Uint64
	// until is when nobody waits for it any more, in nanoseconds since begun.
	until atomic.Int64
	begun time.Time
}

// raise has reads wait for an entry for a time at most, from now on and all together.
func (f *fence) raise(index uint64, wait time.Duration) {
	for old := f.index.Load(); index > old; old = f.index.Load() {
		f.until.Store(int64(time.Since(f.begun) + wait))
		if f.index.CompareAndSwap(old, index) {
			return
		}
	}
}

// awaitAcknowledged waits until this node's store has what was acknowledged here. On a node that was
// cut off meanwhile no read waits beyond ProposeTimeout after the acknowledgement.
func (n *Node) awaitAcknowledged(ctx context.Context) {
	f := &n.acknowledged
	index := f.index.Load()
	if n.store.Index() >= index {
		return
	}
	n.catchUpTo(ctx, index, f.begun.Add(time.Duration(f.until.Load())))
}

// ProposeHere is Propose for a caller that reads this node's store itself: without an error, the store
// has the command. A store that does not get it within ProposeTimeout is CodeOutcomeUnknown. At the
// leader it costs nothing more.
func (n *Node) ProposeHere(ctx context.Context, cmd fsm.Command) (fsm.Result, error) {
	result, err := n.Propose(ctx, cmd)
	if err != nil {
		return result, err
	}
	if _, err := n.viewAt(ctx, result.Index, time.Now().Add(n.cfg.ProposeTimeout)); err != nil {
		return result, fsm.Errorf(fsm.CodeOutcomeUnknown, "the command is applied, and not seen here: %v", err)
	}
	return result, nil
}

// StateSnapshot returns the whole state at one index with its events, ready to be written to a file. It
// is at least as recent as View with the same consistency, and fails like View. Close it.
func (n *Node) StateSnapshot(ctx context.Context, c Consistency) (*fsm.Snapshot, error) {
	if _, err := n.View(ctx, c); err != nil {
		return nil, err
	}
	if err := n.raftFSM.Failure(); err != nil {
		return nil, fmt.Errorf("no snapshot of a stopped store: %w", err)
	}
	return n.pinned()
}

// viewAt returns a view once the store has reached the index.
func (n *Node) viewAt(ctx context.Context, index uint64, deadline time.Time) (*fsm.View, error) {
	if n.store.Index() >= index || n.catchUpTo(ctx, index, deadline) {
		return n.store.View(), nil
	}
	return nil, n.orStopping(fsm.Errorf(
		fsm.CodeTimeout, "this node is behind: it has index %d and the read needs %d", n.store.Index(),
		index,
	))
}

// catchUpTo waits until this node's store reaches the index. It returns false when the deadline,
// ctx or the node ends first.
func (n *Node) catchUpTo(ctx context.Context, index uint64, deadline time.Time) bool {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	stop := context.AfterFunc(n.stopping, cancel)
	defer stop()
	return n.store.Wait(ctx, index) == nil
}

// orStopping returns e with a retry delay, or the shutdown error while the node stops.
func (n *Node) orStopping(e *fsm.Error) error {
	if n.stopping.Err() != nil {
		return errStopping()
	}
	e.RetryAfter = retryAfter
	return e
}

// readIndex runs one round for this node's reads: on the leader directly, else by a peer call.
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
		return n.leaderReads.join(ctx, n.stopping)
	}
	r := n.raft.Load()
	if r == nil {
		return 0, errNotLeader
	}
	// This node's term, read after the round began, saves the leader one voter's answer.
	request, err := json.Marshal(
		indexRequest{Voter: termResponse{ID: string(n.id), Term: r.CurrentTerm()}},
	)
	if err != nil {
		return 0, err
	}
	answer, err := n.network.Call(ctx, n.addressOf(l), peernet.CallIndex, request)
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
	n.hintCommit(l, response.Index, response.Term)
	return response.Index, nil
}

// verifiedIndex runs one round on the leader. At some moment of the round the result was the commit
// index of the whole cluster.
func (n *Node) verifiedIndex() (uint64, error) { return n.verified(termResponse{}) }

// verified is verifiedIndex with the term that one voter reported, if claimed has an id. The voter
// read it after the waiting reads began.
func (n *Node) verified(claimed termResponse) (uint64, error) {
	t := n.terms.get()
	r := n.raft.Load()
	if t == nil || r == nil || t.ctx.Err() != nil {
		return 0, errNotLeader
	}
	index := r.CommitIndex()
	if err := n.confirm(t, r.GetConfiguration().Configuration().Servers, claimed); err != nil {
		return 0, err
	}
	if r.State() != raft.Leader || r.CurrentTerm() != t.number {
		return 0, errNotLeader
	}
	return index, nil
}

// confirm verifies that a majority of the voters, this node included, is in no later term than t.
// Then no other leader was elected before the round began. It asks as few voters as needed, the
// last one to answer first, and the others when one fails or is slow. claimed is one voter's term,
// reported with the call.
//
// raft.VerifyLeader accepts heartbeats that were sent earlier and so relies on timing. A leadership
// transfer waits for no timeout and could slip in between.
func (n *Node) confirm(t *term, servers []raft.Server, claimed termResponse) error {
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
		case s.ID == n.id, claimed.ID == string(s.ID) && claimed.Term <= t.number:
			granted++
		case claimed.ID == string(s.ID):
			return fmt.Errorf("%w: %w", errNotLeader, errNewerTerm)
		default:
			others = append(others, s)
		}
	}
	if granted > voters/2 {
		return nil
	}
	return n.askTerms(ctx, t, n.fastestVoter.order(others), voters/2+1-granted)
}

// askTerms asks voters, in order, until enough have answered that they are in no later term.
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
	slow := time.NewTimer(slowVoterAfter)
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
				n.fastestVoter.answered(a.from)
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

// fastestVoter remembers the voter that answered last. The next round asks it first.
type fastestVoter struct{ id atomic.Value }

func (q *fastestVoter) answered(id raft.ServerID) { q.id.Store(id) }

// order moves that voter to the front.
func (q *fastestVoter) order(voters []raft.Server) []raft.Server {
	for i, s := range voters {
		if s.ID == q.id.Load() {
			voters[0], voters[i] = voters[i], voters[0]
		}
	}
	return voters
}

// errNewerTerm: a voter is in a later term than this leader.
var errNewerTerm = errors.New("a voter has moved to a newer term")

// askTerm asks one voter whether it has moved past the term.
func (n *Node) askTerm(ctx context.Context, s raft.Server, number uint64) error {
	var response termResponse
	if err := n.ask(ctx, peernet.AddressFor(s.ID, n.currentAddress(s)), peernet.CallTerm, struct{}{},
		&response); err != nil {
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

// handleTerm answers callTerm. Raft stores a new term before it acts on it, votes included, so the
// answer is never older than the voter's acts.
func (n *Node) handleTerm() (termResponse, error) {
	r := n.raft.Load()
	if r == nil {
		return termResponse{}, errors.New("the node does not run")
	}
	return termResponse{ID: string(n.id), Term: r.CurrentTerm()}, nil
}

// readBatcher lets concurrent reads share one round of a costly call. A read may only share a round
// that starts after the read arrived: an earlier answer could be too old for it.
type readBatcher struct {
	run func() (uint64, error)
	// spawn starts the goroutine that runs the rounds.
	spawn func(func())
	// started, if set, is called for each round.
	started func()

	mu      sync.Mutex
	next    *readRound // gathers calls; nil when nobody waits for a run to start
	running bool
}

type readRound struct {
	done  chan struct{}
	calls int // that share it; the rounds' mu guards it
	index uint64
	err   error
}

// join waits for the result of the next round, or for the end of either context.
func (s *readBatcher) join(ctx, stopping context.Context) (uint64, error) {
	s.mu.Lock()
	r := s.next
	if r == nil {
		r = &readRound{done: make(chan struct{})}
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

// gather lets runnable reads join: a round costs the same for one read and for many.
func (s *readBatcher) gather() {
	gather(func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.next == nil {
			return 0
		}
		return s.next.calls
	})
}

// loop runs rounds, one after the other, while reads wait.
func (s *readBatcher) loop() {
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
