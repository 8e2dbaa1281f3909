package scheduler_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/agent"
	"bivouac.dev/bivouac/scheduler/nomadtest"
)

// TestCost measures the leader's own work beside many sandboxes, all paused or a tenth of them running, on
// a backend and agent servers that cost nothing. `make bench` runs it.
func TestCost(t *testing.T) {
	if os.Getenv("BIVOUAC_BENCH") == "" {
		t.Skip("make bench runs this")
	}
	for _, n := range []int{1000, 10_000, 100_000} {
		t.Run(fmt.Sprintf("%d paused", n), func(t *testing.T) { cost(t, n, n) })
		t.Run(fmt.Sprintf("%d of which a tenth runs", n), func(t *testing.T) { cost(t, n, 10) })
	}
}

// cost measures beside n sandboxes of which each nth runs.
func cost(t *testing.T, n, nth int) {
	before := heap()
	secrets := nomadtest.NewSecrets()
	c := &free{Nomad: nomadtest.NewNomad(t, nomadtest.Options{}, secrets, nil), secrets: secrets, nth: nth}
	cluster := nomadtest.NewCluster(clusterID)
	c.fill(cluster, n)
	rows := heap()
	cfg := scheduler.DefaultConfig()
	cfg.Installation.Policy = fsm.Policy{IdleTimeout: 2 * time.Hour, DeletePausedAfter: 90 * 24 * time.Hour}
	s, err := scheduler.New(cfg, cluster.Store, cluster, c, c, secrets)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	begin := cpu()
	go func() { ended <- s.Run(ctx, 1) }()
	settle()
	first, plan := cpu()-begin, heap()
	begin = cpu()
	<-time.After(time.Minute)
	idle := cpu() - begin
	c.awaitListing()
	const changes = 400
	began := time.Now()
	begin = cpu()
	for i := range changes {
		c.change(cluster, i%n)
		<-time.After(10 * time.Millisecond)
	}
	<-time.After(time.Second)
	spent, took := cpu()-begin, time.Since(began)
	t.Logf("%6d sandboxes, each %dth runs: the begin of a term %.2f s of CPU, an idle minute %.2f s, a change %d µs; "+
		"heap a sandbox: row %d B, plan %d B", n, nth, first.Seconds(), idle.Seconds(),
		(spent / changes).Microseconds(), (rows-before)/n, (plan-rows)/n)
	if took > 25*time.Second {
		t.Logf("the changes took %s, so a listing is among them", took)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	runtime.KeepAlive(c)
}

// awaitListing waits for the end of the next listing, so that the changes have none among them.
func (c *free) awaitListing() {
	for listed := c.lists.Load(); c.lists.Load() == listed; {
		<-time.After(100 * time.Millisecond)
	}
	<-time.After(2 * time.Second)
}

// settle waits until the process has nothing to do.
func settle() {
	for quiet := 0; quiet < 3; {
		before := cpu()
		<-time.After(time.Second)
		if quiet++; cpu()-before > 100*time.Millisecond {
			quiet = 0
		}
	}
}

// free is a backend, and agent servers, whose calls cost nothing.
type free struct {
	*nomadtest.Nomad
	// secrets has the keys of those that run: one whose key can't be read is probed more often.
	secrets *nomadtest.Secrets
	list    []scheduler.Observed
	// nth: each nth sandbox runs. lists counts the listings.
	nth   int
	lists atomic.Int64
}

// fill makes the sandboxes, all paused but each nth.
func (c *free) fill(cluster *nomadtest.Cluster, n int) {
	cluster.Must(&fsm.SpecApplyBody{Specs: []fsm.Spec{{ID: specID, Template: fsm.Template{
		Driver: fsm.DriverRawExec, Isolation: fsm.IsolationNone, Command: "/agent", WorkingDir: "project", CPU: 100,
		Memory: 64,
		Ports:  map[string]int{fsm.PortAgentServer: 0},
	}}}}, "operator")
	for i := range n {
		id, user := fmt.Sprintf("sandbox-%06d", i), fmt.Sprintf("u%d", i%(n/10+1))
		sb := cluster.Must(&fsm.SandboxCreateBody{
			ID: id, SpecID: specID, KeyRef: fsm.SecretRef{Path: fsm.SandboxKeyPath(id), Version: 1},
			KeyHash: fmt.Sprintf("%x", sha256.Sum256([]byte(id))),
		}, user).Sandbox
		o := scheduler.Observed{
			SandboxID: id, Exists: true, ModifyIndex: uint64(i + 1), Birth: sb.Birth.String(),
			Home: fmt.Sprintf("client-%d", i%1000),
		}
		if i%c.nth == 0 {
			_, _ = c.secrets.Write(context.Background(), fsm.SandboxKeyPath(id), map[string]string{fsm.MemberKey: id})
			o.Live, o.LiveOn, o.Up = 1, o.Home, true
			o.Placement = &fsm.Placement{
				AllocID: "alloc-" + id, NodeID: o.Home, Address: fmt.Sprintf("10.0.%d.%d", i/10%1000/256, i/10%1000%256),
				Ports: map[string]int{fsm.PortAgentServer: 20000 + i/10_000},
			}
		} else {
			o.Stopped = true
			sb = cluster.Must(&fsm.SandboxPauseBody{ID: id}, user).Sandbox
		}
		c.list = append(c.list, o)
		cluster.Must(&fsm.SandboxObserveBody{Observations: []fsm.Observation{{ID: id, Status: status(sb, o)}}}, "")
	}
}

func status(sb *fsm.Sandbox, o scheduler.Observed) fsm.SandboxStatus {
	st := fsm.SandboxStatus{
		State: fsm.SandboxPaused, Generation: sb.Generation, Since: time.Now().UTC(), Workspace: fsm.WorkspaceUnmarked,
		Placement: o.Placement,
	}
	if o.Placement != nil {
		st.State, st.Challenged, st.Proven = fsm.SandboxRunning, true, o.Placement.AllocID
	}
	return st
}

// change says something of a paused sandbox that its next look takes back.
func (c *free) change(cluster *nomadtest.Cluster, i int) {
	if i%c.nth == 0 {
		i++
	}
	sb := cluster.Store.View().SandboxAny(c.list[i].SandboxID)
	st := sb.Status
	st.Detail = "changed"
	cluster.Must(&fsm.SandboxObserveBody{Observations: []fsm.Observation{{ID: sb.ID, Status: st}}}, "")
}

// List implements scheduler.Runner.
func (c *free) List(context.Context, string) ([]scheduler.Observed, error) {
	c.lists.Add(1)
	return append([]scheduler.Observed(nil), c.list...), nil
}

// Watch implements scheduler.Runner.
func (c *free) Watch(ctx context.Context, _ string, _ func(scheduler.Observed)) error {
	<-ctx.Done()
	return nil
}

// Health implements scheduler.AgentProbes.
func (c *free) Health(context.Context, string) error { return nil }

// Prove implements scheduler.AgentProbes.
func (c *free) Prove(context.Context, string, string, bool) (bool, error) { return true, nil }

// ServerInfo implements scheduler.AgentProbes.
func (c *free) ServerInfo(context.Context, string) (agent.ServerInfo, error) {
	return agent.ServerInfo{Idle: time.Hour}, nil
}

// Busy implements scheduler.AgentProbes.
func (c *free) Busy(context.Context, string, string) (bool, error) { return false, nil }

// cpu is the process's CPU time.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// heap is what is live, in bytes.
func heap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
