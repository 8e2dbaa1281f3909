package cluster_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/uuid"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/eventstore"
	"bivouac.dev/bivouac/fsm"
)

// TestReal_EventsCantBeWritten_TheNodeStops: an error of the store of events is no result of a command.
// The node stops as at an error of its log and names the directory, and the others go on.
func TestReal_EventsCantBeWritten_TheNodeStops(t *testing.T) {
	t.Parallel()
	if os.Getenv(leakingEnv) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), leakingEnv+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	for _, fault := range []error{syscall.EIO, syscall.ENOSPC} {
		for _, leads := range []bool{false, true} {
			t.Run(fmt.Sprint(fault, ", leader ", leads), func(t *testing.T) {
				t.Parallel()
				failingEvents(t, fault, leads)
			})
		}
	}
}

func failingEvents(t *testing.T, fault error, leads bool) {
	r := newReal(t, 3)
	broken := make([]atomic.Bool, 3)
	for i, n := range r.nodes {
		dir := filepath.Join(n.cfg.DataDir, cluster.EventsDir)
		n.cfg.OpenEvents = func() (*eventstore.Store, error) {
			return eventstore.Open(dir, eventstore.Options{
				MemTableBytes: 64 << 10, // so that Write itself waits for the disk
				FS: errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
					if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && broken[i].Load() {
						return fault
					}
					return nil
				})),
			})
		}
	}
	r.startAll()
	r.converse("c1")
	sent := 0
	add := func(count int) {
		t.Helper()
		for range count {
			r.addEvent(fmt.Sprint("e", sent))
			sent++
		}
	}
	add(3)
	victim := r.leader()
	if !leads {
		victim = (victim + 1) % 3
	}
	broken[victim].Store(true)
	n := r.nodes[victim]
	var err error
	eventually(t, func() bool {
		select {
		case err = <-n.ended:
			return true
		default:
			add(1)
			return false
		}
	}, func() string { return "the node goes on without its events" })
	n.stop(nil)
	n.node = nil
	if err == nil || !errors.Is(err, fault) || !strings.Contains(err.Error(), filepath.Join(n.cfg.DataDir, "events")) {
		t.Errorf("it stopped with %v", err)
	}
	add(3)
	for i, other := range r.nodes {
		if other.node == nil {
			continue
		}
		eventually(t, func() bool {
			ids, whole := cluster.StoredEvents(other.node, "ada", "c1")
			return whole && len(ids) == sent
		}, func() string { return fmt.Sprintf("n%d lacks some of %d events", i, sent) })
	}
}

// converse makes a conversation.
func (r *real) converse(id string) {
	r.t.Helper()
	talkers(r.propose)
	begin(r.propose, id)
}

// propose proposes through the leader, at the version that a new cluster comes to.
func (r *real) propose(user string, body fsm.Body) {
	r.t.Helper()
	n := r.nodes[r.leader()]
	eventually(r.t, func() bool { return n.store.View().ProtocolVersion() == fsm.ProtocolVersion }, func() string {
		return "the protocol version is not raised"
	})
	cmd := fsm.NewCommand(uuid.NewString(), time.Now(), user, body)
	if _, err := n.node.Propose(r.t.Context(), cmd); err != nil {
		r.t.Fatalf("%s: %v", body.CommandType(), err)
	}
}

// addEvent appends an event of 20 KB through the nodes that run, until one takes it.
func (r *real) addEvent(id string) {
	r.t.Helper()
	var err error
	try := 0
	eventually(r.t, func() bool {
		try++
		n := r.nodes[try%len(r.nodes)].node
		if n == nil {
			return false
		}
		_, err = n.AppendEvents(r.t.Context(), appending("c1", cluster.NoPosition, 20000, id))
		return err == nil
	}, func() string { return fmt.Sprintf("an event is not taken: %v", err) })
}
