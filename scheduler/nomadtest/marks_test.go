package nomadtest_test

import (
	"errors"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/nomadtest"
)

func TestNomad_Marks(t *testing.T) {
	n := nomadtest.NewNomad(t, nomadtest.Options{}, nomadtest.NewSecrets(), nil)
	at := func(index uint64) fsm.Mark { return fsm.Mark{Cluster: "c1", Nonce: "aa", Index: index} }
	write := func(index, cas uint64) {
		t.Helper()
		if err := n.WriteMark(t.Context(), at(index), cas); err != nil {
			t.Fatal(err)
		}
	}
	read := func(want uint64) uint64 {
		t.Helper()
		mark, cas, found, err := n.ReadMark(t.Context())
		if err != nil || found != (want != 0) || mark.Index != want {
			t.Fatalf("read %+v, %v, %v, want index %d", mark, found, err, want)
		}
		return cas
	}
	read(0)
	write(1, 0)
	first := read(1)
	write(2, first)
	for _, cas := range []uint64{0, first} {
		if err := n.WriteMark(t.Context(), at(3), cas); fsm.CodeOf(err) != fsm.CodeConflict {
			t.Errorf("a late write: %v", err)
		}
	}
	n.RollBackMark(1)
	read(1)
	n.SetMark(at(9))
	read(9)
	n.LoseMark()
	read(0)
	write(4, 0)
	n.DenyMarks(true)
	var denied *scheduler.Denied
	if _, _, _, err := n.ReadMark(t.Context()); !errors.As(err, &denied) || fsm.CodeOf(err) != fsm.CodeScheduler {
		t.Errorf("denied: %v", err)
	}
	n.DenyMarks(false)
	n.Wipe()
	read(0)
	if n.Mark() != nil {
		t.Error("a wiped Nomad has a mark")
	}
}
