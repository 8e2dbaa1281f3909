package nomad_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// born gives the job a birth in the bench's cluster.
func (b *bench) born(job scheduler.Job, index uint64) scheduler.Job {
	b.Helper()
	job.Birth = fmt.Sprintf("%s/1f2e3d4c5b6a7988/%d", b.cluster, index)
	b.Cleanup(func() { b.remove(job) })
	return job
}

// workspaceOf is the workspace as RemoveWorkspace gets it from the job's owner.
func workspaceOf(job scheduler.Job, id string) scheduler.Workspace {
	return scheduler.Workspace{SandboxID: job.SandboxID, ClusterID: job.ClusterID, Birth: job.Birth, ID: id}
}

func TestRunner_BirthIsOnJobAndVolume_AndStays(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	first := b.born(b.job(fsm.DriverRawExec), 7)
	job, o := b.started(first)
	if o.Birth != first.Birth {
		t.Fatalf("observed birth %q, want %q", o.Birth, first.Birth)
	}
	v, _, err := b.s.client.HostVolumes().Get(b.volumes(job)[0].ID, nil)
	b.must(err)
	mark := func(c *api.Constraint) bool {
		return c.LTarget == "bivouac_birth="+first.Birth && c.Operand == "is_set"
	}
	if !slices.ContainsFunc(v.Constraints, mark) {
		t.Fatalf("the volume's constraints: %+v", v.Constraints)
	}
	// Neither a stop nor a resume by revert changes it, whatever birth a registration would have
	// by now.
	b.createConversation(o, job, conversation)
	for range 2 {
		job = b.paused(job)
		if o := b.observed(job); o.Birth != first.Birth {
			t.Fatalf("stopped, with birth %q", o.Birth)
		}
		ran := job.RevertTo
		job, o = b.started(job)
		if o.Birth != first.Birth || job.RevertTo <= ran {
			t.Fatalf("reverted to version %d with birth %q", job.RevertTo, o.Birth)
		}
		b.hasConversation(o, job, conversation)
	}
}

// Why a birth is set where a job is registered and never on a running one.
func TestFact_ChangedMetaReplacesTheTask_AndRevertBringsItBack(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	job, o := b.started(b.job(fsm.DriverRawExec))
	changed := b.raw(job)
	changed.Meta["bivouac_birth"] = b.cluster + "/aa/1"
	_, _, err := b.s.client.Jobs().EnforceRegister(changed, o.ModifyIndex, nil)
	b.must(err)
	b.look(job, "another allocation", func(now scheduler.Observed) bool {
		return now.Placement != nil && now.Placement.AllocID != o.Placement.AllocID && now.Birth == b.cluster+"/aa/1"
	})
	// A revert restores the version's own meta.
	_, _, err = b.s.client.Jobs().Revert("sandbox-"+job.SandboxID, 0, nil, nil, "", "")
	b.must(err)
	if birth, ok := b.raw(job).Meta["bivouac_birth"]; ok {
		t.Fatalf("version 0 came back with birth %q", birth)
	}
}

// Why Remove stops a job before it purges it.
func TestFact_DeregisterEnforcesNoIndex(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	job, _ := b.started(b.job(fsm.DriverRawExec))
	job = b.paused(job)
	b.started(job)
	_, _, err := b.s.client.Jobs().DeregisterOpts("sandbox-"+job.SandboxID, &api.DeregisterOptions{Purge: true},
		&api.WriteOptions{Headers: map[string]string{"X-Job-Modify-Index": fmt.Sprint(job.ModifyIndex)}})
	b.must(err)
	b.look(job, "purged", func(o scheduler.Observed) bool { return !o.Exists && o.Live == 0 })
}

func TestRunner_LateRemove_Loses(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	job, _ := b.started(b.born(b.job(fsm.DriverRawExec), 7))
	running := job
	job = b.paused(job)
	stopped := job
	job, o := b.started(job)
	never := job
	never.ModifyIndex = 0
	for name, late := range map[string]scheduler.Job{
		"meant for the job before its pause": running, "meant for the paused job": stopped, "meant for no job": never,
	} {
		if err := b.r.Remove(t.Context(), late); fsm.CodeOf(err) != fsm.CodeConflict {
			t.Errorf("%s: %v", name, err)
		}
	}
	if now := b.observed(job); now.ModifyIndex != o.ModifyIndex || now.Live != 1 || len(b.volumes(job)) != 1 {
		t.Fatalf("a late call changed the job: %+v", now)
	}
}

func TestRunner_KeptWorkspace_IsListedAndRemovedByItsBirth(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	job, o := b.started(b.born(b.job(fsm.DriverRawExec), 7))
	path, node := o.Placement.Workspace, o.Placement.NodeID
	job.KeepWorkspace = true
	b.must(b.r.Remove(t.Context(), job))
	o = b.look(job, "only the workspace", func(o scheduler.Observed) bool { return !o.Exists && o.Live == 0 })
	if !o.Workspace || o.Birth != job.Birth || o.NodeID != node || o.WorkspaceID != b.volumes(job)[0].ID {
		t.Fatalf("a kept workspace is observed as %+v", o)
	}
	// A new sandbox of that id neither gets nor deletes it.
	next := b.born(job, 9)
	next.ModifyIndex, next.HasVersion, next.KeepWorkspace = 0, false, false
	for _, isNew := range []bool{true, false} {
		next.New = isNew
		var fail *scheduler.Failure
		if err := b.r.Start(t.Context(), next); !errors.As(err, &fail) || fail.Reason != fsm.ReasonWorkspace ||
			!strings.Contains(fail.Detail, o.WorkspaceID) {
			t.Fatalf("starting a sandbox whose former workspace is kept: %v", err)
		}
	}
	b.must(b.r.Remove(t.Context(), next))
	// A call for another workspace does not delete it either.
	for _, other := range []scheduler.Workspace{
		workspaceOf(next, ""), workspaceOf(next, o.WorkspaceID), workspaceOf(job, "3f1e0d9c-0000-4000-8000-000000000000"),
		{
			SandboxID: job.SandboxID,
			ClusterID: "another-cluster",
			Birth:     job.Birth,
		}, {SandboxID: job.SandboxID, ClusterID: b.cluster},
	} {
		b.must(b.r.RemoveWorkspace(t.Context(), other))
	}
	if _, err := os.Stat(path); err != nil || len(b.volumes(job)) != 1 {
		t.Fatalf("%d volumes, %v", len(b.volumes(job)), err)
	}
	b.must(b.r.RemoveWorkspace(t.Context(), workspaceOf(job, o.WorkspaceID)))
	b.must(b.r.RemoveWorkspace(t.Context(), workspaceOf(job, o.WorkspaceID)))
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) || len(b.volumes(job)) != 0 {
		t.Fatalf("%d volumes, %v", len(b.volumes(job)), err)
	}
	b.started(next)
}

func TestRunner_RemoveWorkspace_LeavesOneThatAJobHas(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	job, _ := b.started(b.born(b.job(fsm.DriverRawExec), 7))
	for range 2 {
		if err := b.r.RemoveWorkspace(t.Context(), workspaceOf(job, "")); fsm.CodeOf(err) != fsm.CodeConflict {
			t.Fatalf("removing the workspace of a job that is there: %v", err)
		}
		if len(b.volumes(job)) != 1 {
			t.Fatal("the volume is gone")
		}
		job = b.paused(job)
		job, _ = b.started(job)
	}
	// A workspace stays while a purged job still runs in it: Nomad itself does not know that
	// raw_exec uses it.
	_, _, err := b.s.client.Jobs().Deregister("sandbox-"+job.SandboxID, true, nil)
	b.must(err)
	b.until("removal once nothing runs", func() error {
		live := b.observed(job).Live
		err := b.r.RemoveWorkspace(t.Context(), workspaceOf(job, ""))
		if err == nil && live > 0 && b.observed(job).Live > 0 {
			t.Fatal("a workspace was deleted under a live task")
		}
		return err
	})
}

// A sandbox from before births keeps the volume that has none.
func TestRunner_UnstampedVolume_IsTheOlderSandboxs(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	old := b.job(fsm.DriverRawExec)
	job, o := b.started(old)
	b.createConversation(o, job, conversation)
	if o.Birth != "" {
		t.Fatalf("birth %q", o.Birth)
	}
	job = b.born(b.paused(job), 9)
	job.HasVersion = false
	job.HasWorkspace = true
	var fail *scheduler.Failure
	if err := b.r.Start(t.Context(), job); !errors.As(err, &fail) || fail.Reason != fsm.ReasonWorkspace {
		t.Fatalf("a sandbox with a birth got a volume without one: %v", err)
	}
	job.Unstamped = true
	job, o = b.started(job)
	b.hasConversation(o, job, conversation)
	if o.Birth != job.Birth {
		t.Fatalf("registered again with birth %q", o.Birth)
	}
	b.must(b.r.Remove(t.Context(), job))
	if len(b.volumes(job)) != 0 {
		t.Fatal("the volume is still there")
	}
}

// A listing reads births without extra calls.
func TestRunner_List_ReadsBirthsWithoutMoreCalls(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	want := map[string]string{}
	for i := range 3 {
		job := b.born(b.job(fsm.DriverMock), uint64(i+1))
		job.Template.Readiness, job.New = fsm.ReadinessAllocation, true
		b.must(b.r.Start(t.Context(), job))
		want[job.SandboxID] = job.Birth
	}
	b.until("births", func() error {
		list, err := b.r.List(t.Context(), b.cluster)
		b.must(err)
		got := map[string]string{}
		for _, o := range list {
			if !o.Foreign { // those of the tests beside this one
				got[o.SandboxID] = o.Birth
			}
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("births %v, want %v", got, want)
		}
		return nil
	})
	// The events have it, too.
	seen, ended := make(chan scheduler.Observed, 64), make(chan error, 1)
	go func() {
		ended <- b.r.Watch(t.Context(), b.cluster, func(o scheduler.Observed) { seen <- o })
	}()
	job := b.born(b.job(fsm.DriverMock), 9)
	job.Template.Readiness = fsm.ReadinessAllocation
	b.must(b.r.Start(t.Context(), job))
	deadline := time.After(patience)
	for {
		select {
		case o := <-seen:
			if o.SandboxID == job.SandboxID && o.Exists {
				if o.Birth != job.Birth {
					t.Fatalf("an event says birth %q", o.Birth)
				}
				return
			}
		case err := <-ended:
			t.Fatal(err)
		case <-deadline:
			t.Fatal("no event of the job")
		}
	}
}
