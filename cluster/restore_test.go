package cluster_test

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
)

// save gives a snapshot file of node i.
func (r *real) save(i int) *bytes.Reader {
	r.t.Helper()
	return r.file(i, false, func() {})
}

// TestReal_Restore_OnANewCluster: a saved state is restored on a new cluster of
// one, two empty nodes join, and all have it at indexes far above.
func TestReal_Restore_OnANewCluster(t *testing.T) {
	t.Parallel()
	r := newReal(t, 3)
	r.startAll()
	r.put(0, 7)
	// The view is that of the saved state, and the leader has raised the protocol version.
	var file *bytes.Reader
	var was *fsm.View
	eventually(t, func() bool {
		was = r.nodes[1].store.View()
		file = r.save(1)
		return was.ProtocolVersion() == fsm.ProtocolVersion && r.nodes[1].store.Index() == was.Index()
	}, func() string {
		return fmt.Sprintf("n1 is not at rest: protocol version %d, index %d", was.ProtocolVersion(), was.Index())
	})
	if _, err := r.nodes[0].node.Restore(t.Context(), file,
		cluster.RestoreOptions{Force: true}); fsm.CodeOf(err) != fsm.CodeConflict {
		t.Errorf("on a cluster of three: %v", err)
	}
	r.put(0, 8) // after the backup
	lost := r.nodes[0].store.View().Birth()
	for i := range 3 {
		r.kill(i)
		r.empty(i)
	}
	r.nodes[2].cfg.BootstrapExpect = 1
	r.start(2)
	fresh := r.ready(2)
	done, err := fresh.Restore(t.Context(), file, cluster.RestoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.want(7)
	v := r.nodes[2].store.View()
	if v.ClusterID() != was.ClusterID() || v.Index() < was.Index()+fsm.IndexStep || v.Hold() == nil ||
		v.Contains(lost) ||
		!v.Contains(was.Birth()) || v.Term() != fresh.Status().Term || done.Manifest.Index != was.Index() {
		t.Fatalf("cluster %s, index %d, term %d, hold %+v; %+v", v.ClusterID(), v.Index(), v.Term(), v.Hold(), done)
	}
	r.put(2, 9)
	r.start(0)
	r.start(1)
	for i := range 3 {
		r.ready(i)
	}
	r.want(9)
	r.threeVoters()
	// All of it is on the disks.
	for i := range 3 {
		r.kill(i)
	}
	r.startAll()
	r.want(9)
}

// TestReal_Restore_RefusesToLoseProfiles: profiles alone are a state that would be lost.
func TestReal_Restore_RefusesToLoseProfiles(t *testing.T) {
	t.Parallel()
	r := newReal(t, 1)
	r.start(0)
	n := r.ready(0)
	file := r.save(0)
	eventually(t, func() bool { return r.nodes[0].store.View().Active(fsm.VersionProfiles) }, func() string {
		return "the protocol version is not raised"
	})
	profile := fsm.Profile{Kind: fsm.ProfileLLM, Name: "mine", ID: "p1", Model: "m"}
	cmd := fsm.NewCommand("profile", time.Now(), "ada", &fsm.ProfilePutBody{Profile: profile})
	if _, err := n.Propose(t.Context(), cmd); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Restore(t.Context(), file, cluster.RestoreOptions{}); fsm.CodeOf(err) != fsm.CodeConflict ||
		!strings.Contains(err.Error(), "profiles") {
		t.Errorf("got %v, want a conflict", err)
	}
}

// TestReal_Restore_Refuses what is no snapshot and what would lose something, and
// changes nothing.
func TestReal_Restore_Refuses(t *testing.T) {
	t.Parallel()
	r := newReal(t, 1)
	r.start(0)
	n := r.ready(0)
	r.put(0, 1)
	file := r.save(0)
	whole, err := io.ReadAll(file)
	if err != nil {
		t.Fatal(err)
	}
	cut := bytes.NewReader(whole[:len(whole)-600])
	for want, c := range map[string]struct {
		file io.ReadSeeker
		o    cluster.RestoreOptions
		code fsm.Code
	}{
		"a state that would be lost": {file, cluster.RestoreOptions{}, fsm.CodeConflict},
		"not a bivouac snapshot": {
			strings.NewReader(strings.Repeat("x", 2000)),
			cluster.RestoreOptions{Force: true},
			fsm.CodeInvalid,
		},
		"truncated": {cut, cluster.RestoreOptions{Force: true}, fsm.CodeInvalid},
	} {
		if _, err := n.Restore(t.Context(), c.file, c.o); fsm.CodeOf(err) != c.code || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s %q", err, c.code, want)
		}
	}
	r.put(0, 2)
	index := r.nodes[0].store.Index()
	if index > fsm.IndexStep {
		t.Fatalf("a refusal moved the index to %d", index)
	}
	for range 2 { // and again, on what was restored
		if _, err := n.Restore(t.Context(), file, cluster.RestoreOptions{Force: true}); err != nil {
			t.Fatal(err)
		}
		r.want(1)
		if next := r.nodes[0].store.Index(); next < index+fsm.IndexStep {
			t.Fatalf("the index went from %d to %d", index, next)
		}
		index = r.nodes[0].store.Index()
		r.put(0, 3)
	}
}
