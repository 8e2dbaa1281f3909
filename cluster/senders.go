package cluster

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/raftfix"
	"bivouac.dev/bivouac/cluster/raftmetrics"
	"bivouac.dev/bivouac/cluster/raftstore"
	"bivouac.dev/bivouac/fsm"
)

// senders judges who sends Raft's messages. The peer port has compared the id in a message's header
// with the certificate and the greeting of the connection.
type senders struct {
	raft atomic.Pointer[raft.Raft]

	mu sync.Mutex
	// elected is the newest leader of whose election this node has the proof.
	elected election
	// proofs are those in progress. failed are the last ones that failed, and when.
	proofs map[election]*proof
	failed map[election]time.Time
	// demanding: this node has seen that every voter's program knows the question (demandProofs).
	demanding atomic.Bool
	// unknown is a leader of which no member that this node knows could tell.
	unknown unknownLeader
}

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
	return voters(c.servers) == voters(other.servers)
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

// admitSender judges a message of Raft's. It implements raftfix.Inbox.Admit.
//
//	RequestVote, RequestPreVote     voters; while this node has no configuration, the node that it
//	                                promised to form a cluster with
//	AppendEntries, InstallSnapshot  a voter of whose election in the term this node has the proof
//	TimeoutNow                      the leader that this node follows
func (n *Node) admitSender(message raft.WithRPCHeader) (prove func() error, err error) {
	r := n.senders.raft.Load()
	header := message.GetRPCHeader()
	id, address := raft.ServerID(header.ID), n.inbox.DecodePeer(header.Addr)
	if id == "" || id == n.id || len(header.Addr) == 0 {
		return nil, n.refusal(raftmetrics.RefusedSender, "a message from %q names no other member and its address", id)
	}
	switch m := message.(type) {
	case *raft.AppendEntriesRequest:
		return n.admitLeader(r, election{id, m.Term}, address)
	case *raft.InstallSnapshotRequest:
		return n.admitLeader(r, election{id, m.Term}, address)
	case *raft.RequestVoteRequest:
		return nil, n.admitCandidate(r, election{id, m.Term}, address, m.LeadershipTransfer)
	case *raft.RequestPreVoteRequest:
		return nil, n.admitCandidate(r, election{id, m.Term}, address, false)
	case *raft.TimeoutNowRequest:
		if _, leader := r.LeaderWithID(); leader == id {
			return nil, nil
		}
		return nil, n.refusal(raftmetrics.RefusedSender, "%s does not lead, so it hands nothing over", id)
	}
	return nil, n.refusal(raftmetrics.RefusedSender, "an unknown message from %s", id)
}

// refusal counts a refused message and returns why.
func (n *Node) refusal(reason, format string, args ...any) error {
	n.metrics.RefusedMessages.WithLabelValues(reason).Inc()
	return fmt.Errorf(format, args...)
}

// absurd refuses a term that is too far above this node's.
func (n *Node) absurd(r *raft.Raft, e election) error {
	if now := r.CurrentTerm(); e.term > now && e.term-now > raftfix.MaxTermStep {
		return n.refusal(raftmetrics.RefusedTerm, "%s sends term %d, and this node is in term %d", e.leader, e.term, now)
	}
	return nil
}

// configuration returns the configuration of this node.
func (s *senders) configuration(r *raft.Raft) configured {
	return configured{index: r.AppliedIndex(), servers: r.GetConfiguration().Configuration().Servers}
}

// admitCandidate judges a request for a vote.
func (n *Node) admitCandidate(r *raft.Raft, e election, address raft.ServerAddress, transfer bool) error {
	if err := n.absurd(r, e); err != nil {
		return err
	}
	own := n.senders.configuration(r)
	if len(own.servers) == 0 && n.promisedTo(e.leader) {
		return nil
	}
	if !own.hasVoter(e.leader) {
		return n.refusal(raftmetrics.RefusedSender, "%s is no voter of this node's configuration", e.leader)
	}
	// Raft compares addresses to see whether the candidate is the leader.
	if at, leader := r.LeaderWithID(); !transfer && leader != "" && leader != e.leader && at == address {
		return n.refusal(raftmetrics.RefusedSender, "%s asks for votes from the address of the leader", e.leader)
	}
	return nil
}

// admitLeader judges a leader's message.
func (n *Node) admitLeader(r *raft.Raft, e election, address raft.ServerAddress) (prove func() error, err error) {
	s := &n.senders
	s.mu.Lock()
	elected := s.elected
	s.mu.Unlock()
	if elected == e {
		return nil, nil
	}
	if err := n.absurd(r, e); err != nil {
		return nil, err
	}
	own := s.configuration(r)
	voter := own.hasVoter(e.leader)
	switch now := r.CurrentTerm(); {
	case len(own.servers) == 0 && n.promisedTo(e.leader):
		s.elect(e)
		return nil, nil
	case voter && (e.term < now || e.term < elected.term):
		return nil, nil // Raft tells it the newer term
	case e.term < now || e.term == elected.term:
		return nil, n.refusal(raftmetrics.RefusedSender, "%s does not lead term %d", e.leader, e.term)
	case voter && n.vote() == e:
		s.elect(e)
		return nil, nil
	case !voter && r.State() == raft.Follower && time.Since(r.LastContact()) < n.cfg.LeaderLeaseTimeout:
		return nil, n.refusal(raftmetrics.RefusedSender, "%s is no voter of this node's configuration, which has a leader", e.leader)
	}
	return func() error { return n.prove(r, e, string(address)) }, nil
}

// elect records an election of which this node has the proof.
func (s *senders) elect(e election) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.term > s.elected.term {
		s.elected = e
	}
	s.unknown = unknownLeader{}
}

// prove seeks the proof of an election, once for all messages that wait for it.
func (n *Node) prove(r *raft.Raft, e election, address string) error {
	s := &n.senders
	s.mu.Lock()
	p := s.proofs[e]
	if p == nil {
		if err := s.mayProve(e, time.Now()); err != nil {
			s.mu.Unlock()
			return n.refusal(raftmetrics.RefusedUnelected, "%w", err)
		}
		p = &proof{done: make(chan struct{})}
		s.proofs[e] = p
		n.futures.Go(func() {
			p.err = n.seekProof(r, e, address)
			s.proved(e, p.err)
			close(p.done)
		})
	}
	s.mu.Unlock()
	<-p.done
	if p.err != nil {
		return n.refusal(raftmetrics.RefusedUnelected, "%w", p.err)
	}
	return nil
}

// mayProve bounds the proofs that are sought. The caller holds mu.
func (s *senders) mayProve(e election, now time.Time) error {
	for failed, at := range s.failed {
		if now.Sub(at) > proofAgain {
			delete(s.failed, failed)
		}
	}
	if _, failed := s.failed[e]; failed || len(s.proofs) >= maxProofs || len(s.failed) >= maxProofs {
		return errors.New("it was sought just now")
	}
	return nil
}

func (s *senders) proved(e election, err error) {
	s.mu.Lock()
	delete(s.proofs, e)
	if err != nil {
		s.failed[e] = time.Now()
	}
	s.mu.Unlock()
	if err == nil {
		s.elect(e)
	}
}

func (s *senders) init(stable raft.StableStore) error {
	s.proofs, s.failed = map[election]*proof{}, map[election]time.Time{}
	since, err := raftstore.Get(stable, raftstore.KeyProofs)
	if err != nil {
		return fmt.Errorf("reading %s: %w", raftstore.KeyProofs, err)
	}
	s.demanding.Store(since != "")
	return nil
}

// demandProofs keeps on the disk that the cluster has reached fsm.VersionPeers. A start knows the
// version only once a leader has told it what of its log is committed.
func (s *senders) demandProofs(stable raft.StableStore) error {
	if s.demanding.Load() {
		return nil
	}
	if err := raftstore.Set(stable, raftstore.KeyProofs, strconv.Itoa(fsm.VersionPeers)); err != nil {
		return fmt.Errorf("storing %s: %w", raftstore.KeyProofs, err)
	}
	s.demanding.Store(true)
	return nil
}

// promisedTo reports whether this node promised to form a cluster with another.
func (n *Node) promisedTo(id raft.ServerID) bool {
	n.bootstrap.mu.Lock()
	defer n.bootstrap.mu.Unlock()
	return n.bootstrap.promised == string(id)
}

// Forged counts a message that names another member than its connection. It implements a part of
// peernet.Host.
func (n peerHost) Forged(member, named string) {
	n.metrics.RefusedMessages.WithLabelValues(raftmetrics.RefusedForged).Inc()
	n.logger.Debug("cluster: a peer sent a message in the name of another", "peer", member, "name", named)
}
