package formation

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func node(name string) Node { return Node{ID: name + ".1", Name: name, Address: name + ":1"} }

func freshPeer(name string) Peer { return Peer{Node: node(name), Fresh: true} }

func formedPeer(name string) Peer { return Peer{Node: node(name), Formed: true} }

func TestNextStep_DecidesFromWhatIsKnown(t *testing.T) {
	t.Parallel()
	other := freshPeer("b")
	other.ID, other.Address = "b.2", "b:2"
	voted := Peer{Node: node("b")}
	for name, test := range map[string]struct {
		s     Situation
		peers []Peer
		kind  Kind
		want  string // members or addresses to join through, or the beginning of the reason
	}{
		"alone and expecting nobody else": {Situation{Expect: 1, Fresh: true}, nil, Bootstrap, "a"},
		"alone but not expecting to":      {Situation{Expect: 3, Fresh: true}, nil, Wait, "met 1 of the 3"},
		"all met, this one sorts first": {
			Situation{Expect: 3, Fresh: true},
			[]Peer{freshPeer("c"), freshPeer("b")},
			Bootstrap,
			"a b c",
		},
		"all met, another sorts first": {
			Situation{Expect: 3, Fresh: true},
			[]Peer{freshPeer("c"), freshPeer("A")},
			Wait,
			"waiting for A",
		},
		"more than expected, the first form": {
			Situation{Expect: 2, Fresh: true},
			[]Peer{freshPeer("c"), freshPeer("b"), freshPeer("d")},
			Bootstrap,
			"a b",
		},
		"a cluster exists already": {
			Situation{Expect: 3, Fresh: true},
			[]Peer{freshPeer("b"), freshPeer("c"), formedPeer("z")},
			Join,
			"z:1",
		},
		"only joining, nobody there": {Situation{}, nil, Wait, "no cluster found"},
		"only joining, none formed": {
			Situation{},
			[]Peer{freshPeer("b"), freshPeer("c")},
			Wait,
			"no cluster found",
		},
		"only joining, found": {
			Situation{},
			[]Peer{formedPeer("b"), formedPeer("c")},
			Join,
			"b:1 c:1",
		},
		"a peer that voted does not count": {
			Situation{Expect: 2, Fresh: true},
			[]Peer{voted},
			Wait,
			"met 1 of the 2",
		},
		"this node has voted": {
			Situation{Expect: 1},
			nil,
			Wait,
			"waiting for the node this one voted for",
		},
		"two nodes of one name": {
			Situation{Expect: 3, Fresh: true},
			[]Peer{freshPeer("b"), other},
			Wait,
			`two nodes are named "b"`,
		},
		"in a cluster without a leader": {
			Situation{Configured: true, Listed: true, Address: "a:1"},
			[]Peer{formedPeer("b")},
			Wait,
			"no leader",
		},
		"in a cluster, at a new address": {
			Situation{Configured: true, Listed: true, Address: "old:1"},
			[]Peer{formedPeer("b")},
			Join,
			"b:1",
		},
		"at a new address, nobody there": {
			Situation{Configured: true, Listed: true, Address: "old:1"},
			nil,
			Wait,
			"no member answers",
		},
		"removed": {
			Situation{Configured: true},
			[]Peer{formedPeer("b")},
			Wait,
			"this node was removed",
		},
		"removed and expecting, never forms": {
			Situation{Configured: true, Expect: 1},
			nil,
			Wait,
			"this node was removed",
		},
		"configured alone at its address": {
			Situation{Configured: true, Listed: true, Address: "a:1", Expect: 1},
			nil,
			Wait,
			"no leader",
		},
		"a formed peer is not counted as met": {Situation{Expect: 2}, []Peer{formedPeer("b")}, Join, "b:1"},
		"state but no configuration, join":    {Situation{Expect: 3}, []Peer{formedPeer("b")}, Join, "b:1"},
		"fresh peers do not move a full state": {
			Situation{Configured: true, Listed: true, Address: "a:1", Expect: 3},
			[]Peer{freshPeer("b"), freshPeer("c")},
			Wait,
			"no leader",
		},
	} {
		t.Run(name, func(t *testing.T) {
			test.s.Self = node("a")
			step := NextStep(test.s, test.peers)
			var got string
			switch step.Kind {
			case Bootstrap:
				var names []string
				for _, m := range step.Members {
					names = append(names, m.Name)
				}
				got = strings.Join(names, " ")
			case Join:
				got = strings.Join(step.Via, " ")
			case Wait:
				got = step.Reason[:min(len(step.Reason), len(test.want))]
			}
			if step.Kind != test.kind || got != test.want {
				t.Errorf("got %v %q (%+v), want %v %q", step.Kind, got, step, test.kind, test.want)
			}
		})
	}
}

// memory is a stable store of one kind of key.
type memory map[string][]byte

func (m memory) Set(key, val []byte) error            { m[string(key)] = val; return nil }
func (m memory) Get(key []byte) ([]byte, error)       { return m[string(key)], nil }
func (m memory) SetUint64([]byte, uint64) error       { return nil }
func (m memory) GetUint64(key []byte) (uint64, error) { return 0, nil }

func TestPromises_IsTakenBackOnlyWhenSafe(t *testing.T) {
	t.Parallel()
	abandoned, holds, formed := freshPeer("b"), freshPeer("b"), formedPeer("b")
	holds.Promised = "b.1"
	abandoned.Promised = "c.1"
	reborn := freshPeer("b")
	reborn.ID = "b.2"
	for name, test := range map[string]struct {
		promised string
		granted  int // at the time of the hellos; the promise was granted at 1
		step     Kind
		peer     Peer
		want     string
	}{
		"its owner still wants it":           {"b.1", 1, Wait, holds, "b.1"},
		"its owner has given up":             {"b.1", 1, Wait, abandoned, ""},
		"the news is older than the promise": {"b.1", 0, Wait, abandoned, "b.1"},
		"its owner is in a cluster":          {"b.1", 1, Join, formed, "b.1"},
		"its owner lost its disk":            {"b.1", 1, Wait, reborn, ""},
		"somebody else has given up":         {"b.1", 1, Wait, freshPeer("c"), "b.1"},
		"one's own, still forming":           {"a.1", 1, Bootstrap, freshPeer("b"), "a.1"},
		"one's own, not forming any more":    {"a.1", 1, Wait, freshPeer("A"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			stable := memory{}
			f, err := Open(stable)
			if err != nil {
				t.Fatal(err)
			}
			if err := f.promise(test.promised); err != nil {
				t.Fatal(err)
			}
			if err := f.Release("a.1", test.granted, Step{Kind: test.step}, []Peer{test.peer}); err != nil {
				t.Fatal(err)
			}
			again, err := Open(stable)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{test.want, test.want}, []string{f.promised, again.promised}); diff != "" {
				t.Errorf("promised, in memory and on disk (-want +got):\n%s", diff)
			}
		})
	}
}
