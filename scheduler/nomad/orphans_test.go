package nomad_test

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/nomadtest"
)

// stranger registers a job that is named like ours and is not.
func (b *bench) stranger(meta map[string]string) scheduler.Job {
	b.Helper()
	job := scheduler.Job{SandboxID: fmt.Sprintf("x%d", time.Now().UnixNano()), ClusterID: b.cluster}
	id := "sandbox-" + job.SandboxID
	spec := api.NewServiceJob(id, id, "global", 50)
	spec.Datacenters, spec.Meta = []string{"*"}, meta
	task := api.NewTask("agent", "mock_driver").SetConfig("run_for", "1h")
	spec.AddTaskGroup(api.NewTaskGroup("sandbox", 1).AddTask(task.Require(&api.Resources{
		CPU:      new(20),
		MemoryMB: new(16),
	})))
	_, _, err := b.s.client.Jobs().Register(spec, nil)
	b.must(err)
	b.Cleanup(func() {
		if _, _, err := b.s.client.Jobs().Deregister(id, true, nil); err != nil {
			b.Error(err)
		}
	})
	b.until("the stranger's task", func() error { return b.strangerRuns(job) })
	return job
}

// strangerRuns is nil when the one allocation of the first version runs.
func (b *bench) strangerRuns(job scheduler.Job) error {
	allocs, _, err := b.s.client.Jobs().Allocations("sandbox-"+job.SandboxID, true, nil)
	if err == nil && (len(allocs) != 1 || allocs[0].ClientStatus != "running" || allocs[0].JobVersion != 0) {
		err = fmt.Errorf("%d allocations", len(allocs))
	}
	return err
}

func TestLife_OrphansAreRemoved_AndNothingElse(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	store := nomadtest.NewCluster(b.cluster)
	birth := store.Store.View().Birth().String()
	// A job whose sandbox is gone.
	job := b.job(fsm.DriverRawExec)
	job.Birth = birth
	b.Cleanup(func() { b.remove(job) })
	job, o := b.started(job)
	path := o.Placement.Workspace
	// A job of this cluster without a birth.
	unborn, _ := b.started(b.job(fsm.DriverRawExec))
	// A volume whose leader ended before it could register the job: here it is the job that can't
	// be made.
	half := b.job(fsm.DriverRawExec)
	half.Birth = birth
	b.Cleanup(func() { b.remove(half) })
	half.Template.Args = []string{"${port.other}"}
	var fail *scheduler.Failure
	if err := b.r.Start(t.Context(), half); !errors.As(err, &fail) || len(b.volumes(half)) != 1 {
		t.Fatalf("%v, %d volumes", err, len(b.volumes(half)))
	}
	if o := b.observed(half); !o.Workspace || o.Exists {
		t.Fatalf("a volume without a job is observed as %+v", o)
	}
	// Another cluster's sandbox, its volume without a job, and jobs of others.
	other := b.job(fsm.DriverRawExec)
	other.ClusterID = "another-cluster"
	b.Cleanup(func() { b.remove(other) })
	other, _ = b.started(other)
	otherHalf := half
	otherHalf.SandboxID, otherHalf.ClusterID = "o"+half.SandboxID, "another-cluster"
	if err := b.r.Start(t.Context(), otherHalf); !errors.As(err, &fail) {
		t.Fatal(err)
	}
	b.Cleanup(func() { b.remove(otherHalf) })
	strangers := []scheduler.Job{
		b.stranger(nil),
		b.stranger(map[string]string{"bivouac_cluster": b.cluster}),
		b.stranger(map[string]string{"bivouac_cluster": "another-cluster", "bivouac_sandbox": "x"}),
	}

	cfg := scheduler.DefaultConfig()
	cfg.OrphanRetention = time.Second
	l := lifeOf(t, b, store, cfg)
	l.until("the orphans gone", func() error {
		for _, j := range []scheduler.Job{job, half} {
			if o := l.observed(j); o.Exists || o.Live > 0 || o.Workspace || len(l.volumes(j)) > 0 {
				return fmt.Errorf("left: %+v", o)
			}
		}
		return nil
	})
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the orphan's workspace: %v", err)
	}
	// Neither another full listing nor a sandbox of that name touches the others.
	id := l.create(l.template(fsm.DriverRawExec))
	l.reach(id, fsm.SandboxRunning)
	for _, j := range strangers {
		b.must(b.strangerRuns(j))
		if o := b.observed(j); !o.Foreign || o.Exists {
			t.Errorf("a foreign job is observed as %+v", o)
		}
		b.must(b.r.Remove(t.Context(), j))
		b.must(b.strangerRuns(j))
	}
	if o := l.observed(unborn); o.Live != 1 || len(l.volumes(unborn)) != 1 {
		t.Errorf("a job without a birth was touched: %+v", o)
	}
	if o := l.observed(other); o.Live != 1 || len(l.volumes(other)) != 1 {
		t.Errorf("another cluster's job was touched: %+v", o)
	}
	if len(l.volumes(otherHalf)) != 1 {
		t.Error("another cluster's volume was touched")
	}
}
