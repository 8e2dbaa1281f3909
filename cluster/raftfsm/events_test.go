package raftfsm

import (
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/fsm"
)

// failingEvents is a store of events that fails when it is told to.
type failingEvents struct{ onWrite, onFlush error }

func (e failingEvents) Write(uint64, []fsm.EventChange) error { return e.onWrite }
func (e failingEvents) Flush() error                          { return e.onFlush }

// canceled is a sink that notes whether the snapshot was finished.
type canceled struct {
	raft.SnapshotSink
	finished, cancelled bool
}

func (c *canceled) Write(p []byte) (int, error) { return len(p), nil }
func (c *canceled) Close() error                { c.finished = true; return nil }
func (c *canceled) Cancel() error               { c.cancelled = true; return nil }

// TestRaftFSM_Events_ASnapshotWaitsForThem: one whose events are not on the disk is not finished, and
// stops the node.
func TestRaftFSM_Events_ASnapshotWaitsForThem(t *testing.T) {
	t.Parallel()
	broken := errors.New("the disk is full")
	for _, flush := range []error{nil, broken} {
		m := New(fsm.NewStore())
		m.Events = failingEvents{onFlush: flush}
		open := fsm.NewCommand("x", time.Now(), "", &fsm.TermOpenBody{Term: 1, Node: "a", ClusterID: "c"})
		data, err := open.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if err, failed := m.Apply(&raft.Log{Index: 1, Term: 1, Data: data}).(error); failed {
			t.Fatal(err)
		}
		s, err := m.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		sink := &canceled{}
		err = s.Persist(sink)
		if !errors.Is(err, flush) || sink.finished != (flush == nil) || sink.cancelled != (flush != nil) ||
			!errors.Is(m.Failure(), flush) {
			t.Errorf("flush %v: %v, finished %v, the node %v", flush, err, sink.finished, m.Failure())
		}
	}
}
