package fsm

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// afterwards is a succession of a state, half a minute after the fixture's time.
func afterwards(v *View, at time.Time) Succession {
	return Succession{
		ID: "act", At: at, Kind: FindingRestored, Detail: "from a backup", Index: v.Index() + IndexStep,
	}
}

// genSucceeded gives a state of some history and what comes after it.
func genSucceeded(r *rapid.T, t testing.TB) (s *Store, entries []Entry, n Succession) {
	s = NewStore()
	entries = []Entry{{0, NewCommand("open", testEpoch, "", &TermOpenBody{Term: 7, Node: "n1", ClusterID: "test", Nonce: "first"})}}
	if rapid.Bool().Draw(r, "with history") {
		entries = append(entries, Entry{0, NewCommand("raise", testEpoch, "", &ProtocolRaiseBody{Version: historyVersion})})
	}
	entries = append(entries, genHistory(60).Draw(r, "log")...)
	now := testEpoch
	for _, e := range recodeAll(t, entries) {
		s.ApplyBatch([]Entry{e})
		now = later(now, e.Command.Time)
	}
	n = afterwards(s.View(), now.Add(time.Second))
	n.SuspendKeys = rapid.Bool().Draw(r, "suspend")
	return s, entries, n
}

// TestSucceed_WhatComesOfAnyState: whatever the state, the new one is whole, is
// held, keeps every row but warm members, and believes nothing of later.
func TestSucceed_WhatComesOfAnyState(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		s, entries, n := genSucceeded(r, t)
		before, twin, rows := s.View(), restored(t, s), dump(s)
		done, err := s.Succeed(n)
		if err != nil {
			r.Fatal(err)
		}
		if _, err := twin.Succeed(n); err != nil || twin.Checksum() != s.Checksum() {
			r.Fatalf("the same act on the same state gave another one (%v)", err)
		}
		again := restored(t, s)
		if again.Checksum() != s.Checksum() {
			r.Fatal("the state is another one after a restart")
		}
		if d := cmp.Diff(usages(again), usages(s)); d != "" {
			r.Fatalf("the counters differ: %s", d)
		}
		v := s.View()
		if v.Index() != n.Index || v.ProtocolVersion() < historyVersion {
			r.Fatalf("index %d, protocol version %d", v.Index(), v.ProtocolVersion())
		}
		checkSucceededHistory(r, before, v, done)
		checkSucceededRows(r, rows, dump(s), done)
		for _, e := range entries {
			checkVoid(r, before, s, n, e)
		}
	})
}

// checkSucceededHistory holds the new history against the old one.
func checkSucceededHistory(r *rapid.T, before, v *View, done Succeeded) {
	old, next := before.History(), v.History()
	if next.Epoch <= old.Epoch || next.ID == old.ID || next.ID != done.History.ID || slices.Contains(next.Parents, next.ID) {
		r.Fatalf("history %+v after %+v", next, old)
	}
	if old.ID != "" && next.Parents[0] != old.ID {
		r.Fatalf("the parents are %v after %s", next.Parents, old.ID)
	}
	h := v.Hold()
	if h == nil || h.Index != v.Index() || h.Findings[0].Kind != FindingRestored {
		r.Fatalf("the hold is %+v", h)
	}
	for i := before.Index(); i < before.Index()+5; i++ {
		b := Birth{Cluster: before.ClusterID(), Nonce: before.Birth().Nonce, Index: i}
		if i <= before.Index() && before.Contains(b) && !v.Contains(b) {
			r.Fatalf("the birth %s was lost", b)
		}
		if i > before.Index() && v.Contains(b) {
			r.Fatalf("the birth %s of the lost continuation counts as ours", b)
		}
	}
	for _, sb := range v.Sandboxes("ada", Page{}) {
		if !v.Held(sb) || !v.Contains(sb.Birth) || sb.Status.Job.Registered {
			r.Fatalf("sandbox %s: held %v, ours %v, reverts %v", sb.ID, v.Held(sb), v.Contains(sb.Birth), sb.Status.Job.Registered)
		}
	}
	if m := v.PoolMembers(""); len(m) > 0 {
		r.Fatalf("%d warm members stayed", len(m))
	}
}

// checkSucceededRows: only members go, and only orphans come.
func checkSucceededRows(r *rapid.T, before, after map[string]json.RawMessage, done Succeeded) {
	gone := 0
	for name := range before {
		if _, stays := after[name]; stays || strings.HasPrefix(name, tableUsage) {
			continue
		}
		gone++
		if !strings.HasPrefix(name, tableSandboxes+" ") {
			r.Fatalf("%s is gone", name)
		}
	}
	if gone != done.Members {
		r.Fatalf("%d sandboxes are gone, %d members were dropped", gone, done.Members)
	}
	for name := range maps.Keys(after) {
		if _, was := before[name]; !was && !strings.HasPrefix(name, tableOrphans+" ") && !strings.HasPrefix(name, tableUsage) {
			r.Fatalf("%s is new", name)
		}
	}
}

// checkVoid: a command of before, sent again, is never carried out as if it were
// new, and an Idempotency-Key of before has no known outcome.
func checkVoid(r *rapid.T, before *View, s *Store, n Succession, e Entry) {
	if e.Command.check() != nil || e.Command.Type == TermOpen {
		return
	}
	_, _, _, known := before.CommandResult(e.Command.ID)
	if !known || MinVersion(e.Command.Type) > before.ProtocolVersion() {
		return
	}
	recent := n.At.Sub(e.Command.Time) < InternalResultTTL
	if e.Command.Fingerprint == "" && !recent {
		return // no leader takes it
	}
	cmd := e.Command
	if cmd.Fingerprint != "" {
		cmd.Time = n.At.Add(time.Second) // its client asks again
		if first[commandRecord](before.txn, tableClientCommands, indexID, []byte(cmd.ID)) == nil || cmd.Time.Sub(e.Command.Time) > ClientResultTTL {
			return
		}
	}
	o := restoredForTrial(s).ApplyBatch([]Entry{{s.Index() + 1, cmd}})[0]
	if code := CodeOf(asErrorOrNil(o.Err)); code != CodeOutcomeUnknown && code != CodeIdempotencyMismatch {
		r.Fatalf("%s %s of before was answered %v (%v)", cmd.Type, cmd.ID, o.Result, o.Err)
	}
}

func asErrorOrNil(e *Error) error {
	if e == nil {
		return nil
	}
	return e
}
