package bench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
	"bivouac.dev/bivouac/ops/e2e/workload"
)

// TestSnapshotWrites measures writes at the leader while a node takes a snapshot of a large state,
// beside those of the same minute while none does.
func TestSnapshotWrites(t *testing.T) {
	wanted(t)
	const clients, duration = 16, time.Minute
	f := testcluster.Start(t, testcluster.Options{Bare: true, LogLevel: "info",
		Raft: "  snapshot_interval = \"5s\"\n  snapshot_threshold = 2000"})
	shape := workload.Shape{Users: size(t, "BIVOUAC_BENCH_USERS", 2000), Conversations: 10}
	if err := workload.Seed(t.Context(), f, shape); err != nil {
		t.Fatal(err)
	}
	leader := f.Leader(t)
	all := writtenFor(t, duration, clients, request(leader.Base+"/api/settings", leader.Key, settings()))
	var taken []written
	for _, n := range f.Nodes {
		taken = append(taken, snapshotsOf(t, n)...)
	}
	var during, between durations
	for _, w := range all {
		d := w.end.Sub(w.begin)
		beside := false
		for _, s := range taken {
			beside = beside || w.begin.Before(s.end) && s.begin.Before(w.end)
		}
		if beside {
			during = append(during, d)
		} else {
			between = append(between, d)
		}
	}
	t.Logf("%d users; %d snapshots of three nodes; writes, ms (median / p99 / max): %d during a snapshot "+
		"%.1f / %.1f / %.1f, %d between %.1f / %.1f / %.1f; ratio of p99s %.2f", shape.Users, len(taken),
		len(during), ms(during.at(.5)), ms(during.at(.99)), ms(during.at(1)),
		len(between), ms(between.at(.5)), ms(between.at(.99)), ms(between.at(1)),
		ms(during.at(.99))/ms(between.at(.99)))
}

// written is when a write, or a snapshot, began and ended.
type written struct{ begin, end time.Time }

// writtenFor has clients write for a time.
func writtenFor(
	t *testing.T, duration time.Duration, clients int, write func(*http.Client) (time.Duration, error),
) (all []written) {
	t.Helper()
	var mu sync.Mutex
	until := time.Now().Add(duration)
	var ended sync.WaitGroup
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	defer client.CloseIdleConnections()
	for range clients {
		ended.Go(func() {
			for time.Now().Before(until) {
				begin := time.Now()
				if _, err := write(client); err != nil {
					t.Error(err)
				}
				mu.Lock()
				all = append(all, written{begin, time.Now()})
				mu.Unlock()
			}
		})
	}
	ended.Wait()
	return all
}

// snapshotsOf reads from a node's log when each of its snapshots began and ended.
func snapshotsOf(t *testing.T, n *testcluster.Node) (taken []written) {
	t.Helper()
	raw, err := os.ReadFile(n.Log)
	if err != nil {
		t.Fatal(err)
	}
	var begin time.Time
	for lines := bufio.NewScanner(bytes.NewReader(raw)); lines.Scan(); {
		var line struct {
			Time time.Time
			Msg  string
		}
		if json.Unmarshal(lines.Bytes(), &line) != nil {
			continue
		}
		switch line.Msg {
		case "raft: starting snapshot up to":
			begin = line.Time
		case "raft: snapshot complete up to":
			taken = append(taken, written{begin, line.Time})
		}
	}
	return taken
}
