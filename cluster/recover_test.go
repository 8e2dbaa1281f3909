package cluster_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/recovery"
	"bivouac.dev/bivouac/fsm"
)

// recover makes the disk of a stopped node the whole cluster.
func (r *real) recover(i int, until uint64) recovery.Recovered {
	r.t.Helper()
	rec, err := recovery.Open(r.nodes[i].cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() {
		if err := rec.Close(); err != nil {
			r.t.Error(err)
		}
	}()
	if found, err := rec.Answering(r.t.Context()); err != nil || len(found) > 0 {
		r.t.Fatalf("members answer: %v (%v)", found, err)
	}
	done, err := rec.Recover(until, "by a test")
	if err != nil {
		r.t.Fatal(err)
	}
	return done
}

// keep moves the data directory of a stopped node aside.
func (r *real) keep(i int) (aside string) {
	r.t.Helper()
	aside = r.nodes[i].cfg.DataDir + ".old"
	if err := os.Rename(r.nodes[i].cfg.DataDir, aside); err != nil {
		r.t.Fatal(err)
	}
	return aside
}

// TestReal_Recover_FromOneOfThree: two of three disks are lost. The third is the
// cluster then; what it had is there, indexes go on far above, two empty nodes
// join, and a former disk that comes back stays outside.
func TestReal_Recover_FromOneOfThree(t *testing.T) {
	t.Parallel()
	r := newReal(t, 3)
	r.startAll()
	r.put(0, 7)
	r.want(7)
	before := r.nodes[2].node.Status()
	cluster0 := r.nodes[2].store.View().ClusterID()
	for i := range 3 {
		r.kill(i)
	}
	old := r.keep(0)
	r.empty(1)

	done := r.recover(2, 0)
	if done.ID == before.ID || done.Node != "n2" || done.Index < before.AppliedIndex+fsm.IndexStep {
		t.Fatalf("%+v after %+v", done, before)
	}
	r.start(2)
	r.ready(2)
	r.want(7)
	v := r.nodes[2].store.View()
	if h := v.Hold(); h == nil || h.Findings[0].Kind != fsm.FindingRecovered || v.ClusterID() != cluster0 {
		t.Fatalf("hold %+v, cluster %s", h, v.ClusterID())
	}
	r.start(0)
	r.start(1)
	for i := range 3 {
		r.ready(i)
	}
	r.put(1, 8)
	r.want(8)
	r.threeVoters()

	// The old disk of n0 comes back in the place of the new one.
	r.kill(0)
	r.empty(0)
	if err := os.Rename(old, r.nodes[0].cfg.DataDir); err != nil {
		t.Fatal(err)
	}
	r.start(0)
	r.put(2, 9)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 300 { // six times the time in which it would be elected
		s := r.nodes[0].node.Status()
		if s.State == cluster.StateLeader || r.nodes[0].node.Ready() == nil || s.AppliedIndex > fsm.IndexStep {
			t.Fatalf("the old disk takes part: %+v", s)
		}
		if s = r.nodes[2].node.Status(); s.Leader == "n0" {
			t.Fatalf("the old disk leads: %+v", s)
		}
		<-tick.C
	}
	// On a busy machine the others may just elect a leader.
	eventually(t, func() bool {
		s := r.nodes[2].node.Status()
		return s.Leader == "n1" || s.Leader == "n2"
	}, func() string { return fmt.Sprintf("the old disk disturbs the cluster: %+v", r.nodes[2].node.Status()) })
}

// threeVoters waits until every member votes.
func (r *real) threeVoters() {
	r.t.Helper()
	eventually(r.t, func() bool {
		servers := r.nodes[2].node.Status().Servers
		return len(servers) == 3 && !slices.ContainsFunc(servers, func(s cluster.Server) bool { return !s.Voter })
	}, func() string { return "the members are not three voters" })
}

// TestReal_Recover_Refuses what would make a second cluster: a member that
// answers, a node that runs, another node's disk, an empty directory.
func TestReal_Recover_Refuses(t *testing.T) {
	t.Parallel()
	r := newReal(t, 3)
	r.startAll()
	r.put(0, 1)
	if _, err := recovery.Open(r.nodes[2].cfg); err == nil ||
		!strings.Contains(err.Error(), "another process uses") {
		t.Errorf("a node that runs: %v", err)
	}
	r.kill(1)
	r.kill(2)
	rec, err := recovery.Open(r.nodes[2].cfg)
	if err != nil {
		t.Fatal(err)
	}
	if found, err := rec.Answering(t.Context()); err != nil || len(found) != 1 || !strings.HasPrefix(found[0], "n0 at ") {
		t.Errorf("n0 runs and has no leader: %v (%v)", found, err)
	}
	if _, err := rec.Recover(rec.Disk().LastIndex+1, ""); err == nil ||
		!strings.Contains(err.Error(), "the disk ends with entry") {
		t.Errorf("an index beyond the end: %v", err)
	}
	disk := rec.Disk()
	if disk.Node != "n2" || len(disk.Members) != 3 || disk.LastIndex == 0 || disk.Written.IsZero() || disk.Cluster == "" ||
		disk.Poisoned != 0 {
		t.Errorf("the disk is described as %+v", disk)
	}
	if err := rec.Close(); err != nil {
		t.Fatal(err)
	}
	empty := r.nodes[2].cfg
	empty.DataDir = t.TempDir()
	if _, err := recovery.Open(empty); err == nil || !strings.Contains(err.Error(), "nothing to recover") {
		t.Errorf("an empty directory: %v", err)
	}
	wrong := r.nodes[2].cfg
	wrong.NodeName = "n1"
	if rec, err = recovery.Open(wrong); err != nil {
		t.Fatal(err)
	}
	if _, err := rec.Recover(0, ""); err == nil || !strings.Contains(err.Error(), `belongs to node "n2"`) {
		t.Errorf("another node's disk: %v", err)
	}
	if err := rec.Close(); err != nil {
		t.Fatal(err)
	}
	// Nothing of this has changed the disk.
	r.start(1)
	r.start(2)
	for i := range 3 {
		r.ready(i)
	}
	r.want(1)
}
