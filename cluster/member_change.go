package cluster

import (
	"slices"

	"github.com/hashicorp/raft"
)

// memberState is one member as nextChange sees it.
type memberState struct {
	id    raft.ServerID
	voter bool
	// alive: the member itself answered the last poll.
	alive bool
	// ready: a nonvoter close enough to the leader's log to vote.
	ready bool
	// stable: the member has been alive for stableAfter.
	stable bool
	// dead: the member has been silent for DeadAfter, silences under earlier leaders included.
	dead bool
}

// memberChange is the leader's next change: a promotion, then a removal. Each may be empty.
type memberChange struct{ promote, remove raft.ServerID }

// quorum is the majority of so many voters.
func quorum(voters int) int { return voters/2 + 1 }

// countVoters counts the voters and those of them that are alive.
func countVoters(states []memberState) (voters, living int) {
	for _, s := range states {
		if s.voter {
			voters++
			if s.alive {
				living++
			}
		}
	}
	return voters, living
}

// nextChange decides about promotions and dead members. The leader removes no voter below want
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
func nextChange(states []memberState, want int) memberChange {
	m := nextVoterChange(states, want)
	if m != (memberChange{}) {
		return m
	}
	for _, s := range states {
		if !s.voter && s.dead {
			return memberChange{remove: s.id}
		}
	}
	return m
}

// nextVoterChange is nextChange without dead nonvoters.
func nextVoterChange(states []memberState, want int) memberChange {
	voters, living := countVoters(states)
	if want == 0 {
		want = voters - 1 + voters%2
	}
	var dead, newcomer raft.ServerID
	for _, s := range states {
		switch {
		case s.voter && s.dead && dead == "":
			dead = s.id
		case !s.voter && s.alive && s.ready && newcomer == "" && (living == voters || voters%2 == 0 || s.stable):
			newcomer = s.id
		}
	}
	switch {
	case dead != "" && voters-1 >= want && living >= quorum(voters-1):
		return memberChange{remove: dead}
	case newcomer == "":
		return memberChange{}
	case living == voters || voters%2 == 0:
		return memberChange{promote: newcomer}
	case dead != "":
		return memberChange{promote: newcomer, remove: dead}
	}
	return memberChange{}
}

// weakens reports whether the voters without the member tolerate fewer failures than the present
// ones.
func weakens(states []memberState, id raft.ServerID) bool {
	before, living := countVoters(states)
	after, left := countVoters(without(states, id))
	return left-quorum(after) < living-quorum(before)
}

// removable reports whether the remaining living voters are a majority of the configuration without
// the member.
func removable(states []memberState, id raft.ServerID) bool {
	voters, living := countVoters(without(states, id))
	return living >= quorum(voters)
}

// without copies the states of all other members.
func without(states []memberState, id raft.ServerID) []memberState {
	return slices.DeleteFunc(slices.Clone(states), func(s memberState) bool { return s.id == id })
}
