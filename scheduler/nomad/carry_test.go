package nomad_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/nomad"
)

// twoMachines is the test's own Nomad with a second client, both with raw_exec.
func twoMachines(t *testing.T) (b *bench, second *local.Nomad) {
	t.Helper()
	s, dir := useStack(t), t.TempDir()
	own := &stack{agent: s.agent, vault: s.vault}
	var err error
	if own.nomad, err = local.StartNomad(t.Context(), local.NomadOptions{Dir: filepath.Join(dir, "first")}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := own.nomad.Close(); err != nil {
			t.Error(err)
		}
	})
	if second, err = local.StartNomad(t.Context(),
		local.NomadOptions{Dir: filepath.Join(dir, "second"), Join: own.nomad}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := second.Close(); err != nil {
			t.Error(err)
		}
	})
	if own.client, err = api.NewClient(&api.Config{Address: own.nomad.Address}); err != nil {
		t.Fatal(err)
	}
	b = &bench{T: t, s: own, cluster: fmt.Sprintf("cluster-%d", time.Now().UnixNano())}
	b.config = nomad.DefaultConfig()
	b.config.Address = own.nomad.Address
	b.r, err = nomad.New(b.config)
	b.must(err)
	t.Cleanup(b.r.Close)
	return b, second
}

// TestCarry_MovesAWorkspaceToAnotherClient exports a paused sandbox's workspace on one client and
// imports it on the other, where the sandbox starts with it. The first is left alone.
func TestCarry_MovesAWorkspaceToAnotherClient(t *testing.T) {
	t.Parallel()
	b, _ := twoMachines(t)
	job := b.job(fsm.DriverRawExec)
	b.must(b.r.Start(t.Context(), job))
	o := b.look(job, "it runs", func(o scheduler.Observed) bool { return o.Up })
	dir := o.Placement.Workspace
	b.must(os.WriteFile(filepath.Join(dir, "kept.txt"), bytes.Repeat([]byte("kept"), 1<<20), 0o640))
	job.ModifyIndex, job.HasVersion, job.RevertTo, job.HasWorkspace = o.ModifyIndex, true, o.Version, true
	b.must(b.r.Stop(t.Context(), job))
	o = b.look(job, "it has stopped", func(o scheduler.Observed) bool { return o.Stopped && o.Live == 0 })
	list, err := b.r.ListWorkspaces(t.Context(), job)
	b.must(err)
	if len(list) != 1 || !list[0].Current || list[0].NodeID != o.Home {
		t.Fatalf("its workspaces are %+v, its home %s", list, o.Home)
	}
	next, err := b.r.NewWorkspace(t.Context(), job, []string{list[0].NodeID})
	b.must(err)
	if next.NodeID == list[0].NodeID || next.NodeID == "" {
		t.Fatalf("the new workspace is %+v", next)
	}
	if _, err := b.r.NewWorkspace(t.Context(), job, []string{list[0].NodeID, next.NodeID}); err == nil ||
		!strings.Contains(err.Error(), "no other Nomad client") {
		t.Errorf("a third one: %v", err)
	}
	var stream bytes.Buffer
	b.must(b.r.Export(t.Context(), job, list[0], strings.NewReader(""), &stream))
	whole := bytes.Clone(stream.Bytes())
	// A stream that breaks off is no import, and the sandbox keeps its first workspace.
	if err := b.r.Import(t.Context(), job, next, bytes.NewReader(whole[:len(whole)/2])); err == nil ||
		!strings.Contains(err.Error(), "damaged") {
		t.Errorf("half of the stream: %v", err)
	}
	b.must(b.r.RemoveWorkspace(t.Context(), next))
	next, err = b.r.NewWorkspace(t.Context(), job, []string{list[0].NodeID})
	b.must(err)
	b.must(b.r.Import(t.Context(), job, next, bytes.NewReader(whole)))
	if list, err = b.r.ListWorkspaces(t.Context(), job); err != nil || len(list) != 2 || !list[0].Current ||
		list[1].Current {
		t.Errorf("before the move ended its workspaces were %+v: %v", list, err)
	}
	job.Volume, job.HasVersion, job.ModifyIndex = next.ID, false, o.ModifyIndex
	b.must(b.r.Start(t.Context(), job))
	o = b.look(job, "it runs on the other client", func(o scheduler.Observed) bool { return o.Up })
	if o.Placement.NodeID != next.NodeID || o.Home != next.NodeID || o.LiveOn != next.NodeID {
		t.Errorf("it runs on %s, and its home is %s, with live copies on %q", o.Placement.NodeID, o.Home, o.LiveOn)
	}
	raw, err := os.ReadFile(filepath.Join(o.Placement.Workspace, "kept.txt"))
	if err != nil || len(raw) != 4<<20 || o.Placement.Workspace == dir {
		t.Errorf("in %s the file has %d bytes: %v", o.Placement.Workspace, len(raw), err)
	}
	jobs, _, err := b.s.client.Jobs().PrefixList("workspace-" + job.SandboxID)
	if err != nil || len(jobs) > 0 {
		t.Errorf("jobs beside workspaces are left: %v, %v", jobs, err)
	}
	// A moved sandbox does not come back with the former workspace.
	job.ModifyIndex, job.HasVersion, job.RevertTo = o.ModifyIndex, true, o.Version
	b.must(b.r.Stop(t.Context(), job))
	o = b.look(job, "it has stopped again", func(o scheduler.Observed) bool { return o.Stopped && o.Live == 0 })
	job.ModifyIndex = o.ModifyIndex
	b.must(b.r.Start(t.Context(), job))
	b.look(job, "it runs there again", func(o scheduler.Observed) bool {
		return o.Up &&
			o.Placement.NodeID == next.NodeID
	})
	// Its first client still has the first volume, and makes another beside it, for a way back.
	back, err := b.r.NewWorkspace(t.Context(), job, []string{next.NodeID})
	b.must(err)
	if back.NodeID != list[0].NodeID || back.ID == list[0].ID {
		t.Errorf("on the way back its workspace is %+v", back)
	}
	b.must(b.r.RemoveWorkspace(t.Context(), list[0]))
	if list, err = b.r.ListWorkspaces(t.Context(), job); err != nil || len(list) != 2 || list[1].ID != back.ID {
		t.Errorf("its workspaces are %+v: %v", list, err)
	}
}
