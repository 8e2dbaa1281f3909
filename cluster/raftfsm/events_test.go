package raftfsm

import (
	"errors"
	"fmt"
	"strings"
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

// TestRaftFSM_Events_AnErrorIsNoResult: a Write that fails stops the node. The command that wrote has no
// result, nothing is applied after it, and no snapshot is taken.
func TestRaftFSM_Events_AnErrorIsNoResult(t *testing.T) {
	t.Parallel()
	broken := errors.New("the disk is full")
	m := New(conversing(t))
	m.Events = failingEvents{onWrite: broken}
	index := m.store.Index()
	apply := func(body fsm.Body) any {
		t.Helper()
		data, err := fsm.NewCommand("x", time.Now(), "ada", body).EncodeBinary()
		if err != nil {
			t.Fatal(err)
		}
		index++
		return m.Apply(&raft.Log{Index: index, Term: 1, Data: data})
	}
	events := &fsm.EventsAppendBody{ConversationID: "c1", SandboxID: "sb", Events: [][]byte{
		fsm.AppendEvent(nil, fsm.EventHead{ID: "e1", Kind: "MessageEvent"}, []byte("text")),
	}}
	for _, body := range []fsm.Body{events, &fsm.ConversationUpdateBody{ID: "c1"}} {
		if err, failed := apply(body).(error); !failed || !errors.Is(err, broken) {
			t.Errorf("%s: %v", body.CommandType(), err)
		}
	}
	if _, err := m.Snapshot(); !errors.Is(err, broken) || !errors.Is(m.Failure(), broken) {
		t.Errorf("a snapshot: %v, the node %v", err, m.Failure())
	}
}

// conversing is a store with a conversation.
func conversing(t *testing.T) *fsm.Store {
	t.Helper()
	s := fsm.NewStore()
	for i, step := range []struct {
		user string
		body fsm.Body
	}{
		{"", &fsm.TermOpenBody{Term: 1, Node: "a", ClusterID: "c"}},
		{"", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion}},
		{"", &fsm.APIKeyCreateBody{Lookup: "aaaaaaaaaaaa", Hash: strings.Repeat("0", 64), UserID: "ada"}},
		{"", &fsm.SpecApplyBody{Specs: []fsm.Spec{{ID: "py", Template: fsm.Template{
			Driver: fsm.DriverDocker, Image: "agent:1", WorkingDir: "/workspace/project", CPU: 1, Memory: 1,
			Ports: map[string]int{fsm.PortAgentServer: 8000}, NetworkMode: "bridge", VolumePath: "/workspace",
		}}}}},
		{"ada", &fsm.StartTaskCreateBody{ID: "t", ConversationID: "c1"}},
		{"", &fsm.StartTaskBindBody{ID: "t", SandboxID: "sb", Create: &fsm.SandboxCreateBody{
			ID: "sb", KeyRef: fsm.SecretRef{Path: "sandboxes/sb/session", Version: 1}, KeyHash: strings.Repeat("1", 64),
		}}},
		{"", &fsm.StartTaskFinishBody{ID: "t", Conversation: fsm.Conversation{ID: "c1", AgentKind: "openhands"}}},
	} {
		if _, err := s.Apply(uint64(i+1), fsm.NewCommand(fmt.Sprint(i), time.Now(), step.user, step.body)); err != nil {
			t.Fatalf("%s: %v", step.body.CommandType(), err)
		}
	}
	return s
}
