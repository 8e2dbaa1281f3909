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
func parseSeats(text string) (seats []seat) {
	for _, word := range strings.Fields(text) {
		s := seat{voter: true, alive: true}
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
		seats = append(seats, s)
	}
	return seats
}

func TestNextMove(t *testing.T) {
	for _, test := range []struct {
		seats string
		want  int
		move  move
	}{
		{"a b c", 3, move{}},
		// Growth while all are well.
		{"a b c (d)", 3, move{promote: "d"}},
		{"a b c d (e)", 3, move{promote: "e"}},
		{"a", 3, move{}},
		{"a (b)", 3, move{promote: "b"}},
		// A newcomer beside a silent voter waits, where its vote would raise the
		// quorum, until that is dead and itself stable.
		{"a* b c (d)", 3, move{}},
		{"a* b c (d~)", 3, move{}},
		{"a** b c (d)", 3, move{}},
		{"a** b c (d~)", 3, move{promote: "d", remove: "a"}},
		{"a** b c (d*)", 3, move{}},
		// Where it does not raise the quorum it votes at once.
		{"a* b c d (e)", 5, move{promote: "e"}},
		{"a* b (c)", 3, move{promote: "c"}},
		// Dead voters go, one at a time, down to the wanted number.
		{"a** b c", 3, move{}},
		{"a** b c d", 3, move{remove: "a"}},
		{"a** b c d", 4, move{}},
		{"a** b** c d e", 3, move{remove: "a"}},
		{"a** b** c d e", 5, move{}},
		{"a** b** c d e (f~)", 5, move{promote: "f", remove: "a"}},
		{"a* b c d", 3, move{}},
		// Nobody said how many are wanted.
		{"a** b c", 0, move{}},
		{"a** b c d", 0, move{remove: "a"}},
		{"a** b c (d~)", 0, move{promote: "d", remove: "a"}},
		// Dead nonvoters go, after what concerns voters.
		{"a b c (d**)", 3, move{remove: "d"}},
		{"a b c (d*)", 3, move{}},
		{"a* b c (d**)", 3, move{remove: "d"}},
		{"a b c (d**) (e)", 3, move{promote: "e"}},
		{"a** b c (d**) (e~)", 3, move{promote: "e", remove: "a"}},
	} {
		if got := nextMove(parseSeats(test.seats), test.want); got != test.move {
			t.Errorf("%q, %d wanted: %+v, want %+v", test.seats, test.want, got, test.move)
		}
	}
}

// Whatever the members' state, every configuration on the way of a move tolerates
// as many failures of living voters as the one before.
func TestNextMove_NeverLowersTheTolerance(t *testing.T) {
	states := []string{"%s", "%s*", "%s**", "(%s)", "(%s~)", "(%s*)", "(%s**)"}
	tolerance := func(seats []seat) int {
		voters, living := count(seats)
		return living - quorum(voters)
	}
	moves := 0
	var walk func(words []string)
	walk = func(words []string) {
		if len(words) > 0 {
			text := strings.Join(words, " ")
			parsed := parseSeats(text)
			had, _ := count(parsed)
			for want := range 8 {
				seats := slices.Clone(parsed)
				before := tolerance(seats)
				if before < 0 {
					continue // no leader
				}
				m := nextMove(seats, want)
				if m != (move{}) {
					moves++
				}
				for i := range seats {
					if seats[i].id == m.promote && m.promote != "" {
						seats[i].voter = true
					}
				}
				between := tolerance(seats)
				var rest []seat
				for _, s := range seats {
					if s.id != m.remove || m.remove == "" {
						rest = append(rest, s)
					}
				}
				voters, _ := count(rest)
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
	for _, test := range []struct {
		seats, who string
		want       bool
	}{
		{"a b c", "b", true}, {"a b c*", "b", false}, {"a b c*", "c", true},
		{"a b c d*", "b", true}, {"a b c* d*", "b", false}, {"a b c d* e*", "b", false}, {"a b c d e*", "b", true},
		{"a b c* (d)", "b", false}, {"a b (c)", "b", true},
	} {
		if got := removable(parseSeats(test.seats), raft.ServerID(test.who)); got != test.want {
			t.Errorf("%q without %s: %v", test.seats, test.who, got)
		}
	}
}
