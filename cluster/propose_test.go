package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/clustertest"
	"bivouac.dev/bivouac/fsm"
)

func asFSM(err error, e **fsm.Error) bool { return errors.As(err, e) }

func TestNode_Propose_NoLeaderRefusesInTimeAndDidNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		c.Leader()
		c.Partition([]int{0}, []int{1}, []int{2})
		time.Sleep(time.Second)
		for i := range 3 {
			begin := time.Now()
			_, err := c.Propose(t.Context(), i, newKey(i))
			var e *fsm.Error
			if !asFSM(err, &e) || e.Code != fsm.CodeNoLeader || e.RetryAfter <= 0 {
				t.Errorf("n%d: got %v, want CodeNoLeader with RetryAfter", i, err)
			}
			if took, bound := time.Since(begin), cluster.DefaultConfig().ProposeTimeout; took != bound {
				t.Errorf("n%d: refused after %v, want %v", i, took, bound)
			}
		}
		c.Settle()
		if keys := c.Store(0).View().APIKeys(); len(keys) != 0 {
			t.Errorf("%d commands refused with CodeNoLeader were applied", len(keys))
		}
	})
}

func TestNode_Propose_CallerGivesUpIsTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		c.Leader()
		c.Partition([]int{0}, []int{1}, []int{2})
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := c.Propose(ctx, 0, newKey(0)); fsm.CodeOf(err) != fsm.CodeTimeout {
			t.Errorf("got %v, want CodeTimeout", err)
		}
	})
}

func TestNode_Propose_LostAnswersApplyOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// The answers of every command are lost twice; the third gets through.
		c := clustertest.New(t, 3)
		defer c.Close()
		follower := c.Follower()
		var calls atomic.Int64
		c.SetFault(func(_, _, call string) bool { return call == "apply" && calls.Add(1)%3 != 0 })
		const commands = 50
		for i := range commands {
			result, err := c.Propose(t.Context(), follower, newKey(i))
			if err != nil || !result.Replayed || result.APIKey == nil {
				t.Errorf("command %d: %+v, %v; want the first answer, replayed", i, result, err)
			}
		}
		if calls.Load() != 3*commands {
			t.Errorf("%d calls, want %d", calls.Load(), 3*commands)
		}
		c.Settle()
		if keys := len(c.Store(follower).View().APIKeys()); keys != commands {
			t.Errorf("%d commands left %d keys", commands, keys)
		}
	})
}

func TestNode_Propose_UnknownOutcomeIsSaidAndRepeatingIsSafe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		follower := c.Follower()
		c.SetFault(func(_, _, call string) bool { return call == "apply" })
		cmd := newKey(1)
		_, err := c.Propose(t.Context(), follower, cmd)
		var e *fsm.Error
		if !asFSM(err, &e) || e.Code != fsm.CodeOutcomeUnknown || e.RetryAfter <= 0 {
			t.Fatalf("got %v, want CodeOutcomeUnknown with RetryAfter", err)
		}
		c.SetFault(nil)
		result, err := c.Propose(t.Context(), follower, cmd)
		if err != nil || !result.Replayed || result.APIKey == nil {
			t.Errorf("repeating gave %+v, %v; want the first answer, replayed", result, err)
		}
		if keys := len(c.Store(follower).View().APIKeys()); keys != 1 {
			t.Errorf("%d keys, want 1", keys)
		}
	})
}

func TestNode_Propose_SurvivesTheLossOfTheLeader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		leader := c.Leader()
		asked := (leader + 1) % 3
		const writers, each = 8, 40
		var wg sync.WaitGroup
		var failed atomic.Int64
		var longest atomic.Int64
		for w := range writers {
			wg.Go(func() {
				for i := range each {
					begin := time.Now()
					if _, err := c.Propose(t.Context(), asked, newKey(w*each+i)); err != nil {
						failed.Add(1)
						t.Errorf("writer %d: %v", w, err)
					}
					storeMax(&longest, int64(time.Since(begin)))
				}
			})
		}
		time.Sleep(20 * time.Millisecond)
		c.Kill(leader)
		wg.Wait()
		t.Logf("killed leader: the longest Propose took %v", time.Duration(longest.Load()))
		if keys := len(c.Store(asked).View().APIKeys()); keys != writers*each {
			t.Errorf("%d keys, want %d", keys, writers*each)
		}
	})
}

func TestNode_Propose_RefusalOfApplyIsTheSameFromEveryNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		c.Leader()
		if _, err := c.Propose(t.Context(), 0, newKey(7)); err != nil {
			t.Fatal(err)
		}
		var texts []string
		for i := range 3 {
			_, err := c.Propose(t.Context(), i, newKey(7)) // the lookup is taken
			if fsm.CodeOf(err) != fsm.CodeConflict {
				t.Errorf("n%d: got %v, want CodeConflict", i, err)
			}
			texts = append(texts, fmt.Sprint(err))
		}
		if texts[0] != texts[1] || texts[1] != texts[2] {
			t.Errorf("the refusals differ: %q", texts)
		}
	})
}

func TestNode_Propose_InvalidOldAndHugeNeverReachTheLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		leader := c.Leader()
		// Raising it is a command.
		c.Eventually("the protocol version is raised", func() bool {
			return c.Store(leader).View().ProtocolVersion() == fsm.ProtocolVersion
		})
		c.Settle()
		before := c.Node(leader).Status().CommitIndex

		old := newKey(1)
		old.Time = old.Time.Add(-61 * time.Second)
		early := newKey(2)
		early.Time = early.Time.Add(61 * time.Second)
		invalid := newKey(3)
		invalid.Body = &fsm.APIKeyCreateBody{}
		mixed := newKey(4)
		mixed.Body = &fsm.APIKeyRevokeBody{ID: 1}
		huge := newKey(5)
		huge.Fingerprint = strings.Repeat("x", fsm.MaxCommandBytes)
		for i := range 3 {
			for name, test := range map[string]struct {
				cmd  fsm.Command
				code fsm.Code
			}{
				"old": {old, fsm.CodeTimeout}, "early": {early, fsm.CodeTimeout}, "invalid": {invalid, fsm.CodeInvalid},
				"mixed": {mixed, fsm.CodeInvalid}, "huge": {huge, fsm.CodeInvalid}, "empty": {fsm.Command{}, fsm.CodeInvalid},
			} {
				if _, err := c.Propose(t.Context(), i, test.cmd); fsm.CodeOf(err) != test.code {
					t.Errorf("n%d: %s: got %v, want %s", i, name, err, test.code)
				}
			}
		}
		if after := c.Node(leader).Status().CommitIndex; after != before {
			t.Errorf("refused commands moved the log from %d to %d", before, after)
		}
	})
}

func TestNode_Propose_StoppedNodeSaysSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		c.Leader()
		n := c.Node(1)
		c.Stop(1)
		if _, err := n.Propose(t.Context(), newKey(1)); fsm.CodeOf(err) != fsm.CodeShuttingDown {
			t.Errorf("Propose: got %v, want CodeShuttingDown", err)
		}
		if _, err := n.View(t.Context(), cluster.Linearizable); fsm.CodeOf(err) != fsm.CodeShuttingDown {
			t.Errorf("View: got %v, want CodeShuttingDown", err)
		}
		if err := n.Lead(t.Context(), func(context.Context, uint64) error { return nil }); err != nil {
			t.Errorf("Lead: %v", err)
		}
		if n.Ready() == nil {
			t.Error("a stopped node is ready")
		}
	})
}

func TestNode_Propose_WaitsForALeaderDuringAnElection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		leader := c.Leader()
		c.Kill(leader)
		begin := time.Now()
		if _, err := c.Propose(t.Context(), (leader+1)%3, newKey(1)); err != nil {
			t.Fatalf("during an election: %v", err)
		}
		if took := time.Since(begin); took > 3*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// hashicorp/raft tells a follower what is committed only CommitTimeout later, if
// nothing else follows; whoever wrote or read through the follower does not wait
// for that.
func TestNode_Propose_AFollowerLearnsWhatItWroteAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const slow = 400 * time.Millisecond
		c := clustertest.New(t, 3, func(_ int, cfg *cluster.Config) { cfg.CommitTimeout = slow })
		defer c.Close()
		follower := c.Follower()
		other := 3 - follower - c.Leader()
		time.Sleep(5 * time.Second)
		for i := range 20 {
			begin := time.Now()
			if _, err := c.Propose(t.Context(), follower, put("ada", i+1)); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begin); took > slow/10 {
				t.Errorf("write %d through a follower took %v", i, took)
			}
			begin = time.Now()
			v, err := c.Node(other).View(t.Context(), cluster.Linearizable)
			if err != nil || got(v, "ada") != i+1 {
				t.Errorf("the other follower reads %v, %v", v, err)
			}
			if took := time.Since(begin); took > slow/10 {
				t.Errorf("read %d on the other follower took %v", i, took)
			}
		}
	})
}

// Followers that take no part in a write learn soon that it is committed, however long CommitTimeout
// is: their stale reads, and what waits for their stores, depend on it.
func TestNode_FollowersLearnOfACommitSoon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const slow = 400 * time.Millisecond
		c := clustertest.New(t, 3, func(_ int, cfg *cluster.Config) { cfg.CommitTimeout = slow })
		defer c.Close()
		leader := c.Leader()
		time.Sleep(5 * time.Second)
		for i := range 20 {
			time.Sleep(time.Duration(i*37) * time.Millisecond)
			res, err := c.Propose(t.Context(), leader, put("ada", i+1))
			if err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			for node := range 3 {
				if err := c.Store(node).Wait(t.Context(), res.Index); err != nil {
					t.Fatal(err)
				}
			}
			if took := time.Since(begin); took > slow/10 {
				t.Errorf("all nodes have write %d after %v", i, took)
			}
		}
	})
}

// Nodes at rest send few messages: each wakes two processes.
func TestNode_SendsFewMessagesAtRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		time.Sleep(10 * time.Second)
		before := c.Messages()
		time.Sleep(time.Minute)
		// To each of two followers, a second: 13 heartbeats, 13 commit indexes, 1 or 2 of the members.
		if got := c.Messages() - before; got > 60*2*30 {
			t.Errorf("%d messages of Raft in a minute at rest", got)
		}
	})
}
