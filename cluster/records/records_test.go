package records

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/raftstore"
)

func TestRecord_Objection(t *testing.T) {
	t.Parallel()
	disk := []Start{{4, "d"}, {5, "e"}, {6, "f"}}
	for name, test := range map[string]struct {
		known Record
		last  uint64
		want  string
	}{
		"nothing is known":               {Record{}, 0, ""},
		"the disk is newer":              {Record{Start: Start{5, "e"}, Acked: 100}, 120, ""},
		"what was acknowledged is there": {Record{Start: Start{6, "f"}, Acked: 100}, 100, ""},
		"one entry is missing": {
			Record{Start: Start{5, "e"}, Acked: 100},
			99,
			"acknowledged log entry 100, and its disk ends with 99",
		},
		"a later start":                    {Record{Start: Start{7, "g"}}, 100, "a later start"},
		"another start":                    {Record{Start: Start{5, "x"}}, 100, "another start"},
		"a start that the disk lacks":      {Record{Start: Start{3, "x"}}, 100, "another start"},
		"an emptied disk with an old name": {Record{Acked: 1}, 0, "acknowledged log entry 1"},
	} {
		got := test.known.Objection(disk, test.last)
		if (test.want == "") != (got == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// What a leader sees outlives it: each member keeps it, and the highest wins.
func TestBook_KeepsAndMerges(t *testing.T) {
	t.Parallel()
	stable := raftstore.NewInmem()
	open := func() *Book {
		t.Helper()
		w, err := Open(stable)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	w := open()
	for range 3 * startsKept {
		w.Begin("nonce")
	}
	if own := w.Starts(); len(own) != startsKept || w.CurrentStart().Seq != 3*startsKept {
		t.Errorf("%d starts, the present is %+v", len(own), w.CurrentStart())
	}
	w.Match("b", 2, 50)
	w.Match("b", 1, 90) // of an older term
	w.Match("b", 2, 40)
	if got := w.Get("b", 2, 30).Acked; got != 30 {
		t.Errorf("b acknowledged %d of what is committed, want 30", got)
	}
	servers := []raft.Server{{ID: "a", Address: "a:1"}, {ID: "b", Address: "b:1"}}
	w.Merge(w.Gather(servers, "a", 2, 60))
	w.Merge(map[raft.ServerID]Record{"b": {Start: Start{2, "y"}, Acked: 10}, "gone": {Acked: 5}})
	w.Merge(map[raft.ServerID]Record{"b": {Start: Start{2, "z"}}})
	w.Keep(servers)
	if err := w.Store(); err != nil {
		t.Fatal(err)
	}
	w = open()
	if got := w.Get("b", 0, 0); got != (Record{Start{2, "y"}, 50, "b:1"}) {
		t.Errorf("b: %+v", got)
	}
	if got := w.Get("a", 0, 0); got.Acked != 60 {
		t.Errorf("a: %+v", got)
	}
	if len(w.Addresses()) != 2 {
		t.Errorf("addresses %v", w.Addresses())
	}
	w.Match("b", 3, 70)
	if got := w.Get("b", 4, 100).Acked; got != 50 { // what term 3 wrote may be replaced
		t.Errorf("b acknowledged %d in another term, want 50", got)
	}
	w.Match("b", 4, 7) // a new term begins with nothing
	if got := w.Get("b", 4, 100).Acked; got != 50 {
		t.Errorf("b acknowledged %d, want 50", got)
	}
}

// TestRecord_Objection_SixteenStartsBack: a disk knows its last sixteen starts. A member that was away
// for fewer tells a copy from them; of an older one nobody can say.
func TestRecord_Objection_SixteenStartsBack(t *testing.T) {
	t.Parallel()
	w, err := Open(raftstore.NewInmem())
	if err != nil {
		t.Fatal(err)
	}
	const now = 40
	for i := range now {
		w.Begin(fmt.Sprint("n", i+1))
	}
	for seq := uint64(now - 15); seq <= now; seq++ {
		if why := (Record{Start: Start{seq, fmt.Sprint("n", seq)}}).Objection(w.Starts(), 0); why != "" {
			t.Errorf("start %d of %d is the disk's: %s", seq, now, why)
		}
		if (Record{Start: Start{seq, "another"}}).Objection(w.Starts(), 0) == "" {
			t.Errorf("another start %d of %d is taken", seq, now)
		}
	}
	if why := (Record{Start: Start{now - 16, "another"}}).Objection(w.Starts(), 0); why != "" {
		t.Errorf("a start that no disk keeps: %s", why)
	}
	gap := []Start{{38, "n38"}, {40, "n40"}}
	for _, seq := range []uint64{37, 39} {
		if (Record{Start: Start{seq, fmt.Sprint("n", seq)}}).Objection(gap, 0) == "" {
			t.Errorf("a list that lacks start %d of %d is taken", seq, now)
		}
	}
}
