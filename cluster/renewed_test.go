package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/fsm"
)

// replaceFile replaces a file in one step.
func replaceFile(path string, data []byte, mode os.FileMode) error {
	return errors.Join(os.WriteFile(path+".tmp", data, mode), os.Rename(path+".tmp", path))
}

// Every member's certificate is renewed while it runs: all at once, twice. The leader stays, no
// write fails, and no connection of Raft's shows a former certificate any more. It is not parallel: a
// leader that the neighbours cost would be taken for the renewal's.
func TestReal_RenewedCertificatesCostNoLeader(t *testing.T) {
	r := newReal(t, 3)
	for _, n := range r.nodes {
		// A machine that is busy with other tests costs no leader either, so a lost one is the renewal's.
		n.cfg.HeartbeatTimeout, n.cfg.ElectionTimeout, n.cfg.LeaderLeaseTimeout = 5*time.Second, 5*time.Second, 4*time.Second
	}
	r.startAll()
	leader := r.leader()
	term := r.nodes[leader].node.Status().Term

	ctx, stop := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	var written atomic.Int64
	for i := range r.nodes {
		writing.Go(func() {
			for ctx.Err() == nil {
				if _, err := r.nodes[i].node.Propose(context.WithoutCancel(ctx), put("ada", int(written.Add(1)))); err != nil {
					t.Errorf("n%d: a write fails: %v", i, err)
					return
				}
			}
		})
	}
	defer writing.Wait()
	defer stop()
	for round := range 2 {
		for _, n := range r.nodes {
			pair, err := peernet.Issue(r.ca, n.cfg.NodeName, []string{"127.0.0.1"}, time.Now(), time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			if err := peernet.WritePair(n.cfg.TLS, pair, replaceFile); err != nil {
				t.Fatal(err)
			}
		}
		for i, n := range r.nodes {
			pair, err := peernet.ReadPair(n.cfg.TLS.CertFile, n.cfg.TLS.KeyFile)
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, func() bool {
				port := cluster.PortOf(n.node)
				return n.node.Credentials().Leaf().Equal(pair.Leaf) && port.FormerConnections() == 0
			}, func() string {
				return fmt.Sprintf("round %d: n%d has %d former connections", round, i, cluster.PortOf(n.node).FormerConnections())
			})
			for j, other := range r.nodes {
				if j == leader && i != j || i == leader && i != j {
					eventually(t, func() bool {
						return cluster.PortOf(other.node).Shown(n.cfg.NodeName) == peernet.Fingerprint(pair.Leaf)
					}, func() string { return fmt.Sprintf("round %d: n%d has not shown its certificate to n%d", round, i, j) })
				}
			}
		}
	}
	stop()
	writing.Wait()
	for i, n := range r.nodes {
		if s := n.node.Status(); s.Term != term || s.LeaderID != r.nodes[leader].node.Status().ID {
			t.Errorf("n%d: term %d, leader %s; before the renewals term %d, leader n%d", i, s.Term, s.Leader, term, leader)
		}
	}
	t.Logf("%d writes", written.Load())
}

// A node that was removed with its certificates revoked stays outside, whatever certificate it
// makes: the one before, the last one, and one that it makes later, with another key.
func TestReal_ARevokedNodeStaysOutWhateverItRenews(t *testing.T) {
	t.Parallel()
	r := newReal(t, 4)
	r.nodes[3].cfg.BootstrapExpect = 0
	for i := range 3 {
		r.nodes[i].cfg.BootstrapExpect = 3
	}
	r.startAll()
	eventually(t, func() bool { return names(r.nodes[0].node) == "n0 n1 n2 n3" },
		func() string { return names(r.nodes[0].node) })
	former := r.issue("former", "n3", r.ca, time.Hour)
	later := r.issue("later", "n3", r.ca, time.Hour)
	asks := func(i int, files peernet.TLSFiles) error {
		c, err := cluster.NewPeerClient(files, r.nodes[i].cfg.PeerAddress)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _, err = c.Checksum(t.Context())
		return err
	}
	for i := range 3 {
		if err := asks(i, former); err != nil {
			t.Fatalf("n%d refuses a member: %v", i, err)
		}
	}
	eventually(t, func() bool { return r.nodes[0].store.View().Active(fsm.VersionRotate) },
		func() string { return "the protocol version" })
	if err := r.nodes[r.leader()].node.RemoveServer(t.Context(), "n3", cluster.RemoveOptions{Revoke: true}); err != nil {
		t.Fatal(err)
	}
	r.put(0, 1)
	r.kill(3) // the thief has its files
	r.want(1)
	for what, files := range map[string]peernet.TLSFiles{
		"its present one": r.nodes[3].cfg.TLS,
		"a former one":    former,
		"a later one":     later,
	} {
		for i := range 3 {
			if err := asks(i, files); err == nil {
				t.Errorf("n%d takes %s of the revoked node", i, what)
			}
		}
	}
	if err := asks(0, r.nodes[1].cfg.TLS); err != nil {
		t.Errorf("another node is refused: %v", err)
	}
}

// A node that lost its leader and whose certificate expired says so: peers refuse it until it has
// another.
func TestReal_AnExpiredCertificateIsNamed(t *testing.T) {
	t.Parallel()
	r := newReal(t, 3)
	r.startAll()
	r.kill(2)
	r.nodes[2].cfg.TLS = r.issue("n2", "n2", r.ca, -time.Hour)
	r.start(2)
	want := "its certificate expired on"
	var err error
	eventually(t, func() bool { err = r.nodes[2].node.Ready(); return err != nil && strings.Contains(err.Error(), want) },
		func() string { return fmt.Sprintf("it says %v, want %q", err, want) })
	pair, err := peernet.Issue(r.ca, "n2", []string{"127.0.0.1"}, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := peernet.WritePair(r.nodes[2].cfg.TLS, pair, replaceFile); err != nil {
		t.Fatal(err)
	}
	r.ready(2)
}
