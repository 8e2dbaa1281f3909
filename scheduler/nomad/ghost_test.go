package nomad_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
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

// TestRunner_NameThatAClientKeeps_IsNotTaken: Nomad's servers lose what they know, and the client
// refuses the names of its volumes from then on (hashicorp/nomad#27313). The sandbox gets a volume
// of another name, which is found, resumed from, listed and removed like any.
func TestRunner_NameThatAClientKeeps_IsNotTaken(t *testing.T) {
	t.Parallel()
	s, dir := useStack(t), t.TempDir()
	own := &stack{agent: s.agent, vault: s.vault}
	var err error
	if own.nomad, err = local.StartNomad(t.Context(), local.NomadOptions{Dir: filepath.Join(dir, "nomad")}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := own.nomad.Close(); err != nil {
			t.Error(err)
		}
	})
	if own.client, err = api.NewClient(&api.Config{Address: own.nomad.Address}); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	b := &bench{T: t, s: own, cluster: fmt.Sprintf("cluster-%d", time.Now().UnixNano()), config: nomad.DefaultConfig()}
	b.config.Address, b.config.Logger = own.nomad.Address, slog.New(slog.NewTextHandler(&log, nil))
	b.r, err = nomad.New(b.config)
	b.must(err)
	t.Cleanup(b.r.Close)

	ghost := b.born(b.job(fsm.DriverRawExec), 7)
	ghost.New = true
	b.must(b.r.Start(t.Context(), ghost))
	ghostly := b.look(ghost, "placement", func(o scheduler.Observed) bool { return o.Placement != nil })
	b.must(own.nomad.WipeServer(t.Context()))
	b.until("the servers know nothing of it", func() error {
		if v, o := b.volumes(ghost), b.observed(ghost); len(v) > 0 || o.Exists || o.Live > 0 {
			return fmt.Errorf("volumes %v, observed %+v", v, o)
		}
		return nil
	})

	job := ghost
	b.until("the sandbox starts under another name", func() error { return b.r.Start(t.Context(), job) })
	o := b.look(job, "it runs", func(o scheduler.Observed) bool { return o.Up && o.Placement != nil })
	name := "sandbox-" + job.SandboxID + ".2"
	if v := b.volumes(job); len(v) != 1 || v[0].Name != name || o.Placement.Workspace == ghostly.Placement.Workspace {
		t.Fatalf("its volumes are %+v, and it works in %s", v, o.Placement.Workspace)
	}
	if text := log.String(); !strings.Contains(text, ghostly.Placement.Workspace) {
		t.Errorf("the log does not name the directory that is left, %s:\n%s", ghostly.Placement.Workspace, text)
	}
	kept := filepath.Join(o.Placement.Workspace, "kept.txt")
	b.must(os.WriteFile(kept, []byte("kept"), 0o600))
	job.New, job.ModifyIndex, job.RevertTo, job.HasVersion, job.HasWorkspace = false, o.ModifyIndex, o.Version, true, true
	job = b.paused(job)

	// The next leader resumes it with its file.
	next, err := nomad.New(b.config)
	b.must(err)
	t.Cleanup(next.Close)
	b.r = next
	b.must(b.r.Start(t.Context(), job))
	o = b.look(job, "it runs again", func(o scheduler.Observed) bool { return o.Up && o.Placement != nil })
	if raw, err := os.ReadFile(kept); err != nil || string(raw) != "kept" || filepath.Dir(kept) != o.Placement.Workspace {
		t.Fatalf("in %s its file is %q: %v", o.Placement.Workspace, raw, err)
	}
	clients, err := b.r.Clients(t.Context(), b.cluster)
	if err != nil || len(clients) != 1 || len(clients[0].Sandboxes) != 1 || clients[0].Sandboxes[0] != job.SandboxID {
		t.Errorf("the client's sandboxes: %+v, %v", clients, err)
	}

	// Without its job the volume is an orphan of the sandbox, and it goes.
	job.ModifyIndex, job.KeepWorkspace = o.ModifyIndex, true
	b.must(b.r.Remove(t.Context(), job))
	o = b.look(job, "only the workspace", func(o scheduler.Observed) bool { return !o.Exists && o.Live == 0 })
	if !o.Workspace || o.Birth != job.Birth || o.WorkspaceID != b.volumes(job)[0].ID {
		t.Errorf("the workspace is observed as %+v", o)
	}
	b.must(b.r.RemoveWorkspace(t.Context(), workspaceOf(job, "")))
	if v := b.volumes(job); len(v) != 0 {
		t.Errorf("volumes are left: %+v", v)
	}
}

// TestFact_ClientThatNomadForgets_KeepsItsVolumes: Nomad's servers collect a client that is down, and
// know its volumes on. When it is back the sandbox runs again with its files.
func TestFact_ClientThatNomadForgets_KeepsItsVolumes(t *testing.T) {
	t.Parallel()
	b, second := twoMachines(t)
	first, err := b.s.nomad.NodeID(t.Context())
	b.must(err)
	job := b.born(b.job(fsm.DriverRawExec), 7)
	job.Avoid = []string{first}
	b.must(b.r.Start(t.Context(), job))
	o := b.look(job, "it runs", func(o scheduler.Observed) bool { return o.Up && o.Placement != nil })
	dir, client := o.Placement.Workspace, o.Placement.NodeID
	b.must(os.WriteFile(filepath.Join(dir, "kept.txt"), []byte("kept"), 0o600))
	job.ModifyIndex, job.RevertTo, job.HasVersion, job.HasWorkspace = o.ModifyIndex, o.Version, true, true
	job = b.paused(job)

	b.must(second.Crash())
	b.until("Nomad forgets the client", func() error {
		b.must(b.s.client.System().GarbageCollect())
		_, _, err := b.s.client.Nodes().Info(client, nil)
		if err == nil {
			return errors.New("it is still known")
		}
		return nil
	})
	if v := b.volumes(job); len(v) != 1 {
		t.Fatalf("its volumes are %+v", v)
	}
	b.must(second.Start(t.Context()))
	b.until("the client is back", func() error {
		node, _, err := b.s.client.Nodes().Info(client, nil)
		if err == nil && (node.Status != api.NodeStatusReady || node.HostVolumes["sandbox-"+job.SandboxID] == nil) {
			err = fmt.Errorf("it is %s with the volumes %v", node.Status, node.HostVolumes)
		}
		return err
	})
	job.ModifyIndex = b.observed(job).ModifyIndex
	b.must(b.r.Start(t.Context(), job))
	o = b.look(job, "it runs again", func(o scheduler.Observed) bool { return o.Up && o.Placement != nil })
	raw, err := os.ReadFile(filepath.Join(o.Placement.Workspace, "kept.txt"))
	if err != nil || string(raw) != "kept" || o.Placement.Workspace != dir {
		t.Errorf("in %s its file is %q: %v", o.Placement.Workspace, raw, err)
	}
}

// TestRunner_NewThatHasAVolume_TakesNoOther: a client refuses the name of a volume that is the
// sandbox's own, from an earlier try. It is taken then, and no empty one is made beside it.
func TestRunner_NewThatHasAVolume_TakesNoOther(t *testing.T) {
	t.Parallel()
	b, _ := twoMachines(t)
	first, err := b.s.nomad.NodeID(t.Context())
	b.must(err)
	job := b.born(b.job(fsm.DriverRawExec), 7)
	made, err := b.r.NewWorkspace(t.Context(), job, []string{first})
	b.must(err)
	job.New, job.Avoid = true, []string{first}
	b.must(b.r.Start(t.Context(), job))
	o := b.look(job, "it runs", func(o scheduler.Observed) bool { return o.Up && o.Placement != nil })
	if v := b.volumes(job); len(v) != 1 || v[0].ID != made.ID || b.raw(job).Meta["bivouac_volume"] != made.ID {
		t.Errorf("it runs in %s with the volumes %+v, want %s", o.Placement.Workspace, v, made.ID)
	}
}
