package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
)

// parseSeats reads "a b* (c)": * is silent, ** dead, parentheses a nonvoter that
// is ready, "(c~)" one that is also stable, "(c**)" a dead one.
func parseStates(text string) (states []memberState) {
	for _, word := range strings.Fields(text) {
		s := memberState{voter: true, alive: true}
		if inside, ok := strings.CutPrefix(word, "("); ok {
			word = strings.TrimSuffix(inside, ")")
			s.voter, s.ready = false, true
		}
		name := strings.TrimRight(word, "*~")
		switch word[len(name):] {
		case "*":
			s.alive, s.ready = false, false
		case "**":
			s.alive, s.ready, s.dead = false, false, true
		case "~":
			s.stable = true
		}
		s.id = raft.ServerID(name)
		states = append(states, s)
	}
	return states
}

func TestNextMove(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		states       string
		want         int
		memberChange memberChange
	}{
		{"a b c", 3, memberChange{}},
		// Growth while all are well.
		{"a b c (d)", 3, memberChange{promote: "d"}},
		{"a b c d (e)", 3, memberChange{promote: "e"}},
		{"a", 3, memberChange{}},
		{"a (b)", 3, memberChange{promote: "b"}},
		// A newcomer beside a silent voter waits, where its vote would raise the
		// quorum, until that is dead and itself stable.
		{"a* b c (d)", 3, memberChange{}},
		{"a* b c (d~)", 3, memberChange{}},
		{"a** b c (d)", 3, memberChange{}},
		{"a** b c (d~)", 3, memberChange{promote: "d", remove: "a"}},
		{"a** b c (d*)", 3, memberChange{}},
		// Where it does not raise the quorum it votes at once.
		{"a* b c d (e)", 5, memberChange{promote: "e"}},
		{"a* b (c)", 3, memberChange{promote: "c"}},
		// Dead voters go, one at a time, down to the wanted number.
		{"a** b c", 3, memberChange{}},
		{"a** b c d", 3, memberChange{remove: "a"}},
		{"a** b c d", 4, memberChange{}},
		{"a** b** c d e", 3, memberChange{remove: "a"}},
		{"a** b** c d e", 5, memberChange{}},
		{"a** b** c d e (f~)", 5, memberChange{promote: "f", remove: "a"}},
		{"a* b c d", 3, memberChange{}},
		// Nobody said how many are wanted.
		{"a** b c", 0, memberChange{}},
		{"a** b c d", 0, memberChange{remove: "a"}},
		{"a** b c (d~)", 0, memberChange{promote: "d", remove: "a"}},
		// Dead nonvoters go, after what concerns voters.
		{"a b c (d**)", 3, memberChange{remove: "d"}},
		{"a b c (d*)", 3, memberChange{}},
		{"a* b c (d**)", 3, memberChange{remove: "d"}},
		{"a b c (d**) (e)", 3, memberChange{promote: "e"}},
		{"a** b c (d**) (e~)", 3, memberChange{promote: "e", remove: "a"}},
	} {
		if got := nextChange(parseStates(test.states), test.want); got != test.memberChange {
			t.Errorf("%q, %d wanted: %+v, want %+v", test.states, test.want, got, test.memberChange)
		}
	}
}

// Whatever the members' state, every configuration on the way of a move tolerates
// as many failures of living voters as the one before.
func TestNextMove_NeverLowersTheTolerance(t *testing.T) {
	t.Parallel()
	states := []string{"%s", "%s*", "%s**", "(%s)", "(%s~)", "(%s*)", "(%s**)"}
	tolerance := func(states []memberState) int {
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
				m := nextChange(states, want)
				if m != (memberChange{}) {
					moves++
				}
				for i := range states {
					if states[i].id == m.promote && m.promote != "" {
						states[i].voter = true
					}
				}
				between := tolerance(states)
				var rest []memberState
				for _, s := range states {
					if s.id != m.remove || m.remove == "" {
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
	} {
		if got := removable(parseStates(test.states), raft.ServerID(test.who)); got != test.want {
			t.Errorf("%q without %s: %v", test.states, test.who, got)
		}
	}
}
