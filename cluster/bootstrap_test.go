package cluster

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func node(name string) member { return member{ID: name + ".1", Name: name, Address: name + ":1"} }

func freshPeer(name string) helloResponse { return helloResponse{Member: node(name), Fresh: true} }

func formedPeer(name string) helloResponse { return helloResponse{Member: node(name), Formed: true} }

func TestNextStep_DecidesFromWhatIsKnown(t *testing.T) {
	t.Parallel()
	other := freshPeer("b")
	other.Member.ID, other.Member.Address = "b.2", "b:2"
	voted := helloResponse{Member: node("b")}
	for name, test := range map[string]struct {
		s     situation
		peers []helloResponse
		kind  stepKind
		want  string // members or addresses to join through, or the beginning of the reason
	}{
		"alone and expecting nobody else": {situation{expect: 1, fresh: true}, nil, stepBootstrap, "a"},
		"alone but not expecting to":      {situation{expect: 3, fresh: true}, nil, stepWait, "met 1 of the 3"},
		"all met, this one sorts first": {
			situation{expect: 3, fresh: true},
			[]helloResponse{freshPeer("c"), freshPeer("b")},
			stepBootstrap,
			"a b c",
		},
		"all met, another sorts first": {
			situation{expect: 3, fresh: true},
			[]helloResponse{freshPeer("c"), freshPeer("A")},
			stepWait,
			"waiting for A",
		},
		"more than expected, the first form": {
			situation{expect: 2, fresh: true},
			[]helloResponse{freshPeer("c"), freshPeer("b"), freshPeer("d")},
			stepBootstrap,
			"a b",
		},
		"a cluster exists already": {
			situation{expect: 3, fresh: true},
			[]helloResponse{freshPeer("b"), freshPeer("c"), formedPeer("z")},
			stepJoin,
			"z:1",
		},
		"only joining, nobody there": {situation{}, nil, stepWait, "no cluster found"},
		"only joining, none formed": {
			situation{},
			[]helloResponse{freshPeer("b"), freshPeer("c")},
			stepWait,
			"no cluster found",
		},
		"only joining, found": {
			situation{},
			[]helloResponse{formedPeer("b"), formedPeer("c")},
			stepJoin,
			"b:1 c:1",
		},
		"a peer that voted does not count": {
			situation{expect: 2, fresh: true},
			[]helloResponse{voted},
			stepWait,
			"met 1 of the 2",
		},
		"this node has voted": {
			situation{expect: 1},
			nil,
			stepWait,
			"waiting for the node this one voted for",
		},
		"two nodes of one name": {
			situation{expect: 3, fresh: true},
			[]helloResponse{freshPeer("b"), other},
			stepWait,
			`two nodes are named "b"`,
		},
		"in a cluster without a leader": {
			situation{configured: true, listed: true, address: "a:1"},
			[]helloResponse{formedPeer("b")},
			stepWait,
			"no leader",
		},
		"in a cluster, at a new address": {
			situation{configured: true, listed: true, address: "old:1"},
			[]helloResponse{formedPeer("b")},
			stepJoin,
			"b:1",
		},
		"at a new address, nobody there": {
			situation{configured: true, listed: true, address: "old:1"},
			nil,
			stepWait,
			"no member answers",
		},
		"removed": {
			situation{configured: true},
			[]helloResponse{formedPeer("b")},
			stepWait,
			"this node was removed",
		},
		"removed and expecting, never forms": {
			situation{configured: true, expect: 1},
			nil,
			stepWait,
			"this node was removed",
		},
		"configured alone at its address": {
			situation{configured: true, listed: true, address: "a:1", expect: 1},
			nil,
			stepWait,
			"no leader",
		},
		"a formed peer is not counted as met": {situation{expect: 2}, []helloResponse{formedPeer("b")}, stepJoin, "b:1"},
		"state but no configuration, join":    {situation{expect: 3}, []helloResponse{formedPeer("b")}, stepJoin, "b:1"},
		"fresh peers do not move a full state": {
			situation{configured: true, listed: true, address: "a:1", expect: 3},
			[]helloResponse{freshPeer("b"), freshPeer("c")},
			stepWait,
			"no leader",
		},
	} {
		t.Run(name, func(t *testing.T) {
			test.s.self = node("a")
			step := nextStep(test.s, test.peers)
			var got string
			switch step.kind {
			case stepBootstrap:
				var names []string
				for _, m := range step.members {
					names = append(names, m.Name)
				}
				got = strings.Join(names, " ")
			case stepJoin:
				got = strings.Join(step.via, " ")
			case stepWait:
				got = step.reason[:min(len(step.reason), len(test.want))]
			}
			if step.kind != test.kind || got != test.want {
				t.Errorf("got %v %q (%+v), want %v %q", step.kind, got, step, test.kind, test.want)
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

func TestBootstrap_Promise_IsTakenBackOnlyWhenSafe(t *testing.T) {
	t.Parallel()
	abandoned, holds, formed := freshPeer("b"), freshPeer("b"), formedPeer("b")
	holds.Promised = "b.1"
	abandoned.Promised = "c.1"
	reborn := freshPeer("b")
	reborn.Member.ID = "b.2"
	for name, test := range map[string]struct {
		promised string
		granted  int // at the time of the hellos; the promise was granted at 1
		step     stepKind
		peer     helloResponse
		want     string
	}{
		"its owner still wants it":           {"b.1", 1, stepWait, holds, "b.1"},
		"its owner has given up":             {"b.1", 1, stepWait, abandoned, ""},
		"the news is older than the promise": {"b.1", 0, stepWait, abandoned, "b.1"},
		"its owner is in a cluster":          {"b.1", 1, stepJoin, formed, "b.1"},
		"its owner lost its disk":            {"b.1", 1, stepWait, reborn, ""},
		"somebody else has given up":         {"b.1", 1, stepWait, freshPeer("c"), "b.1"},
		"one's own, still forming":           {"a.1", 1, stepBootstrap, freshPeer("b"), "a.1"},
		"one's own, not forming any more":    {"a.1", 1, stepWait, freshPeer("A"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			stable := memory{}
			f := &bootstrapState{}
			if err := f.init(stable); err != nil {
				t.Fatal(err)
			}
			if err := f.promise(test.promised); err != nil {
				t.Fatal(err)
			}
			if err := f.releasePromise("a.1", test.granted, step{kind: test.step}, []helloResponse{test.peer}); err != nil {
				t.Fatal(err)
			}
			var again bootstrapState
			if err := again.init(stable); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{test.want, test.want}, []string{f.promised, again.promised}); diff != "" {
				t.Errorf("promised, in memory and on disk (-want +got):\n%s", diff)
			}
		})
	}
}
