package raftmetrics

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"bivouac.dev/bivouac/fsm"
)

func TestMetrics_AreWellFormed(t *testing.T) {
	t.Parallel()
	m := New([]string{"leader", "follower", "candidate", "stopped"}, func() Reading {
		return Reading{State: "leader", Lag: map[string]uint64{"a": 0, "b": 3}}
	})
	registry := prometheus.NewRegistry()
	unregister, err := m.Register(registry)
	if err != nil {
		t.Fatal(err)
	}
	m.Proposed(time.Now(), nil)
	m.Proposed(time.Now(), fsm.Errorf(fsm.CodeConflict, "x"))
	m.Proposed(time.Now(), fsm.Errorf(fsm.CodeNoLeader, "x"))
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
	if count, err := testutil.GatherAndCount(registry, "bivouac_raft_propose_duration_seconds",
		"bivouac_raft_state", "bivouac_raft_peer_lag_entries"); err != nil || count != 8+4+2 {
		t.Errorf("%d series, %v", count, err)
	}
	unregister()
	if _, err := m.Register(registry); err != nil {
		t.Errorf("registering again: %v", err)
	}
}
