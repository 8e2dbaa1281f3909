package testcluster

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"bivouac.dev/bivouac/cluster"
)

// PeerClient returns a client of the node's peer port with the node's own certificate. It is
// closed when the test ends.
func (n *Node) PeerClient(t testing.TB) *cluster.PeerClient {
	t.Helper()
	c, err := cluster.NewPeerClient(n.TLS, n.Peer)
	must(t, err)
	t.Cleanup(c.Close)
	return c
}

// Peers returns clients of the running nodes' peer ports, with each node's own certificate.
func (f *Cluster) Peers() (list []*cluster.PeerClient, closeAll func(), err error) {
	closeAll = func() {
		for _, c := range list {
			c.Close()
		}
	}
	for _, n := range f.Nodes {
		if !n.Alive() {
			continue
		}
		c, err := cluster.NewPeerClient(n.TLS, n.Peer)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		list = append(list, c)
	}
	return list, closeAll, nil
}

// OneState waits until all running nodes are at one index and compares their states there. There
// must be no writes meanwhile.
func (f *Cluster) OneState(ctx context.Context) (index uint64, sum string, err error) {
	peers, closeAll, err := f.Peers()
	if err != nil {
		return 0, "", err
	}
	defer closeAll()
	var differ error
	err = Await(Patience, func() error {
		index = 0
		for i, c := range peers {
			bounded, cancel := context.WithTimeout(ctx, 30*time.Second)
			at, s, err := c.Checksum(bounded)
			cancel()
			switch {
			case ctx.Err() != nil:
				differ = ctx.Err()
				return nil
			case err != nil:
				return err
			case i == 0:
				index, sum = at, s
			case at != index:
				return fmt.Errorf("one node is at index %d, another at %d", index, at)
			case s != sum:
				differ = fmt.Errorf("the states differ at index %d: %s and %s", index, sum, s)
				return nil
			}
		}
		return nil
	})
	return index, sum, errors.Join(err, differ)
}

// SameState is OneState for tests.
func (f *Cluster) SameState(t testing.TB) (index uint64, sum string) {
	t.Helper()
	index, sum, err := f.OneState(t.Context())
	must(t, err)
	return index, sum
}
