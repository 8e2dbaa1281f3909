package e2e

import (
	"fmt"
	"testing"

	"bivouac.dev/bivouac/cluster/recovery"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/fsm/fsmtest"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// everyIndex stops the nodes and replays each one's log from the first entry.
func (d *limitDrill) everyIndex(t *testing.T) {
	for _, n := range d.Nodes {
		n.Kill()
		var w fsmtest.LimitWatch
		commands := 0
		last, err := replay(n, func(s *fsm.Store, cmd fsm.Command, _ fsm.Outcome) error {
			commands++
			return w.After(s.View(), cmd)
		})
		if err != nil {
			t.Errorf("%s: %v", n.Name, err)
		}
		for scope, most := range map[string]fsm.Limits{
			"":                             {Running: overallLimit},
			"talker":                       {Running: 8},
			"limited-by-running-sandboxes": {Running: 6},
			"limited-by-total-sandboxes":   {Total: 6},
			"limited-by-starts-per-minute": {StartsPerMinute: 6},
			"limited-by-cpu":               {CPU: 60},
			"limited-by-memory":            {Memory: 60},
		} {
			if got := w.Most[scope]; !reaches(got, most) {
				t.Errorf("%s: %q had at most %+v, the limit %+v was not reached", n.Name, scope, got, most)
			}
		}
		t.Logf("--- verdict: %s: %d commands up to index %d were checked one by one: no limit exceeded; "+
			"the most of all users together was %+v",
			n.Name, commands, last, w.Most[""])
	}
}

// reaches reports whether each limit that is set was reached.
func reaches(got, limit fsm.Limits) bool {
	return (limit.Running == 0 || got.Running == limit.Running) && (limit.Total == 0 || got.Total == limit.Total) &&
		(limit.StartsPerMinute == 0 || got.StartsPerMinute == limit.StartsPerMinute) &&
		(limit.CPU == 0 || got.CPU == limit.CPU) && (limit.Memory == 0 || got.Memory == limit.Memory)
}

// replay applies the log of a stopped node, and returns its last index.
func replay(n *testcluster.Node, each func(*fsm.Store, fsm.Command, fsm.Outcome) error) (uint64, error) {
	last, err := recovery.Replay(n.Data, each)
	if err == nil && last == 0 {
		err = fmt.Errorf("the log of %s is empty", n.Name)
	}
	return last, err
}
