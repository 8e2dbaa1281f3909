package fsm

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// recount adds up the usage that limits bound, with a scan.
func recount(v *View) map[string]Usage {
	sum := map[string]Usage{}
	for s := range v.AllSandboxes() {
		var u Usage
		if s.Desired != DesiredDeleted && s.UserID != "" {
			u.Total = 1
		}
		runsOn := s.Desired == DesiredPaused && s.StopAt.After(s.DesiredAt) && s.Status.Generation < s.Generation
		if s.Desired == DesiredRunning || runsOn {
			u.CPU, u.Memory = s.Template.CPU, s.Template.Memory
			if s.UserID != "" {
				u.Running = 1
			}
		}
		sum[""] = sum[""].plus(u)
		if s.UserID != "" {
			sum[s.UserID] = sum[s.UserID].plus(u)
		}
	}
	for task := range withPrefix[StartTask](v.txn, tableStartTasks, indexOpen, nil) {
		if c := task.Reservation; c != nil {
			u := Usage{Running: 1, Total: 1, CPU: c.CPU, Memory: c.Memory}
			sum[""], sum[task.UserID] = sum[""].plus(u), sum[task.UserID].plus(u)
		}
	}
	for x := range withPrefix[recentStart](v.txn, tableRecentStarts, indexID, nil) {
		sum[x.UserID] = sum[x.UserID].plus(Usage{starts: 1})
	}
	for _, row := range (&Snapshot{view: v}).rows() {
		user, n := v.meta.rowBytes(row)
		u := Usage{StateBytes: n}
		if task, ok := row.(*StartTask); ok && task.Done() {
			u.doneBytes = n
		}
		sum[""] = sum[""].plus(u)
		if user != "" {
			sum[user] = sum[user].plus(u)
		}
	}
	for user, u := range sum {
		if u == (Usage{}) {
			delete(sum, user)
		}
	}
	return sum
}

// TestUsageIsARecount: the counters always equal a recount, also after a restart.
func TestUsageIsARecount(t *testing.T) {
	t.Parallel()
	spec := dockerSpec("p1")
	spec.Pool = 3
	check := func(r *rapid.T, s *Store) {
		got := map[string]Usage{}
		for u := range withPrefix[usageRow](s.View().txn, tableUsage, indexID, nil) {
			got[u.user] = u.Usage
		}
		if d := cmp.Diff(recount(s.View()), got, cmp.AllowUnexported(Usage{})); d != "" {
			r.Fatalf("-counted +kept: %s", d)
		}
	}
	rapid.Check(t, func(r *rapid.T) {
		s := NewStore()
		for _, e := range recodeAll(t, genHistory(60).Draw(r, "log")) {
			s.ApplyBatch([]Entry{e})
			check(r, s)
		}
		check(r, restored(t, s))
	})
	rapid.Check(t, func(r *rapid.T) {
		b, l := newModelled(t, spec), &life{r: r, now: testEpoch}
		raise := NewCommand("raise", testEpoch, "", &ProtocolRaiseBody{Version: ProtocolVersion})
		if _, err := b.store.Apply(0, raise); err != nil {
			r.Fatal(err)
		}
		for i := range uint64(60) {
			b.store.ApplyBatch([]Entry{{i, l.next(b.store.View())}})
			check(r, b.store)
		}
		check(r, restored(t, b.store))
	})
}
