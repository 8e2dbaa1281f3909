package cluster_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/uuid"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/clustertest"
	"bivouac.dev/bivouac/fsm"
)

// talking is a cluster with conversations.
type talking struct {
	*clustertest.Cluster
	t *testing.T
}

// newTalking makes conversations of ada on a cluster.
func newTalking(t *testing.T, c *clustertest.Cluster, conversations ...string) talking {
	t.Helper()
	k := talking{c, t}
	c.Eventually("the protocol version of events", func() bool {
		return c.Store(c.Leader()).View().Active(fsm.VersionEvents)
	})
	talkers(k.propose)
	for _, id := range conversations {
		begin(k.propose, id)
	}
	return k
}

// talkers makes ada, and a spec for her sandboxes.
func talkers(propose func(user string, body fsm.Body)) {
	propose("", &fsm.APIKeyCreateBody{Lookup: "aaaaaaaaaaaa", Hash: strings.Repeat("0", 64), UserID: "ada"})
	propose("", &fsm.SpecApplyBody{Specs: []fsm.Spec{{ID: "py", Template: fsm.Template{
		Driver: fsm.DriverDocker, Image: "agent:1", WorkingDir: "/workspace/project", CPU: 1, Memory: 1,
		Ports: map[string]int{fsm.PortAgentServer: 8000}, NetworkMode: "bridge", VolumePath: "/workspace",
	}}}})
}

// begin makes a conversation in the sandbox sb-<id>.
func begin(propose func(user string, body fsm.Body), id string) {
	task := uuid.NewString()
	propose("ada", &fsm.StartTaskCreateBody{ID: task, ConversationID: id})
	propose("", &fsm.StartTaskBindBody{ID: task, SandboxID: "sb-" + id, Create: &fsm.SandboxCreateBody{
		ID: "sb-" + id, KeyRef: fsm.SecretRef{Path: "sandboxes/sb-" + id + "/session", Version: 1},
		KeyHash: fmt.Sprintf("%x", sha256.Sum256([]byte(id))),
	}})
	propose("", &fsm.StartTaskFinishBody{ID: task, Conversation: fsm.Conversation{ID: id, AgentKind: "openhands"}})
}

func (k talking) propose(user string, body fsm.Body) {
	k.t.Helper()
	c := fsm.NewCommand(uuid.NewString(), time.Now(), user, body)
	if _, err := k.Propose(k.t.Context(), k.Leader(), c); err != nil {
		k.t.Fatalf("%s: %v", body.CommandType(), err)
	}
}

// event is a stored event of an id, of about a size.
func event(id string, size int) []byte {
	return fsm.AppendEvent(nil, fsm.EventHead{
		ID: id, Kind: "MessageEvent", Source: "agent", Timestamp: "2026-01-02T03:04:05",
	}, []byte(strings.Repeat(id, size/len(id)+1)))
}

// appending is the command that appends events of about a size.
func appending(conversation string, at uint64, size int, ids ...string) fsm.Command {
	body := &fsm.EventsAppendBody{ConversationID: conversation, SandboxID: "sb-" + conversation, At: at}
	for _, id := range ids {
		body.Events = append(body.Events, event(id, size))
	}
	return fsm.NewCommand(uuid.NewString(), time.Now(), "ada", body)
}

// appendTo appends events through a node.
func (k talking) appendTo(
	ctx context.Context, i int, conversation string, at uint64, ids ...string,
) (cluster.AppendedEvents, error) {
	node := k.Node(i)
	if node == nil {
		return cluster.AppendedEvents{}, fsm.Errorf(fsm.CodeShuttingDown, "the node is stopped")
	}
	return node.AppendEvents(ctx, appending(conversation, at, 2000, ids...))
}

// add appends events that must be taken.
func (k talking) add(i int, conversation string, ids ...string) {
	k.t.Helper()
	if _, err := k.appendTo(k.t.Context(), i, conversation, cluster.NoPosition, ids...); err != nil {
		k.t.Fatalf("appending %v through n%d: %v", ids, i, err)
	}
}

// have waits until the nodes have exactly these events in their own stores, and say so.
func (k talking) have(conversation string, want []string, nodes ...int) {
	k.t.Helper()
	var got []string
	for _, i := range nodes {
		k.Eventually(fmt.Sprintf("n%d has the events of %s", i, conversation), func() (whole bool) {
			got, whole = cluster.StoredEvents(k.Node(i), "ada", conversation)
			return whole && slices.Equal(got, want) && k.Node(i).Status().EventsMissing == 0
		})
	}
}

func numbered(prefix string, count int) (ids []string) {
	for i := range count {
		ids = append(ids, fmt.Sprint(prefix, i))
	}
	return ids
}

// TestNode_AppendEvents_OnceAndInOrderOnEveryNode: through any node, doubled and overlapping.
func TestNode_AppendEvents_OnceAndInOrderOnEveryNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		k := newTalking(t, c, "c1", "c2")
		k.add(0, "c1", "e0")
		k.add(1, "c1", "e0", "e1", "e2")
		k.add(2, "c1", "e1", "e3")
		k.add(2, "c2", "e0")
		k.have("c1", numbered("e", 4), 0, 1, 2)
		k.have("c2", numbered("e", 1), 0, 1, 2)
		if _, err := k.appendTo(t.Context(), 0, "other", cluster.NoPosition, "e9"); fsm.CodeOf(err) != fsm.CodeNotFound {
			t.Errorf("events of no conversation: %v", err)
		}
		// A sender that numbers its events as the conversation does is told of a gap.
		for _, step := range []struct {
			at   uint64
			ids  []string
			want cluster.AppendedEvents
		}{
			{5, []string{"e5"}, cluster.AppendedEvents{Number: 4, Gap: true}},
			{3, []string{"e3", "e4"}, cluster.AppendedEvents{Number: 5, Added: 1}},
			{5, []string{"e5"}, cluster.AppendedEvents{Number: 6, Added: 1}},
			{4, []string{"e4", "e5"}, cluster.AppendedEvents{Number: 6}},
			// One that was skipped comes behind the others, and does not hold up what follows it.
			{2, []string{"e2", "e6", "e3"}, cluster.AppendedEvents{Number: 7, Added: 1}},
			{8, []string{"e8"}, cluster.AppendedEvents{Number: 7, Gap: true}},
		} {
			if got, err := k.appendTo(t.Context(), c.Follower(), "c1", step.at, step.ids...); err != nil || got != step.want {
				t.Errorf("%v at %d: %+v, %v, want %+v", step.ids, step.at, got, err, step.want)
			}
		}
		k.have("c1", numbered("e", 7), 0, 1, 2)
		k.propose("ada", &fsm.ConversationDeleteBody{ID: "c1"})
		k.have("c1", nil, 0, 1, 2)
	})
}

// TestNode_AppendEvents_ManySendersAtOnce: concurrent senders of one conversation through all nodes,
// while leaders are killed, lose nothing that was acknowledged and double nothing.
func TestNode_AppendEvents_ManySendersAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		k := newTalking(t, c, "c1")
		var wg sync.WaitGroup
		var mu sync.Mutex
		acknowledged := map[string]bool{}
		for sender := range 6 {
			wg.Go(func() {
				for i := range 20 {
					id := fmt.Sprint("s", sender, "-", i)
					for try := range 50 {
						_, err := k.appendTo(t.Context(), (sender+try)%3, "c1", cluster.NoPosition, id)
						if err == nil {
							mu.Lock()
							acknowledged[id] = true
							mu.Unlock()
							break
						}
						time.Sleep(100 * time.Millisecond)
					}
				}
			})
		}
		for range 2 {
			time.Sleep(300 * time.Millisecond)
			leader := c.Leader()
			c.Kill(leader)
			time.Sleep(time.Second)
			c.Start(leader)
		}
		wg.Wait()
		c.Settle()
		first, _ := cluster.StoredEvents(k.Node(0), "ada", "c1")
		k.have("c1", first, 0, 1, 2)
		if len(acknowledged) != 120 || len(first) != 120 {
			t.Errorf("%d events were acknowledged and %d are there, of 120", len(acknowledged), len(first))
		}
		for _, id := range first {
			if !acknowledged[id] {
				t.Errorf("%s is there twice, or was sent by nobody", id)
			}
			delete(acknowledged, id)
		}
	})
}

// TestNode_FillEvents: whatever the disk with a node's events is like at its start, the node gets the
// events of the state.
func TestNode_FillEvents(t *testing.T) {
	t.Parallel()
	for name, disk := range map[string]func(k talking, of int, old *vfs.MemFS) *vfs.MemFS{
		"emptied": func(talking, int, *vfs.MemFS) *vfs.MemFS { return nil },
		"old":     func(_ talking, _ int, old *vfs.MemFS) *vfs.MemFS { return old },
		"another node's": func(k talking, of int, _ *vfs.MemFS) *vfs.MemFS {
			return k.Events((of + 1) % 3).CrashClone(vfs.CrashCloneCfg{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := clustertest.New(t, 3)
				defer c.Close()
				k := newTalking(t, c, "c1", "c2", "c3")
				ids := numbered("e", 40)
				k.add(c.Leader(), "c1", ids[:10]...)
				k.add(c.Leader(), "c3", "gone")
				k.have("c1", ids[:10], 0, 1, 2)
				away := c.Follower()
				if err := c.Node(away).Snapshot(t.Context()); err != nil {
					t.Fatal(err)
				}
				old := c.Events(away).CrashClone(vfs.CrashCloneCfg{})
				k.add(c.Leader(), "c1", ids[10:20]...)
				k.add(c.Leader(), "c2", ids...)
				k.propose("ada", &fsm.ConversationDeleteBody{ID: "c3"})
				k.have("c1", ids[:20], away)
				if err := c.Node(away).Snapshot(t.Context()); err != nil { // the log before it is not applied again
					t.Fatal(err)
				}
				c.Stop(away)
				k.add(c.Leader(), "c1", ids[20:30]...)
				c.SetEvents(away, disk(k, away, old))
				c.Start(away)
				k.add(c.Leader(), "c1", ids[30:]...)
				k.have("c1", ids, 0, 1, 2)
				k.have("c2", ids, 0, 1, 2)
				k.have("c3", nil, 0, 1, 2)
			})
		})
	}
}

// TestNode_FillEvents_ANewNodeVotesWhenItHasThem: it gets them by asking, more than one answer holds.
func TestNode_FillEvents_ANewNodeVotesWhenItHasThem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3, func(_ int, cfg *cluster.Config) { cfg.TrailingLogs = 1 })
		defer c.Close()
		k := newTalking(t, c, "c1")
		ids := numbered("e", 8)
		for _, id := range ids {
			cmd := appending("c1", cluster.NoPosition, 1500<<10, id)
			if _, err := c.Node(c.Leader()).AppendEvents(t.Context(), cmd); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Node(c.Leader()).Snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
		k.propose("ada", &fsm.ConversationUpdateBody{ID: "c1"}) // what follows the snapshot
		i := c.Join()
		voted := false
		c.Eventually("it votes", func() bool {
			for _, s := range c.Node(c.Leader()).Status().Servers {
				if s.Name == fmt.Sprint("n", i) && s.Voter {
					voted = true
				}
			}
			if _, whole := cluster.StoredEvents(c.Node(i), "ada", "c1"); voted && !whole {
				t.Error("it votes and lacks events")
			}
			return voted
		})
		k.have("c1", ids, i)
	})
}

// TestNode_Events_BelowTheVersionNothingHappens: no store is opened, no call is made, and what would
// begin a chain is refused.
func TestNode_Events_BelowTheVersionNothingHappens(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := upgraded(t, fsm.VersionEvents-1)
		defer c.Close()
		c.SetFault(func(from, to, call string) bool {
			if strings.Contains(call, "events") {
				t.Errorf("%s asked %s for %s", from, to, call)
			}
			return false
		})
		k := talking{c, t}
		if _, err := k.appendTo(t.Context(), 0, "c1", cluster.NoPosition, "e0"); fsm.CodeOf(err) != fsm.CodeProtocol {
			t.Errorf("events were taken: %v", err)
		}
		time.Sleep(time.Minute)
		for i := range 3 {
			if cluster.EventsOpen(c.Node(i)) || c.Node(i).Status().EventsMissing != 0 {
				t.Errorf("n%d uses its store of events", i)
			}
			if names, err := c.Events(i).List(""); err != nil || len(names) > 0 {
				t.Errorf("n%d wrote %v, %v", i, names, err)
			}
		}
	})
}

// read returns the ids of events as a node reads them.
func (k talking) read(i int, conversation string, from uint64, back bool, most int) (ids []string, err error) {
	return k.query(i, conversation, cluster.EventQuery{From: from, Back: back}, most)
}

// query returns the ids of the events that a query asks for.
func (k talking) query(i int, conversation string, q cluster.EventQuery, most int) (ids []string, err error) {
	v, err := k.Node(i).View(k.t.Context(), cluster.Linearizable)
	if err != nil {
		return nil, err
	}
	chain := v.EventChain("ada", conversation)
	if chain == nil {
		return nil, nil
	}
	err = k.Node(i).ReadEvents(k.t.Context(), *chain, q, func(_ uint64, stored []byte) bool {
		ids = append(ids, string(fsm.EventID(stored)))
		return len(ids) < most
	})
	return ids, err
}

// TestNode_ReadEvents_FromEachNode: in both directions, also from a node that lacks all of them.
func TestNode_ReadEvents_FromEachNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		k := newTalking(t, c, "c1")
		ids := numbered("e", 30)
		k.add(0, "c1", ids...)
		check := func(i int) {
			t.Helper()
			reversed := slices.Clone(ids)
			slices.Reverse(reversed)
			some := func(h fsm.EventHead) bool { return strings.HasSuffix(h.ID, "7") }
			for back, want := range map[bool][]string{false: {"e7", "e17", "e27"}, true: {"e17", "e7"}} {
				q := cluster.EventQuery{From: map[bool]uint64{true: 26}[back], Back: back, Takes: some}
				if got, err := k.query(i, "c1", q, 100); err != nil || !slices.Equal(got, want) {
					t.Errorf("n%d by heads, back %v: %v, %v", i, back, got, err)
				}
			}
			for _, step := range []struct {
				from uint64
				back bool
				most int
				want []string
			}{
				{0, false, 100, ids}, {10, false, 5, ids[10:15]}, {29, true, 100, reversed}, {4, true, 2, reversed[25:27]},
				{30, false, 5, nil},
			} {
				if got, err := k.read(i, "c1", step.from, step.back, step.most); err != nil || !slices.Equal(got, step.want) {
					t.Errorf("n%d from %d, back %v: %v, %v", i, step.from, step.back, got, err)
				}
			}
		}
		for i := range 3 {
			check(i)
		}
		away := c.Follower()
		if err := c.Node(away).Snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.Stop(away)
		c.SetEvents(away, nil)
		c.Start(away)
		c.Eventually("the node reads", func() bool { return c.Node(away).ReadyStale() == nil })
		check(away) // it may lack them still
		k.have("c1", ids, away)
		check(away)
	})
}

// TestNode_FindEvents_FromEachNode: also from a node that lacks all of them, in more than one answer.
func TestNode_FindEvents_FromEachNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		k := newTalking(t, c, "c1")
		for _, id := range []string{"e0", "e1"} {
			cmd := appending("c1", cluster.NoPosition, 5<<20, id)
			if _, err := c.Node(0).AppendEvents(t.Context(), cmd); err != nil {
				t.Fatal(err)
			}
		}
		k.have("c1", numbered("e", 2), 0, 1, 2)
		empty := c.Follower()
		k.emptied(empty, map[string]bool{fmt.Sprint("n", empty): true}) // it tries again in seconds
		for _, at := range []int{c.Leader(), empty} {
			c.SetFault(nil)
			chain := c.Store(at).View().EventChain("ada", "c1")
			got, err := c.Node(at).FindEvents(t.Context(), *chain, []string{"e1", "none", "e0"})
			if err != nil || len(got) != 2 || len(got["e0"]) < 5<<20 || string(fsm.EventID(got["e1"])) != "e1" {
				t.Errorf("n%d found %d, %v", at, len(got), err)
			}
		}
	})
}

// TestNode_AppendEvents_OldFactsAreNotNews: what an event says that was missing in the middle does not
// replace what the newest one said.
func TestNode_AppendEvents_OldFactsAreNotNews(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 1)
		defer c.Close()
		k := newTalking(t, c, "c1")
		for _, step := range []struct {
			at     uint64
			ids    []string
			status string
			want   string
		}{
			{0, []string{"e0", "e1"}, "running", "running"},
			{cluster.NoPosition, []string{"e3"}, "finished", "finished"},
			{1, []string{"e1", "e2"}, "running", "finished"}, {3, []string{"e3", "e4"}, "paused", "paused"},
			{cluster.NoPosition, []string{"e6"}, "idle", "idle"}, {5, []string{"e5", "e6", "e7"}, "error", "error"},
		} {
			cmd := appending("c1", step.at, 10, step.ids...)
			cmd.Body.(*fsm.EventsAppendBody).Facts = fsm.EventFacts{Status: step.status}
			done, err := k.Node(0).AppendEvents(t.Context(), cmd)
			v, viewErr := k.Node(0).View(t.Context(), cluster.Linearizable)
			if err != nil || viewErr != nil || done.Gap {
				t.Fatalf("%+v, %v, %v", done, err, viewErr)
			}
			if got := v.Conversation("ada", "c1").Said.Status; got != step.want {
				t.Errorf("after %v at %d it is %s, want %s", step.ids, step.at, got, step.want)
			}
		}
	})
}
