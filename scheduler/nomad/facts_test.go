package nomad_test

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/access"
	"bivouac.dev/bivouac/scheduler/nomad"
)

const conversation = "0123456789abcdef0123456789abcdef"

var drivers = []fsm.Driver{fsm.DriverRawExec, fsm.DriverDocker}

func TestRunner_PauseAndResume_KeepWorkspaceAndKey(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers {
		t.Run(string(driver), func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			job, o := b.started(b.job(driver))
			b.createConversation(o, job, conversation)
			for range 3 {
				job = b.paused(job)
				ran := job.RevertTo
				job, o = b.started(job)
				if job.RevertTo <= ran {
					t.Fatalf("version %d after a resume of version %d: it was not reverted", job.RevertTo, ran)
				}
				if o.Live != 1 {
					t.Fatalf("%d live allocations", o.Live)
				}
				b.hasConversation(o, job, conversation)
			}
			if got := len(b.volumes(job)); got != 1 {
				t.Fatalf("%d volumes for one sandbox", got)
			}
		})
	}
}

// A tagged version keeps the whole job from being collected (Nomad 1.11). An operator's
// untagging, or a pause whose tag failed, leaves a job that is collected.
func TestRunner_SystemGCBetweenPauseAndResume_KeepsWorkspace(t *testing.T) {
	for _, driver := range drivers {
		t.Run(string(driver), func(t *testing.T) {
			b := newBench(t)
			tagged, o := b.started(b.job(driver))
			b.createConversation(o, tagged, conversation)
			tagged = b.paused(tagged)
			untagged, o := b.started(b.job(driver))
			b.createConversation(o, untagged, conversation)
			untagged.HasVersion = false
			untagged = b.paused(untagged)
			untagged.HasVersion = true

			b.systemGC(untagged)
			if o := b.observed(untagged); o.Exists || !o.Workspace {
				t.Fatalf("after the collection: %+v", o)
			}
			if o := b.observed(tagged); !o.Exists || !o.Stopped {
				t.Fatalf("a job with a tagged version was collected: %+v", o)
			}
			untagged.ModifyIndex = 0
			untagged, o = b.started(untagged)
			b.hasConversation(o, untagged, conversation)
			if untagged.RevertTo != 0 {
				t.Fatalf("registered again as version %d", untagged.RevertTo)
			}
			ran := tagged.RevertTo
			tagged, o = b.started(tagged)
			b.hasConversation(o, tagged, conversation)
			if tagged.RevertTo <= ran {
				t.Fatalf("version %d after a revert to version %d", tagged.RevertTo, ran)
			}
		})
	}
}

func TestRunner_TaggedVersionOutlivesManyOthers(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	job, _ := b.started(b.job(fsm.DriverRawExec))
	job = b.paused(job)
	// Ten more versions, as an operator could make them; six untagged are kept.
	for i := range 10 {
		j := b.raw(job)
		j.Meta["touched"] = strings.Repeat("x", i+1)
		j.VersionTag = nil
		_, _, err := b.s.client.Jobs().Register(j, nil)
		b.must(err)
	}
	kept, _, _, err := b.s.client.Jobs().Versions("sandbox-"+job.SandboxID, false, nil)
	b.must(err)
	versions := map[uint64]*api.JobVersionTag{}
	for _, v := range kept {
		versions[*v.Version] = v.VersionTag
	}
	if len(versions) > 8 {
		t.Fatalf("Nomad kept %d versions: the test proves nothing", len(versions))
	}
	if tag, ok := versions[job.RevertTo]; !ok || tag == nil {
		t.Fatalf("version %d, which ran last, is not among %v", job.RevertTo, versions)
	}
	ran := job.RevertTo
	job, _ = b.started(job)
	if _, touched := b.raw(job).Meta["touched"]; touched {
		t.Fatalf("version %d did not come back: %v", ran, b.raw(job).Meta)
	}
	if tag := b.raw(job).VersionTag; tag != nil {
		t.Fatalf("the revert took the tag %v along", tag)
	}
	// The next pause moves the tag.
	job = b.paused(job)
	tagged, _, err := b.s.client.Jobs().VersionByTag("sandbox-"+job.SandboxID, "bivouac-ran", nil)
	b.must(err)
	if *tagged.Version != job.RevertTo {
		t.Fatalf("the tag is on version %d, not on %d", *tagged.Version, job.RevertTo)
	}
}

func TestRunner_VersionGone_RegistersAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	job, _ := b.started(b.job(fsm.DriverRawExec))
	job = b.paused(job)
	job.RevertTo = 4711
	b.started(job)
}

func TestRunner_RevertToCurrentVersion_IsRefusedAndRegistersAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	job, _ := b.started(b.job(fsm.DriverRawExec))
	job = b.paused(job)
	job.RevertTo = *b.raw(job).Version
	_, _, err := b.s.client.Jobs().Revert("sandbox-"+job.SandboxID, job.RevertTo, nil, nil, "", "")
	if err == nil || !strings.Contains(err.Error(), "can't revert to current version") {
		t.Fatalf("Nomad's answer has changed: %v", err)
	}
	b.started(job)
}

func TestRunner_LateCallsOfADeposedLeader_Lose(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	late := b.job(fsm.DriverRawExec)
	job, _ := b.started(late)
	conflict := &fsm.Error{Code: fsm.CodeConflict}
	if err := b.r.Start(t.Context(), late); !errors.Is(err, conflict) {
		t.Fatalf("a second first start: %v", err)
	}
	lateStop := job
	job = b.paused(job)
	lateStart := job
	job, o := b.started(job)
	if err := b.r.Stop(t.Context(), lateStop); !errors.Is(err, conflict) {
		t.Fatalf("a stop meant for the job before it was resumed: %v", err)
	}
	if err := b.r.Start(t.Context(), lateStart); !errors.Is(err, conflict) {
		t.Fatalf("a resume meant for the job before it was resumed: %v", err)
	}
	if now := b.observed(job); now.ModifyIndex != o.ModifyIndex || now.Stopped || now.Live != 1 {
		t.Fatalf("a late call changed the job: %+v", now)
	}
	// A job that is stopped meanwhile refuses a late resume from an older observation.
	b.paused(job)
	if err := b.r.Start(t.Context(), lateStart); !errors.Is(err, conflict) {
		t.Fatalf("a resume meant for the stop before the last: %v", err)
	}
}

func TestRunner_JobHasWhatKeepsItSingle(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	job, _ := b.started(b.job(fsm.DriverRawExec))
	tg := b.raw(job).TaskGroups[0]
	d := tg.Disconnect
	if d == nil || d.Replace == nil || *d.Replace || *d.Reconcile != api.ReconcileOptionKeepOriginal || *d.LostAfter <= 0 {
		t.Fatalf("disconnect block: %+v", d)
	}
	if p := tg.ReschedulePolicy; *p.Attempts != 0 || *p.Unlimited {
		t.Fatalf("reschedule policy: %+v", p)
	}
	if p := tg.RestartPolicy; *p.Mode != "fail" {
		t.Fatalf("restart policy: %+v", p)
	}
	deployments, _, err := b.s.client.Jobs().Deployments("sandbox-"+job.SandboxID, true, nil)
	b.must(err)
	if len(deployments) != 0 {
		t.Fatalf("%d deployments", len(deployments))
	}
}

func TestRunner_KeyReachesTheTaskAndNotTheJob(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers {
		t.Run(string(driver), func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			job, o := b.started(b.job(driver))
			if err := get(t.Context(), access.AgentURL(o.Placement)+"/api/conversations/count", "wrong"); err == nil {
				t.Fatal("the agent server takes a wrong key")
			}
			versions, _, _, err := b.s.client.Jobs().Versions("sandbox-"+job.SandboxID, false, nil)
			b.must(err)
			allocs, _, err := b.s.client.Allocations().List(&api.QueryOptions{Params: map[string]string{"task_states": "true"}})
			b.must(err)
			for _, what := range []any{b.raw(job), versions, allocs} {
				text, err := json.Marshal(what)
				b.must(err)
				if strings.Contains(string(text), "canary-") {
					t.Fatalf("the key is in %T", what)
				}
			}
			log, err := os.ReadFile(b.s.nomad.Log)
			b.must(err)
			if strings.Contains(string(log), "canary-") {
				t.Fatal("the key is in Nomad's log")
			}
		})
	}
}

func TestRunner_ForeignJob_IsLeftAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	mine := b.job(fsm.DriverRawExec)
	theirs := mine
	theirs.ClusterID = "another-cluster"
	_, o := b.started(theirs)
	t.Cleanup(func() { b.remove(theirs) })
	mine.ModifyIndex = o.ModifyIndex
	var fail *scheduler.Failure
	if err := b.r.Start(t.Context(), mine); !errors.As(err, &fail) || fail.Reason != fsm.ReasonForeignJob {
		t.Fatalf("starting over a foreign job: %v", err)
	}
	b.must(b.r.Stop(t.Context(), mine))
	b.must(b.r.Remove(t.Context(), mine))
	if got := b.observed(mine); !got.Foreign || got.Exists {
		t.Fatalf("a foreign job is observed as %+v", got)
	}
	if now := b.observed(theirs); now.ModifyIndex != o.ModifyIndex || now.Live != 1 {
		t.Fatalf("the foreign job was touched: %+v", now)
	}
	if len(b.volumes(theirs)) != 1 {
		t.Fatal("the foreign job's volume was touched")
	}
}

func TestRunner_Remove_LeavesNothing(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers {
		t.Run(string(driver), func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			job, _ := b.started(b.job(driver))
			stub := b.volumes(job)
			if len(stub) != 1 || stub[0].Name != "sandbox-"+job.SandboxID || stub[0].PluginID != "mkdir" {
				t.Fatalf("volumes: %+v", stub)
			}
			v, _, err := b.s.client.HostVolumes().Get(stub[0].ID, nil)
			b.must(err)
			if c := v.RequestedCapabilities[0]; c.AccessMode != api.HostVolumeAccessModeSingleNodeWriter {
				t.Fatalf("capability %+v", c)
			}
			if _, err := os.Stat(v.HostPath); err != nil {
				t.Fatal(err)
			}
			b.until("removal of a running sandbox", func() error { return b.r.Remove(t.Context(), job) })
			if o := b.observed(job); o.Exists || o.Live != 0 || o.Workspace {
				t.Fatalf("left: %+v", o)
			}
			if len(b.volumes(job)) != 0 {
				t.Fatal("the volume is still there")
			}
			if _, err := os.Stat(v.HostPath); !errors.Is(err, os.ErrNotExist) {
				t.Fatalf("the workspace directory is still there: %v", err)
			}
			job.ModifyIndex = 0
			b.must(b.r.Remove(t.Context(), job))
		})
	}
}

func TestRunner_MountedVolume_KeepsWorkspace(t *testing.T) {
	t.Parallel()
	b := benchWith(t, func(c *nomad.Config) { c.MountVolumes = true })
	job, o := b.started(b.job(fsm.DriverDocker))
	if v := b.raw(job).TaskGroups[0].Volumes["workspace"]; v == nil || v.Source != "sandbox-"+job.SandboxID {
		t.Fatalf("volume request %+v", v)
	}
	b.createConversation(o, job, conversation)
	job = b.paused(job)
	job, o = b.started(job)
	b.hasConversation(o, job, conversation)
}

func TestRunner_DockerBridgeAndUser_ReachWorkspaceAndPorts(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	job := b.job(fsm.DriverDocker)
	job.Template.NetworkMode, job.Template.User = "bridge", "10001:10001"
	job.Template.Ports = map[string]int{fsm.PortAgentServer: 8000}
	job.Template.Args = []string{"--host", "0.0.0.0", "--port", "${port.agent_server}"}
	job, o := b.started(job)
	if p := o.Placement.Ports[fsm.PortAgentServer]; p == 8000 || p == 0 {
		t.Fatalf("the agent server is reached at port %d", p)
	}
	b.createConversation(o, job, conversation)
	job = b.paused(job)
	job, o = b.started(job)
	b.hasConversation(o, job, conversation)
}

func TestRunner_VolumeGone_ResumeFailsLoudly(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	job, _ := b.started(b.job(fsm.DriverRawExec))
	job = b.paused(job)
	b.until("deleting the volume by hand", func() error {
		_, _, err := b.s.client.HostVolumes().Delete(&api.HostVolumeDeleteRequest{ID: b.volumes(job)[0].ID}, nil)
		return err
	})
	var fail *scheduler.Failure
	if err := b.r.Start(t.Context(), job); !errors.As(err, &fail) || fail.Reason != fsm.ReasonWorkspace {
		t.Fatalf("resuming without the workspace: %v", err)
	}
}

// What the nodes' configuration gives sandboxes reaches one that was paused when it is resumed: the
// version that ran has the former. A resume without a change reverts.
func TestRunner_ResumeAfterTheConfigurationChanged_HasTheNew(t *testing.T) {
	t.Parallel()
	b := benchWith(t, func(c *nomad.Config) { c.Env = map[string]string{"SETTING": "former"} })
	job, o := b.started(b.job(fsm.DriverRawExec))
	b.createConversation(o, job, conversation)
	job = b.paused(job)
	b.config.Env = map[string]string{"SETTING": "present"}
	next, err := nomad.New(b.config)
	b.must(err)
	t.Cleanup(next.Close)
	b.r = next
	for range 2 {
		job, o = b.started(job)
		b.hasConversation(o, job, conversation)
		if got := b.raw(job).TaskGroups[0].Tasks[0].Env["SETTING"]; got != "present" {
			t.Errorf("after a resume it has %q", got)
		}
		job = b.paused(job)
	}
}
