package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
	"bivouac.dev/bivouac/ops/e2e/testcluster/nodeconfig"
)

// TestLostQuorum loses two of three disks permanently. The third node becomes a cluster of one,
// two new nodes join it, and the sandbox keeps running with its file.
func TestLostQuorum(t *testing.T) {
	if !long() {
		t.Skip("make drills runs this")
	}
	d := startDisaster(t, testcluster.Options{})
	sb := d.sandbox(t)
	survivor := d.Nodes[2]
	before := d.settingsOf(t, "before the loss")
	begin := time.Now()
	d.killAll()
	for _, n := range d.Nodes[:2] {
		if err := os.RemoveAll(n.Data); err != nil {
			t.Fatal(err)
		}
	}
	out, err := d.Command(t.Context(), "operator", "recover", "--config", survivor.File(), "--yes")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("operator recover:\n%s", out)
	d.node = survivor
	survivor.Start(t)
	survivor.Ready(t)
	served := time.Since(begin)
	for i, n := range d.Nodes[:2] {
		err := errors.Join(n.Configure(func(c *nodeconfig.Config) { c.Name = fmt.Sprintf("n%d", 4+i) }), n.EmptyData())
		if err != nil {
			t.Fatal(err)
		}
		n.Start(t)
	}
	for _, n := range d.Nodes[:2] {
		n.Ready(t)
	}
	testcluster.Eventually(t, "three nodes vote", func() error { return d.node.Votes(3) })
	whole := time.Since(begin)
	command := "status"
	if d.knows(t, "members") {
		command = "members"
	}
	t.Logf("operator %s:\n%s", command, survivor.Operate(t, "operator", command))
	d.stillFor(t, quiet)
	d.untouched(t)
	for _, n := range d.Nodes {
		if got := d.settingsAt(t, n); got != before {
			t.Errorf("%s shows the settings %q, acknowledged were %q", n.Member(), got, before)
		}
		if got, err := n.Sandbox(sb.ID); err != nil || got.Status != "RUNNING" {
			t.Errorf("%s shows the sandbox as %s (%s): %v", n.Member(), got.Status, got.Detail(), err)
		}
	}
	d.verdict(t, "two of three disks lost: the third one served alone after %.1f s and with two new nodes after %.1f s; "+
		"the sandbox ran on with its file; lost: nothing; %s",
		served.Seconds(), whole.Seconds(), d.findings(t))
}

// TestRestoredOnNewMachines loses all disks and restores the state from a file on three new
// data directories. The sandbox keeps running with its file. Only the writes after the save are
// lost.
func TestRestoredOnNewMachines(t *testing.T) {
	if !long() {
		t.Skip("make drills runs this")
	}
	d := startDisaster(t, testcluster.Options{})
	sb := d.sandbox(t)
	before := d.settingsOf(t, "in the file")
	file := filepath.Join(t.TempDir(), "bivouac.snap")
	begin := time.Now()
	d.node.Operate(t, "operator", "snapshot", "save", file)
	saved := time.Since(begin)
	d.settingsOf(t, "after the file")
	late := d.sandbox(t)

	begin = time.Now()
	d.killAll()
	for _, n := range d.Nodes {
		if err := errors.Join(n.EmptyData(), n.Configure(expectOne)); err != nil {
			t.Fatal(err)
		}
	}
	d.node.Start(t)
	d.node.Ready(t)
	key := d.Run(t, "keys", "bootstrap", "--config", d.node.File())
	fresh := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(fresh, []byte(key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := d.Run(t, "operator", "snapshot", "restore", file, "--keys", "keep", "--yes", "--address", d.node.Base,
		"--api-key-file", fresh)
	t.Logf("operator snapshot restore:\n%s", out)
	d.node.Ready(t)
	served := time.Since(begin)
	for _, n := range d.Nodes[1:] {
		n.Start(t)
	}
	for _, n := range d.Nodes {
		n.Ready(t)
	}
	testcluster.Eventually(t, "three nodes vote", func() error { return d.node.Votes(3) })
	whole := time.Since(begin)
	d.stillFor(t, quiet)
	d.untouched(t)
	for _, n := range d.Nodes {
		if got := d.settingsAt(t, n); got != before {
			t.Errorf("%s shows the settings %q, the file has %q", n.Name, got, before)
		}
		if got, err := n.Sandbox(sb.ID); err != nil || got.Status != "RUNNING" {
			t.Errorf("%s shows the sandbox as %s (%s): %v", n.Name, got.Status, got.Detail(), err)
		}
		if _, err := n.Sandbox(late.ID); !errors.Is(err, testcluster.ErrGone) {
			t.Errorf("%s knows the sandbox that came after the file: %v", n.Name, err)
		}
	}
	d.verdict(t, "saved in %.1f s; all disks lost: one new node served the restored state after %.1f s, "+
		"three after %.1f s; both sandboxes ran on with their files; lost: the writes after the file, "+
		"among them one sandbox's row; %s",
		saved.Seconds(), served.Seconds(), whole.Seconds(), d.findings(t))
}

// expectOne makes a node a cluster of its own.
func expectOne(c *nodeconfig.Config) { c.Expect = 1 }

// settingsOf writes the operator's settings and returns the value.
func (d *disaster) settingsOf(t *testing.T, name string) string {
	t.Helper()
	d.node.Sure(t, "POST", "/api/settings", map[string]any{"git_user_name": name}, nil)
	return name
}

// settingsAt reads them through a node.
func (d *disaster) settingsAt(t *testing.T, n *testcluster.Node) string {
	t.Helper()
	var got struct {
		Name string `json:"git_user_name"`
	}
	n.Sure(t, "GET", "/api/settings", nil, &got)
	return got.Name
}

// TestReplacedUnderNewName loses a node permanently, adds another under a new name, and then
// loses a second one of the first three. The cluster keeps its quorum.
func TestReplacedUnderNewName(t *testing.T) {
	if !long() {
		t.Skip("make drills runs this")
	}
	f := testcluster.Start(t, testcluster.Options{Bare: true, Raft: bareRaftOf("dead_after         = \"5s\"")})
	d := &disaster{operators: &operators{Cluster: f, node: f.Nodes[2]}}
	d.settingsOf(t, "before")
	lost, second := f.Nodes[0], f.Nodes[1]
	begin := time.Now()
	lost.Kill()
	err := lost.Configure(func(c *nodeconfig.Config) {
		c.Name, c.HTTP, c.Peer = "n4", testcluster.FreeAddress(t), testcluster.FreeAddress(t)
	})
	if err := errors.Join(err, lost.EmptyData()); err != nil {
		t.Fatal(err)
	}
	lost.Start(t)
	lost.Ready(t)
	testcluster.Eventually(t, "n4 votes in the place of n1", func() error { return d.node.Votes(3) })
	replaced := time.Since(begin)
	second.Kill()
	begin = time.Now()
	written := d.settingsOf(t, "after a second loss")
	wrote := time.Since(begin)
	for _, n := range []*testcluster.Node{lost, f.Nodes[2]} {
		if got := d.settingsAt(t, n); got != written {
			t.Errorf("%s shows %q", n.Member(), got)
		}
	}
	word := "as it should be"
	if t.Failed() {
		word = "FAILED"
	}
	t.Logf("--- verdict: %s: %s: n4 had the place of n1 after %.1f s (dead_after is 5 s); "+
		"with n2 dead as well a write was acknowledged after %.2f s",
		t.Name(), word, replaced.Seconds(), wrote.Seconds())
}

// bareRaftOf is the raft block with one more line.
func bareRaftOf(line string) string { return bareRaft + "\n  " + line }
