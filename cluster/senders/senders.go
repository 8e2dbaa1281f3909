// Package senders judges who sends Raft's messages: who may ask for votes, and who leads.
package senders

import (
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/membership"
	"bivouac.dev/bivouac/cluster/raftfix"
	"bivouac.dev/bivouac/cluster/raftmetrics"
	"bivouac.dev/bivouac/cluster/raftstore"
	"bivouac.dev/bivouac/fsm"
)

// Options are what a Judge knows of its node. All are set.
type Options struct {
	Node Node
	ID   raft.ServerID
	// DataDir has the file by which an operator confirms a leader. Stable is Raft's.
	DataDir string
	Stable  raft.StableStore
	// Join are the addresses that a node without a configuration asks.
	Join []string
	// Lease is how long a leader counts that was not heard.
	Lease time.Duration
	// Decode reads the address in a message's header.
	Decode func(raw []byte) raft.ServerAddress
	// Active reports whether the store says that the cluster has reached fsm.VersionPeers.
	Active func() bool
	// Refused is called for each message that is refused, with one of raftmetrics' reasons.
	Refused func(reason string)
	Logger  *slog.Logger
}

// Judge judges who sends Raft's messages. The peer port has compared the id in a message's header
// with the certificate and the greeting of the connection.
type Judge struct {
	Options
	raft atomic.Pointer[raft.Raft]
	// asking are the goroutines that seek proofs.
	asking sync.WaitGroup

	mu sync.Mutex
	// elected is the newest leader of whose election this node has the proof.
	elected election
	// proofs are those in progress. failed are the last ones that failed, and when.
	proofs map[election]*proof
	failed map[election]time.Time
	// demanding: this node has seen that every voter's program knows the question (DemandProofs).
	demanding atomic.Bool
	// unknown is a leader of which no member that this node knows could tell.
	unknown unknownLeader
}

// New makes the judge of a node.
func New(o Options) (*Judge, error) {
	j := &Judge{Options: o, proofs: map[election]*proof{}, failed: map[election]time.Time{}}
	since, err := raftstore.Get(j.Stable, raftstore.KeyProofs)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", raftstore.KeyProofs, err)
	}
	j.demanding.Store(since != "")
	return j, nil
}

// Begin gives the judge the node's Raft, before which it judges nothing.
func (j *Judge) Begin(r *raft.Raft) { j.raft.Store(r) }

// Wait waits until no proof is sought any more. The node calls it when it has begun to stop and no
// message is judged any more: only a message begins a proof.
func (j *Judge) Wait() { j.asking.Wait() }

// election is a member and a term that it leads, or claims to.
type election struct {
	leader raft.ServerID
	term   uint64
}

// configured is a configuration, and the index of the store that it was read with. Raft gives no index
// of the configuration itself.
type configured struct {
	index   uint64
	servers []raft.Server
}

func (c configured) hasVoter(id raft.ServerID) bool {
	for _, s := range c.servers {
		if s.ID == id {
			return s.Suffrage == raft.Voter
		}
	}
	return false
}

// sameVoters reports whether two configurations have the same voters.
func (c configured) sameVoters(other configured) bool {
	for _, s := range c.servers {
		if s.Suffrage == raft.Voter && !other.hasVoter(s.ID) {
			return false
		}
	}
	return membership.Voters(c.servers) == membership.Voters(other.servers)
}

// proof is the search for the proof of an election. err is set when done is closed.
type proof struct {
	done chan struct{}
	err  error
}

const (
	// maxProofs bounds the proofs in progress and those that are remembered as failed.
	maxProofs = 16
	// proofAgain is when a proof that failed is sought again.
	proofAgain = 250 * time.Millisecond
)

// Admit judges a message of Raft's. It implements raftfix.Inbox.Admit.
//
//	RequestVote, RequestPreVote     voters; while this node has no configuration, the node that it
//	                                promised to form a cluster with
//	AppendEntries, InstallSnapshot  a voter of whose election in the term this node has the proof
//	TimeoutNow                      the leader that this node follows
func (j *Judge) Admit(message raft.WithRPCHeader) (prove func() error, err error) {
	r := j.raft.Load()
	header := message.GetRPCHeader()
	id, address := raft.ServerID(header.ID), j.Decode(header.Addr)
	if id == "" || id == j.ID || len(header.Addr) == 0 {
		return nil, j.refusal(raftmetrics.RefusedSender, "a message from %q names no other member and its address", id)
	}
	switch m := message.(type) {
	case *raft.AppendEntriesRequest:
		return j.admitLeader(r, election{id, m.Term}, address)
	case *raft.InstallSnapshotRequest:
		return j.admitLeader(r, election{id, m.Term}, address)
	case *raft.RequestVoteRequest:
		return nil, j.admitCandidate(r, election{id, m.Term}, address, m.LeadershipTransfer)
	case *raft.RequestPreVoteRequest:
		return nil, j.admitCandidate(r, election{id, m.Term}, address, false)
	case *raft.TimeoutNowRequest:
		if _, leader := r.LeaderWithID(); leader == id {
			return nil, nil
		}
		return nil, j.refusal(raftmetrics.RefusedSender, "%s does not lead, so it hands nothing over", id)
	}
	return nil, j.refusal(raftmetrics.RefusedSender, "an unknown message from %s", id)
}

// refusal counts a refused message and returns why.
func (j *Judge) refusal(reason, format string, args ...any) error {
	j.Refused(reason)
	return fmt.Errorf(format, args...)
}

// absurd refuses a term that is too far above this node's.
func (j *Judge) absurd(r *raft.Raft, e election) error {
	if now := r.CurrentTerm(); e.term > now && e.term-now > raftfix.MaxTermStep {
		return j.refusal(raftmetrics.RefusedTerm, "%s sends term %d, and this node is in term %d", e.leader, e.term, now)
	}
	return nil
}

// configuration returns the configuration of this node.
func (j *Judge) configuration(r *raft.Raft) configured {
	return configured{index: r.AppliedIndex(), servers: r.GetConfiguration().Configuration().Servers}
}

// admitCandidate judges a request for a vote.
func (j *Judge) admitCandidate(r *raft.Raft, e election, address raft.ServerAddress, transfer bool) error {
	if err := j.absurd(r, e); err != nil {
		return err
	}
	own := j.configuration(r)
	if len(own.servers) == 0 && j.Node.PromisedTo(e.leader) {
		return nil
	}
	if !own.hasVoter(e.leader) {
		return j.refusal(raftmetrics.RefusedSender, "%s is no voter of this node's configuration", e.leader)
	}
	// Raft compares addresses to see whether the candidate is the leader.
	if at, leader := r.LeaderWithID(); !transfer && leader != "" && leader != e.leader && at == address {
		return j.refusal(raftmetrics.RefusedSender, "%s asks for votes from the address of the leader", e.leader)
	}
	return nil
}

// admitLeader judges a leader's message.
func (j *Judge) admitLeader(r *raft.Raft, e election, address raft.ServerAddress) (prove func() error, err error) {
	j.mu.Lock()
	elected := j.elected
	j.mu.Unlock()
	if elected == e {
		return nil, nil
	}
	if err := j.absurd(r, e); err != nil {
		return nil, err
	}
	own := j.configuration(r)
	voter := own.hasVoter(e.leader)
	switch now := r.CurrentTerm(); {
	case len(own.servers) == 0 && j.Node.PromisedTo(e.leader):
		j.elect(e)
		return nil, nil
	case voter && (e.term < now || e.term < elected.term):
		return nil, nil // Raft tells it the newer term
	case e.term < now || e.term == elected.term:
		return nil, j.refusal(raftmetrics.RefusedSender, "%s does not lead term %d", e.leader, e.term)
	case voter && j.vote() == e:
		j.elect(e)
		return nil, nil
	case !voter && r.State() == raft.Follower && time.Since(r.LastContact()) < j.Lease:
		return nil, j.refusal(raftmetrics.RefusedSender,
			"%s is no voter of this node's configuration, which has a leader", e.leader)
	}
	return func() error { return j.prove(r, e, string(address)) }, nil
}

// elect records an election of which this node has the proof.
func (j *Judge) elect(e election) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e.term > j.elected.term {
		j.elected = e
	}
	j.unknown = unknownLeader{}
}

// prove seeks the proof of an election, once for all messages that wait for it.
func (j *Judge) prove(r *raft.Raft, e election, address string) error {
	j.mu.Lock()
	p := j.proofs[e]
	if p == nil {
		if err := j.mayProve(e, time.Now()); err != nil {
			j.mu.Unlock()
			return j.refusal(raftmetrics.RefusedUnelected, "%w", err)
		}
		p = &proof{done: make(chan struct{})}
		j.proofs[e] = p
		j.asking.Go(func() {
			p.err = j.seekProof(r, e, address)
			j.proved(e, p.err)
			close(p.done)
		})
	}
	j.mu.Unlock()
	<-p.done
	if p.err != nil {
		return j.refusal(raftmetrics.RefusedUnelected, "%w", p.err)
	}
	return nil
}

// mayProve bounds the proofs that are sought. The caller holds mu.
func (j *Judge) mayProve(e election, now time.Time) error {
	for failed, at := range j.failed {
		if now.Sub(at) > proofAgain {
			delete(j.failed, failed)
		}
	}
	if _, failed := j.failed[e]; failed || len(j.proofs) >= maxProofs || len(j.failed) >= maxProofs {
		return errors.New("it was sought just now")
	}
	return nil
}

func (j *Judge) proved(e election, err error) {
	j.mu.Lock()
	delete(j.proofs, e)
	if err != nil {
		j.failed[e] = time.Now()
	}
	j.mu.Unlock()
	if err == nil {
		j.elect(e)
	}
}

// DemandProofs keeps on the disk that the cluster has reached fsm.VersionPeers. A start knows the
// version only once a leader has told it what of its log is committed.
func (j *Judge) DemandProofs() error {
	if j.demanding.Load() {
		return nil
	}
	if err := raftstore.Set(j.Stable, raftstore.KeyProofs, strconv.Itoa(fsm.VersionPeers)); err != nil {
		return fmt.Errorf("storing %s: %w", raftstore.KeyProofs, err)
	}
	j.demanding.Store(true)
	return nil
}
