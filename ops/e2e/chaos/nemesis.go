//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

const (
	// stopPatience is how long a node may take to stop gracefully.
	stopPatience = 10 * time.Second
	// readyPatience bounds the wait for all nodes between two rounds.
	readyPatience = 6 * time.Second
)

// Nemesis injects faults into one test cluster. Run is called once.
type Nemesis struct {
	cluster  *testcluster.Cluster
	net      *Network
	clocks   []*Clock
	mail     []*Mail
	schedule *Schedule
	say      func(format string, args ...any)
	watch    *watch
	lives    []atomic.Uint64
	// hands has a lock per node, held while the node is stopped or started.
	hands   []sync.Mutex
	disks   disks
	forgers forgers

	mu     sync.Mutex
	counts map[Kind]int
}

// New makes the nemesis of a test cluster. net is nil without a Network; then the schedule must
// have StackKinds only. say logs the schedule as it is carried out.
func New(
	t testing.TB,
	f *testcluster.Cluster,
	net *Network,
	s *Schedule,
	say func(format string, args ...any),
) *Nemesis {
	t.Helper()
	n := &Nemesis{
		cluster: f, net: net, schedule: s, say: say, watch: newWatch(f),
		lives: make([]atomic.Uint64, len(f.Nodes)), hands: make([]sync.Mutex, len(f.Nodes)), counts: map[Kind]int{},
		disks: disks{touched: map[int]*touch{}, copies: map[int]older{}, lost: map[int]int{}},
	}
	for _, node := range f.Nodes {
		c, err := NewClock(f.DrillDir, node.Name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		m, err := NewMail(f.DrillDir, node.Name, s.Seed())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() })
		n.clocks, n.mail = append(n.clocks, c), append(n.mail, m)
	}
	return n
}

// Life identifies the node's current process. It is odd while none runs.
func (n *Nemesis) Life(node int) uint64 { return n.lives[node].Load() }

// Figures are the results of Run.
type Figures struct {
	Faults map[Kind]int
	// Elections counts the terms with a leader after the first. Terms is the growth of the
	// term, failed candidacies included.
	Elections, Terms int
	Packets          Packets
	// TwoLeaders lists every term in which two nodes claimed to lead.
	TwoLeaders []string
	// Refused counts starts on disks that a node refused, Adopted the adoptions, Away the nodes
	// that the others did not readmit with their disk. Ended lists processes that ended by
	// themselves on a good disk, and those that ran on a bad one.
	Refused, Adopted, Away int
	Ended                  []string
	// Forged counts the forged messages sent. Taken lists those that a node took.
	Forged int64
	Taken  []string
}

// String returns the figures on one line.
func (f Figures) String() string {
	var kinds []string
	total := 0
	for _, k := range slices.Sorted(maps.Keys(f.Faults)) {
		kinds = append(kinds, fmt.Sprintf("%s %d", k, f.Faults[k]))
		total += f.Faults[k]
	}
	return fmt.Sprintf("%d faults (%s), %d starts refused for the disk, %d disks adopted, %d not taken back, "+
		"%d elections in %d terms, %d forged messages, packets between the nodes: %d passed, %d lost, %d delayed",
		total, strings.Join(kinds, ", "), f.Refused, f.Adopted, f.Away, f.Elections, f.Terms, f.Forged, f.Packets.Passed,
		f.Packets.Lost, f.Packets.Delayed)
}

// Figures returns the results so far.
func (n *Nemesis) Figures() Figures {
	n.mu.Lock()
	defer n.mu.Unlock()
	f := Figures{Faults: maps.Clone(n.counts)}
	if n.net != nil {
		f.Packets = n.net.Packets()
	}
	f.Elections, f.Terms, f.TwoLeaders = n.watch.figures()
	f.Forged, f.Taken = n.forgers.figures()
	n.disks.mu.Lock()
	defer n.disks.mu.Unlock()
	f.Refused, f.Adopted, f.Away, f.Ended = n.disks.refused, n.disks.adopted, n.disks.away, slices.Clone(n.disks.ended)
	return f
}

// Run carries out rounds until ctx ends. Then it undoes all faults and waits until every node
// serves. An error means that the cluster did not recover.
func (n *Nemesis) Run(ctx context.Context) error {
	watching, stop := context.WithCancel(context.Background())
	var watcher sync.WaitGroup
	watcher.Go(func() { n.watch.run(watching) })
	watcher.Go(func() { n.repair(watching) })
	defer watcher.Wait()
	defer stop()
	if n.schedule.Has(Forged) {
		if err := n.forge(ctx); err != nil {
			return err
		}
		n.startForgers(watching)
		defer n.stopForgers()
		defer stop()
	}
	begin := time.Now()
	for ctx.Err() == nil {
		r := n.schedule.Next()
		n.say("%7.3fs %s", time.Since(begin).Seconds(), r)
		if err := n.round(ctx, r); err != nil {
			return err
		}
	}
	err := testcluster.Await(testcluster.Patience, n.ready)
	n.say("%7.3fs the end; %v", time.Since(begin).Seconds(), n.Figures())
	return err
}

// round carries out one round and undoes its faults.
func (n *Nemesis) round(ctx context.Context, r Round) error {
	begin := time.Now()
	var undo []func() error
	for _, f := range r.Faults {
		testcluster.Pause(ctx, f.After-time.Since(begin))
		what, back := n.begin(ctx, f)
		n.say("         %s: %s", f.Kind, what)
		if what != notNow {
			n.mu.Lock()
			n.counts[f.Kind]++
			n.mu.Unlock()
		}
		undo = append(undo, back)
	}
	testcluster.Pause(ctx, r.Hold)
	if n.net != nil {
		n.net.Heal() // first: a rolling restart may take long
	}
	var errs []error
	for _, back := range slices.Backward(undo) {
		errs = append(errs, back())
	}
	testcluster.Pause(ctx, r.Calm)
	switch {
	case !r.Ready || ctx.Err() != nil:
	case n.net == nil:
		// All faults are undone, and no disk was touched: every node must serve again.
		errs = append(errs, testcluster.Await(testcluster.Patience, n.ready))
	default:
		_ = testcluster.Await(readyPatience, n.ready)
	}
	return errors.Join(errs...)
}

// ready returns nil if every node serves and votes.
func (n *Nemesis) ready() error {
	for i, node := range n.cluster.Nodes {
		n.hands[i].Lock()
		alive := node.Alive()
		n.hands[i].Unlock()
		if !alive {
			return fmt.Errorf("%s ended by itself:\n%s", node.Name, local.Tail(node.Log, 20))
		}
		if err := n.watch.client(i).Serves(); err != nil {
			return fmt.Errorf("%s: %w", node.Name, err)
		}
	}
	return n.disks.whole()
}

// begin starts a fault. It returns a description and the function that undoes it.
func (n *Nemesis) begin(ctx context.Context, f Fault) (string, func() error) {
	chance := rand.New(rand.NewPCG(f.Chance, 0))
	any, leader := chance.IntN(len(n.cluster.Nodes)), n.watch.leader()
	if leader < 0 {
		leader = any
	}
	switch f.Kind {
	case KillLeader:
		return n.kill(leader)
	case KillNode:
		return n.kill(any)
	case KillTwo:
		return n.kill(leader, (leader+1+chance.IntN(len(n.cluster.Nodes)-1))%len(n.cluster.Nodes))
	case KillAll:
		return n.kill(n.all()...)
	case PauseLeader:
		return n.pause(leader)
	case PauseNode:
		return n.pause(any)
	case RollingRestart:
		return n.roll(any)
	case ClockJump:
		return n.jump(any, chance)
	case ClockElection:
		return n.clockElection(leader, chance)
	case Bounce:
		if chance.IntN(3) == 0 {
			leader = any
		}
		return n.bounce(ctx, leader, chance)
	case Late:
		return n.late(chance)
	case LateSnapshot:
		return n.lateSnapshot(ctx, any)
	case Forged:
		n.forgers.flood.Store(true)
		return "all of them", func() error { n.forgers.flood.Store(false); return nil }
	case EmptyDisk, SameName, NewName:
		return n.tamper(ctx, f.Kind, any, chance)
	case OldDisk:
		return n.oldDisk(ctx, any, chance)
	case RolledBack:
		return n.rollBack(ctx, any, chance)
	case CloneDisk:
		return n.clone(ctx, any, chance)
	case KillNomad, KillVault, SealVault, RevokeTokens, FreezeClient, CollectNomad:
		return n.stack(ctx, f.Kind)
	case Slow, Lossy:
		return n.worsen(f.Kind, chance)
	default:
		return n.cut(f.Kind, any, leader, chance)
	}
}

func (n *Nemesis) all() (list []int) {
	for i := range n.cluster.Nodes {
		list = append(list, i)
	}
	return list
}

func (n *Nemesis) names(nodes []int) string {
	var names []string
	for _, i := range nodes {
		names = append(names, n.cluster.Nodes[i].Name)
	}
	return strings.Join(names, ", ")
}

// dies records the end of a node's process, alive the start of one.
func (n *Nemesis) dies(node int)  { n.lives[node].Add(1) }
func (n *Nemesis) alive(node int) { n.lives[node].Add(1) }

func (n *Nemesis) kill(nodes ...int) (string, func() error) {
	n.stop(nodes...)
	return n.names(nodes), func() error { return n.start(nodes...) }
}

func (n *Nemesis) pause(node int) (string, func() error) {
	n.hands[node].Lock()
	pid := n.cluster.Nodes[node].Pid()
	_ = syscall.Kill(pid, syscall.SIGSTOP)
	return n.names([]int{node}), func() error {
		defer n.hands[node].Unlock()
		err := syscall.Kill(pid, syscall.SIGCONT)
		if errors.Is(err, syscall.ESRCH) || errors.Is(err, os.ErrProcessDone) {
			return nil // it ended by itself; endedItself handles that
		}
		return err
	}
}

// roll restarts the nodes one after the other. Each waits until the previous one serves, or for
// a time limit.
func (n *Nemesis) roll(first int) (string, func() error) {
	var order []int
	for i := range n.cluster.Nodes {
		order = append(order, (first+i)%len(n.cluster.Nodes))
	}
	done := make(chan error, 1)
	go func() {
		var errs []error
		for _, i := range order {
			node := n.cluster.Nodes[i]
			n.hands[i].Lock()
			n.endedItself(i)
			n.dies(i)
			node.Stop(stopPatience)
			errs = append(errs, n.start(i))
			_ = testcluster.Await(readyPatience, n.watch.client(i).Serves)
		}
		done <- errors.Join(errs...)
	}()
	return n.names(order), func() error { return <-done }
}

// jumps are the possible offsets of a clock. Ten hours is more than any timeout of the program,
// and less than the day for which clients' command ids are kept by command time: a clock a day
// ahead makes the cluster forget them, as documented.
var jumps = []time.Duration{2 * time.Second, 30 * time.Second, 90 * time.Second, 15 * time.Minute, 10 * time.Hour}

func (n *Nemesis) jump(node int, chance *rand.Rand) (string, func() error) {
	by := jumps[chance.IntN(len(jumps))]
	if chance.IntN(2) == 0 {
		by = -by
	}
	what := fmt.Sprintf("%s by %s", n.names([]int{node}), by)
	if err := n.clocks[node].Set(by); err != nil {
		return what, func() error { return err }
	}
	return what, func() error { return n.clocks[node].Set(0) }
}
