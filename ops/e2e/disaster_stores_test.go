package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// TestStartedEmpty starts the nodes with empty data directories on the same Vault and Nomad. No
// secret, job or workspace is deleted.
func TestStartedEmpty(t *testing.T) {
	if !long() {
		t.Skip("make drills runs this: secrets must be older than the shortest grace")
	}
	d := startDisaster(t, testcluster.Options{})
	d.sandbox(t)
	d.killAll()
	for _, n := range d.Nodes {
		if err := os.Rename(n.Data, n.Data+".unmounted"); err != nil {
			t.Fatal(err)
		}
	}
	d.Restart(t)
	key := d.Run(t, "keys", "bootstrap", "--config", d.Nodes[0].File())
	for _, n := range d.Nodes {
		n.Key = key
	}
	d.stillFor(t, shortGrace+quiet-time.Since(d.begun))
	d.untouched(t)
	findings := d.findings(t)
	d.killAll()
	for _, n := range d.Nodes {
		if err := errors.Join(os.RemoveAll(n.Data), os.Rename(n.Data+".unmounted", n.Data)); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := os.ReadFile(d.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range d.Nodes {
		n.Key = strings.TrimSpace(string(raw))
	}
	begin := time.Now()
	d.Restart(t)
	hasFile(t, d.node.AwaitSandbox(t, d.sandboxes[0].ID, "RUNNING"), workspaceFile)
	d.verdict(t, "an empty cluster ran for %s beside the sandbox of another and destroyed nothing (%s); "+
		"with its disks the cluster was back after %.1f s",
		(shortGrace + quiet).Round(time.Second), findings, time.Since(begin).Seconds())
}

// TestSecondCluster starts another cluster on the same Vault and Nomad with the same prefix.
// Neither changes the other's data.
func TestSecondCluster(t *testing.T) {
	if !long() {
		t.Skip("make drills runs this: secrets must be older than the shortest grace")
	}
	d := startDisaster(t, testcluster.Options{})
	sb := d.sandbox(t)
	other := startDisaster(t, testcluster.Options{Beside: d.Cluster})
	other.stillFor(t, shortGrace+quiet-time.Since(d.begun))
	for _, destroyed := range other.Ledger.Destroyed() {
		t.Errorf("the second cluster: %s", destroyed)
	}
	d.untouched(t)
	hasFile(t, d.node.AwaitSandbox(t, sb.ID, "RUNNING"), workspaceFile)
	d.verdict(t, "two clusters on one Vault and Nomad for %s; nothing was destroyed; the second one: %s",
		(shortGrace + quiet).Round(time.Second), other.findings(t))
}

// TestNomadRolledBack restores an older copy of Nomad's data. The jobs that are missing from it
// are neither started nor stopped.
func TestNomadRolledBack(t *testing.T) {
	if !long() {
		t.Skip("make drills runs this")
	}
	d := startDisaster(t, testcluster.Options{})
	kept := d.sandbox(t)
	data := filepath.Join(d.Nomad.Dir, "data", "server")
	d.nomadWhileStopped(t, func() error { return testcluster.CopyTree(data, data+".copy") })
	late := d.sandbox(t)
	d.nomadWhileStopped(t, func() error { return testcluster.CopyTree(data+".copy", data) })
	d.stillFor(t, quiet)
	d.nothingDestroyed(t)
	findings := d.holds(t)
	hasFile(t, kept, workspaceFile)
	sb, err := d.node.Sandbox(late.ID)
	if err != nil {
		t.Errorf("the sandbox that Nomad forgot: %v", err)
	}
	d.verdict(t, "Nomad forgot one sandbox of two; it is shown as %s (%s); %s", sb.Status, sb.Detail(), findings)
}

// nomadWhileStopped changes Nomad's files while Nomad is stopped.
func (d *disaster) nomadWhileStopped(t *testing.T, change func() error) {
	t.Helper()
	if err := errors.Join(d.Nomad.Stop(), change(), d.Nomad.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// TestVaultRolledBack restores an older copy of Vault's data. The key of a later sandbox is
// missing, and the cluster holds because of the mark.
func TestVaultRolledBack(t *testing.T) {
	if !long() {
		t.Skip("make drills runs this")
	}
	d := startDisaster(t, testcluster.Options{})
	kept := d.sandbox(t)
	data := filepath.Join(d.Vault.Dir, "data")
	d.markInVault(t)
	d.vaultWhileStopped(t, func() error { return testcluster.CopyTree(data, data+".copy") })
	before := d.markInVault(t)
	late := d.sandbox(t)
	testcluster.Eventually(t, "a mark soon after the start", func() error {
		if m := d.markInVault(t); m.Index <= before.Index {
			return fmt.Errorf("it is %d and was %d", m.Index, before.Index)
		}
		return nil
	})
	begin := time.Now()
	d.vaultWhileStopped(t, func() error { return testcluster.CopyTree(data+".copy", data) })
	d.holdsFor(t, fsm.FindingMarkBehind, fsm.StoreVault)
	held := time.Since(begin)
	d.stillFor(t, quiet)
	d.nothingDestroyed(t)
	findings := d.holds(t)
	hasFile(t, kept, workspaceFile)
	hasFile(t, late, workspaceFile)
	d.releases(t, fsm.FindingMarkBehind)
	testcluster.Eventually(t, "the mark of the new history", func() error {
		if m := d.markInVault(t); m.Index <= before.Index {
			return fmt.Errorf("it is %d", m.Index)
		}
		return nil
	})
	if f := d.findings(t); f != "no hold" {
		t.Errorf("after the release: %s", f)
	}
	hasFile(t, late, workspaceFile)
	d.verdict(t,
		"Vault forgot the key of one sandbox of two; held %.1f s after it was put back; both run on with their files; %s",
		held.Seconds(), findings)
}

// vaultWhileStopped changes Vault's files while Vault is stopped.
func (d *disaster) vaultWhileStopped(t *testing.T, change func() error) {
	t.Helper()
	if err := errors.Join(d.Vault.Stop(), change(), d.Vault.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
}
