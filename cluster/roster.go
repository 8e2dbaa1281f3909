package cluster

import "github.com/hashicorp/raft"

// seat is a member as the decisions about the membership see it.
type seat struct {
	id    raft.ServerID
	voter bool
	// alive: it answered just now, as itself.
	alive bool
	// ready: a nonvoter that lacks so little that it may vote.
	ready bool
	// stable: it has been alive for stableAfter.
	stable bool
	// dead: it has been silent for DeadAfter, as far as leaders told each other.
	dead bool
}

// move is what a leader does next about the membership: promote, then remove.
// Each may be empty.
type move struct{ promote, remove raft.ServerID }

// quorum is how many of so many voters elect and commit.
func quorum(voters int) int { return voters/2 + 1 }

// count gives the voters, and how many of them live.
func count(seats []seat) (voters, living int) {
	for _, s := range seats {
		if s.voter {
			voters++
			if s.alive {
				living++
			}
		}
	}
	return voters, living
}

// nextMove decides about promotions and dead members. want is the number of
// voters below which nobody is removed of the leader's own accord; 0 stands for
// the largest odd number of voters that there are.
//
// What it must not do is lower the tolerance, which is how many of the living
// voters may still fail: living - quorum(voters). A promotion adds a living voter,
// and raises the quorum when the number of voters was odd: the tolerance stays the
// same, or grows by one. Removing a dead voter lowers the quorum when the number
// was even: the tolerance stays the same, or grows by one. So every configuration
// on the way tolerates at least what the one before did (ops/decisions names each).
//
// A promotion that raises the quorum while a voter is silent gains nothing and
// looks like a replacement. The newcomer waits until the silent voter answers, or
// is dead: then it takes its place, both steps in one move. A dead nonvoter goes when
// there is nothing else to do: no majority counts it.
func nextMove(seats []seat, want int) move {
	m := nextVoterMove(seats, want)
	if m != (move{}) {
		return m
	}
	for _, s := range seats {
		if !s.voter && s.dead {
			return move{remove: s.id}
		}
	}
	return m
}

// nextVoterMove is nextMove for voters and those that are to be.
func nextVoterMove(seats []seat, want int) move {
	voters, living := count(seats)
	if want == 0 {
		want = voters - 1 + voters%2
	}
	var dead, newcomer raft.ServerID
	for _, s := range seats {
		switch {
		case s.voter && s.dead && dead == "":
			dead = s.id
		case !s.voter && s.alive && s.ready && newcomer == "" && (living == voters || voters%2 == 0 || s.stable):
			newcomer = s.id
		}
	}
	switch {
	case dead != "" && voters-1 >= want && living >= quorum(voters-1):
		return move{remove: dead}
	case newcomer == "":
		return move{}
	case living == voters || voters%2 == 0:
		return move{promote: newcomer}
	case dead != "":
		return move{promote: newcomer, remove: dead}
	}
	return move{}
}

// removable reports whether the voters that live and remain are a majority of the
// configuration without the member.
func removable(seats []seat, id raft.ServerID) bool {
	var rest []seat
	for _, s := range seats {
		if s.id != id {
			rest = append(rest, s)
		}
	}
	voters, living := count(rest)
	return living >= quorum(voters)
}
