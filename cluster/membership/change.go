// Package membership decides which members vote: pure functions of what a leader knows of them. It
// is not raft-autopilot's, which never asks whether those that remain live (ops/decisions/0022).
package membership

import (
	"slices"

	"github.com/hashicorp/raft"
)

// State is one member as NextChange sees it.
type State struct {
	ID    raft.ServerID
	Voter bool
	// Alive: the member itself answered the last poll.
	Alive bool
	// Ready: a nonvoter close enough to the leader's log to vote.
	Ready bool
	// Stable: the member has been alive for stableAfter.
	Stable bool
	// Dead: the member has been silent for DeadAfter, in this term.
	Dead bool
	// Lacks: the member lacks events that the state has, or does not know yet. Until it has them it counts
	// as one that does not live.
	Lacks bool
}

// Change is the leader's next change: a promotion, then a removal. Each may be empty.
type Change struct{ Promote, Remove raft.ServerID }

// quorum is the majority of so many voters.
func quorum(voters int) int { return voters/2 + 1 }

// countVoters counts the voters and those of them that are alive and have all events: a majority is one
// that has the events, too.
func countVoters(states []State) (voters, living int) {
	for _, s := range states {
		if s.Voter {
			voters++
			if s.Alive && !s.Lacks {
				living++
			}
		}
	}
	return voters, living
}

// NextChange decides about promotions and dead members. The leader removes no voter below want
// voters; 0 means the largest odd number of the present ones.
//
// A change must not lower the tolerance: the number of living voters that may still fail, living -
// quorum(voters). A promotion adds a living voter and raises the quorum when the number of voters
// was odd. The removal of a dead voter lowers the quorum when the number was even. Both keep the
// tolerance or raise it by one, so every intermediate configuration tolerates at least what the one
// before did.
//
// A promotion that raises the quorum while a voter is silent gains nothing. The nonvoter waits
// until that voter answers, or is dead and can be replaced in the same change. A dead nonvoter is
// removed when there is nothing else to do; it is part of no majority.
func NextChange(states []State, want int) Change {
	m := nextVoterChange(states, want)
	if m != (Change{}) {
		return m
	}
	for _, s := range states {
		if !s.Voter && s.Dead {
			return Change{Remove: s.ID}
		}
	}
	return m
}

// nextVoterChange is NextChange without dead nonvoters.
func nextVoterChange(states []State, want int) Change {
	voters, living := countVoters(states)
	if want == 0 {
		want = voters - 1 + voters%2
	}
	var dead, newcomer raft.ServerID
	for _, s := range states {
		switch {
		case s.Voter && s.Dead && dead == "":
			dead = s.ID
		case !s.Voter && s.Alive && s.Ready && newcomer == "" && (living == voters || voters%2 == 0 || s.Stable):
			newcomer = s.ID
		}
	}
	switch {
	case dead != "" && voters-1 >= want && living >= quorum(voters-1):
		return Change{Remove: dead}
	case newcomer == "":
		return Change{}
	case living == voters || voters%2 == 0:
		return Change{Promote: newcomer}
	case dead != "":
		return Change{Promote: newcomer, Remove: dead}
	}
	return Change{}
}

// Weakens reports whether the voters without the member tolerate fewer failures than the present
// ones.
func Weakens(states []State, id raft.ServerID) bool {
	before, living := countVoters(states)
	after, left := countVoters(without(states, id))
	return left-quorum(after) < living-quorum(before)
}

// Removable reports whether the remaining living voters are a majority of the configuration without
// the member.
func Removable(states []State, id raft.ServerID) bool {
	voters, living := countVoters(without(states, id))
	return living >= quorum(voters)
}

// OnlyHolder reports whether no other member that answers has all events.
func OnlyHolder(states []State, id raft.ServerID) bool {
	return !slices.ContainsFunc(without(states, id), func(s State) bool { return s.Alive && !s.Lacks })
}

// without copies the states of all other members.
func without(states []State, id raft.ServerID) []State {
	return slices.DeleteFunc(slices.Clone(states), func(s State) bool { return s.ID == id })
}

// promoteWithin is how many entries a nonvoter may be behind and still be promoted: about what the
// leader writes in a moment.
const promoteWithin = 256

// Promotable reports whether a nonvoter may vote. A voter far behind could not help to commit for a
// while.
func Promotable(applied, commit uint64) bool {
	return applied > 0 && applied+promoteWithin >= commit
}

// RaisedVersion is the newest version that every member knows; known has 0 for a member without an
// answer. A version never falls.
func RaisedVersion(current int, known []int) int {
	return max(current, slices.Min(known))
}
