package raftfsm

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/fsm"
)

func TestRaftFSM_Restore_OfASnapshotItCantReadStopsTheNode(t *testing.T) {
	t.Parallel()
	m := New(fsm.NewStore())
	if err := m.Restore(io.NopCloser(strings.NewReader("not a snapshot"))); err == nil {
		t.Fatal("restored nonsense")
	}
	select {
	case <-m.failed:
	default:
		t.Error("the machine goes on")
	}
	if _, err := m.Snapshot(); err == nil {
		t.Error("a stopped machine makes snapshots")
	}
	cmd := fsm.NewCommand("x", time.Now(), "", &fsm.TermOpenBody{Term: 1, Node: "a", ClusterID: "c"})
	data, err := cmd.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if response, ok := m.Apply(&raft.Log{Index: 1, Term: 1, Data: data}).(error); !ok || response == nil {
		t.Error("a stopped machine applies entries")
	}
	if m.store.Index() != 0 {
		t.Errorf("the store went on to %d", m.store.Index())
	}
}

// TestRaftFSM_ApplyBatch_BothForms: entries in JSON, with binary headers, and of both together make the
// same state.
func TestRaftFSM_ApplyBatch_BothForms(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var inJSON, inBinary [][]byte
	for i := range 9 {
		cmd := fsm.NewCommand(fmt.Sprint("c", i), now, "", &fsm.APIKeyCreateBody{
			Lookup: fmt.Sprintf("aaaaaaaaaaa%d", i), Hash: strings.Repeat("0", 64), Name: "k", UserID: "ada",
		})
		one, err := cmd.Encode()
		if err != nil {
			t.Fatal(err)
		}
		two, err := cmd.EncodeBinary()
		if err != nil {
			t.Fatal(err)
		}
		inJSON, inBinary = append(inJSON, one), append(inBinary, two)
	}
	state := func(entries ...[]byte) string {
		m := New(fsm.NewStore())
		for i, data := range entries {
			if err, failed := m.Apply(&raft.Log{Index: uint64(i + 1), Term: 1, Data: data}).(error); failed {
				t.Fatal(err)
			}
		}
		if n := len(m.store.View().APIKeys()); n != len(inJSON) {
			t.Errorf("%d of %d commands were applied", n, len(inJSON))
		}
		return m.store.Checksum()
	}
	entries := func(a, b [][]byte) [][]byte {
		return [][]byte{a[0], JoinCommands([][]byte{a[1], b[2], a[3], b[4]}), b[5], JoinCommands(b[6:])}
	}
	want := state(entries(inJSON, inJSON)...)
	for _, log := range [][][]byte{entries(inJSON, inBinary), entries(inBinary, inBinary)} {
		if got := state(log...); got != want {
			t.Errorf("the state is %s, want %s", got, want)
		}
	}
}

func TestRaftFSM_ApplyBatch_AnswersEachEntryAndMovesTheIndex(t *testing.T) {
	t.Parallel()
	m := New(fsm.NewStore())
	entry := func(index uint64, body fsm.Body) *raft.Log {
		data, err := fsm.NewCommand(fmt.Sprint("c", index), time.Now(), "", body).Encode()
		if err != nil {
			t.Fatal(err)
		}
		return &raft.Log{Index: index, Term: 1, Data: data}
	}
	key := &fsm.APIKeyCreateBody{Lookup: "aaaaaaaaaaaa", Hash: strings.Repeat("0", 64), Name: "k", UserID: "ada"}
	configuration := &raft.Log{Index: 3, Term: 1, Type: raft.LogConfiguration}
	other := *key
	other.Lookup = "bbbbbbbbbbbb"
	both := JoinCommands([][]byte{entry(50, &other).Data, entry(51, key).Data})
	responses := m.ApplyBatch([]*raft.Log{
		entry(2, &fsm.TermOpenBody{Term: 1, Node: "a", ClusterID: "c"}), configuration, entry(4, key),
		{Index: 5, Term: 2, Data: both}, entry(6, key),
		{Index: 7, Term: 2, Data: JoinCommands([][]byte{entry(52, &other).Data, []byte("moon.fly{}")})}, entry(8, key),
	})
	for i, want := range []string{"2/1 ", "3/1 ", "4/1 ", "5/2 5/2 conflict", "6/1 conflict", "error", "error"} {
		var got string
		switch r := responses[i].(type) {
		case []Applied:
			for _, a := range r {
				got += fmt.Sprintf("%d/%d ", a.Index, a.Term)
				if a.Err != nil {
					got += string(a.Err.Code)
				}
			}
		case error:
			got = "error"
		}
		if got != want {
			t.Errorf("entry %d: %q, want %q", i, got, want)
		}
	}
	if m.store.Index() != 6 || !strings.Contains(m.Failure().Error(), "log entry 7") {
		t.Errorf("index %d, failure %v", m.store.Index(), m.Failure())
	}
}
