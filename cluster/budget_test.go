//go:build !race

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/raftfsm"
	"bivouac.dev/bivouac/deploy/local/ownprocess"
	"bivouac.dev/bivouac/fsm"
)

// TestBudget holds the allocations of a command on its way through the log, and of what a follower
// and the leader tell each other.
func TestBudget(t *testing.T) {
	if !ownprocess.Enter(t, "GOGC=off") {
		return
	}
	const size = 16
	body := &fsm.APIKeyCreateBody{Lookup: "0123456789ab", Hash: fmt.Sprintf("%064d", 1), Name: "k", UserID: "ada"}
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	cmd := fsm.NewCommand("command-0", at, "", body)
	var proposals []*proposal
	for i := range size {
		_, data, _, err := encodeFor(t.Context(), fsm.NewCommand(fmt.Sprintf("command-%d", i), at, "", body), true)
		if err != nil {
			t.Fatal(err)
		}
		proposals = append(proposals, &proposal{data: data})
	}
	entry := entryOf(proposals)
	var goroutines sync.WaitGroup
	b := batcher{maxInFlight: 1, spawn: goroutines.Go, run: func(batch []*proposal, _ func()) {
		for _, p := range batch {
			p.resolve(outcome{status: committed})
		}
	}}
	machine, index := raftfsm.New(fsm.NewStore()), uint64(0)
	outcomes := make([]outcome, size)
	for i := range outcomes {
		outcomes[i] = outcome{status: committed, index: 100, term: 2, result: fsm.Result{Index: 100}}
	}
	answer, err := encodeOutcomes(outcomes)
	if err != nil {
		t.Fatal(err)
	}
	ownprocess.CheckBudget(t, []ownprocess.Step{
		{
			Name:   "propose: check and encode",
			Allocs: 5,
			Bytes:  352,
			Run:    func() { _, _, _, _ = encodeFor(context.Background(), cmd, true) },
		},
		{Name: "propose: queue, batch, answer", Allocs: 9, Bytes: 576, Run: func() {
			if a := b.send(context.Background(), &proposal{}); a.status != committed {
				t.Fatal(a)
			}
			goroutines.Wait()
		}},
		{Name: "encode an entry of 16 commands", Allocs: 2, Bytes: 3456, Run: func() { entryOf(proposals) }},
		{Name: "decode an entry of 16 commands", Allocs: 37, Bytes: 5200, Run: func() { _, _ = raftfsm.DecodeEntry(entry) }},
		{Name: "apply an entry of 16 known commands", Allocs: 55, Bytes: 15500, Run: func() {
			index++
			if _, failed := machine.Apply(&raft.Log{Index: index, Term: 2, Data: entry}).(error); failed {
				t.Fatal("not applied")
			}
		}},
		{Name: "encode the answer to 16 commands", Allocs: 3, Bytes: 2080, Run: func() { _, _ = encodeOutcomes(outcomes) }},
		{Name: "decode the answer to 16 commands", Allocs: 41, Bytes: 2304, Run: func() {
			if err := decodeOutcomes(answer, make([]outcome, size)); err != nil {
				t.Fatal(err)
			}
		}},
		{Name: "a read's question to the leader", Allocs: 9, Bytes: 328, Run: func() {
			request, err := json.Marshal(indexRequest{Voter: termResponse{ID: "n1", Term: 2}})
			if err != nil || json.Unmarshal(request, new(indexRequest)) != nil {
				t.Fatal(err)
			}
		}},
	})
}
