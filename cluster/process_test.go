package cluster_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/fsm"
)

// leakingEnv is set in a process whose test leaves goroutines behind: those of a store of events that has
// failed wait until the process ends.
const leakingEnv = "BIVOUAC_TEST_LEAKING"

// childEnv makes the test binary be one node, for tests that kill processes.
const childEnv = "BIVOUAC_TEST_NODE"

func TestMain(m *testing.M) {
	if config := os.Getenv(childEnv); config != "" {
		if err := runChild(config); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// The tests run one at a time: Raft's timers run out beside others (ops/decisions/0018), and the
	// race detector blames whichever test runs for a race of another one's Raft.
	flag.Parse()
	if err := flag.Set("test.parallel", "1"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if os.Getenv(leakingEnv) != "" {
		os.Exit(m.Run())
	}
	goleak.VerifyTestMain(m)
}

// child is what a node process needs to know.
type child struct {
	Name, Dir, Address string
	Peers              []string
	TLS                peernet.TLSFiles
}

func runChild(config string) error {
	var c child
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
	cfg := cluster.DefaultConfig()
	cfg.NodeName, cfg.DataDir, cfg.PeerAddress, cfg.TLS = c.Name, c.Dir, c.Address, c.TLS
	cfg.BootstrapExpect, cfg.RetryJoin = len(c.Peers), c.Peers
	cfg.SnapshotThreshold, cfg.SnapshotInterval, cfg.TrailingLogs = 500, time.Second, 100
	var level slog.Level
	if level.UnmarshalText([]byte(os.Getenv("BIVOUAC_TEST_LOG"))) == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	}
	n, err := cluster.New(cfg, fsm.NewStore())
	if err != nil {
		return err
	}
	return n.Run(context.Background())
}

// processes are nodes that can be killed with SIGKILL.
type processes struct {
	t        *testing.T
	children []child
	running  []*exec.Cmd
}

func (p *processes) start(i int) {
	p.t.Helper()
	config, err := json.Marshal(p.children[i])
	if err != nil {
		p.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childEnv+"="+string(config))
	cmd.Stderr = p.t.Output()
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.running[i] = cmd
}

func (p *processes) kill(i int) {
	if cmd := p.running[i]; cmd != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		p.running[i] = nil
	}
}

func TestReal_KillNine_LosesNothingAcknowledged(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("kills processes for half a minute")
	}
	r := newReal(t, 3)
	p := &processes{t: t, running: make([]*exec.Cmd, 3)}
	for _, n := range r.nodes {
		_ = n.cfg.Listener.Close() // the child listens there
		p.children = append(p.children, child{
			Name: n.cfg.NodeName, Dir: n.cfg.DataDir, Address: n.cfg.PeerAddress,
			Peers: n.cfg.RetryJoin, TLS: n.cfg.TLS,
		})
	}
	waitForForks()
	t.Cleanup(func() {
		for i := range p.running {
			p.kill(i)
		}
	})
	clients := make([]*cluster.PeerClient, 3)
	for i := range p.children {
		p.start(i)
		c, err := cluster.NewPeerClient(p.children[i].TLS, p.children[i].Address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		clients[i] = c
	}

	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var mu sync.Mutex
	var next atomic.Int64
	acked := map[string]fsm.Command{}
	for w := range 12 {
		wg.Go(func() {
			for ctx.Err() == nil {
				cmd := newKey(int(next.Add(1)))
				if _, err := clients[w%3].Propose(ctx, cmd); err == nil {
					mu.Lock()
					acked[cmd.ID] = cmd
					mu.Unlock()
				} else {
					pauseFor(ctx, 20*time.Millisecond)
				}
			}
		})
	}
	written := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(acked)
	}
	progress := func() {
		t.Helper()
		want := written() + 100
		eventually(t, func() bool { return written() >= want },
			func() string { return fmt.Sprintf("writes stand still at %d", written()) })
	}
	for round := range histories(5, 8) {
		progress()
		i := rand.IntN(3)
		if round == 4 { // the power fails everywhere
			for j := range 3 {
				p.kill(j)
			}
			for j := range 3 {
				p.start(j)
			}
			continue
		}
		p.kill(i)
		progress()
		p.start(i)
	}
	progress()
	stop()
	wg.Wait()
	// Every acknowledged command is known: repeating it is answered, not applied.
	var lost atomic.Int64
	commands := make(chan fsm.Command)
	for w := range 12 {
		wg.Go(func() {
			for cmd := range commands {
				result, err := repeat(t.Context(), clients[w%3], cmd)
				// An id is remembered for a while only. After it the key that is there is the proof.
				aged := time.Since(cmd.Time) > fsm.InternalResultTTL && fsm.CodeOf(err) == fsm.CodeConflict
				if !result.Replayed && !aged {
					lost.Add(1)
					t.Errorf("command %s was acknowledged; repeating it: %+v, %v", cmd.ID, result, err)
				}
			}
		})
	}
	for _, cmd := range acked {
		if lost.Load() < 5 {
			commands <- cmd
		}
	}
	close(commands)
	wg.Wait()
	t.Logf("%d acknowledged commands, %d lost", len(acked), lost.Load())
}

// repeat proposes a command until the answer is known, as clients are told to, at most for patience:
// a busy machine may lose a leader at any time.
func repeat(ctx context.Context, c *cluster.PeerClient, cmd fsm.Command) (fsm.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		cmd.Time = time.Now().UTC().Truncate(time.Microsecond)
		result, err := c.Propose(ctx, cmd)
		if code := fsm.CodeOf(err); ctx.Err() != nil || code != fsm.CodeOutcomeUnknown && code != fsm.CodeNoLeader &&
			code != fsm.CodeTimeout {
			return result, err
		}
		pauseFor(ctx, 20*time.Millisecond)
	}
}
