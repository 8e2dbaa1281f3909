//go:build linux

package e2e

import (
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/e2e/chaos"
	"bivouac.dev/bivouac/ops/e2e/workload"
)

// TestLinearizable_NoticesMutations tests the checker. It must detect a program that reads
// without a leadership check, one that forgets command ids, one that counts votes of the wrong
// members, one that believes strangers, and listings with gaps or of two states.
func TestLinearizable_NoticesMutations(t *testing.T) {
	if !long() {
		t.Skip("one of the long drills")
	}
	for name, o := range map[string]linearOptions{
		"stale reads": {
			mutations: []chaos.Mutation{chaos.StaleReads}, kinds: []chaos.Kind{chaos.PauseLeader},
			// A deposed leader serves reads only for a moment.
			clients: workload.Crowd{Settings: 10}, duration: 45 * time.Second,
		},
		"no command ids": {
			mutations: []chaos.Mutation{chaos.NoCommandIDs}, kinds: []chaos.Kind{chaos.KillLeader},
			clients: workload.Crowd{Settings: 1, Once: 2}, duration: 8 * time.Second,
		},
		"answers of other members": {
			mutations: []chaos.Mutation{chaos.AnyAnswer}, kinds: []chaos.Kind{chaos.EmptyDisk},
			clients: workload.Crowd{Settings: 4}, duration: 40 * time.Second,
		},
		"messages of strangers": {
			mutations: []chaos.Mutation{chaos.AnySender}, kinds: []chaos.Kind{chaos.Forged},
			clients: workload.Crowd{Settings: 4}, duration: 15 * time.Second,
		},
		"late snapshots": {
			mutations: []chaos.Mutation{chaos.LateSnapshots, chaos.SmallSegments}, kinds: []chaos.Kind{chaos.LateSnapshot},
			clients: workload.Crowd{Settings: 6}, duration: 30 * time.Second,
		},
		"listings with gaps": {
			mutations: []chaos.Mutation{chaos.MissingItems}, kinds: []chaos.Kind{chaos.ClockJump},
			clients: workload.Crowd{Conversations: 2}, duration: 8 * time.Second,
		},
		"mixed listings": {
			mutations: []chaos.Mutation{chaos.MixedListings}, kinds: []chaos.Kind{chaos.ClockJump},
			clients: workload.Crowd{Conversations: 4}, duration: 10 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			o.nodes = 3
			o.keep = t.TempDir() // the findings are expected
			v := runLinear(t, o)
			if len(v.wrong) == 0 {
				t.Fatalf("a program with a fault passes: %s", o.mutations[0].Name)
			}
			t.Logf("found out: %s", v.wrong[0])
		})
	}
}
