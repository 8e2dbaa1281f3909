//go:build linux

package drills

import (
	"cmp"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/history"
	"bivouac.dev/bivouac/ops/nemesis"
)

// TestLinearizable_NoticesMutations checks the check: a program that reads
// without asking whether it still leads, one that forgets which commands it has
// had, one that counts the votes of whoever answers, and listings with gaps or of
// two states must all be found out.
func TestLinearizable_NoticesMutations(t *testing.T) {
	if !long() {
		t.Skip("one of the long drills")
	}
	for name, o := range map[string]linearOptions{
		"stale reads": {
			mutations: []nemesis.Mutation{nemesis.StaleReads}, kinds: []nemesis.Kind{nemesis.PauseLeader},
			clients: history.Crowd{Settings: 10}, duration: 45 * time.Second, // a leader that goes on reads for a moment only
		},
		"no command ids": {
			mutations: []nemesis.Mutation{nemesis.NoCommandIDs}, kinds: []nemesis.Kind{nemesis.KillLeader},
			clients: history.Crowd{Settings: 1, Once: 2}, duration: 8 * time.Second,
		},
		"answers of other members": {
			mutations: []nemesis.Mutation{nemesis.AnyAnswer}, kinds: []nemesis.Kind{nemesis.EmptyDisk},
			clients: history.Crowd{Settings: 4}, duration: 40 * time.Second,
		},
		"late snapshots": {
			// raft-wal gives entries that were dropped for a while: few snapshots are sent.
			logStore:  "boltdb",
			mutations: []nemesis.Mutation{nemesis.LateSnapshots}, kinds: []nemesis.Kind{nemesis.LateSnapshot},
			clients: history.Crowd{Settings: 6}, duration: 30 * time.Second,
		},
		"listings with gaps": {
			mutations: []nemesis.Mutation{nemesis.MissingItems}, kinds: []nemesis.Kind{nemesis.ClockJump},
			clients: history.Crowd{Conversations: 2}, duration: 8 * time.Second,
		},
		"mixed listings": {
			mutations: []nemesis.Mutation{nemesis.MixedListings}, kinds: []nemesis.Kind{nemesis.ClockJump},
			clients: history.Crowd{Conversations: 4}, duration: 10 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			o.nodes, o.logStore = 3, cmp.Or(o.logStore, "wal")
			t.Setenv(envKeep, t.TempDir()) // what is found was put there
			v := runLinear(t, o)
			if len(v.wrong) == 0 {
				t.Fatalf("a program with a fault passes: %s", o.mutations[0].Name)
			}
			t.Logf("found out: %s", v.wrong[0])
		})
	}
}
