package cluster_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/clustertest"
	"bivouac.dev/bivouac/fsm"
)

// TestNode_FillEvents_WhatCantBeComparedIsNotKnown: a member whose comparison fails counts as one that
// lacks events.
func TestNode_FillEvents_WhatCantBeComparedIsNotKnown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		k := newTalking(t, c, "c1")
		ids := numbered("e", 40)
		k.add(0, "c1", ids...)
		k.have("c1", ids, 0, 1, 2)
		ended, end := context.WithCancel(t.Context())
		end()
		node := c.Node(c.Follower())
		err := cluster.CompareEvents(ended, node)
		if missing := node.Status().EventsMissing; err == nil || missing != -1 {
			t.Errorf("it lacks %d bytes, want -1 for not known: %v", missing, err)
		}
	})
}

// TestNode_FillEvents_ClusterOfOneKeepsWhatItHas: without a member to ask nothing is dropped, and what is
// there in front of what lacks is read.
func TestNode_FillEvents_ClusterOfOneKeepsWhatItHas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 1)
		defer c.Close()
		k := newTalking(t, c, "c1")
		ids := numbered("e", 40)
		k.add(0, "c1", ids[:20]...)
		if err := c.Node(0).Snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
		old := c.Events(0).CrashClone(vfs.CrashCloneCfg{})
		k.add(0, "c1", ids[20:]...)
		if err := c.Node(0).Snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.Stop(0)
		c.SetEvents(0, old)
		c.Start(0)
		c.Eventually("it sees what lacks", func() bool { return c.Node(0).Status().EventsMissing > 0 })
		var others [][]byte
		for range ids[20:] {
			others = append(others, event("x", 10))
		}
		if err := cluster.PutEvents(c.Node(0), "ada", "c1", 20, others); err != nil {
			t.Fatal(err)
		}
		if err := cluster.CompareEvents(t.Context(), c.Node(0)); err == nil {
			t.Error("the chain is whole with other events")
		}
		if got, err := k.read(0, "c1", 0, false, 15); err != nil || !slices.Equal(got, ids[:15]) {
			t.Errorf("from the first on: %v, %v", got, err)
		}
		if got, err := k.read(0, "c1", 19, true, 100); err != nil || len(got) != 20 {
			t.Errorf("backwards from the last that is there: %v, %v", got, err)
		}
		if got, err := k.read(0, "c1", 10, false, 15); fsm.CodeOf(err) != fsm.CodeNoLeader {
			t.Errorf("over the end of what is there: %v, %v", got, err)
		}
	})
}
