package cluster_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/fsm/snapshotfile"
)

// file is a snapshot file of node i. An older program's has no events.
func (r *real) file(i int, older bool, meanwhile func()) *bytes.Reader {
	r.t.Helper()
	s, err := r.nodes[i].node.StateSnapshot(r.t.Context(), cluster.Linearizable)
	if err != nil {
		r.t.Fatal(err)
	}
	defer s.Close()
	if older {
		s.Close()
		s.Events = nil
	}
	meanwhile()
	scratch, err := os.CreateTemp(r.dir, "scratch")
	if err != nil {
		r.t.Fatal(err)
	}
	defer scratch.Close()
	packed, err := snapshotfile.Pack(r.t.Context(),
		snapshotfile.Info{Created: time.Now(), Reason: snapshotfile.ReasonSave}, s, scratch)
	if err != nil {
		r.t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := packed.WriteTo(&b); err != nil {
		r.t.Fatal(err)
	}
	return bytes.NewReader(b.Bytes())
}

// alone starts node 0 as a cluster of one, with a conversation of so many events.
func (r *real) alone(count int) {
	r.t.Helper()
	r.nodes[0].cfg.BootstrapExpect = 1
	r.start(0)
	r.ready(0)
	r.converse("c1")
	for i := range count {
		r.addEvent(fmt.Sprint("e", i))
	}
}

// holds waits until nodes have so many events of a conversation, and lack none.
func (r *real) holds(conversation string, count int, nodes ...int) {
	r.t.Helper()
	for _, i := range nodes {
		n := r.nodes[i].node
		var ids []string
		eventually(r.t, func() bool {
			var whole bool
			ids, whole = cluster.StoredEvents(n, "ada", conversation)
			return whole && len(ids) == count && n.Status().EventsMissing == 0
		}, func() string {
			return fmt.Sprintf("n%d has %d events of %s, want %d; it lacks %d bytes", i, len(ids), conversation, count,
				n.Status().EventsMissing)
		})
	}
}

// TestReal_Restore_WithEvents: a file has the events at its index, whatever is written or deleted while it
// is made. Restored on a new cluster they are there, and nodes that join get them.
func TestReal_Restore_WithEvents(t *testing.T) {
	t.Parallel()
	r := newReal(t, 3)
	r.alone(20)
	file := r.file(0, false, func() {
		r.addEvent("later")
		r.propose("ada", &fsm.ConversationDeleteBody{ID: "c1"})
	})
	m, _, err := snapshotfile.Load(file)
	if err != nil || m.Events == nil || m.Events.Number != 20 || m.Events.Conversations != 1 || m.Events.Missing != 0 {
		t.Fatalf("%+v %v", m.Events, err)
	}
	r.kill(0)
	r.empty(0)
	r.start(0)
	done, err := r.ready(0).Restore(t.Context(), file, cluster.RestoreOptions{})
	if err != nil || done.LostCount != 0 || done.RestoredEvents.Bytes != m.Events.Bytes {
		t.Fatalf("%+v, %v", done, err)
	}
	r.holds("c1", 20, 0)
	r.nodes[1].cfg.BootstrapExpect, r.nodes[2].cfg.BootstrapExpect = 0, 0
	r.start(1)
	r.start(2)
	r.threeVoters()
	r.holds("c1", 20, 0, 1, 2)
	r.addEvent("more")
	r.holds("c1", 21, 0, 1, 2)
}

// TestReal_Restore_OfAnOlderFile: what neither the file nor the disk has is listed, and the cluster goes on
// without it. What the disk has is not lost.
func TestReal_Restore_OfAnOlderFile(t *testing.T) {
	t.Parallel()
	r := newReal(t, 2)
	r.nodes[1].cfg.BootstrapExpect = 0
	r.alone(5)
	file := r.file(0, true, func() {})
	r.addEvent("later")
	done, err := r.nodes[0].node.Restore(t.Context(), file, cluster.RestoreOptions{Force: true})
	if err != nil || done.LostCount != 0 {
		t.Fatalf("%+v, %v", done, err)
	}
	r.holds("c1", 5, 0)
	r.kill(0)
	r.empty(0)
	r.start(0)
	done, err = r.ready(0).Restore(t.Context(), file, cluster.RestoreOptions{})
	if err != nil || done.LostCount != 1 || len(done.Lost) != 1 || done.Lost[0].ConversationID != "c1" ||
		done.Lost[0].Number != 5 || done.Lost[0].Left != 0 {
		t.Fatalf("%+v, %v", done, err)
	}
	r.start(1)
	r.holds("c1", 0, 0, 1)
	r.addEvent("e5")
	r.holds("c1", 1, 0, 1)
}

// TestReal_Restore_WhatTheDiskHasIsKept: of a file without events, and a disk that lacks the last ones, the
// disk's are left.
func TestReal_Restore_WhatTheDiskHasIsKept(t *testing.T) {
	t.Parallel()
	r := newReal(t, 1)
	r.alone(3)
	if err := r.nodes[0].node.Snapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.kill(0)
	events := filepath.Join(r.nodes[0].cfg.DataDir, "events")
	old := filepath.Join(r.dir, "old")
	if err := os.CopyFS(old, os.DirFS(events)); err != nil {
		t.Fatal(err)
	}
	r.start(0)
	r.ready(0)
	r.addEvent("e3")
	r.addEvent("e4")
	file := r.file(0, true, func() {})
	if err := r.nodes[0].node.Snapshot(t.Context()); err != nil { // the log has them no more
		t.Fatal(err)
	}
	r.kill(0)
	if err := errors.Join(os.RemoveAll(events), os.CopyFS(events, os.DirFS(old))); err != nil {
		t.Fatal(err)
	}
	r.start(0)
	done, err := r.ready(0).Restore(t.Context(), file, cluster.RestoreOptions{Force: true})
	if err != nil || len(done.Lost) != 1 || done.Lost[0].Number != 5 || done.Lost[0].Left != 3 {
		t.Fatalf("%+v, %v", done, err)
	}
	r.holds("c1", 3, 0)
}
