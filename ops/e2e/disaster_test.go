package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

const (
	// quiet is how long the drills wait for a leader to do something wrong. The wrong deletions
	// that led to these drills came within six seconds.
	quiet = 15 * time.Second
	// shortGrace is the shortest accepted unreferenced_grace.
	shortGrace = 2 * time.Minute
)

// disaster is a test cluster that loses more than one node, and its sandboxes.
type disaster struct {
	*operators
	// begun is the time at which the sandboxes were started.
	begun     time.Time
	sandboxes []testcluster.Sandbox
	// placedAs are the allocations of each sandbox.
	placedAs map[string][]string
}

// startDisaster starts a test cluster that records what its nodes destroy.
func startDisaster(t *testing.T, o testcluster.Options) *disaster {
	t.Helper()
	o.Ledger = true
	if o.Vault == "" {
		o.Vault = fmt.Sprintf("unreferenced_grace = %q\ncollect_interval = \"1s\"", shortGrace)
	}
	f := testcluster.Start(t, o)
	return &disaster{operators: &operators{Cluster: f, spec: "raw", node: f.Nodes[0]}, placedAs: map[string][]string{}}
}

// sandbox starts a sandbox with a file that has to survive the drill.
func (d *disaster) sandbox(t *testing.T) testcluster.Sandbox {
	t.Helper()
	d.begun = time.Now()
	id := d.begin(t)
	sb := d.node.AwaitSandbox(t, id, "RUNNING")
	d.sandboxes, d.placedAs[id] = append(d.sandboxes, sb), d.placed(t, id)
	return sb
}

// untouched fails unless every sandbox still has its allocation, its file, its workspace and
// its secrets, and nothing was destroyed.
func (d *disaster) untouched(t *testing.T) {
	t.Helper()
	d.nothingDestroyed(t)
	volumes, err := d.Volumes()
	if err != nil {
		t.Error(err)
	}
	for _, sb := range d.sandboxes {
		if now, was := d.placed(t, sb.ID), d.placedAs[sb.ID]; len(now) != 1 || now[0] != was[0] {
			t.Errorf("sandbox %s ran as %v and runs as %v", sb.ID, was, now)
			continue
		}
		if !strings.Contains(strings.Join(volumes, " "), sb.ID) {
			t.Errorf("the workspace of sandbox %s is gone", sb.ID)
		}
		// Read from the disk: the sandbox proxy serves known sandboxes only.
		if raw, err := os.ReadFile(filepath.Join(d.workspaceOnDisk(t, sb.ID), workspaceFile)); err != nil ||
			string(raw) != sb.ID {
			t.Errorf("the file of sandbox %s holds %q: %v", sb.ID, raw, err)
		}
		if err := d.secretStands("default/sandbox-" + sb.ID + "/"); err != nil {
			t.Error(err)
		}
	}
}

// nothingDestroyed fails for each destruction in Nomad and Vault.
func (d *disaster) nothingDestroyed(t *testing.T) {
	t.Helper()
	for _, destroyed := range d.Ledger.Destroyed() {
		t.Errorf("nobody asked for it: %s", destroyed)
	}
}

// secretStands returns nil if every version below a folder in Vault can be read.
func (d *disaster) secretStands(folder string) error {
	entries, err := d.VaultEntries()
	if err != nil {
		return err
	}
	found := 0
	for _, e := range entries {
		if !strings.HasPrefix(e, folder) {
			continue
		}
		var meta struct {
			Data struct {
				Versions map[string]struct {
					Destroyed bool
					Deleted   string `json:"deletion_time"`
				}
			}
		}
		if err := d.Vault.Do(d.ctx(), http.MethodGet, "secret/metadata/"+e, nil, &meta); err != nil {
			return err
		}
		for number, v := range meta.Data.Versions {
			if v.Destroyed || v.Deleted != "" {
				return fmt.Errorf("version %s of %s is gone (destroyed %t, deleted %q)", number, e, v.Destroyed, v.Deleted)
			}
			found++
		}
	}
	if found == 0 {
		return fmt.Errorf("nothing is below %s in Vault", folder)
	}
	return nil
}

// killAll kills every node with SIGKILL.
func (d *disaster) killAll() {
	for _, n := range d.Nodes {
		n.Kill()
	}
}

// copies copies every data directory while all nodes are stopped.
func (d *disaster) copies(t *testing.T) {
	t.Helper()
	d.killAll()
	for _, n := range d.Nodes {
		if err := n.CopyData(n.Data + ".copy"); err != nil {
			t.Fatal(err)
		}
	}
	d.Restart(t)
}

// verdict prints the result of one part.
func (d *disaster) verdict(t *testing.T, format string, args ...any) {
	t.Helper()
	word := "as it should be"
	if t.Failed() {
		word = "FAILED"
	}
	t.Logf("--- verdict: %s: %s: %s", t.Name(), word, fmt.Sprintf(format, args...))
}

// rollBack restores the copies while all nodes are stopped.
func (d *disaster) rollBack(t *testing.T) {
	t.Helper()
	d.killAll()
	for _, n := range d.Nodes {
		if err := testcluster.CopyTree(n.Data+".copy", n.Data); err != nil {
			t.Fatal(err)
		}
		d.adopt(t, n)
	}
}

// TestDisksRolledBack restores older copies of all data directories. Sandboxes that are missing
// from them keep running with their files, and the cluster holds.
func TestDisksRolledBack(t *testing.T) {
	d := startDisaster(t, testcluster.Options{})
	known := d.sandbox(t)
	d.copies(t)
	unknown := d.sandbox(t)
	d.rollBack(t)
	begin := time.Now()
	d.Restart(t)
	served := time.Since(begin)
	d.stillFor(t, quiet)
	d.untouched(t)
	findings := d.holds(t)
	if _, err := d.node.Sandbox(known.ID); err != nil {
		t.Errorf("the sandbox from before the copies: %v", err)
	}
	if _, err := d.node.Sandbox(unknown.ID); !errors.Is(err, testcluster.ErrGone) {
		t.Errorf("the sandbox from after the copies is known: %v", err)
	}
	d.verdict(t, "the nodes served after %.1f s; both sandboxes run with their files, 1 is not known to the cluster; %s",
		served.Seconds(), findings)
}

// stillFor waits, and returns early if something was destroyed.
func (d *disaster) stillFor(t *testing.T, patience time.Duration) {
	t.Helper()
	begin := time.Now()
	_ = testcluster.Await(patience, func() error {
		if len(d.Ledger.Destroyed()) > 0 {
			t.Logf("the first destruction came after %.1f s", time.Since(begin).Seconds())
			return nil
		}
		return errors.New("nothing was destroyed")
	})
}
