//go:build linux

package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"bivouac.dev/bivouac/cluster/forgetest"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

const (
	// forgedPause is the mean pause between two messages of one forger to one node. In a round with
	// Forged it is forgedFlood.
	forgedPause = 150 * time.Millisecond
	forgedFlood = 5 * time.Millisecond
)

// The names of the forgers: one was never a member, one was and is removed, the certificates of one
// are revoked too.
const (
	stranger = "stranger"
	removed  = "removed"
	revoked  = "revoked"
)

// forgers send forged messages to every node while the nemesis runs. No node may take one.
type forgers struct {
	list    []*forgetest.Forger
	flood   atomic.Bool
	sent    atomic.Int64
	sending sync.WaitGroup

	mu sync.Mutex
	// nodes are what the nodes' status said last, by their place.
	nodes []testcluster.Status
	taken []string
}

// forge makes the forgers. Two of them join as themselves, and an operator removes them.
func (n *Nemesis) forge(ctx context.Context) error {
	n.forgers.observe(n.watch.ask())
	first := n.cluster.Nodes[0].Peer
	for _, name := range []string{stranger, removed, revoked} {
		f, err := n.newForger(ctx, name)
		if err != nil {
			return fmt.Errorf("making a forger: %w", err)
		}
		n.forgers.list = append(n.forgers.list, f)
		if name == stranger {
			continue
		}
		if err := testcluster.Await(testcluster.Patience, func() error { return f.Join(ctx, first, f.ID) }); err != nil {
			return fmt.Errorf("a forger joins: %w", err)
		}
		if err := testcluster.Await(testcluster.Patience, func() error { return n.banish(ctx, name) }); err != nil {
			return fmt.Errorf("removing a forger: %w", err)
		}
	}
	return nil
}

// banish removes a forger as an operator does, and revokes its certificates by its name.
func (n *Nemesis) banish(ctx context.Context, name string) error {
	config := n.cluster.Nodes[0].File()
	args := []string{"operator", "remove", name, "--yes", "--config", config, "--api-key-file", n.cluster.KeyFile}
	if name == revoked {
		args = append(args, "--revoke")
	}
	_, err := n.cluster.Command(ctx, args...)
	if err != nil && strings.Contains(err.Error(), "no node") {
		return nil // an earlier try did it
	}
	return err
}

// newForger makes a forger with a certificate for the name.
func (n *Nemesis) newForger(ctx context.Context, name string) (*forgetest.Forger, error) {
	dir, host := filepath.Dir(n.cluster.Nodes[0].TLS.CAFile), n.net.Gateway()
	if _, err := n.cluster.Command(ctx, "tls", "issue", "--dir", dir, "--node", name, "--host", host); err != nil {
		return nil, err
	}
	return forgetest.New(testcluster.MemberTLS(dir, name), host, name+".0123456789abc")
}

// observe keeps the newest status of each node.
func (s *forgers) observe(said []testcluster.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes == nil {
		s.nodes = make([]testcluster.Status, len(said))
	}
	for i, now := range said {
		if now.ID != "" {
			s.nodes[i] = now
		}
	}
}

// target returns a node as it was lately; ok is false while nobody has said where it is.
func (s *forgers) target(node int) (t forgetest.Target, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, now := range s.nodes {
		t.Term = max(t.Term, now.Term)
		if now.ID != "" {
			t.Members = append(t.Members, now.ID)
		}
	}
	of := s.nodes[node]
	t.ID, t.Commit = of.ID, of.Commit
	for _, server := range of.Servers {
		if server.ID == of.ID {
			t.Address = server.Address
		}
	}
	return t, t.Address != ""
}

// takes records that a node took a forged message.
func (s *forgers) takes(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if said := fmt.Sprintf(format, args...); !slices.Contains(s.taken, said) {
		s.taken = append(s.taken, said)
	}
}

// figures returns the number of messages sent, and which were taken.
func (s *forgers) figures() (sent int64, taken []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent.Load(), slices.Clone(s.taken)
}

// startForgers has every forger send to every node until ctx ends.
func (n *Nemesis) startForgers(ctx context.Context) {
	s := &n.forgers
	s.sending.Go(func() {
		for ctx.Err() == nil {
			s.observe(n.watch.ask())
			testcluster.Pause(ctx, time.Second)
		}
	})
	for number, f := range s.list {
		for i := range n.cluster.Nodes {
			chance := rand.New(rand.NewPCG(n.schedule.Seed(), uint64(100*number+i)))
			s.sending.Go(func() {
				for ctx.Err() == nil {
					if to, ok := s.target(i); ok {
						if what := f.Send(ctx, to, chance); what != "" {
							s.takes("%s takes %s of %s", n.cluster.Nodes[i].Name, what, f.ID)
						}
						s.sent.Add(1)
					}
					pause := forgedPause
					if s.flood.Load() {
						pause = forgedFlood
					}
					testcluster.Pause(ctx, time.Duration(chance.Int64N(int64(2*pause))))
				}
			})
		}
	}
}

// stopForgers waits until nothing is sent any more, and looks for the operator's key that they made.
func (n *Nemesis) stopForgers() {
	n.forgers.sending.Wait()
	for _, f := range n.forgers.list {
		_ = f.Close()
	}
	for i, node := range n.cluster.Nodes {
		var page struct {
			Items []struct {
				User string `json:"user"`
			} `json:"items"`
		}
		if err := n.watch.client(i).Get("/api/v1/operator/keys", &page); err != nil {
			continue
		}
		for _, k := range page.Items {
			if k.User == forgetest.Thief {
				n.forgers.takes("%s has an operator's key that nobody made", node.Name)
			}
		}
	}
}
