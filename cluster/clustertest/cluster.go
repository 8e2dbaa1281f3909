package clustertest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/eventstore"
	"bivouac.dev/bivouac/fsm"
)

const (
	// patience is how long helpers wait, in fake time.
	patience = time.Minute
	// quiet is how long a forwarded command may be in flight after its proposer has given up.
	quiet = 10 * time.Second
)

// Cluster is a set of nodes named n0, n1, ... in one process. One goroutine uses it, except for
// Propose and Node. Methods that wait must run in a synctest bubble.
type Cluster struct {
	t       testing.TB
	fabric  *fabric
	options []func(i int, c *cluster.Config)
	nodes   []*member
	expect  int

	// mu guards acked and every member's node. No goroutine may block while holding it: a goroutine
	// that waits for a mutex stops a bubble's clock.
	mu    sync.Mutex
	acked map[string]uint64 // index by command id
}

// member is one node across restarts.
type member struct {
	name    string
	address string
	disk    *disk
	logs    raft.LogStore // as the node opened it last
	node    *cluster.Node // nil while stopped
	store   *fsm.Store
	stop    context.CancelCauseFunc
	ended   chan error
	// gone: stopped for good, or expected to fail. Close ignores it.
	gone bool
}

// New makes and starts count nodes that form one cluster. options change each node's configuration.
// BIVOUAC_TEST_LOG=debug (or info, warn) prints the nodes' logs.
func New(t testing.TB, count int, options ...func(i int, c *cluster.Config)) *Cluster {
	t.Helper()
	c := NewStopped(t, count, options...)
	for i := range count {
		c.Start(i)
	}
	return c
}

// NewStopped is New without starting the nodes.
func NewStopped(t testing.TB, count int, options ...func(i int, c *cluster.Config)) *Cluster {
	c := &Cluster{t: t, fabric: newFabric(), options: options, acked: map[string]uint64{}, expect: count}
	for i := range count {
		c.add(fmt.Sprintf("n%d", i))
	}
	return c
}

func (c *Cluster) add(name string) {
	c.nodes = append(
		c.nodes, &member{name: name, address: fmt.Sprintf("n%d:1", len(c.nodes)), disk: newDisk()},
	)
}

// Join adds one node, which finds the cluster through the others' addresses, and returns its
// number.
func (c *Cluster) Join() int {
	c.t.Helper()
	return c.JoinAs(fmt.Sprintf("n%d", len(c.nodes)))
}

// JoinAs is Join with a given name, which may be another node's.
func (c *Cluster) JoinAs(name string) int {
	c.t.Helper()
	return c.JoinAt(name, fmt.Sprintf("n%d:1", len(c.nodes)))
}

// JoinAt is JoinAs at a given address.
func (c *Cluster) JoinAt(name, address string) int {
	c.t.Helper()
	c.add(name)
	i := len(c.nodes) - 1
	c.Move(i, address)
	c.Start(i)
	return i
}

// Move gives a stopped node another address.
func (c *Cluster) Move(i int, address string) { c.nodes[i].address = address }

// Start starts a stopped node on its disk.
func (c *Cluster) Start(i int) {
	c.t.Helper()
	m := c.nodes[i]
	expect := c.expect
	if i >= expect {
		expect = 0 // joined later
	}
	if m.node != nil {
		c.t.Fatalf("%s runs already", m.name)
	}
	cfg := cluster.DefaultConfig()
	cfg.NodeName, cfg.BootstrapExpect, cfg.Logger = m.name, expect, logger(c.t).With("node", m.name)
	disk, events := m.disk, cfg.Logger
	cfg.OpenEvents = func() (*eventstore.Store, error) { return disk.openEvents(events) }
	for _, other := range c.nodes {
		cfg.RetryJoin = append(cfg.RetryJoin, other.address)
	}
	for _, o := range c.options {
		o(i, &cfg)
	}
	m.store = fsm.NewStore()
	p := c.fabric.plug(m.name, m.address)
	storage, err := m.disk.storage(cfg.Logger)
	if err != nil {
		c.t.Fatalf("opening the disk of %s: %v", m.name, err)
	}
	m.logs = storage.Logs
	node, err := cluster.NewWith(cfg, m.store, storage, p)
	if err != nil {
		c.t.Fatalf("making %s: %v", m.name, err)
	}
	ctx, stop := context.WithCancelCause(context.Background())
	m.stop, m.ended = stop, make(chan error, 1)
	c.setNode(m, node)
	go func(ended chan<- error) { ended <- node.Run(ctx) }(m.ended)
}

// Node returns a running node, nil while it is stopped.
func (c *Cluster) Node(i int) *cluster.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[i].node
}

func (c *Cluster) setNode(m *member, n *cluster.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m.node = n
}

// Store returns a node's store.
func (c *Cluster) Store(i int) *fsm.Store { return c.nodes[i].store }

// Address returns a node's peer address.
func (c *Cluster) Address(i int) string { return c.nodes[i].address }

// Logs returns a node's log on disk, for tests that change it.
func (c *Cluster) Logs(i int) raft.LogStore { return c.nodes[i].logs }

// SnapshotOf returns the newest snapshot on a node's disk as a leader would send it.
func (c *Cluster) SnapshotOf(i int) (*raft.InstallSnapshotRequest, io.Reader) {
	c.t.Helper()
	list, err := c.nodes[i].disk.snapshots.List()
	if err != nil || len(list) == 0 {
		c.t.Fatalf("%s has no snapshot: %v", c.nodes[i].name, err)
	}
	meta, content, err := c.nodes[i].disk.snapshots.Open(list[0].ID)
	if err != nil {
		c.t.Fatal(err)
	}
	return &raft.InstallSnapshotRequest{
		SnapshotVersion: meta.Version, LastLogIndex: meta.Index, LastLogTerm: meta.Term, Size: meta.Size,
		Configuration: raft.EncodeConfiguration(meta.Configuration), ConfigurationIndex: meta.ConfigurationIndex,
	}, content
}

// Stop stops a node in order: it transfers leadership.
func (c *Cluster) Stop(i int) { c.end(i, nil) }

// Kill stops a node without a leadership transfer. Of its events only what was flushed before is left.
func (c *Cluster) Kill(i int) {
	c.t.Helper()
	left := c.nodes[i].disk.events.CrashClone(vfs.CrashCloneCfg{})
	c.end(i, cluster.ErrAbrupt)
	c.nodes[i].disk.events = left
}

// Events returns the file system with a node's store of events.
func (c *Cluster) Events(i int) *vfs.MemFS { return c.nodes[i].disk.events }

// SetEvents replaces the file system with a stopped node's store of events, nil by an empty one.
func (c *Cluster) SetEvents(i int, fs *vfs.MemFS) {
	c.t.Helper()
	if c.nodes[i].node != nil {
		c.t.Fatalf("%s runs", c.nodes[i].name)
	}
	if fs == nil {
		fs = vfs.NewCrashableMem()
	}
	c.nodes[i].disk.events = fs
}

// Wipe gives a stopped node an empty disk.
func (c *Cluster) Wipe(i int) {
	c.t.Helper()
	if c.nodes[i].node != nil {
		c.t.Fatalf("%s runs", c.nodes[i].name)
	}
	c.nodes[i].disk = newDisk()
}

// Forget excludes a removed node from the invariants of Close.
func (c *Cluster) Forget(i int) { c.nodes[i].gone = true }

// Failed waits until some node's Run returns by itself, and returns the node's number and error.
// The node is excluded from the invariants.
func (c *Cluster) Failed() (i int, err error) {
	c.t.Helper()
	c.Eventually("a node stops by itself", func() bool {
		for number, m := range c.nodes {
			if m.node == nil || len(m.ended) == 0 {
				continue
			}
			err = <-m.ended
			m.stop(nil)
			c.setNode(m, nil)
			m.gone = true
			i = number
			return true
		}
		return false
	})
	return i, err
}

func (c *Cluster) end(i int, cause error) {
	c.t.Helper()
	m := c.nodes[i]
	if m.node == nil {
		c.t.Fatalf("%s is stopped already", m.name)
	}
	m.stop(cause)
	select {
	case err := <-m.ended:
		if err != nil && !m.gone {
			c.t.Errorf("%s: Run: %v", m.name, err)
		}
	case <-time.After(patience):
		c.t.Fatalf("%s does not stop", m.name)
	}
	c.setNode(m, nil)
}

// Partition separates groups of nodes from each other. A node in no group belongs to the first.
func (c *Cluster) Partition(groups ...[]int) {
	var addresses [][]string
	for _, g := range groups {
		var a []string
		for _, i := range g {
			a = append(a, c.nodes[i].address)
		}
		addresses = append(addresses, a)
	}
	c.fabric.partition(addresses)
}

// Isolate separates one node from all others.
func (c *Cluster) Isolate(i int) { c.Partition(nil, []int{i}) }

// Heal ends every partition.
func (c *Cluster) Heal() { c.fabric.partition(nil) }

// Withhold keeps Raft's entries from node i; heartbeats and peer calls still reach it. -1 ends that.
func (c *Cluster) Withhold(i int) {
	c.fabric.mu.Lock()
	defer c.fabric.mu.Unlock()
	if c.fabric.mute = ""; i >= 0 {
		c.fabric.mute = c.nodes[i].address
	}
	c.fabric.connect()
}

// Messenger returns a transport that belongs to no node, for tests that send Raft messages.
func (c *Cluster) Messenger() raft.Transport {
	return c.fabric.plug("messenger", "messenger:1").Transport(nil, nil)
}

// Stranger returns the network of a node outside the cluster, for tests that make peer calls.
func (c *Cluster) Stranger(name string) cluster.Network { return c.fabric.plug(name, name+":1") }

// StrangerAt connects a peer port of no node with the certificate of a name.
func (c *Cluster) StrangerAt(name, address string) cluster.Network {
	return c.fabric.plug(name, address)
}

// SetFault sets which answers of peer calls are lost, nil for none.
func (c *Cluster) SetFault(f Fault) {
	c.fabric.mu.Lock()
	defer c.fabric.mu.Unlock()
	c.fabric.fault = f
}

// SetUnknown makes the programs of nodes too old for peer calls, nil for none.
func (c *Cluster) SetUnknown(u Unknown) {
	c.fabric.mu.Lock()
	defer c.fabric.mu.Unlock()
	c.fabric.unknown = u
}

// Eventually waits until ok is true.
func (c *Cluster) Eventually(what string, ok func() bool) {
	c.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("waited %v for: %s\n%s", patience, what, c.describe())
		}
	}
}

// Leader waits until one running node leads and a majority agrees. It returns the node's number.
func (c *Cluster) Leader() int {
	c.t.Helper()
	leader := -1
	c.Eventually("one leader that a majority agrees on", func() bool {
		votes := map[string]int{}
		total := 0
		for _, m := range c.nodes {
			if m.gone {
				continue
			}
			total++
			if m.node != nil {
				votes[m.node.Status().Leader]++
			}
		}
		for i, m := range c.nodes {
			if m.node != nil && m.node.Status().State == cluster.StateLeader && 2*votes[m.name] > total {
				leader = i
				return true
			}
		}
		return false
	})
	return leader
}

// Follower returns a running node that does not lead.
func (c *Cluster) Follower() int {
	c.t.Helper()
	leader := c.Leader()
	for i, m := range c.nodes {
		if i != leader && m.node != nil && !m.gone {
			return i
		}
	}
	c.t.Fatal("no follower")
	return -1
}

// Propose proposes through node i and records acknowledged commands. Node i's store has the command
// then. It is safe for concurrent use.
func (c *Cluster) Propose(ctx context.Context, i int, cmd fsm.Command) (fsm.Result, error) {
	node := c.Node(i)
	if node == nil {
		return fsm.Result{}, fsm.Errorf(fsm.CodeShuttingDown, "the node is stopped")
	}
	result, err := node.Propose(ctx, cmd)
	if err == nil {
		c.mu.Lock()
		c.acked[cmd.ID] = result.Index
		c.mu.Unlock()
		_, err = node.View(ctx, cluster.Stale)
	}
	return result, err
}

// Messages is the number of AppendEntries requests that leaders have sent, heartbeats included.
func (c *Cluster) Messages() int {
	c.fabric.mu.Lock()
	defer c.fabric.mu.Unlock()
	return c.fabric.messages
}

// Settle heals the network, starts stopped nodes, and waits until all nodes have one leader and one
// index.
func (c *Cluster) Settle() {
	c.t.Helper()
	c.Heal()
	c.SetFault(nil)
	for i, m := range c.nodes {
		if m.node == nil && !m.gone {
			c.Start(i)
		}
	}
	c.Eventually("all nodes at the leader's commit index", func() bool {
		leader := c.Leader()
		want := c.nodes[leader].node.Status()
		for _, m := range c.nodes {
			if m.gone {
				continue
			}
			if s := m.node.Status(); s.AppliedIndex != want.CommitIndex || s.Leader != want.Node || s.AppliedIndex == 0 {
				return false
			}
		}
		return true
	})
}

// Close settles the cluster, checks the invariants and stops every node.
func (c *Cluster) Close() {
	c.t.Helper()
	if !c.t.Failed() && slices.ContainsFunc(c.nodes, func(m *member) bool { return !m.gone }) {
		c.Settle()
		time.Sleep(quiet)
		c.Settle()
		c.checkStores()
	}
	for i, m := range c.nodes {
		if m.node != nil {
			c.end(i, cluster.ErrAbrupt)
		}
	}
	c.fabric.mu.Lock()
	defer c.fabric.mu.Unlock()
	for _, err := range c.fabric.errs {
		c.t.Error(err)
	}
}

// checkStores compares the stores and looks for every acknowledged write. No command may be in
// flight.
func (c *Cluster) checkStores() {
	c.t.Helper()
	var first *member
	for _, m := range c.nodes {
		if m.gone {
			continue
		}
		if first == nil {
			first = m
		}
		if a, b := first.store.Checksum(), m.store.Checksum(); a != b {
			c.t.Errorf(
				"%s and %s differ at index %d and %d: %s, %s", first.name, m.name, first.store.Index(),
				m.store.Index(), a, b,
			)
		}
		v := m.store.View()
		c.mu.Lock()
		for id, index := range c.acked {
			if result, _, _, found := v.CommandResult(id); !found || result.Index != index {
				c.t.Errorf(
					"%s: command %s was acknowledged at index %d and is not there (found %v, index %d)", m.name,
					id, index, found, result.Index,
				)
			}
		}
		c.mu.Unlock()
	}
}

func (c *Cluster) describe() string {
	text := ""
	for _, m := range c.nodes {
		if m.node == nil {
			text += m.name + ": stopped\n"
			continue
		}
		text += fmt.Sprintf("%s: %+v ready: %v\n", m.name, m.node.Status(), m.node.Ready())
	}
	return text
}

// logger prints logs if the environment asks for them.
func logger(t testing.TB) *slog.Logger {
	var level slog.Level
	if level.UnmarshalText([]byte(os.Getenv("BIVOUAC_TEST_LOG"))) != nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: level}))
}
