package cluster_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/recovery"
	"bivouac.dev/bivouac/fsm"
)

// copyDir copies a data directory as an operator would.
func copyDir(t *testing.T, from, to string) {
	t.Helper()
	if err := os.RemoveAll(to); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// refused starts node i, which must not run, and gives why.
func (r *real) refused(i int) string {
	r.t.Helper()
	n := r.nodes[i]
	node, err := cluster.New(n.cfg, fsm.NewStore())
	n.cfg.Listener = nil
	if err != nil {
		return err.Error()
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	err = node.Run(ctx)
	if err == nil {
		r.t.Fatalf("n%d runs: %+v", i, node.Status())
	}
	return err.Error()
}

// settled waits until every node knows what all have acknowledged.
func (r *real) settled(number int) {
	r.t.Helper()
	for i, n := range r.nodes {
		if n.node != nil {
			r.ready(i)
		}
	}
	r.want(number)
	// The leader tells once a second; a further round is certain to hold it.
	began := time.Now()
	eventually(r.t, func() bool { return time.Since(began) > 2500*time.Millisecond }, func() string { return "" })
}

// A disk that went back in time is found out by those that live, whether the copy is
// from before the last start or within it; a copy does not even start.
func TestReal_OlderDisk_IsRefused(t *testing.T) {
	t.Parallel()
	for name, live := range map[string]bool{"from before the last start": false, "from within the last start": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReal(t, 3)
			for i := range 3 {
				r.start(i)
			}
			r.settled(0)
			dir := r.nodes[2].cfg.DataDir
			older := filepath.Join(r.dir, "older")
			if !live {
				r.kill(2)
			}
			copyDir(t, dir, older)
			if !live {
				r.start(2)
			}
			for i := range 3 {
				r.ready(i)
			}
			r.put(0, 7)
			r.settled(7)
			r.kill(2)
			// What is known must outlive the leader that saw it.
			for i := range 2 {
				r.kill(i)
			}
			newest := filepath.Join(r.dir, "newest")
			if err := os.Rename(dir, newest); err != nil {
				t.Fatal(err)
			}
			copyDir(t, older, dir)
			for i := range 2 {
				r.start(i)
			}
			if why := r.refused(2); !strings.Contains(why, "is a copy") || !strings.Contains(why, "adopt-disk") {
				t.Errorf("the copy: %s", why)
			}
			if err := recovery.Adopt(dir, testLogger(t)); err != nil {
				t.Fatal(err)
			}
			why := r.refused(2)
			t.Log(why)
			if !strings.Contains(why, "objects to the start") || !strings.Contains(why, "start the node with an empty one") {
				t.Errorf("the older disk: %s", why)
			}
			// The newest disk, moved back by rename, is no copy and goes on.
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(newest, dir); err != nil {
				t.Fatal(err)
			}
			r.start(2)
			for i := range 3 {
				r.ready(i)
			}
			r.want(7)
		})
	}
}

// A copy of a disk does not run beside the disk, wherever it is. It is not parallel: a former that does
// not answer within lifeTimeout does not hold the copy up.
func TestReal_ClonedDisk_IsRefusedWhileTheFormerRuns(t *testing.T) {
	r := newReal(t, 4)
	for i := range 3 {
		r.nodes[i].cfg.BootstrapExpect = 3
		r.start(i)
	}
	r.put(0, 7)
	r.settled(7)
	clone := r.nodes[3]
	clone.cfg.NodeName, clone.cfg.TLS, clone.cfg.BootstrapExpect = "n2", r.nodes[2].cfg.TLS, 0
	copyDir(t, r.nodes[2].cfg.DataDir, clone.cfg.DataDir)
	if err := recovery.Adopt(clone.cfg.DataDir, testLogger(t)); err != nil {
		t.Fatal(err)
	}
	if why := r.refused(3); !strings.Contains(why, "still answers at "+r.nodes[2].cfg.PeerAddress) {
		t.Error(why)
	}
	// With the former gone the clone goes on as it; then the former is the copy.
	r.kill(2)
	clone.cfg.Listener = nil
	r.start(3)
	r.ready(3)
	r.settled(7)
	r.kill(3)
	if why := r.refused(2); !strings.Contains(why, "start of this node is known") {
		t.Error(why)
	}
	r.nodes = r.nodes[:3]
}
