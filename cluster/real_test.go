package cluster_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/fsm"
)

// real is a cluster on real sockets and disks, in this process.
type real struct {
	t     testing.TB
	dir   string
	ca    peernet.PEM
	nodes []*realNode
}

type realNode struct {
	cfg      cluster.Config
	node     *cluster.Node
	store    *fsm.Store
	registry *prometheus.Registry
	stop     context.CancelCauseFunc
	ended    chan error
}

// newReal prepares nodes that expect each other; none is started.
func newReal(t testing.TB, count int) *real {
	t.Helper()
	r := &real{t: t, dir: t.TempDir()}
	var err error
	if r.ca, err = peernet.NewCA(time.Now(), time.Hour); err != nil {
		t.Fatal(err)
	}
	var addresses []string
	var listeners []net.Listener
	for range count {
		l := listen(t)
		listeners = append(listeners, l)
		addresses = append(addresses, l.Addr().String())
	}
	for i := range count {
		cfg := cluster.DefaultConfig()
		cfg.NodeName = fmt.Sprintf("n%d", i)
		cfg.DataDir = filepath.Join(r.dir, cfg.NodeName)
		cfg.PeerAddress, cfg.Listener = addresses[i], listeners[i]
		cfg.TLS = r.issue(cfg.NodeName, cfg.NodeName, r.ca, time.Hour)
		cfg.BootstrapExpect, cfg.RetryJoin = count, addresses
		cfg.Logger = testLogger(t)
		cfg.ProposeTimeout, cfg.ReadTimeout = 20*time.Second, 20*time.Second // for machines busy with other tests
		r.nodes = append(r.nodes, &realNode{cfg: cfg})
	}
	t.Cleanup(func() {
		for i, n := range r.nodes {
			if n.node != nil {
				r.kill(i)
			} else if n.cfg.Listener != nil {
				_ = n.cfg.Listener.Close()
			}
		}
	})
	return r
}

// listen takes a port that nobody else gets while its node is down: one of the
// kernel's own could become the source of some connection.
func listen(t testing.TB) net.Listener {
	t.Helper()
	port, err := local.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func testLogger(t testing.TB) *slog.Logger {
	var level slog.Level
	if level.UnmarshalText([]byte(os.Getenv("BIVOUAC_TEST_LOG"))) != nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: level}))
}

// issue writes a certificate for node into files named after file.
func (r *real) issue(file, node string, ca peernet.PEM, lifetime time.Duration) peernet.TLSFiles {
	r.t.Helper()
	begin := time.Now()
	if lifetime < 0 {
		begin = begin.Add(10 * lifetime)
		lifetime = -lifetime
	}
	pair, err := peernet.Issue(ca, node, []string{"127.0.0.1", "localhost"}, begin, lifetime)
	if err != nil {
		r.t.Fatal(err)
	}
	files := peernet.TLSFiles{
		CAFile: filepath.Join(r.dir, file+"-ca.pem"), CertFile: filepath.Join(r.dir, file+".pem"),
		KeyFile: filepath.Join(r.dir, file+"-key.pem"),
	}
	for name, data := range map[string][]byte{
		files.CAFile:   r.ca.Certificate,
		files.CertFile: pair.Certificate,
		files.KeyFile:  pair.Key,
	} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
	return files
}

// startAll starts every node and waits until each is ready.
func (r *real) startAll() {
	r.t.Helper()
	for i := range r.nodes {
		r.start(i)
	}
	for i := range r.nodes {
		r.ready(i)
	}
}

func (r *real) start(i int) { r.startWith(i, func(*cluster.Node) {}) }

// startWith starts node i, which change has before it runs.
func (r *real) startWith(i int, change func(*cluster.Node)) {
	r.t.Helper()
	n := r.nodes[i]
	n.store = fsm.NewStore()
	cfg := n.cfg
	n.registry = prometheus.NewRegistry()
	cfg.Registerer = n.registry
	var err error
	if n.node, err = cluster.New(cfg, n.store); err != nil {
		r.t.Fatalf("n%d: %v", i, err)
	}
	change(n.node)
	n.cfg.Listener = nil // a restart listens itself
	ctx, stop := context.WithCancelCause(context.Background())
	n.stop, n.ended = stop, make(chan error, 1)
	go func() { n.ended <- n.node.Run(ctx) }()
}

func (r *real) kill(i int)     { r.end(i, cluster.ErrAbrupt) }
func (r *real) shutdown(i int) { r.end(i, nil) }

func (r *real) end(i int, cause error) {
	r.t.Helper()
	n := r.nodes[i]
	n.stop(cause)
	select {
	case err := <-n.ended:
		if err != nil {
			r.t.Errorf("n%d: Run: %v", i, err)
		}
	case <-time.After(patience):
		stacks := make([]byte, 1<<20)
		r.t.Fatalf("n%d does not stop\n%s", i, stacks[:runtime.Stack(stacks, true)])
	}
	n.node = nil
	waitForForks()
}

// waitForForks follows the closing of a port, or of a file with a lock, that is opened again. A
// process that another test starts has a copy of every descriptor until its program runs.
func waitForForks() {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
}

// empty removes the data directory of a stopped node.
func (r *real) empty(i int) {
	r.t.Helper()
	if err := os.RemoveAll(r.nodes[i].cfg.DataDir); err != nil {
		r.t.Fatal(err)
	}
}

// count adds up the counters of that name of node i, whatever their labels.
func (r *real) count(i int, name string) (sum float64) {
	r.t.Helper()
	families, err := r.nodes[i].registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// ready waits until node i can serve.
func (r *real) ready(i int) *cluster.Node {
	r.t.Helper()
	n := r.nodes[i].node
	var err error
	eventually(r.t, func() bool { err = n.Ready(); return err == nil }, func() string {
		return fmt.Sprintf("n%d is not ready: %v; %+v", i, err, n.Status())
	})
	return n
}

// leader waits until a node leads and gives its number.
func (r *real) leader() int {
	r.t.Helper()
	leader := -1
	eventually(r.t, func() bool {
		for i, n := range r.nodes {
			if n.node != nil && n.node.Status().State == cluster.StateLeader && n.node.Ready() == nil {
				leader = i
				return true
			}
		}
		return false
	}, func() string { return "no leader" })
	return leader
}

// patience bounds a wait. It is for a machine busy with other tests: only a failure reaches it.
const patience = 90 * time.Second

// eventually waits for a condition with a ticker.
func eventually(t testing.TB, ok func() bool, what func() string) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatal(what())
		}
	}
}

// put writes through node i. It repeats the command, as clients do, until the answer is known: a busy
// machine may lose a leader at any time.
func (r *real) put(i, number int) {
	r.t.Helper()
	cmd := put("ada", number)
	var err error
	eventually(r.t, func() bool {
		cmd.Time = time.Now().UTC().Truncate(time.Microsecond)
		_, err = r.nodes[i].node.Propose(r.t.Context(), cmd)
		return err == nil
	}, func() string { return fmt.Sprintf("n%d: Propose: %s: %v", i, fsm.CodeOf(err), err) })
}

// want reads from every node. A read without a leader is repeated, and its value is not.
func (r *real) want(number int) {
	r.t.Helper()
	for i, n := range r.nodes {
		if n.node == nil {
			continue
		}
		var err error
		value := 0
		eventually(r.t, func() bool {
			v, failed := n.node.View(r.t.Context(), cluster.Linearizable)
			if err = failed; err == nil {
				value = got(v, "ada")
			}
			return err == nil
		}, func() string { return fmt.Sprintf("n%d: View: %v", i, err) })
		if value != number {
			r.t.Errorf("n%d reads %d, want %d", i, value, number)
		}
	}
}

func TestReal_ThreeNodes_FormRestartAndLoseOne(t *testing.T) {
	t.Parallel()
	r := newReal(t, 3)
	for _, i := range rand.Perm(3) {
		r.start(i)
	}
	for i := range 3 {
		r.ready(i)
		r.put(i, i+1)
		r.want(i + 1)
	}
	// Every node in turn is killed and comes back.
	number := 10
	for i := range 3 {
		r.kill(i)
		number++
		r.put((i+1)%3, number)
		r.start(i)
		r.ready(i)
		r.want(number)
	}
	// All are stopped and come back in another order.
	for _, i := range rand.Perm(3) {
		r.shutdown(i)
	}
	for _, i := range rand.Perm(3) {
		r.start(i)
	}
	for i := range 3 {
		r.ready(i)
	}
	r.want(number)
	r.put(0, 99)
	r.want(99)
	if a, b := r.nodes[0].store.Checksum(), r.nodes[1].store.Checksum(); a != b {
		t.Errorf("n0 and n1 differ: %s %s", a, b)
	}
	for i := range 3 {
		r.kill(i)
	}
}

func TestReal_Bootstrap_OneNodeAfterTheOther(t *testing.T) {
	t.Parallel()
	r := newReal(t, 3)
	r.start(2)
	r.start(0)
	if err := r.nodes[2].node.Ready(); err == nil {
		t.Error("a node is ready before there is a cluster")
	}
	r.start(1)
	for i := range 3 {
		r.ready(i)
	}
	r.put(2, 5)
	r.want(5)
}

func TestReal_Leader_StopsWithoutCostingAnElection(t *testing.T) {
	t.Parallel()
	r := newReal(t, 3)
	r.startAll()
	leader := r.leader()
	var wg sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	asked := r.nodes[(leader+1)%3].node
	wg.Go(func() { // writes go on all the time
		for i := 0; ctx.Err() == nil; i++ {
			if _, err := asked.Propose(t.Context(), newKey(i)); err != nil {
				t.Errorf("while the leader stops: %v", err)
			}
		}
	})
	r.shutdown(leader)
	stop()
	wg.Wait()
}

func TestReal_PeerClient_ProposesThroughAnyNode(t *testing.T) {
	t.Parallel()
	r := newReal(t, 3)
	for i := range 3 {
		r.start(i)
	}
	for i := range 3 {
		c, err := cluster.NewPeerClient(r.nodes[i].cfg.TLS, r.nodes[i].node.PeerAddr())
		if err != nil {
			t.Fatal(err)
		}
		cmd := newKey(i)
		result, err := repeat(t.Context(), c, cmd)
		if err != nil || result.APIKey == nil {
			t.Errorf("through n%d: %+v, %v", i, result, err)
		}
		if result, err = repeat(t.Context(), c, cmd); err != nil || !result.Replayed {
			t.Errorf("again through n%d: %+v, %v", i, result, err)
		}
		if _, err = repeat(t.Context(), c, newKey(i)); fsm.CodeOf(err) != fsm.CodeConflict {
			t.Errorf("taken lookup through n%d: %v, want CodeConflict", i, err)
		}
		c.Close()
	}
	l := listen(t)
	_ = l.Close()
	c, err := cluster.NewPeerClient(r.nodes[0].cfg.TLS, l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Propose(t.Context(), newKey(9)); fsm.CodeOf(err) != fsm.CodeNoLeader {
		t.Errorf("nobody listens: %v, want CodeNoLeader", err)
	}
}

func TestReal_New_FailsCleanly(t *testing.T) {
	t.Parallel()
	r := newReal(t, 2)
	good := r.nodes[0].cfg
	good.Listener, good.PeerAddress = nil, "127.0.0.1:0"
	for want, change := range map[string]func(*cluster.Config){
		"was issued to node":  func(c *cluster.Config) { c.TLS = r.nodes[1].cfg.TLS },
		"reading TLS files":   func(c *cluster.Config) { c.TLS.KeyFile += ".gone" },
		"no certificate in":   func(c *cluster.Config) { c.TLS.CAFile = c.TLS.KeyFile },
		"listening for peers": func(c *cluster.Config) { c.PeerAddress = r.nodes[1].cfg.PeerAddress },
		"must be set: peers":  func(c *cluster.Config) { c.PeerAddress = "0.0.0.0:0" },
		"NodeName":            func(c *cluster.Config) { c.NodeName = "" },
	} {
		cfg := good
		change(&cfg)
		if n, err := cluster.New(cfg, fsm.NewStore()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, %v; want an error with %q", n, err, want)
		}
	}
	// Nothing was left locked or listening: the good one starts.
	r.nodes[0].cfg.BootstrapExpect, r.nodes[0].cfg.RetryJoin = 1, nil
	r.start(0)
	r.ready(0)
	other := r.nodes[0].cfg
	other.PeerAddress = "127.0.0.1:0"
	if _, err := cluster.New(other, fsm.NewStore()); err == nil || !strings.Contains(err.Error(), "another process uses") {
		t.Errorf("a second node on one data directory: %v", err)
	}
	r.kill(0)
	_ = r.nodes[1].cfg.Listener.Close()
}

func TestReal_NodeOfAnotherCA_StaysOutside(t *testing.T) {
	t.Parallel()
	r := newReal(t, 4)
	foreign, err := peernet.NewCA(time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		r.nodes[i].cfg.BootstrapExpect = 3
		r.start(i)
	}
	// It even trusts the cluster's CA, but was not issued by it.
	r.nodes[3].cfg.TLS = r.issue("n3", "n3", foreign, time.Hour)
	if n, err := cluster.New(r.nodes[3].cfg, fsm.NewStore()); err == nil ||
		!strings.Contains(err.Error(), "is no certificate of the CA in") {
		t.Fatalf("a node that its own CA does not vouch for starts: %v, %v", n, err)
	}
	both := append(append([]byte{}, r.ca.Certificate...), foreign.Certificate...)
	if err := os.WriteFile(r.nodes[3].cfg.TLS.CAFile, both, 0o600); err != nil {
		t.Fatal(err)
	}
	r.nodes[3].cfg.BootstrapExpect = 0
	r.start(3)
	for i := range 3 {
		r.ready(i)
	}
	r.put(0, 1)
	// It has tried all the time; a node with a good certificate gets in at once.
	r.kill(3)
	if servers := r.nodes[0].node.Status().Servers; len(servers) != 3 {
		t.Errorf("servers: %+v", servers)
	}
	r.nodes[3].cfg.TLS = r.issue("n3", "n3", r.ca, time.Hour)
	r.start(3)
	r.ready(3)
	eventually(t, func() bool { return names(r.nodes[0].node) == "n0 n1 n2 n3" },
		func() string { return names(r.nodes[0].node) })
	r.want(1)
}
