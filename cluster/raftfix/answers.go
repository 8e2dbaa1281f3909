package raftfix

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/raft"
)

// errWrongMember is in the error of a message that another member answered than was asked.
var errWrongMember = errors.New("another member answers there")

// MaxTermStep bounds how far a message's or an answer's term may be above the receiver's. Each election
// adds one. Without the bound one message uses up all terms there are, and nobody is elected again.
const MaxTermStep = 1 << 32

// errAbsurdTerm is in the error of an answer with a term beyond MaxTermStep.
var errAbsurdTerm = errors.New("the term is far above this node's")

// unexpectedCommand is in the error of a peer that does not support pre-votes.
const unexpectedCommand = "unexpected command"

// Answers is a transport that rejects an answer from another member than was asked, or with a term that
// no cluster reaches.
//
// hashicorp/raft calls an address and counts the answer for the member configured there, although
// every answer to RequestVote, RequestPreVote and AppendEntries names its sender. So a node whose
// disk was emptied votes as its former self, a majority forms that lacks acknowledged entries, and
// they are lost. Upstream has no issue for it: the library expects a member to keep its disk or its
// address.
//
// Answers to InstallSnapshot and TimeoutNow name no sender. A snapshot taken by the wrong member
// tells the leader only about committed entries, and TimeoutNow only starts an election.
type Answers struct {
	raft.Transport
	// Wrong is called for each such answer; it may be nil.
	Wrong func(asked raft.ServerID, target raft.ServerAddress, answered raft.ServerID)
	// Absurd is called for each answer with a term beyond MaxTermStep; it may be nil.
	Absurd func(answered raft.ServerID, term uint64)
}

var _ raft.WithPreVote = (*Answers)(nil)

// AppendEntries implements raft.Transport.
func (a *Answers) AppendEntries(
	id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse,
) error {
	// A separate struct: Raft reuses resp whatever this call returns.
	var answer raft.AppendEntriesResponse
	if err := a.Transport.AppendEntries(id, target, args, &answer); err != nil {
		return err
	}
	if err := a.check(id, target, answer.RPCHeader, args.Term, answer.Term); err != nil {
		return err
	}
	*resp = answer
	return nil
}

// RequestVote implements raft.Transport.
func (a *Answers) RequestVote(
	id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest,
	resp *raft.RequestVoteResponse,
) error {
	var answer raft.RequestVoteResponse
	if err := a.Transport.RequestVote(id, target, args, &answer); err != nil {
		return err
	}
	if err := a.check(id, target, answer.RPCHeader, args.Term, answer.Term); err != nil {
		return err
	}
	*resp = answer
	return nil
}

// RequestPreVote implements raft.WithPreVote. Raft counts the error of a peer without pre-votes as
// a vote. An error does not name its sender, so here it is no vote.
func (a *Answers) RequestPreVote(
	id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest,
	resp *raft.RequestPreVoteResponse,
) error {
	var answer raft.RequestPreVoteResponse
	if err := preVoteOf(a.Transport, id, target, args, &answer); err != nil {
		if strings.Contains(err.Error(), unexpectedCommand) {
			return fmt.Errorf("%s knows no pre-votes, or another answers there", id)
		}
		return err
	}
	if err := a.check(id, target, answer.RPCHeader, args.Term, answer.Term); err != nil {
		return err
	}
	*resp = answer
	return nil
}

// Close implements raft.WithClose.
func (a *Answers) Close() error { return closeOf(a.Transport) }

// check compares the member that was asked with the one that answered, and the terms.
func (a *Answers) check(id raft.ServerID, target raft.ServerAddress, header raft.RPCHeader, asked, term uint64) error {
	answered := raft.ServerID(header.ID)
	switch {
	case answered == id && (term <= asked || term-asked <= MaxTermStep):
		return nil
	case answered == id:
		if a.Absurd != nil {
			a.Absurd(id, term)
		}
		return fmt.Errorf("%s answers with term %d in term %d: %w", id, term, asked, errAbsurdTerm)
	}
	if a.Wrong != nil {
		a.Wrong(id, target, answered)
	}
	return fmt.Errorf("%s was asked at %s and %q answers: %w", id, target, answered, errWrongMember)
}
