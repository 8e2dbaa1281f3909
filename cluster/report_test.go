package cluster_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/clustertest"
)

// Members have each node's own report and clock, without a leader too.
func TestNode_Members_ReportAndClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3, func(i int, cfg *cluster.Config) {
			if i < 2 {
				cfg.Report = func() cluster.Report { return cluster.Report{Version: fmt.Sprint("v", i)} }
			}
			cfg.Clock = func() time.Time { return time.Now().Add(time.Duration(i) * time.Minute) }
		})
		defer c.Close()
		c.Settle()
		check := func(ready bool) {
			t.Helper()
			for i, m := range c.Node(1).Members(t.Context()) {
				switch {
				case m.Error != "":
				case m.ClockAhead == nil || *m.ClockAhead != int64(i-1)*60_000 || *m.ClockError > 1000:
					t.Errorf("%s: its clock is %v, %v", m.Name, m.ClockAhead, m.ClockError)
				case i == 2 && m.Report != nil:
					t.Errorf("%s makes no report: %+v", m.Name, m.Report)
				case i < 2 && (m.Report == nil || m.Report.Version != fmt.Sprint("v", i) || m.Report.Ready != ready ||
					ready != (m.Report.Reason == "")):
					t.Errorf("%s reports %+v", m.Name, m.Report)
				}
			}
		}
		check(true)
		c.Kill(0)
		c.Kill(2)
		time.Sleep(5 * time.Second)
		check(false)
		c.Start(0)
		c.Start(2)
		c.Settle()
	})
}
