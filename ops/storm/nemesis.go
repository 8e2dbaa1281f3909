package storm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"syscall"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/fleet"
)

// nemesis breaks what the stack is made of, one fault or two at a time, and
// mends it again within seconds.
type nemesis struct {
	*fleet.Fleet
	rng    *rand.Rand
	faults map[string]int
}

// fault breaks something and gives what mends it.
type fault struct {
	name string
	run  func(t testing.TB) (mend func())
}

func (n *nemesis) all() []fault {
	return []fault{
		{"kill -9 the leader", func(t testing.TB) func() { return n.kill(t, n.Leader(t)) }},
		{"kill -9 a follower", func(t testing.TB) func() { return n.kill(t, n.Followers(t)[0]) }},
		{"kill -9 two nodes", func(t testing.TB) func() { return n.kill(t, n.Leader(t), n.Followers(t)[0]) }},
		{"kill -9 all nodes", func(t testing.TB) func() { return n.kill(t, n.Nodes...) }},
		{"stop the leader", func(t testing.TB) func() { return n.stop(t, n.Leader(t)) }},
		{"stop a follower", func(t testing.TB) func() { return n.stop(t, n.Followers(t)[0]) }},
		{"kill -9 Nomad", func(t testing.TB) func() {
			n.must(t, n.Nomad.Kill())
			return func() { n.must(t, n.Nomad.Start(t.Context())) }
		}},
		{"kill -9 Vault", func(t testing.TB) func() {
			n.must(t, n.Vault.Kill())
			return func() { n.must(t, n.Vault.Start(t.Context())) }
		}},
		{"seal Vault", func(t testing.TB) func() {
			n.must(t, n.Vault.Seal(t.Context()))
			return func() { n.must(t, n.Vault.Unseal(t.Context())) }
		}},
		{"revoke the tasks' Vault tokens", func(t testing.TB) func() {
			n.must(t, n.Vault.Do(t.Context(), http.MethodPost, "sys/leases/revoke-prefix/auth/jwt-nomad/login", nil, nil))
			return func() {}
		}},
		{"nomad system gc", func(t testing.TB) func() { n.GC(t); return func() {} }},
		{"kill -9 the leader and Nomad", func(t testing.TB) func() {
			back := n.kill(t, n.Leader(t))
			n.must(t, n.Nomad.Kill())
			return func() { back(); n.must(t, n.Nomad.Start(t.Context())) }
		}},
		{"kill -9 the leader and Vault", func(t testing.TB) func() {
			back := n.kill(t, n.Leader(t))
			n.must(t, n.Vault.Kill())
			return func() { n.must(t, n.Vault.Start(t.Context())); back() }
		}},
	}
}

// rage breaks and mends until ctx ends, and leaves everything mended. Every
// fault comes once before one comes again.
func (n *nemesis) rage(ctx context.Context, t testing.TB) {
	t.Helper()
	var bag []fault
	for ctx.Err() == nil {
		if len(bag) == 0 {
			bag = n.all()
			n.rng.Shuffle(len(bag), func(i, j int) { bag[i], bag[j] = bag[j], bag[i] })
		}
		f := bag[0]
		bag = bag[1:]
		mend := f.run(t)
		n.faults[f.name]++
		wait(ctx, time.Duration(300+n.rng.IntN(2700))*time.Millisecond)
		mend()
		for _, node := range n.Nodes {
			node.Ready(t)
		}
		wait(ctx, time.Duration(500+n.rng.IntN(2500))*time.Millisecond)
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (n *nemesis) kill(t testing.TB, nodes ...*fleet.Node) func() {
	for _, node := range nodes {
		node.Kill()
	}
	return func() {
		for _, node := range nodes {
			node.Start(t)
		}
	}
}

func (n *nemesis) stop(t testing.TB, node *fleet.Node) func() {
	n.must(t, syscall.Kill(node.Pid(), syscall.SIGSTOP))
	return func() { n.must(t, syscall.Kill(node.Pid(), syscall.SIGCONT)) }
}

func (n *nemesis) must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(fmt.Errorf("the nemesis can't work: %w", err))
	}
}
