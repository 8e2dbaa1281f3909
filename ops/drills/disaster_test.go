package drills

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/fleet"
)

const (
	// quiet is how long is waited for a leader to do what it must not do: the
	// deletions that these drills are about came within six seconds.
	quiet = 15 * time.Second
	// shortGrace is the shortest time that an unreferenced secret is kept for.
	shortGrace = 2 * time.Minute
)

// disaster is a fleet that loses more than one node, and what runs in it.
type disaster struct {
	*operators
	// begun is when the sandboxes were started.
	begun time.Time
	boxes []fleet.Sandbox
	// placedAs are the allocations of each.
	placedAs map[string][]string
}

// startDisaster starts a fleet that writes down what its nodes destroy.
func startDisaster(t *testing.T, o fleet.Options) *disaster {
	t.Helper()
	o.Ledger = true
	if o.Vault == "" {
		o.Vault = fmt.Sprintf("unreferenced_grace = %q\ncollect_interval = \"1s\"", shortGrace)
	}
	f := fleet.Start(t, o)
	return &disaster{operators: &operators{Fleet: f, spec: "raw", node: f.Nodes[0]}, placedAs: map[string][]string{}}
}

// sandbox starts one, with a file in it, that must live through all that comes.
func (d *disaster) sandbox(t *testing.T) fleet.Sandbox {
	t.Helper()
	d.begun = time.Now()
	id := d.begin(t)
	sb := d.node.AwaitSandbox(t, id, "RUNNING")
	d.boxes, d.placedAs[id] = append(d.boxes, sb), d.placed(t, id)
	return sb
}

// untouched fails unless every sandbox runs where it ran, with its file, its
// workspace and its secrets, and nothing at all was destroyed.
func (d *disaster) untouched(t *testing.T) {
	t.Helper()
	for _, destroyed := range d.Ledger.Destroyed() {
		t.Errorf("nobody asked for it: %s", destroyed)
	}
	volumes, err := d.Volumes()
	if err != nil {
		t.Error(err)
	}
	for _, sb := range d.boxes {
		if now, was := d.placed(t, sb.ID), d.placedAs[sb.ID]; len(now) != 1 || now[0] != was[0] {
			t.Errorf("sandbox %s ran as %v and runs as %v", sb.ID, was, now)
			continue
		}
		if !strings.Contains(strings.Join(volumes, " "), sb.ID) {
			t.Errorf("the workspace of sandbox %s is gone", sb.ID)
		}
		// On the disk: the way through the door is for sandboxes that are known.
		if raw, err := os.ReadFile(filepath.Join(d.workspaceOnDisk(t, sb.ID), workspaceFile)); err != nil || string(raw) != sb.ID {
			t.Errorf("the file of sandbox %s holds %q: %v", sb.ID, raw, err)
		}
		if err := d.secretStands("default/sandbox-" + sb.ID + "/"); err != nil {
			t.Error(err)
		}
	}
}

// secretStands is nil when every version below a folder in Vault can be read.
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

// killAll is kill -9 of every node; startAll starts them and waits until they
// serve.
func (d *disaster) killAll() {
	for _, n := range d.Nodes {
		n.Kill()
	}
}

func (d *disaster) startAll(t *testing.T) {
	t.Helper()
	for _, n := range d.Nodes {
		n.Start(t)
	}
	for _, n := range d.Nodes {
		n.Ready(t)
	}
}

// copies copies every data directory while all nodes are down.
func (d *disaster) copies(t *testing.T) {
	t.Helper()
	d.killAll()
	for _, n := range d.Nodes {
		if err := n.CopyData(n.Data + ".copy"); err != nil {
			t.Fatal(err)
		}
	}
	d.startAll(t)
}

// verdict prints what a part came to.
func (d *disaster) verdict(t *testing.T, format string, args ...any) {
	t.Helper()
	word := "as it should be"
	if t.Failed() {
		word = "FAILED"
		for _, n := range d.Nodes {
			t.Logf("%s said last:\n%s", n.Name, fleet.Tail(n.Log, 15))
		}
	}
	t.Logf("--- verdict: %s: %s: %s", t.Name(), word, fmt.Sprintf(format, args...))
}

// rollBack puts the copies back while all nodes are down.
func (d *disaster) rollBack(t *testing.T) {
	t.Helper()
	d.killAll()
	for _, n := range d.Nodes {
		if err := fleet.CopyTree(n.Data+".copy", n.Data); err != nil {
			t.Fatal(err)
		}
		d.adopt(t, n)
	}
}

// TestDisksRolledBack puts older copies of all data directories back: sandboxes
// of which they do not know live on, with their files, and the cluster holds.
func TestDisksRolledBack(t *testing.T) {
	d := startDisaster(t, fleet.Options{})
	known := d.sandbox(t)
	d.copies(t)
	unknown := d.sandbox(t)
	d.rollBack(t)
	begin := time.Now()
	d.startAll(t)
	served := time.Since(begin)
	d.stillFor(t, quiet)
	d.untouched(t)
	findings := d.holds(t)
	if _, err := d.node.Sandbox(known.ID); err != nil {
		t.Errorf("the sandbox from before the copies: %v", err)
	}
	if _, err := d.node.Sandbox(unknown.ID); !errors.Is(err, fleet.ErrGone) {
		t.Errorf("the sandbox from after the copies is known: %v", err)
	}
	d.verdict(t, "the nodes served after %.1f s; both sandboxes run with their files, 1 is not known to the cluster; %s", served.Seconds(), findings)
}

// stillFor waits and ends early when something was destroyed.
func (d *disaster) stillFor(t *testing.T, patience time.Duration) {
	t.Helper()
	begin := time.Now()
	_ = fleet.Await(patience, func() error {
		if len(d.Ledger.Destroyed()) > 0 {
			t.Logf("the first destruction came after %.1f s", time.Since(begin).Seconds())
			return nil
		}
		return errors.New("nothing was destroyed")
	})
}
