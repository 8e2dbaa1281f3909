package membership

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
)

// parseStates reads "a b* (c)": * is silent, ** dead, ! lacks events, parentheses a nonvoter that
// is ready, "(c~)" one that is also stable, "(c**)" a dead one.
func parseStates(text string) (states []State) {
	for _, word := range strings.Fields(text) {
		s := State{Voter: true, Alive: true}
		if inside, ok := strings.CutPrefix(word, "("); ok {
			word = strings.TrimSuffix(inside, ")")
			s.Voter, s.Ready = false, true
		}
		name := strings.TrimRight(word, "*~!")
		switch word[len(name):] {
		case "*":
			s.Alive, s.Ready = false, false
		case "**":
			s.Alive, s.Ready, s.Dead = false, false, true
		case "~":
			s.Stable = true
		case "!":
			s.Lacks, s.Ready = true, false
		}
		s.ID = raft.ServerID(name)
		states = append(states, s)
	}
	return states
}

func TestNextMove(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		states string
		want   int
		change Change
	}{
		{"a b c", 3, Change{}},
		// Growth while all are well.
		{"a b c (d)", 3, Change{Promote: "d"}},
		{"a b c d (e)", 3, Change{Promote: "e"}},
		{"a", 3, Change{}},
		{"a (b)", 3, Change{Promote: "b"}},
		// A newcomer beside a silent voter waits, where its vote would raise the
		// quorum, until that is dead and itself stable.
		{"a* b c (d)", 3, Change{}},
		{"a* b c (d~)", 3, Change{}},
		{"a** b c (d)", 3, Change{}},
		{"a** b c (d~)", 3, Change{Promote: "d", Remove: "a"}},
		{"a** b c (d*)", 3, Change{}},
		// Where it does not raise the quorum it votes at once.
		{"a* b c d (e)", 5, Change{Promote: "e"}},
		{"a* b (c)", 3, Change{Promote: "c"}},
		// Dead voters go, one at a time, down to the wanted number.
		{"a** b c", 3, Change{}},
		{"a** b c d", 3, Change{Remove: "a"}},
		{"a** b c d", 4, Change{}},
		{"a** b** c d e", 3, Change{Remove: "a"}},
		{"a** b** c d e", 5, Change{}},
		{"a** b** c d e (f~)", 5, Change{Promote: "f", Remove: "a"}},
		{"a* b c d", 3, Change{}},
		// Nobody said how many are wanted.
		{"a** b c", 0, Change{}},
		{"a** b c d", 0, Change{Remove: "a"}},
		{"a** b c (d~)", 0, Change{Promote: "d", Remove: "a"}},
		// Dead nonvoters go, after what concerns voters.
		{"a b c (d**)", 3, Change{Remove: "d"}},
		{"a b c (d*)", 3, Change{}},
		{"a* b c (d**)", 3, Change{Remove: "d"}},
		// One that lacks events is none of those that live: the dead one may have what it lacks.
		{"a** b! c! d", 3, Change{}},
		{"a** b! c d", 3, Change{Remove: "a"}},
		{"a! b c (d)", 3, Change{}},
		{"a b c (d!)", 3, Change{}},
		{"a b c (d**) (e)", 3, Change{Promote: "e"}},
		{"a** b c (d**) (e~)", 3, Change{Promote: "e", Remove: "a"}},
	} {
		if got := NextChange(parseStates(test.states), test.want); got != test.change {
			t.Errorf("%q, %d wanted: %+v, want %+v", test.states, test.want, got, test.change)
		}
	}
}

// Whatever the members' state, every configuration on the way of a move tolerates
// as many failures of living voters as the one before.
func TestNextMove_NeverLowersTheTolerance(t *testing.T) {
	t.Parallel()
	states := []string{"%s", "%s*", "%s**", "(%s)", "(%s~)", "(%s*)", "(%s**)", "%s!"}
	tolerance := func(states []State) int {
		voters, living := countVoters(states)
		return living - quorum(voters)
	}
	moves := 0
	var walk func(words []string)
	walk = func(words []string) {
		if len(words) > 0 {
			text := strings.Join(words, " ")
			parsed := parseStates(text)
			had, _ := countVoters(parsed)
			for want := range 8 {
				states := slices.Clone(parsed)
				before := tolerance(states)
				if before < 0 {
					continue // no leader
				}
				m := NextChange(states, want)
				if m != (Change{}) {
					moves++
				}
				for i := range states {
					if states[i].ID == m.Promote && m.Promote != "" {
						states[i].Voter = true
					}
				}
				between := tolerance(states)
				var rest []State
				for _, s := range states {
					if s.ID != m.Remove || m.Remove == "" {
						rest = append(rest, s)
					}
				}
				voters, _ := countVoters(rest)
				if after := tolerance(rest); between < before || after < between || voters < min(had, want) {
					t.Fatalf("%q, %d wanted: %+v: the tolerance goes from %d to %d to %d", text, want, m, before, between, after)
				}
			}
		}
		if len(words) < 6 {
			for _, s := range states {
				walk(append(words[:len(words):len(words)], fmt.Sprintf(s, string(rune('a'+len(words))))))
			}
		}
	}
	walk(nil)
	if moves == 0 {
		t.Error("no move was made")
	}
}

func TestRemovable(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		states, who string
		want        bool
	}{
		{"a b c", "b", true}, {"a b c*", "b", false}, {"a b c*", "c", true},
		{"a b c d*", "b", true}, {"a b c* d*", "b", false}, {"a b c d* e*", "b", false}, {"a b c d e*", "b", true},
		{"a b c* (d)", "b", false}, {"a b (c)", "b", true},
		{"a b c!", "b", false}, {"a b c!", "c", true},
	} {
		if got := Removable(parseStates(test.states), raft.ServerID(test.who)); got != test.want {
			t.Errorf("%q without %s: %v", test.states, test.who, got)
		}
	}
}

func TestOnlyHolder(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		states, who string
		want        bool
	}{
		{"a b c", "a", false}, {"a b! c!", "a", true}, {"a b! c*", "a", true}, {"a b! c!", "b", false},
		{"a! b! c*", "c", true}, {"a b! (c)", "a", false}, {"a b! (c!)", "a", true},
	} {
		if got := OnlyHolder(parseStates(test.states), raft.ServerID(test.who)); got != test.want {
			t.Errorf("%q, %s: %v", test.states, test.who, got)
		}
	}
}

func TestPromotable_OnlyWhenNearlyThere(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		applied, commit uint64
		want            bool
	}{{0, 0, false}, {0, 10, false}, {1, 10, true}, {100, 100, true}, {101, 100, true}, {
		100,
		100 + promoteWithin,
		true,
	}, {100, 101 + promoteWithin, false}} {
		if got := Promotable(test.applied, test.commit); got != test.want {
			t.Errorf("Promotable(%d, %d) = %v", test.applied, test.commit, got)
		}
	}
}

func TestRaisedVersion_WaitsForEveryMember(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		current int
		known   []int
		want    int
	}{
		{1, []int{1, 1, 1}, 1}, {1, []int{2, 2, 2}, 2}, {1, []int{3, 2, 3}, 2}, {1, []int{2, 1, 2}, 1},
		{1, []int{2, 0, 2}, 1}, {2, []int{2, 1, 2}, 2}, {1, []int{2}, 2},
	} {
		if got := RaisedVersion(test.current, test.known); got != test.want {
			t.Errorf("RaisedVersion(%d, %v) = %d, want %d", test.current, test.known, got, test.want)
		}
	}
}
