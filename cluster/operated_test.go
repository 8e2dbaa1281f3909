package cluster_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/clustertest"
	"bivouac.dev/bivouac/fsm"
)

// lines collects what a node logs.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) has(all ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		found := true
		for _, part := range all {
			found = found && strings.Contains(line, part)
		}
		if found {
			return true
		}
	}
	return false
}

// TestCluster_OperatorsCommands_AreLoggedOnEveryNode: with the index of the entry and the key behind it.
func TestCluster_OperatorsCommands_AreLoggedOnEveryNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var logs [3]lines
		c := clustertest.New(t, 3,
			func(i int, cfg *cluster.Config) { cfg.Logger = slog.New(slog.NewTextHandler(&logs[i], nil)) })
		defer c.Close()
		c.Settle()
		o, key := testKey("admin", true)
		if _, err := c.Propose(t.Context(), 0, fsm.NewCommand(uuid.NewString(), time.Now(), "", key)); err != nil {
			t.Fatal(err)
		}
		_, other := testKey("victim", false)
		create := fsm.NewCommand(uuid.NewString(), time.Now(), "", other)
		if _, err := c.Node(1).Propose(cluster.AsOperator(t.Context(), o), create); err != nil {
			t.Fatal(err)
		}
		c.Settle()
		number := c.Store(0).View().APIKeyByLookup(o.Lookup).ID
		for i := range logs {
			c.Eventually(fmt.Sprintf("n%d logs the operator's command", i), func() bool { // after the store has it
				return logs[i].has("operator's command is applied", "index=", "type=api_key.create", fmt.Sprintf("key=%d", number))
			})
		}
	})
}

// TestCluster_Records_OfRemovedMembersAreForgotten: on followers too.
func TestCluster_Records_OfRemovedMembersAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 4)
		defer c.Close()
		c.Settle()
		gone := c.Follower()
		name := fmt.Sprintf("n%d", gone)
		wire := c.StrangerAt(fmt.Sprintf("n%d", c.Leader()), "elsewhere:1") // with the leader's certificate
		known := func(i int) bool {
			raw, err := wire.Call(t.Context(), c.Address(i), "records", []byte("{}"))
			if err != nil {
				t.Fatal(err)
			}
			var response struct {
				Records []cluster.MemberRecord `json:"records"`
			}
			if err := json.Unmarshal(raw, &response); err != nil {
				t.Fatal(err)
			}
			for _, r := range response.Records {
				if strings.HasPrefix(r.ID, name+".") {
					return true
				}
			}
			return false
		}
		all := func(want bool) func() bool {
			return func() bool {
				for i := range 4 {
					if i != gone && known(i) != want {
						return false
					}
				}
				return true
			}
		}
		c.Eventually("all know it", all(true))
		c.Kill(gone)
		c.Forget(gone)
		if err := c.Node(c.Leader()).RemoveServer(t.Context(), name, cluster.RemoveOptions{}); err != nil {
			t.Fatal(err)
		}
		c.Eventually("all forget it", all(false))
	})
}

// TestReal_Restore_EndsWithItsCaller: the leader's work does not end, and the caller goes.
func TestReal_Restore_EndsWithItsCaller(t *testing.T) {
	t.Parallel()
	r := newReal(t, 1)
	r.startAll()
	n := r.nodes[0].node
	working, end := make(chan struct{}), make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		_ = n.Lead(t.Context(), func(context.Context, uint64) error {
			select {
			case <-working:
			default:
				close(working)
			}
			<-end
			return nil
		})
	})
	<-working
	file := r.save(0)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	restored := make(chan error, 1)
	go func() {
		_, err := n.Restore(ctx, file, cluster.RestoreOptions{Force: true})
		restored <- err
	}()
	select {
	case err := <-restored:
		if fsm.CodeOf(err) != fsm.CodeTimeout {
			t.Errorf("restored: %v, want %s", err, fsm.CodeTimeout)
		}
	case <-time.After(20 * time.Second):
		t.Error("the restore waits for the leader's work and not for its caller")
	}
	close(end)
	r.put(0, 3) // the node leads on
	r.kill(0)
	work.Wait()
}
