package e2e

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
	"bivouac.dev/bivouac/ops/e2e/testcluster/nodeconfig"
)

// The bounds of the drill, in bytes. anonymousBound is of a node's anonymous memory (RssAnon): the heap
// with what Go has not given back, without the pages of the log's file.
const (
	anonymousBound = 1 << 30
	drillLogBytes  = 64 << 20
	// drillStateBytes is what one user may keep in the state.
	drillStateBytes = 32 << 20
	// ratioBound is how many times its earlier p99 another user's may have during the attack.
	ratioBound = 3
)

// TestOneUserHurtsNobody has one user with a key send what filled the nodes: starts in sandboxes that
// do not exist, starts with messages of 1 MB, keyed starts, settings of full size, readers that read
// nothing, batches of one large object. No node's memory goes above anonymousBound, the log stays within
// its bytes, and another user's requests succeed. The long form, ten minutes, is for a machine of its
// own: every request of the other user succeeds, with a p99 of at most ratioBound times the earlier one,
// and the leader stays.
//
// The attacker is a process of the lowest priority: it would have a machine of its own.
func TestOneUserHurtsNobody(t *testing.T) {
	oneUserDrill(t, userAttack{SlowReaders: 24}, 10*time.Minute, ratioBound)
}

// TestOneUserTakesNoLeadership is the same with 48 readers that pipeline large pages, each kind of
// request without a pause, and silent sockets. The leader stays and the other user's requests succeed;
// their p99 is only printed, because nodes and attacker together need more than two cores. It has a
// long form only, of three minutes.
func TestOneUserTakesNoLeadership(t *testing.T) {
	if !long() {
		t.Skip("BIVOUAC_DRILL=long")
	}
	oneUserDrill(t, userAttack{SlowReaders: 24, Pipeliners: 48, Hammers: 4, Silent: 200}, 3*time.Minute, math.Inf(1))
}

// oneUserDrill measures another user before and during an attack. length and bound, of the ratio of
// the p99, are of the long form.
func oneUserDrill(t *testing.T, a userAttack, length time.Duration, bound float64) {
	f := testcluster.Start(t, testcluster.Options{
		Bare: true, LogLevel: "warn", Raft: fmt.Sprintf("trailing_bytes = %d", drillLogBytes),
		Config: fmt.Sprintf("limits {\n  rate_per_second = 0\n  user {\n    %s    state_bytes = %d\n  }\n}\n",
			nodeconfig.NoLimits, drillStateBytes),
	})
	d := &oneUser{Cluster: f}
	victim := d.prepare(t, &a)
	quiet := 5 * time.Second
	a.Duration = 30 * time.Second
	if long() {
		quiet, a.Duration = time.Minute, length
	}
	before := d.measure(t, victim, quiet)
	terms := d.terms(t)
	ctx, cancel := context.WithTimeout(t.Context(), a.Duration)
	defer cancel()
	var watch sync.WaitGroup
	most := make([]int64, len(f.Nodes))
	watch.Go(func() { d.watchMemory(ctx, t, most) })
	ended := a.run(t)
	during := d.measure(t, victim, a.Duration-2*time.Second)
	result := ended()
	watch.Wait()
	changes := d.terms(t) - terms
	d.checkNodes(t, most)
	if result.Answers["unknown sandbox 200"] > 0 {
		t.Errorf("starts in sandboxes that do not exist were accepted: %v", result.Answers)
	}
	ratio := during.p99().Seconds() / max(before.p99(), time.Millisecond).Seconds()
	// A machine with two busy cores may change its leader; the long form has one of its own.
	if long() {
		if ratio > bound {
			t.Errorf("the other user's p99 is %s and was %s, %.1f times", during.p99(), before.p99(), ratio)
		}
		if changes > 0 {
			t.Errorf("the leader changed %.0f times", changes)
		}
	}
	t.Logf("--- verdict: one user in %s\n%s", a.Duration, d.table(most, before, during, ratio, changes, result))
}

const conversationsOf = "/api/v1/app-conversations"

// oneUser is the drill's cluster.
type oneUser struct{ *testcluster.Cluster }

// prepare makes the users and has the attacker fill what it may keep. It returns the other user's
// key.
func (d *oneUser) prepare(t *testing.T, a *userAttack) (victim string) {
	op := d.Nodes[0].Client
	spec := map[string]any{"specs": []any{map[string]any{"id": "raw", "template": map[string]any{
		"driver": "raw_exec", "command": "/bin/true", "working_dir": "project", "cpu": 1, "memory": 16, "isolation": "none",
		"ports": map[string]int{
			"AGENT_SERVER": 0,
		},
	}}}}
	op.Sure(t, http.MethodPost, "/api/v1/operator/specs", spec, nil)
	a.Key, victim = op.NewKey(t, "mallory"), op.NewKey(t, "alice")
	for _, n := range d.Nodes {
		a.Bases = append(a.Bases, n.Base)
	}
	// A cluster that has just started raises its protocol version within seconds.
	testcluster.Eventually(t, "an unknown sandbox is refused", func() error {
		a, err := testcluster.Client{Base: op.Base, Key: victim}.Try(http.MethodPost, conversationsOf,
			map[string]string{"sandbox_id": "none"})
		if err == nil && a.Status != http.StatusNotFound {
			err = fmt.Errorf("it answers %d", a.Status)
		}
		return err
	})
	u := attacker{message: strings.Repeat("x", 1_000_000)}
	testcluster.Eventually(t, "the user has filled what it may keep", func() error {
		var task struct{ ID string }
		res, err := testcluster.Client{Base: op.Base, Key: a.Key}.Try(http.MethodPost, conversationsOf,
			u.request(nil, len(u.message)))
		if err == nil && res.Status == http.StatusTooManyRequests {
			return nil
		}
		if err == nil && res.Decode(&task) == nil {
			a.Starts = append(a.Starts, task.ID)
		}
		return fmt.Errorf("there are %d starts; %d %w", len(a.Starts), res.Status, err)
	})
	return victim
}

// durations are how long requests took, in order.
type durations []time.Duration

func (d durations) p50() time.Duration { return d[len(d)/2] }
func (d durations) p99() time.Duration { return d[len(d)*99/100] }

// measure has a user read and write for a while, one request after the other on all nodes in turn.
func (d *oneUser) measure(t *testing.T, key string, length time.Duration) durations {
	t.Helper()
	var took durations
	failed := 0
	for i, begin := 0, time.Now(); time.Since(begin) < length; i++ {
		c := testcluster.Client{Base: d.Nodes[i%len(d.Nodes)].Base, Key: key}
		at := time.Now()
		var err error
		if i%2 == 0 {
			err = c.Get(conversationsOf+"/search?limit=10", nil)
		} else {
			err = c.Do(http.MethodPost, "/api/settings", map[string]string{"language": strconv.Itoa(i)}, nil)
		}
		took = append(took, time.Since(at))
		if err != nil {
			failed++
			t.Logf("the other user's request %d: %v", i, err)
		}
	}
	if long() && failed > 0 || failed > len(took)/2 {
		t.Errorf("%d of the other user's %d requests failed", failed, len(took))
	}
	slices.Sort(took)
	return took
}

// terms is the cluster's term.
func (d *oneUser) terms(t *testing.T) (term float64) {
	for _, n := range d.Nodes {
		testcluster.Eventually(t, "the node says its term", func() error {
			m, err := n.Metrics(t.Context())
			term = max(term, m["bivouac_raft_term"])
			return err
		})
	}
	return term
}

// checkNodes checks the nodes' memory and logs.
func (d *oneUser) checkNodes(t *testing.T, most []int64) {
	for i, n := range d.Nodes {
		if most[i] == 0 || most[i] > anonymousBound {
			t.Errorf("%s had %d MiB of memory, bounded by %d", n.Name, most[i]>>20, anonymousBound>>20)
		}
		testcluster.Eventually(t, "the log is within its bytes", func() error {
			m, err := n.Metrics(t.Context())
			if err == nil && (m["bivouac_raft_log_bytes"] == 0 || m["bivouac_raft_log_bytes"] > drillLogBytes) {
				err = fmt.Errorf("it has %.0f", m["bivouac_raft_log_bytes"])
			}
			return err
		})
	}
}

// table is the drill's figures.
func (d *oneUser) table(most []int64, before, during durations, ratio, changes float64, r attackResult) string {
	var b strings.Builder
	for i, n := range d.Nodes {
		fmt.Fprintf(&b, "| most memory of %s | %d MiB of %d |\n", n.Name, most[i]>>20, anonymousBound>>20)
	}
	for _, row := range []struct {
		name string
		took durations
	}{{"before", before}, {"during", during}} {
		fmt.Fprintf(&b, "| the other user %s: requests, p50, p99 | %d, %s, %s |\n", row.name, len(row.took), row.took.p50(),
			row.took.p99())
	}
	fmt.Fprintf(&b, "| ratio of the p99 | %.1f |\n| changes of the leader | %.0f |\n", ratio, changes)
	for _, what := range slices.Sorted(maps.Keys(r.Answers)) {
		fmt.Fprintf(&b, "| attacker: %s | %d |\n", what, r.Answers[what])
	}
	return b.String()
}

// watchMemory keeps the most anonymous memory of each node.
func (d *oneUser) watchMemory(ctx context.Context, t *testing.T, most []int64) {
	for ctx.Err() == nil {
		for i, n := range d.Nodes {
			bytes, err := anonymousMemory(n.Pid())
			if err != nil {
				t.Errorf("%s is gone: %v", n.Name, err)
				return
			}
			most[i] = max(most[i], bytes)
		}
		testcluster.Pause(ctx, 200*time.Millisecond)
	}
}

// anonymousMemory returns a process's RssAnon, in bytes.
func anonymousMemory(pid int) (int64, error) {
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if text, found := strings.CutPrefix(lines.Text(), "RssAnon:"); found {
			kib, err := strconv.ParseInt(strings.Fields(text)[0], 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("process %d has no RssAnon", pid)
}
