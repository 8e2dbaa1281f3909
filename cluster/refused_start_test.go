package cluster

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/raftstore"
	"bivouac.dev/bivouac/cluster/records"
)

// remembering is a network whose only member knows a record of this node and objects by it. It counts
// the starts that it let go.
type remembering struct {
	unplugged
	known *records.Record
}

func (r remembering) Call(_ context.Context, _, _ string, raw []byte) ([]byte, error) {
	var request beginRequest
	if err := json.Unmarshal(raw, &request); err != nil {
		return nil, err
	}
	why := r.known.Objection(request.Starts, request.Last)
	if why == "" && request.Goes {
		r.known.Start = request.Starts[len(request.Starts)-1]
	}
	return json.Marshal(beginResponse{Objection: why})
}

// TestNode_Guard_ARefusedDiskStaysRefused: an older disk is refused however often a service manager
// starts it, its list of starts stays as it was, and the true disk starts after it.
func TestNode_Guard_ARefusedDiskStaysRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, aRefusedDiskStaysRefused) // each start waits seconds for the peers
}

func aRefusedDiskStaysRefused(t *testing.T) {
	n := lonely(t)
	known := new(records.Record)
	n.network, n.cfg.RetryJoin = remembering{known: known}, []string{"b:1"}
	if err := n.storage.Logs.StoreLog(&raft.Log{Index: 1, Term: 1}); err != nil { // it is not fresh
		t.Fatal(err)
	}
	start := func() error { // a process on the disk
		var err error
		if n.records, err = records.Open(n.storage.Stable); err != nil {
			t.Fatal(err)
		}
		return n.guard(t.Context())
	}
	stored := func() string {
		t.Helper()
		raw, err := raftstore.Get(n.storage.Stable, raftstore.KeyStarts)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	run := func(starts int) {
		t.Helper()
		for range starts {
			if err := start(); err != nil {
				t.Fatal(err)
			}
		}
	}
	run(3)
	older := stored()
	run(2)
	truth := stored()
	put := func(list string) {
		t.Helper()
		if err := raftstore.Set(n.storage.Stable, raftstore.KeyStarts, list); err != nil {
			t.Fatal(err)
		}
	}
	put(older)
	for i := range 3 * 16 { // three times what a disk keeps
		if err := start(); err == nil {
			t.Fatalf("the older disk is taken at its start number %d", i+1)
		}
	}
	if got := stored(); got != older {
		t.Errorf("refused starts are on the disk: %s", got)
	}
	put(truth)
	if err := start(); err != nil {
		t.Errorf("the true disk is refused: %v", err)
	}
}
