package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/cluster/raftfsm"
	"bivouac.dev/bivouac/fsm"
)

// peerCalls are all the calls a peer can make.
func peerCalls() []string {
	return []string{
		callApply,
		callPropose,
		peernet.CallIndex,
		peernet.CallTerm,
		callHello,
		callPromise,
		callJoin,
		callRemove,
		callTransfer,
	}
}

// FuzzPeerCall: whatever another node says, this one answers or refuses within
// the caller's time, and its answers can be read.
func FuzzPeerCall(f *testing.F) {
	raise, err := fsm.NewCommand("x", time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), "",
		&fsm.TermOpenBody{Term: 1, Node: "a", ClusterID: "c"}).Encode()
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range append(peerCalls(), "reboot", "") {
		for _, request := range []string{"", "{}", "null", "[]",
			`{"member":{"id":"b.1","name":"b","address":"b:1"},"fresh":true,"protocol":1}`,
			`{"member":{"id":"b.1","name":"b","address":""}}`, `{"name":"b"}`, `{"name":""}`, string(raise), `moon.fly{}`} {
			f.Add("b", name, []byte(request))
		}
	}
	f.Add("b", callApply, raftfsm.JoinCommands([][]byte{raise, []byte("moon.fly{}"), raise}))
	f.Fuzz(func(t *testing.T, from, name string, request []byte) {
		n := lonely(t)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Millisecond)
		defer cancel()
		answer, err := n.handle(ctx, from, name, request)
		if err != nil {
			return
		}
		if !json.Valid(answer) {
			t.Fatalf("%s of %q answered %q", name, request, answer)
		}
		switch name {
		case callApply:
			parts, err := raftfsm.SplitCommands(request)
			outcomes := make([]outcome, len(parts))
			if err != nil || decodeOutcomes(answer, outcomes) != nil ||
				slices.ContainsFunc(outcomes, func(a outcome) bool { return a.status == committed }) {
				t.Fatalf("a node without a cluster applied %q: %s, %v", request, answer, err)
			}
		case callJoin, callRemove, callTransfer:
			var r changeResponse
			if json.Unmarshal(answer, &r) != nil || r.Error == nil {
				t.Fatalf("a node without a cluster made the change %q: %s", request, answer)
			}
		case callPromise:
			var r promiseResponse
			var q promiseRequest
			if json.Unmarshal(request, &q) != nil || json.Unmarshal(answer, &r) != nil || r.Granted && from != q.Member.Name {
				t.Fatalf("%q got the promise %q: %s", from, request, answer)
			}
		}
	})
}

// FuzzPeerAnswer: whatever the leader answers, the asking node ends up with an
// answer, a refusal, or "not known"; never with "done" that nobody said.
func FuzzPeerAnswer(f *testing.F) {
	all := []outcome{{}, {status: maybeCommitted}, {
		status: committed,
		index:  7,
		term:   2,
	}, {status: committed, err: fsm.Errorf(fsm.CodeNotFound, "x")},
		{err: fsm.Errorf(fsm.CodeInvalid, "y")}}
	for i := range all {
		for count := 1; i+count <= len(all); count++ {
			raw, err := encodeOutcomes(all[i : i+count])
			if err != nil {
				f.Fatal(err)
			}
			f.Add(raw, uint8(count))
		}
	}
	f.Add([]byte(`{"certainty":"done","result":{"sandbox":{"status":{"placement":{"ports":{"A":1e9}}}}}}`), uint8(1))
	f.Fuzz(func(t *testing.T, answer []byte, commands uint8) {
		outcomes := make([]outcome, max(1, commands))
		if err := decodeOutcomes(answer, outcomes); err != nil {
			return
		}
		for _, a := range outcomes {
			if a.status == committed && !bytes.Contains(bytes.ToLower(answer), []byte("done")) &&
				!bytes.Contains(answer, []byte(`\u`)) {
				t.Fatalf("%q was taken for done", answer)
			}
		}
		if again, err := encodeOutcomes(outcomes); err != nil || !json.Valid(again) {
			t.Fatalf("%q: %v", again, err)
		}
	})
}
