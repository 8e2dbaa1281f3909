package cluster_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/clustertest"
	"bivouac.dev/bivouac/fsm"
)

// TestLog_IsBoundedInBytes: 60 entries of 100 kB are far fewer than TrailingLogs. The log stays within
// TrailingBytes on every node, and a node that was away catches up, also after a restart.
func TestLog_IsBoundedInBytes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const bound = 2 << 20
		c := clustertest.New(t, 3, func(_ int, cfg *cluster.Config) { cfg.TrailingBytes = bound })
		defer c.Close()
		leader := c.Leader()
		away := (leader + 1) % 3
		c.Kill(away)
		text := strings.Repeat("x", 100_000)
		for i := range 60 {
			id := fmt.Sprint("t", i)
			m := &fsm.Message{Role: "user", Content: []fsm.ContentBlock{{Type: fsm.BlockText, Text: text}}}
			body := &fsm.StartTaskCreateBody{ID: id, ConversationID: id, Request: fsm.StartRequest{InitialMessage: m}}
			if _, err := c.Propose(t.Context(), leader, fsm.NewCommand(id, time.Now(), "ada", body)); err != nil {
				t.Fatal(err)
			}
		}
		// One check comes after the last entry, with the TrailingLogs of the one before.
		time.Sleep(3 * time.Second)
		c.Start(away)
		c.Eventually("the node has all", func() bool { return len(c.Store(away).View().OpenStartTasks()) == 60 })
		time.Sleep(3 * time.Second)
		for i := range 3 {
			if n := logBytes(t, c.Logs(i)); n > bound {
				t.Errorf("n%d keeps %d bytes of log, bounded by %d", i, n, bound)
			}
		}
		c.Kill(away)
		c.Start(away)
		c.Eventually("the node has all again", func() bool { return len(c.Store(away).View().OpenStartTasks()) == 60 })
	})
}

// logBytes sums the data of a log's entries.
func logBytes(t *testing.T, logs raft.LogStore) (n int) {
	t.Helper()
	first, err := logs.FirstIndex()
	if err != nil {
		t.Fatal(err)
	}
	last, err := logs.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	for i := max(first, 1); i <= last; i++ {
		var l raft.Log
		if err := logs.GetLog(i, &l); err != nil {
			t.Fatal(err)
		}
		n += len(l.Data)
	}
	return n
}
