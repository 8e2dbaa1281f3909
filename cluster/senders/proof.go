package senders

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/membership"
	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/cluster/raftstore"
)

// A member that did not vote for a leader, a nonvoter and a newcomer ask the voters. They say for
// whom they voted last, whom they follow because they have the proof themselves (those who voted may
// be gone), and which configuration they have: this node's own may be older than the leader's.

// proofTimeout bounds one round of asking the voters.
const proofTimeout = 500 * time.Millisecond

// Voted says for whom a member voted last, whom it follows, and which configuration it has.
type Voted struct {
	ID string `json:"id"`
	// Term and Candidate are of its last vote.
	Term      uint64 `json:"term"`
	Candidate string `json:"candidate"`
	// LedTerm and Leader are of the newest election of which it has the proof.
	LedTerm uint64 `json:"led_term"`
	Leader  string `json:"leader"`
	// Index is what it has applied, and Members are those of its configuration.
	Index   uint64        `json:"index"`
	Members []VotedMember `json:"members"`
}

// VotedMember is a member of the configuration.
type VotedMember struct {
	ID      string `json:"id"`
	Address string `json:"address"`
	Voter   bool   `json:"voter"`
}

// configured is the configuration of a response.
func (v Voted) configured() configured {
	c := configured{index: v.Index}
	for _, m := range v.Members {
		s := raft.Server{ID: raft.ServerID(m.ID), Address: raft.ServerAddress(m.Address), Suffrage: raft.Nonvoter}
		if m.Voter {
			s.Suffrage = raft.Voter
		}
		c.servers = append(c.servers, s)
	}
	return c
}

// Voted answers another node's AskVoted.
func (j *Judge) Voted() (Voted, error) {
	r := j.raft.Load()
	if r == nil {
		return Voted{}, errors.New("the node does not run")
	}
	own, vote := j.configuration(r), j.vote()
	response := Voted{ID: string(j.ID), Term: vote.term, Candidate: string(vote.leader), Index: r.AppliedIndex()}
	j.mu.Lock()
	response.LedTerm, response.Leader = j.elected.term, string(j.elected.leader)
	j.mu.Unlock()
	for _, s := range own.servers {
		response.Members = append(response.Members,
			VotedMember{string(s.ID), membership.Address(s), s.Suffrage == raft.Voter})
	}
	return response, nil
}

// The keys of Raft's own in the stable store.
const (
	keyLastVoteTerm = "LastVoteTerm"
	keyLastVoteCand = "LastVoteCand"
)

// vote is this node's last vote, which Raft stores before it grants it. Raft stores the candidate's
// address, which has the candidate's id, or not until its store has been read (EncodePeer).
func (j *Judge) vote() election {
	term, err := raftstore.GetUint64(j.Stable, keyLastVoteTerm)
	if err != nil {
		return election{}
	}
	candidate, err := raftstore.Get(j.Stable, keyLastVoteCand)
	if err != nil {
		return election{}
	}
	id, place := peernet.SplitAddress(candidate)
	if id == "" {
		id = j.memberAt(place)
	}
	return election{raft.ServerID(id), term}
}

// memberAt returns the member whose address is this one, also a newer one than the configuration's;
// "" where two claim it.
func (j *Judge) memberAt(place string) (id string) {
	for _, s := range j.configuration(j.raft.Load()).servers {
		if j.Node.CurrentAddress(s) != place {
			continue
		}
		if id != "" {
			return ""
		}
		id = string(s.ID)
	}
	return id
}

// votedAnswer is a member's answer, or the error of the call.
type votedAnswer struct {
	of       raft.ServerID // who was asked; empty for an address without a member
	response Voted
	err      error
	// older: the member's program does not know the call.
	older bool
}

// askVoted asks members at once. The channel has an answer for each of them.
func (j *Judge) askVoted(ctx context.Context, members []raft.Server) <-chan votedAnswer {
	answers := make(chan votedAnswer, len(members))
	for _, s := range members {
		j.asking.Go(func() {
			a := votedAnswer{of: s.ID}
			address := j.Node.CurrentAddress(s)
			if s.ID != "" && address != "" {
				address = peernet.AddressFor(s.ID, address)
			}
			if address == "" {
				a.err = membership.ErrNoAddress
			} else {
				a.response, a.err = j.Node.AskVoted(ctx, address)
			}
			if a.err == nil && s.ID != "" && a.response.ID != string(s.ID) {
				a.err = fmt.Errorf("%s answers in the place of %s", a.response.ID, s.ID)
			}
			a.older = a.err != nil && strings.Contains(a.err.Error(), "unknown peer call")
			answers <- a
		})
	}
	return answers
}

// ballot counts the votes of one election among the voters of a configuration.
type ballot struct {
	election
	of       configured
	answered map[raft.ServerID]bool // whether the voter confirms the election
}

// newBallot makes a ballot with the leader's vote. This node did not vote so, or would not ask.
func (j *Judge) newBallot(e election, of configured) *ballot {
	return &ballot{e, of, map[raft.ServerID]bool{e.leader: true, j.ID: j.vote() == e}}
}

func (b *ballot) count(a votedAnswer) {
	if a.err == nil && a.of != "" && a.of != b.leader {
		v := a.response
		b.answered[a.of] = v.Term == b.term && v.Candidate == string(b.leader) ||
			v.LedTerm == b.term && v.Leader == string(b.leader)
	}
}

// tally returns how many voters confirm the election, how many deny it, and the number needed.
func (b *ballot) tally() (yes, no, needed int) {
	for _, s := range b.of.servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		if voted, answered := b.answered[s.ID]; answered && voted {
			yes++
		} else if answered {
			no++
		}
	}
	return yes, no, membership.Voters(b.of.servers)/2 + 1
}

func (b *ballot) won() bool {
	yes, _, needed := b.tally()
	return b.of.hasVoter(b.leader) && yes >= needed
}

// lost reports whether the voters who said no leave no majority.
func (b *ballot) lost() bool {
	_, no, needed := b.tally()
	return !b.of.hasVoter(b.leader) || membership.Voters(b.of.servers)-no < needed
}

// seekProof asks until a majority of the voters, with the leader, says that it voted for the leader
// in the term.
func (j *Judge) seekProof(r *raft.Raft, e election, address string) error {
	own := j.configuration(r)
	b := j.newBallot(e, own)
	if b.won() { // the only voter
		return nil
	}
	known := slices.DeleteFunc(slices.Clone(own.servers), func(s raft.Server) bool {
		return s.ID == j.ID ||
			s.Suffrage != raft.Voter
	})
	if len(own.servers) == 0 {
		for _, a := range j.Join {
			known = append(known, raft.Server{Address: raft.ServerAddress(a)})
		}
	}
	ctx, cancel := context.WithTimeout(j.Node.Stopping(), proofTimeout)
	defer cancel()
	var told []votedAnswer
	answers := j.askVoted(ctx, known)
	for range known {
		a := <-answers
		told = append(told, a)
		if b.count(a); b.won() {
			return nil
		}
	}
	of := introduce(e.leader, told)
	switch {
	case of.has > of.lacks && !of.newest.sameVoters(own):
		return j.seekAmong(j.newBallot(e, of.newest))
	case own.hasVoter(e.leader):
		return j.orOlder(b)
	case len(own.servers) == 0 && slices.ContainsFunc(told, func(a votedAnswer) bool { return a.older }):
		return nil // a newcomer to a cluster of older programs believes as they do
	case of.has < of.lacks:
		return fmt.Errorf("%d members that this node knows lack %s as a voter, and %d have it", of.lacks, e.leader, of.has)
	}
	return j.stranded(e, address, known)
}

// seekAmong asks the voters of a configuration that is newer than this node's own.
func (j *Judge) seekAmong(b *ballot) error {
	if b.won() {
		return nil
	}
	ctx, cancel := context.WithTimeout(j.Node.Stopping(), proofTimeout)
	defer cancel()
	others := slices.DeleteFunc(slices.Clone(b.of.servers), func(s raft.Server) bool {
		return s.ID == j.ID || s.ID == b.leader || s.Suffrage != raft.Voter
	})
	answers := j.askVoted(ctx, others)
	for range others {
		if b.count(<-answers); b.won() {
			return nil
		}
	}
	return j.orOlder(b)
}

// orOlder decides an election that no majority confirms. Below fsm.VersionPeers some voters may not
// know the question, so only those that deny the election count. The version is the one that the disk
// remembers, too: a start's store is empty until a leader is believed.
func (j *Judge) orOlder(b *ballot) error {
	if !j.demanding.Load() && !j.Active() && !b.lost() {
		return nil
	}
	yes, no, needed := b.tally()
	return fmt.Errorf("%d of the %d voters needed say that they elected %s in term %d, and %d that they did not", yes,
		needed, b.leader, b.term, no)
}

// introduction is what the members that this node knows say about a leader.
type introduction struct {
	// newest is the configuration of the member that has applied most, of those whose configuration has
	// the leader as a voter.
	newest configured
	// has and lacks count the members whose configuration has it, and those whose has not.
	has, lacks int
}

// introduce judges what members told. The leader's own word counts if no other member answers.
func introduce(leader raft.ServerID, told []votedAnswer) (of introduction) {
	others := slices.DeleteFunc(slices.Clone(told), func(a votedAnswer) bool {
		return a.err != nil || len(a.response.Members) == 0 || a.response.ID == string(leader)
	})
	if len(others) == 0 {
		others = told
	}
	for _, a := range others {
		c := a.response.configured()
		switch {
		case a.err != nil || len(c.servers) == 0:
		case c.hasVoter(leader):
			of.has++
			if of.newest.servers == nil || c.index > of.newest.index {
				of.newest = c
			}
		default:
			of.lacks++
		}
	}
	return of
}

// unknownLeader is a leader of which nobody could tell whom this node knows.
type unknownLeader struct {
	election
	address string
	// asked are the members that this node knows.
	asked []string
	since time.Time
}

// trustFile is the file of the data directory by which an operator confirms such a leader. It holds
// the leader's id.
const trustFile = "trusted-leader"

const (
	// maxTrustFile bounds the read of trustFile, in bytes.
	maxTrustFile = 256
	// strandedAfter is how long nobody whom this node knows must answer before it says so.
	strandedAfter = 5 * time.Second
)

// stranded is for a leader about which the members that this node knows say nothing: none answers,
// or they disagree. An operator can confirm it.
func (j *Judge) stranded(e election, address string, known []raft.Server) error {
	j.mu.Lock()
	if j.unknown.leader == "" {
		j.unknown = unknownLeader{election: e, address: address, since: time.Now()}
		for _, k := range known {
			j.unknown.asked = append(j.unknown.asked, peernet.NodeName(k.ID))
		}
	}
	j.mu.Unlock()
	if err := j.confirmed(e); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(j.Node.Stopping(), proofTimeout)
	defer cancel()
	a := <-j.askVoted(ctx, []raft.Server{{ID: e.leader, Address: raft.ServerAddress(address)}})
	if a.err != nil {
		return a.err
	}
	j.Logger.Warn("cluster: this node follows a leader that an operator confirmed", "peer", string(e.leader), "address",
		address, "term", e.term)
	return j.seekAmong(j.newBallot(e, a.response.configured()))
}

// confirmed returns nil if an operator confirmed the leader.
func (j *Judge) confirmed(e election) error {
	trusted, err := raftstore.ReadBounded(filepath.Join(j.DataDir, trustFile), maxTrustFile)
	if err == nil && strings.TrimSpace(string(trusted)) == string(e.leader) {
		return nil
	}
	return fmt.Errorf("no member that this node knows answers, to say who %s is", e.leader)
}

// Stranded says that only members that this node does not know call it, nil otherwise.
func (j *Judge) Stranded() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	u := j.unknown
	if u.leader == "" || time.Since(u.since) < strandedAfter {
		return nil
	}
	return fmt.Errorf("%s at %s says that it leads, and none of the members that this node knows (%s) answers: "+
		"run \"bivouac operator members\" on node %s; if it is of this cluster and lists this node, "+
		"write %s to %s (bivouac runbook members)",
		u.leader, u.address, strings.Join(u.asked, ", "), peernet.NodeName(u.leader), u.leader, filepath.Join(j.DataDir,
			trustFile))
}
