package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/ops/e2e/chaos"
	"bivouac.dev/bivouac/ops/e2e/chaos/faultfs"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// manyEntries keeps entries enough for several batches of a move.
const manyEntries = `  snapshot_threshold = 100000
  trailing_logs      = 100000`

// moves are the faults within the move of a log, and what the node says.
func moves() []struct {
	fault faultfs.Fault
	words []string
} {
	write, fsync := []faultfs.Operation{faultfs.Write}, []faultfs.Operation{faultfs.Sync}
	return []struct {
		fault faultfs.Fault
		words []string
	}{
		{faultfs.Fault{Operations: fsync, Path: "wal.copy", Errno: syscall.EIO, Times: 1}, []string{"input/output error"}},
		{faultfs.Fault{Operations: write, Path: "wal.copy", Errno: syscall.ENOSPC}, []string{"make room"}},
		{faultfs.Fault{Operations: fsync, Path: "wal-meta.db", Errno: syscall.EIO}, []string{"input/output error"}},
		{faultfs.Fault{Operations: write, Path: "raft.db", Errno: syscall.ENOSPC}, []string{"make room"}},
	}
}

// TestLogMoves upgrades nodes whose log is in raft.db, one after the other under writes. Each one's
// disk fails or is full in the middle of the move, and it is killed with SIGKILL; the next start
// carries on. The former program then says why it does not start.
//
// BIVOUAC_DRILL_FORMER names a former program, instead of this tree's with its log in raft.db. Such a
// program goes on with log_store = "wal".
func TestLogMoves(t *testing.T) {
	former, o := os.Getenv("BIVOUAC_DRILL_FORMER"), testcluster.Options{Raft: manyEntries}
	if o.Program = former; former == "" {
		overlay, err := chaos.Build(t.TempDir(), chaos.FormerLog)
		if err != nil {
			t.Fatal(err)
		}
		o.Overlay = overlay
	}
	d := startDisksWith(t, o)
	newer := d.Bivouac
	if former == "" {
		newer = d.Build(t, "bivouac-newer", "")
	}
	stop := d.write(t)
	defer stop()
	d.progress(t, 5000)
	for i, n := range append(d.Followers(t), d.Leader(t)) {
		n.Stop(testcluster.Patience)
		n.Program = newer
		for j, m := range moves() {
			if !long() && j%len(d.Nodes) != i {
				continue
			}
			d.disks[n.Name].Inject(m.fault)
			n.Start(t)
			stopped(t, n, append(m.words, "bivouac runbook disk")...)
			d.disks[n.Name].Clear()
		}
		for range 5 {
			n.Start(t)
			testcluster.Pause(t.Context(), rand.N(300*time.Millisecond))
			n.Kill()
		}
		n.Start(t)
		n.Ready(t)
		moved(t, n)
		d.progress(t, 50)
	}
	if former != "" {
		d.wayBack(t, d.Followers(t)[0], former)
	}
	d.whole(t, stop)
}

// moved wants the log of a node in wal, said once, and nothing left of the copy.
func moved(t *testing.T, n *testcluster.Node) {
	t.Helper()
	raw, err := os.ReadFile(n.Log)
	if err != nil {
		t.Fatal(err)
	}
	if said := strings.Count(string(raw), "the log was copied from raft.db"); said != 1 {
		t.Errorf("%s said %d times that it copied its log", n.Name, said)
	}
	if _, err := os.Stat(filepath.Join(n.Data, "wal")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(n.Data, "wal.copy")); !os.IsNotExist(err) {
		t.Errorf("the copy of %s is still there: %v", n.Name, err)
	}
}

// wayBack starts the former program on a log that was moved: it refuses in words, and goes on with
// log_store = "wal".
func (d *diskDrill) wayBack(t *testing.T, n *testcluster.Node, former string) {
	t.Helper()
	newer := n.Program
	n.Stop(testcluster.Patience)
	n.Program = former
	n.Start(t)
	code, said := n.Ended(t), local.Tail(n.Log, 3)
	if want := fmt.Sprintf("data directory %s holds a \"wal\" log", n.Data); code != 1 || !strings.Contains(said, want) {
		t.Errorf("the former program ended with %d and\n%s", code, said)
	}
	t.Logf("the former program said: %s", said)
	file, err := os.ReadFile(n.File())
	if err != nil {
		t.Fatal(err)
	}
	back := strings.Replace(string(file), manyEntries, "log_store = \"wal\"\n"+manyEntries, 1)
	for _, text := range []string{back, string(file)} {
		if err := os.WriteFile(n.File(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		n.Start(t)
		n.Ready(t)
		d.progress(t, 50)
		n.Stop(testcluster.Patience)
		n.Program = newer
	}
	n.Start(t)
	n.Ready(t)
}
