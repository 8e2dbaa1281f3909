package testcluster

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/ops/e2e/testcluster/nodeconfig"
)

// Node is one `bivouac server`: the machine, whichever member it currently is.
type Node struct {
	Client
	// Name is the machine's name, and the member's until Replace.
	Name string
	// Log is the file to which its output is appended.
	Log string
	// Env is added to the environment of the next Start.
	Env []string
	// Program is what the next Start runs, "" for the cluster's.
	Program string
	// Data is the data directory. Peer is the peer address and TLS the certificate's files.
	Data, Peer string
	TLS        peernet.TLSFiles

	cluster *Cluster
	place   int
	host    string
	// config is written to file.
	config nodeconfig.Config
	file   string
	proc   *local.Process
}

// Start starts the node's process.
func (n *Node) Start(t testing.TB) {
	t.Helper()
	if err := n.Spawn(); err != nil {
		t.Fatal(err)
	}
}

// Spawn is Start for goroutines other than the test's own.
func (n *Node) Spawn() (err error) {
	run := []string{cmp.Or(n.Program, n.cluster.Bivouac), "server", "--config", n.file}
	if n.cluster.net != nil {
		run = n.cluster.net.Command(n.place, run...)
	}
	n.proc, err = local.Command{
		Name: n.Name, Dir: filepath.Dir(n.file), Log: n.Log, Path: run[0], Args: run[1:],
		Env: append([]string{"BIVOUAC_DRILL_DIR=" + n.cluster.DrillDir, "BIVOUAC_DRILL_NODE=" + n.Name}, n.Env...),
	}.Start()
	return err
}

// Stop sends SIGTERM and waits for the end. After patience it kills the process.
func (n *Node) Stop(patience time.Duration) { _ = n.proc.Stop(patience) }

// Kill sends SIGKILL. Start starts the node again.
func (n *Node) Kill() { _ = n.proc.Kill() }

// Pid returns the process id.
func (n *Node) Pid() int { return n.proc.Pid() }

// Alive reports whether the process runs.
func (n *Node) Alive() bool { return n.proc.Alive() }

// Ended waits until the process ends by itself and returns its exit code.
func (n *Node) Ended(t testing.TB) int {
	t.Helper()
	Eventually(t, n.Name+" ends", func() error {
		if n.Alive() {
			return errors.New("it runs")
		}
		return nil
	})
	return n.proc.ExitCode()
}

// Ready waits until the node serves.
func (n *Node) Ready(t testing.TB) {
	t.Helper()
	Eventually(t, n.Name+" is ready", func() error {
		if !n.Alive() {
			t.Fatalf("%s ended:\n%s", n.Name, local.Tail(n.Log, 20))
		}
		return n.Serves()
	})
}

// Leader waits for a leader on which all running nodes agree.
func (f *Cluster) Leader(t testing.TB) (leader *Node) {
	t.Helper()
	Eventually(t, "a node leads", func() error {
		leader = nil
		for _, n := range f.Nodes {
			if !n.Alive() {
				continue
			}
			status, err := n.Status()
			if err != nil {
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

// Followers returns the running nodes that do not lead.
func (f *Cluster) Followers(t testing.TB) (list []*Node) {
	t.Helper()
	leader := f.Leader(t)
	for _, n := range f.Nodes {
		if n != leader && n.Alive() {
			list = append(list, n)
		}
	}
	return list
}

func (f *Cluster) node(name string) *Node {
	for _, n := range f.Nodes {
		if n.Member() == name {
			return n
		}
	}
	return nil
}

// Restart starts every stopped node and waits until all serve.
func (f *Cluster) Restart(t testing.TB) {
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
