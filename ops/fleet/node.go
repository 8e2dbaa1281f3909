package fleet

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"bivouac.dev/bivouac/cluster"
)

// Node is one `bivouac server`: the place where it runs, whatever member it is.
type Node struct {
	Client
	// Name is the place's, and the member's until Replace.
	Name string
	// Log is the file its output is appended to.
	Log string
	// Env is added to the environment of the next Start.
	Env []string
	// Data is the data directory. Peer is the peer address and TLS the
	// certificate's files; StartBare sets them.
	Data, Peer string
	TLS        cluster.TLSConfig

	fleet  *Fleet
	place  int
	member string
	config string
	cmd    *exec.Cmd
	ended  chan struct{}
}

// Start starts the node's process.
func (n *Node) Start(t testing.TB) {
	t.Helper()
	if err := n.Spawn(); err != nil {
		t.Fatal(err)
	}
}

// Spawn is Start for others than the test's own goroutine.
func (n *Node) Spawn() error {
	out, err := os.OpenFile(n.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	if n.fleet.net == nil {
		n.cmd = exec.Command(n.fleet.Bivouac, "server", "--config", n.config)
	} else {
		n.cmd = n.fleet.net.Command(n.place, n.fleet.Bivouac, "server", "--config", n.config)
	}
	n.cmd.Dir = filepath.Dir(n.config)
	n.cmd.Env = append(os.Environ(), "BIVOUAC_DRILL_DIR="+n.fleet.DrillDir, "BIVOUAC_DRILL_NODE="+n.Name)
	n.cmd.Env = append(n.cmd.Env, n.Env...)
	n.cmd.Stdout, n.cmd.Stderr = out, out
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := n.cmd.Start(); err != nil {
		return err
	}
	n.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		_ = cmd.Wait()
		close(ended)
	}(n.cmd, n.ended)
	return nil
}

// Stop asks the process to end, as an operator does, and waits until it has; a
// process that takes longer than patience is killed.
func (n *Node) Stop(patience time.Duration) {
	timer := time.AfterFunc(patience, n.Kill)
	defer timer.Stop()
	_ = n.cmd.Process.Signal(syscall.SIGTERM)
	<-n.ended
}

// Kill is kill -9; Start starts the node again.
func (n *Node) Kill() {
	if n.cmd != nil {
		_ = n.cmd.Process.Kill()
		<-n.ended
	}
}

// Pid is the process's.
func (n *Node) Pid() int { return n.cmd.Process.Pid }

// Alive reports whether the process runs.
func (n *Node) Alive() bool {
	select {
	case <-n.ended:
		return false
	default:
		return n.cmd != nil
	}
}

// Ready waits until the node serves.
func (n *Node) Ready(t testing.TB) {
	t.Helper()
	Eventually(t, n.Name+" is ready", func() error {
		if !n.Alive() {
			t.Fatalf("%s ended:\n%s", n.Name, Tail(n.Log, 20))
		}
		a, err := n.Try(http.MethodGet, "/ready", nil)
		if err == nil && a.Status != http.StatusOK {
			err = errors.New(a.String())
		}
		return err
	})
}

// Leader waits for a leader that all living nodes agree on.
func (f *Fleet) Leader(t testing.TB) (leader *Node) {
	t.Helper()
	Eventually(t, "a node leads", func() error {
		leader = nil
		for _, n := range f.Nodes {
			if !n.Alive() {
				continue
			}
			a, err := n.Try(http.MethodGet, "/api/v1/operator/status", nil)
			if err != nil {
				return err
			}
			var status struct{ Leader string }
			if err := a.Decode(&status); err != nil {
				return err
			}
			now := f.node(status.Leader)
			if now == nil || !now.Alive() || leader != nil && leader != now {
				return fmt.Errorf("%s believes in %q", n.Name, status.Leader)
			}
			leader = now
		}
		return nil
	})
	return leader
}

// Followers gives the living nodes that do not lead.
func (f *Fleet) Followers(t testing.TB) (list []*Node) {
	t.Helper()
	leader := f.Leader(t)
	for _, n := range f.Nodes {
		if n != leader && n.Alive() {
			list = append(list, n)
		}
	}
	return list
}

func (f *Fleet) node(name string) *Node {
	for _, n := range f.Nodes {
		if n.Member() == name {
			return n
		}
	}
	return nil
}

// Restart starts every node that does not run and waits until all serve.
func (f *Fleet) Restart(t testing.TB) {
	t.Helper()
	for _, n := range f.Nodes {
		if !n.Alive() {
			n.Start(t)
		}
	}
	for _, n := range f.Nodes {
		n.Ready(t)
	}
}
