package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// laterFile is written after the copy from which a sandbox comes back.
const laterFile = "later.txt"

// orphan is what `bivouac operator orphans list --json` says of one.
type orphan struct {
	Kind, Sandbox, Owner, Client, Volume string
	Bytes                                int64
	Since                                time.Time
	RemovableAt                          time.Time `json:"removable_at"`
}

// orphans runs `bivouac operator orphans` with the key of an operator.
func (m *machines) orphans(t *testing.T, args ...string) (string, error) {
	t.Helper()
	args = append([]string{"operator", "orphans"}, append(args, "--address", m.node.Base, "--api-key-file", m.KeyFile)...)
	return m.Command(t.Context(), args...)
}

// lostOrphans lists what lost clients still have.
func (m *machines) lostOrphans(t *testing.T) (list []orphan) {
	t.Helper()
	testcluster.Eventually(t, "the list of orphans", func() error {
		out, err := m.orphans(t, "list", "--json")
		list = nil
		return errors.Join(err, json.Unmarshal([]byte(out), &list))
	})
	return slices.DeleteFunc(list, func(o orphan) bool { return o.Kind != "lost" })
}

// hasVolume returns nil if Nomad's having the volume is as wanted.
func (m *machines) hasVolume(t *testing.T, id string, wanted bool) error {
	t.Helper()
	var list []struct{ ID string }
	err := m.Nomad.Do(t.Context(), "GET", "volumes?type=host", nil, &list)
	has := slices.ContainsFunc(list, func(v struct{ ID string }) bool { return v.ID == id })
	if err == nil && has != wanted {
		err = fmt.Errorf("Nomad has the volume %s: %v", id, has)
	}
	return err
}

// TestOrphan loses a client, which comes back with its disk, in a cluster in which nothing else happens.
// New sandboxes go to the other client while it is marked. What it has of the sandbox that came back from
// its copy stays through a change of the leader and the sandbox's deletion. Restored, it has what was
// written after the copy. An operator deletes it.
func TestOrphan(t *testing.T) {
	f := testcluster.Start(t, testcluster.Options{
		Backend: fmt.Sprintf("lost_after = %q", lostAfter),
		Config:  fmt.Sprintf("workspaces {\n  backup   = \"file://%s\"\n  interval = \"1h\"\n}\n", t.TempDir()),
	})
	first, err := f.Nomad.NodeID(t.Context())
	second := f.AddMachine(t)
	m := &machines{lost: &lost{operators: &operators{Cluster: f, spec: "raw", node: f.Nodes[0]}, machine: second}}
	m.must(t, err)
	m.id, err = second.NodeID(t.Context())
	m.must(t, err)

	f.Eligible(t, first, false)
	id := m.begin(t)
	f.Eligible(t, first, true)
	m.node.Change(t, id, "pause")
	m.node.AwaitSandbox(t, id, "PAUSED")
	m.await(t, "the workspace is copied", m.id, func(c client) bool { return c.Workspaces == 1 && c.WithoutCopy == 0 })
	m.node.Change(t, id, "resume")
	sb := m.node.AwaitSandbox(t, id, "RUNNING")
	dir, err := sb.WorkspaceDir()
	m.must(t, err)
	m.must(t, sb.WriteFile(dir+"/"+laterFile, "after the copy"))

	m.must(t, second.Crash())
	m.is(t, "down", "disconnected")
	_, err = m.operate(t, "lost", m.id, "--yes")
	m.must(t, err)
	m.runs(t, id, first, "was lost: the workspace is the copy of")
	m.must(t, second.Start(t.Context()))
	m.is(t, "ready")
	list := m.lostOrphans(t)
	if len(list) != 1 || list[0].Sandbox != id || list[0].Client != m.id || list[0].Owner == "" || list[0].Bytes == 0 ||
		!list[0].RemovableAt.Equal(list[0].Since.AddDate(0, 0, 30)) {
		t.Fatalf("on record is %+v", list)
	}
	volume := list[0].Volume
	m.newGoTo(t, first)

	_, err = m.operate(t, "enable", m.id)
	m.must(t, err)
	leader := m.Leader(t)
	leader.Kill()
	for _, n := range m.Nodes {
		if n != leader {
			m.node = n
		}
	}
	m.Leader(t)
	m.node.AwaitSandbox(t, id, "RUNNING")
	m.node.Change(t, id, "delete")
	testcluster.Eventually(t, "the sandbox's own volume is gone", func() error {
		names, err := m.Volumes()
		if n := len(slices.DeleteFunc(names, func(name string) bool { return name != "sandbox-"+id })); err == nil && n != 1 {
			err = fmt.Errorf("there are %d volumes of its name", n)
		}
		return err
	})
	m.must(t, m.hasVolume(t, volume, true))
	if list := m.lostOrphans(t); len(list) != 1 || list[0].Volume != volume {
		t.Errorf("on record is %+v", list)
	}
	t.Logf("--- verdict: what the client has outlived the leader and the sandbox")
	m.restored(t, volume)
}

// newGoTo makes sandboxes while the second machine, which is ready, is marked. They start once each, on a
// client.
func (m *machines) newGoTo(t *testing.T, client string) {
	t.Helper()
	for range 3 {
		id := m.begin(t)
		allocs, err := m.Allocs()
		m.must(t, err)
		for _, a := range allocs {
			if a.JobID == "sandbox-"+id && a.NodeID != client {
				t.Errorf("a new sandbox went to the client that is marked: %+v", a)
			}
		}
		if n := len(m.placed(t, id)); n != 1 {
			t.Errorf("a new sandbox was placed %d times", n)
		}
		m.node.Change(t, id, "delete")
	}
	t.Logf("--- verdict: three new sandboxes went to the other client, each with one start")
}

// restored makes a sandbox of the volume, and deletes the volume.
func (m *machines) restored(t *testing.T, volume string) {
	t.Helper()
	out, err := m.orphans(t, "restore", volume, "--json")
	var made struct{ Sandbox, Owner string }
	if err = errors.Join(err, json.Unmarshal([]byte(out), &made)); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	sb := m.node.AwaitSandbox(t, made.Sandbox, "RUNNING")
	dir, err := sb.WorkspaceDir()
	m.must(t, err)
	got, err := sb.ReadFile(dir + "/" + laterFile)
	m.must(t, err)
	if got != "after the copy" {
		t.Errorf("the restored sandbox has %q", got)
	}
	m.must(t, m.hasVolume(t, volume, true))
	_, err = m.orphans(t, "delete", "lost", volume, "--yes")
	m.must(t, err)
	testcluster.Eventually(t, "the orphan is gone", func() error {
		if list := m.lostOrphans(t); len(list) > 0 {
			return fmt.Errorf("on record is %+v", list)
		}
		return m.hasVolume(t, volume, false)
	})
	sb = m.node.AwaitSandbox(t, made.Sandbox, "RUNNING")
	if got, err := sb.ReadFile(dir + "/" + laterFile); err != nil || got != "after the copy" {
		t.Errorf("without the volume that it came from it has %q: %v", got, err)
	}
	t.Logf("--- verdict: the restored sandbox has what was written after the copy, and the volume it came from is deleted")
}
