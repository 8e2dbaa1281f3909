package cluster

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/raftstore"
)

func TestRecord_Objection(t *testing.T) {
	t.Parallel()
	disk := []start{{4, "d"}, {5, "e"}, {6, "f"}}
	for name, test := range map[string]struct {
		known record
		last  uint64
		want  string
	}{
		"nothing is known":               {record{}, 0, ""},
		"the disk is newer":              {record{Start: start{5, "e"}, Acked: 100}, 120, ""},
		"what was acknowledged is there": {record{Start: start{6, "f"}, Acked: 100}, 100, ""},
		"one entry is missing": {
			record{Start: start{5, "e"}, Acked: 100},
			99,
			"acknowledged log entry 100, and its disk ends with 99",
		},
		"a later start":                    {record{Start: start{7, "g"}}, 100, "a later start"},
		"another start":                    {record{Start: start{5, "x"}}, 100, "another start"},
		"a start that the disk lacks":      {record{Start: start{3, "x"}}, 100, "another start"},
		"an emptied disk with an old name": {record{Acked: 1}, 0, "acknowledged log entry 1"},
	} {
		got := test.known.objection(disk, test.last)
		if (test.want == "") != (got == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// What a leader sees outlives it: each member keeps it, and the highest wins.
func TestMemberRecords_KeepsAndMerges(t *testing.T) {
	t.Parallel()
	stable := raftstore.NewInmem()
	open := func() *memberRecords {
		t.Helper()
		w := new(memberRecords)
		if err := w.init(stable); err != nil {
			t.Fatal(err)
		}
		return w
	}
	w := open()
	for range 3 * startsKept {
		w.begin("nonce")
	}
	if own := w.starts(); len(own) != startsKept || w.currentStart().Seq != 3*startsKept {
		t.Errorf("%d starts, the present is %+v", len(own), w.currentStart())
	}
	w.match("b", 2, 50)
	w.match("b", 1, 90) // of an older term
	w.match("b", 2, 40)
	if got := w.get("b", 2, 30).Acked; got != 30 {
		t.Errorf("b acknowledged %d of what is committed, want 30", got)
	}
	servers := []raft.Server{{ID: "a", Address: "a:1"}, {ID: "b", Address: "b:1"}}
	w.merge(w.gather(servers, "a", 2, 60))
	w.merge(map[raft.ServerID]record{"b": {Start: start{2, "y"}, Acked: 10}, "gone": {Acked: 5}})
	w.merge(map[raft.ServerID]record{"b": {Start: start{2, "z"}}})
	w.keep(servers)
	if err := w.store(); err != nil {
		t.Fatal(err)
	}
	w = open()
	if got := w.get("b", 0, 0); got != (record{start{2, "y"}, 50, "b:1"}) {
		t.Errorf("b: %+v", got)
	}
	if got := w.get("a", 0, 0); got.Acked != 60 {
		t.Errorf("a: %+v", got)
	}
	if len(w.addresses()) != 2 {
		t.Errorf("addresses %v", w.addresses())
	}
	w.match("b", 3, 70)
	if got := w.get("b", 4, 100).Acked; got != 50 { // what term 3 wrote may be replaced
		t.Errorf("b acknowledged %d in another term, want 50", got)
	}
	w.match("b", 4, 7) // a new term begins with nothing
	if got := w.get("b", 4, 100).Acked; got != 50 {
		t.Errorf("b acknowledged %d, want 50", got)
	}
}

// A start that the members have not let pass is told to nobody: where they object,
// the node's true disk must still be able to start.
func TestNode_Hello_TellsNoStartBeforeTheGuard(t *testing.T) {
	t.Parallel()
	n := lonely(t)
	n.records.begin("nonce")
	if told := n.ownHello(n.Status()).Life; told != (start{}) {
		t.Errorf("before the members were asked: %+v", told)
	}
	if err := n.guard(t.Context()); err != nil {
		t.Fatal(err)
	}
	if told := n.ownHello(n.Status()).Life; told != n.records.currentStart() || told.Seq == 0 {
		t.Errorf("after the guard: %+v", told)
	}
}

// tardy is a network whose members object after a while: to all starts, or to what
// is missing on the disk.
type tardy struct {
	unplugged
	missing bool
}

func (t tardy) Call(ctx context.Context, _, _ string, raw []byte) ([]byte, error) {
	var request beginRequest
	if err := json.Unmarshal(raw, &request); err != nil {
		return nil, err
	}
	select {
	case <-time.After(3 * guardTimeout):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if t.missing && request.Last > 100 {
		return []byte(`{}`), nil
	}
	return []byte(`{"objection":"it is an older copy"}`), nil
}

// An objection to the start that comes when the node runs stops it still. One to what
// its disk lacked does not: by then it may have acknowledged more.
func TestNode_AskMembers_LateObjection(t *testing.T) {
	t.Parallel()
	for name, missing := range map[string]bool{"to the start": false, "to what was missing": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := lonely(t)
				n.network, n.cfg.RetryJoin = tardy{missing: missing}, []string{"b:1"}
				began := time.Now()
				if err := n.askMembers(t.Context(), beginRequest{}); err != nil || time.Since(began) > guardTimeout {
					t.Fatalf("after %s: %v", time.Since(began), err)
				}
				time.Sleep(9 * guardTimeout)
				synctest.Wait()
				select {
				case err := <-n.broken:
					if missing || !strings.Contains(err.Error(), "it is an older copy") {
						t.Error(err)
					}
				default:
					if !missing {
						t.Error("the node runs on")
					}
				}
				n.stop()
				n.guarding.Wait()
			})
		})
	}
}
