package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// machines is a test cluster whose sandboxes run on machines that end.
type machines struct {
	*lost
	store string
}

// client is what `bivouac operator client list --json` says of a client.
type client struct {
	ID          string
	Mark        *string
	Workspaces  int
	Running     int
	WithoutCopy int `json:"without_copy"`
	Drain       string
	Failure     string
}

// operate runs `bivouac operator client` with the key of an operator.
func (m *machines) operate(t *testing.T, args ...string) (string, error) {
	t.Helper()
	args = append([]string{"operator", "client"}, append(args, "--address", m.node.Base, "--api-key-file", m.KeyFile)...)
	return m.Command(t.Context(), args...)
}

// await waits until a client is as wanted.
func (m *machines) await(t *testing.T, what, id string, ok func(client) bool) {
	t.Helper()
	testcluster.Eventually(t, what, func() error {
		out, err := m.operate(t, "list", "--json")
		var list []client
		if err = errors.Join(err, json.Unmarshal([]byte(out), &list)); err != nil {
			return err
		}
		for _, c := range list {
			if c.ID == id && ok(c) {
				return nil
			}
		}
		return fmt.Errorf("the clients are %s", out)
	})
}

// runs waits until the sandbox is RUNNING on a client with a detail that has the words, and its
// file is there.
func (m *machines) runs(t *testing.T, id, on, words string) string {
	t.Helper()
	sb := m.node.AwaitSandbox(t, id, "RUNNING")
	if !strings.Contains(sb.Detail(), words) {
		t.Errorf("sandbox %s is RUNNING with the detail %q, want %q", id, sb.Detail(), words)
	}
	hasFile(t, sb, workspaceFile)
	allocs, err := m.Allocs()
	m.must(t, err)
	for _, a := range allocs {
		if a.JobID == "sandbox-"+id && a.ClientStatus == "running" && a.NodeID != on {
			t.Errorf("sandbox %s runs on %s, want %s", id, a.NodeID, on)
		}
	}
	return sb.Detail()
}

// TestMachines destroys a client with its disk and drains another. What ran there, and what was
// paused there, comes back elsewhere with its files. A copy that was changed in the store is refused.
func TestMachines(t *testing.T) {
	if !long() {
		t.Skip("takes minutes; BIVOUAC_DRILL=long runs it")
	}
	store := t.TempDir()
	f := testcluster.Start(t, testcluster.Options{
		Backend: fmt.Sprintf("lost_after = %q",
			lostAfter), Config: fmt.Sprintf("workspaces {\n  backup   = \"file://%s\"\n  interval = \"10s\"\n}\n", store),
	})
	first, err := f.Nomad.NodeID(t.Context())
	second := f.AddMachine(t)
	m := &machines{
		lost:  &lost{operators: &operators{Cluster: f, spec: "raw", node: f.Nodes[0]}, machine: second},
		store: store,
	}
	m.must(t, err)
	m.id, err = second.NodeID(t.Context())
	m.must(t, err)

	f.Eligible(t, first, false)
	running, paused, damaged := m.begin(t), m.begin(t), m.begin(t)
	for _, id := range []string{paused, damaged} {
		m.node.Change(t, id, "pause")
		m.node.AwaitSandbox(t, id, "PAUSED")
	}
	if out, err := m.operate(t, "drain", m.id, "--yes"); err == nil ||
		!strings.Contains(out+err.Error(), "no other client that takes jobs") {
		t.Errorf("a drain without another client: %s %v", out, err)
	}
	f.Eligible(t, first, true)
	if out, err := m.operate(t, "lost", m.id, "--yes"); err == nil || !strings.Contains(out+err.Error(), "is not lost") {
		t.Errorf("a client that Nomad reaches was given up: %s %v", out, err)
	}
	m.await(t, "all workspaces are copied", m.id, func(c client) bool { return c.Workspaces == 3 && c.WithoutCopy == 0 })
	m.verify(t, "")
	m.change(t, damaged)
	m.verify(t, damaged)

	m.must(t, second.Crash())
	m.must(t, os.RemoveAll(filepath.Join(second.Dir, "data")))
	m.is(t, "down", "disconnected")
	sb := m.fails(t, running, "is away", "was lost")
	t.Logf("--- before the operator's word it says %q", sb.Detail())
	out, err := m.operate(t, "lost", m.id, "--yes")
	m.must(t, err)
	t.Logf("--- %s", strings.TrimSpace(out))
	detail := m.runs(t, running, first, "was lost: the workspace is the copy of")
	t.Logf("--- verdict: what ran is back, and says %q", detail)
	m.node.Change(t, paused, "resume")
	m.runs(t, paused, first, "was lost: the workspace is the copy of")
	t.Logf("--- verdict: what was paused is back")
	m.node.Change(t, damaged, "resume")
	testcluster.Eventually(t, "the changed copy is refused", func() error {
		sb, err := m.node.Sandbox(damaged)
		if err == nil && (sb.Status == "RUNNING" || !strings.Contains(sb.Detail(), "damaged")) {
			err = fmt.Errorf("it is %s (%s)", sb.Status, sb.Detail())
		}
		if err == nil {
			t.Logf("--- verdict: the changed copy: %s %q", sb.Status, sb.Detail())
		}
		return err
	})
	m.node.Change(t, damaged, "delete")
	m.drained(t, first, running, paused)
	for _, id := range []string{running, paused} {
		hasFile(t, m.node.AwaitSandbox(t, id, "RUNNING"), workspaceFile)
	}
	m.node.Change(t, running, "delete")
	m.node.Change(t, paused, "delete")
	testcluster.Eventually(t, "no copies of deleted sandboxes are left", func() error {
		var left []string
		err := filepath.WalkDir(store, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				left = append(left, path)
			}
			return err
		})
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%v", left)
		}
		return err
	})
}

// verify reads all copies as an operator does, and finds the one that is damaged, "" for none. Nothing in
// the store says what is in the workspaces.
func (m *machines) verify(t *testing.T, damaged string) {
	t.Helper()
	out, err := m.Command(t.Context(), "operator", "copies", "verify", "--config", m.node.File(), "--json",
		"--address", m.node.Base, "--api-key-file", m.KeyFile)
	var found []struct{ Sandbox, Problem string }
	m.must(t, json.Unmarshal([]byte(out), &found))
	if (err != nil) != (damaged != "") || len(found) != 3 {
		t.Errorf("verify ended with %v: %s", err, out)
	}
	for _, one := range found {
		if (one.Problem != "") != (one.Sandbox == damaged) {
			t.Errorf("the copy of %s: %q, damaged is %q", one.Sandbox, one.Problem, damaged)
		}
	}
	m.must(t, filepath.WalkDir(m.store, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		if damaged == "" && !strings.HasPrefix(string(raw), "age-encryption.org/v1\n") ||
			strings.Contains(string(raw), workspaceFile) {
			t.Errorf("%s is not encrypted", path)
		}
		return err
	}))
	t.Logf("--- verdict: verify reads %d copies, of which %q is damaged", len(found), damaged)
}

// change changes a byte of the sandbox's content in the store.
func (m *machines) change(t *testing.T, id string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(m.store, "*", id, "*", "data-*"))
	m.must(t, err)
	if len(files) == 0 {
		t.Fatal("the store has no content of the sandbox")
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		m.must(t, err)
		raw[len(raw)/2] ^= 1
		m.must(t, os.WriteFile(file, raw, 0o600))
	}
}

// drained drains the only machine that is left after a third has come, and kills the leader
// meanwhile. One sandbox runs there, and one is paused.
func (m *machines) drained(t *testing.T, first, running, paused string) {
	third := m.AddMachine(t)
	to, err := third.NodeID(t.Context())
	m.must(t, err)
	m.node.Change(t, paused, "pause")
	m.node.AwaitSandbox(t, paused, "PAUSED")
	_, err = m.operate(t, "drain", first, "--yes")
	m.must(t, err)
	leader := m.Leader(t)
	leader.Kill()
	for _, n := range m.Nodes {
		if n != leader {
			m.node = n
		}
	}
	m.await(t, "nothing is left on the drained client", first, func(c client) bool { return c.Workspaces == 0 })
	m.runs(t, running, to, "was moved here from the Nomad client")
	m.node.Change(t, paused, "resume")
	m.node.AwaitSandbox(t, paused, "RUNNING")
	m.runs(t, paused, to, "")
	_, err = m.operate(t, "enable", first)
	m.must(t, err)
	t.Logf("--- verdict: both sandboxes run on the third machine with their files, after the leader was killed")
}
