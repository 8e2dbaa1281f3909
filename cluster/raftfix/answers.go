package raftfix

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/raft"
)

// ErrWrongMember is in the error of a message that another member has answered
// than was asked.
var ErrWrongMember = errors.New("another member answers there")

// unexpectedCommand is in the error of a peer that knows no pre-votes.
const unexpectedCommand = "unexpected command"

// Answers is a transport on which the answer of another member than was asked
// counts for nothing.
//
// hashicorp/raft asks an address and counts the answer for the member that it has
// there in its configuration, although every answer to RequestVote,
// RequestPreVote and AppendEntries names who gives it. A node whose disk was
// emptied thus votes as its former self, a majority comes about that lacks
// acknowledged entries, and they are lost. Upstream has no issue for it: the
// library expects a member to keep its disk or its address. The answers to
// InstallSnapshot and TimeoutNow name nobody. A snapshot that the wrong member
// took tells the leader nothing but that committed entries are there, and
// TimeoutNow asks for an election like any other.
type Answers struct {
	raft.Transport
	// Wrong is told of each such answer; it may be nil.
	Wrong func(asked raft.ServerID, target raft.ServerAddress, answered raft.ServerID)
}

var _ raft.WithPreVote = (*Answers)(nil)

// AppendEntries implements raft.Transport.
func (a *Answers) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	// A struct of its own: Raft uses resp again, whatever comes of this call.
	var answer raft.AppendEntriesResponse
	if err := a.Transport.AppendEntries(id, target, args, &answer); err != nil {
		return err
	}
	if err := a.check(id, target, answer.RPCHeader); err != nil {
		return err
	}
	*resp = answer
	return nil
}

// RequestVote implements raft.Transport.
func (a *Answers) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	var answer raft.RequestVoteResponse
	if err := a.Transport.RequestVote(id, target, args, &answer); err != nil {
		return err
	}
	if err := a.check(id, target, answer.RPCHeader); err != nil {
		return err
	}
	*resp = answer
	return nil
}

// RequestPreVote implements raft.WithPreVote. Raft takes the error of a peer that
// knows no pre-votes for a vote; an error does not name who answers, so it is none.
func (a *Answers) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	var answer raft.RequestPreVoteResponse
	if err := preVoteOf(a.Transport, id, target, args, &answer); err != nil {
		if strings.Contains(err.Error(), unexpectedCommand) {
			return fmt.Errorf("%s knows no pre-votes, or another answers there", id)
		}
		return err
	}
	if err := a.check(id, target, answer.RPCHeader); err != nil {
		return err
	}
	*resp = answer
	return nil
}

// Close implements raft.WithClose.
func (a *Answers) Close() error { return closeOf(a.Transport) }

// check compares who was asked with who says to have answered.
func (a *Answers) check(id raft.ServerID, target raft.ServerAddress, header raft.RPCHeader) error {
	answered := raft.ServerID(header.ID)
	if answered == id {
		return nil
	}
	if a.Wrong != nil {
		a.Wrong(id, target, answered)
	}
	return fmt.Errorf("%s was asked at %s and %q answers: %w", id, target, answered, ErrWrongMember)
}
