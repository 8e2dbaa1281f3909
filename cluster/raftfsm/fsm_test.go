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
