package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// TestDrain drains a Nomad client in a cluster in which nothing else happens, with Nomad's ACLs. Without
// alloc-exec it is refused and pauses nothing. When that is taken away after the trial, one sandbox is
// paused, and runs again where it was. With the shipped policy everything is moved, a file of only holes,
// too, and new sandboxes go to the other client.
func TestDrain(t *testing.T) {
	f := testcluster.Start(t, testcluster.Options{ACL: true})
	first, err := f.Nomad.NodeID(t.Context())
	second := f.AddMachine(t)
	m := &machines{lost: &lost{operators: &operators{Cluster: f, spec: "raw", node: f.Nodes[0]}, machine: second}}
	m.must(t, err)
	m.id, err = second.NodeID(t.Context())
	m.must(t, err)
	f.Eligible(t, first, false)
	ids := []string{m.begin(t), m.begin(t)}
	f.Eligible(t, first, true)
	const holes = `cd "$(dirname "$OH_CONVERSATIONS_PATH")" && `
	_, err = m.node.AwaitSandbox(t, ids[0], "RUNNING").Shell(holes + "truncate -s 64M holes && echo made")
	m.must(t, err)
	before := map[string][]string{}
	for _, id := range ids {
		before[id] = m.placed(t, id)
	}
	rules, err := f.Nomad.Policy()
	m.must(t, err)
	exec := func(allowed bool) {
		t.Helper()
		now := rules
		if !allowed {
			now = strings.NewReplacer(`"alloc-exec",`, "", `"alloc-node-exec",`, "").Replace(rules)
		}
		m.must(t, f.Nomad.WritePolicy(t.Context(), now))
	}

	exec(false)
	out, err := m.operate(t, "drain", m.id, "--yes")
	if err == nil || !strings.Contains(err.Error(), "alloc-exec") || !strings.Contains(err.Error(), "nothing was paused") {
		t.Errorf("a drain without alloc-exec: %s %v", out, err)
	}
	for _, id := range ids {
		m.same(t, id, before[id])
	}
	t.Logf("--- verdict: without alloc-exec it is refused: %v", err)

	exec(true)
	m.node.Sure(t, http.MethodPost, "/api/v1/operator/clients/"+m.id+"/drain", nil, nil)
	exec(false)
	m.await(t, "the drain stopped", m.id, func(c client) bool {
		return c.Drain == "stopped" &&
			strings.Contains(c.Failure, "alloc-exec")
	})
	testcluster.Eventually(t, "all run where they were", func() error { return m.allOn(m.id, ids) })
	paused := 0
	for _, id := range ids {
		hasFile(t, m.node.AwaitSandbox(t, id, "RUNNING"), workspaceFile)
		if now := m.placed(t, id); len(now) != 1 || now[0] != before[id][0] {
			paused++
		}
	}
	if paused != 1 {
		t.Errorf("%d of %d sandboxes were paused, want the first alone", paused, len(ids))
	}
	said, err := m.Command(t.Context(), "status", "--address", m.node.Base, "--api-key-file", m.KeyFile)
	if err == nil || !strings.Contains(said, "the drain of the Nomad client "+m.id+" stopped") {
		t.Errorf("the status says nothing of it: %v\n%s", err, said)
	}
	t.Logf("--- verdict: a drain that could not go on brought back the one sandbox that it paused, " +
		"and says so in the status")

	exec(true)
	// Nomad's clients remember for a moment what a token may.
	testcluster.Eventually(t, "a drain with the shipped policy", func() error {
		out, err := m.operate(t, "drain", m.id, "--yes")
		if err != nil {
			err = fmt.Errorf("%s: %w", out, err)
		}
		return err
	})
	m.await(t, "nothing is left on the drained client", m.id, func(c client) bool {
		return c.Workspaces == 0 &&
			c.Drain == "all"
	})
	for _, id := range ids {
		m.runs(t, id, first, "was moved here from the Nomad client")
	}
	size, err := m.node.AwaitSandbox(t, ids[0], "RUNNING").Shell(holes + "stat -c '%s %b' holes")
	m.must(t, err)
	if bytes, blocks, _ := strings.Cut(size, " "); bytes != "67108864" || blocks != "0" {
		t.Errorf("the file of only holes has %s bytes in %s blocks", bytes, blocks)
	}
	t.Logf("--- verdict: with the shipped policy both were moved, with their files")
	m.newGoTo(t, first)
}

// TestDrain_InError drains a client on which there is nothing but a sandbox in ERROR, whose agent server
// was killed until Nomad gave it up. It is moved with its file, and runs again on the other client.
func TestDrain_InError(t *testing.T) {
	f := testcluster.Start(t, testcluster.Options{ACL: true})
	first, err := f.Nomad.NodeID(t.Context())
	second := f.AddMachine(t)
	m := &machines{lost: &lost{operators: &operators{Cluster: f, spec: "raw", node: f.Nodes[0]}, machine: second}}
	m.must(t, err)
	m.id, err = second.NodeID(t.Context())
	m.must(t, err)
	f.Eligible(t, first, false)
	id := m.begin(t)
	f.Eligible(t, first, true)
	testcluster.Eventually(t, "Nomad gives the sandbox up", func() error {
		sb, err := m.node.Sandbox(id)
		if err == nil && sb.Status == "ERROR" {
			return nil
		}
		return errors.Join(err, m.killAgents(id), fmt.Errorf("it is %s (%s)", sb.Status, sb.Detail()))
	})
	out, err := m.operate(t, "drain", m.id, "--yes")
	if err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	m.await(t, "nothing is left on the drained client", m.id, func(c client) bool {
		return c.Workspaces == 0 &&
			c.Drain == "all"
	})
	m.runs(t, id, first, "was moved here from the Nomad client")
}

// killAgents kills the processes of a sandbox's live allocations.
func (m *machines) killAgents(id string) error {
	allocs, err := m.Allocs()
	if err != nil {
		return err
	}
	environs, err := filepath.Glob("/proc/[0-9]*/environ")
	for _, a := range allocs {
		if a.JobID != "sandbox-"+id || !a.Live() {
			continue
		}
		for _, environ := range environs {
			pid, failed := strconv.Atoi(filepath.Base(filepath.Dir(environ)))
			raw, unread := os.ReadFile(environ)
			if failed == nil && unread == nil && strings.Contains(string(raw), "NOMAD_ALLOC_ID="+a.ID) {
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
			}
		}
	}
	return err
}

// allOn returns nil if each sandbox has one live allocation, on the client, and is RUNNING.
func (m *machines) allOn(on string, ids []string) error {
	allocs, err := m.Allocs()
	if err != nil {
		return err
	}
	for _, id := range ids {
		live := 0
		for _, a := range allocs {
			if a.JobID == "sandbox-"+id && a.Live() && a.NodeID == on {
				live++
			}
		}
		sb, err := m.node.Sandbox(id)
		if err != nil || live != 1 || sb.Status != "RUNNING" {
			return fmt.Errorf("sandbox %s is %s with %d allocations there: %w", id, sb.Status, live, err)
		}
	}
	return nil
}
