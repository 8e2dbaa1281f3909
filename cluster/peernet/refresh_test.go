package peernet

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// soon waits for a condition, on a machine busy with other tests.
func soon(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatal(what)
		}
	}
}

// accepts takes the port's Raft connections as Raft would, and keeps them.
func accepts(t *testing.T, p *Port) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := p.stream.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = c.Read(make([]byte, 1)) // until it is closed
				_ = c.Close()
			}()
		}
	}()
	t.Cleanup(func() { _ = p.stream.connQueue.Close(); <-ended })
}

// A node whose certificate is replaced shows the new one to its peers on every connection, in both
// directions. No call fails by it.
func TestRefresh_BothDirectionsTakeTheNewCertificate(t *testing.T) {
	ca, now := authorityFor(t), time.Now()
	files := write(t, t.TempDir(), ca, issue(t, ca, "a", now, time.Hour))
	a := openPort(t, files, echo)
	b := openPort(t, write(t, t.TempDir(), ca, issue(t, ca, "b", now, time.Hour)), echo) // a dials it
	caller := creds(t, write(t, t.TempDir(), ca, issue(t, ca, "c", now, time.Hour)))     // dials a
	client := NewClient(caller)
	defer client.Close()
	accepts(t, a)
	accepts(t, b)
	dial := func(from, to *Port) net.Conn {
		c, err := from.stream.Dial(raft.ServerAddress(to.Addr()), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	live := []net.Conn{dial(a, b), dial(a, b), dial(b, a), dial(b, a)}

	ctx, stop := context.WithCancel(t.Context())
	var calling sync.WaitGroup
	call := func(call func(context.Context, string, string, []byte) ([]byte, error), to *Port) {
		for i := range 4 {
			calling.Go(func() {
				request := bytes.Repeat([]byte{byte('a' + i)}, 100<<10)
				for ctx.Err() == nil {
					if _, err := call(context.WithoutCancel(ctx), to.Addr(), "hello", request); err != nil {
						t.Errorf("a call fails: %v", err)
						return
					}
				}
			})
		}
	}
	call(a.Call, b)
	call(client.Call, a)
	defer calling.Wait()
	defer stop()
	shows := func(peers *peerCertificates) string {
		if last := peers.last("a"); last != nil {
			return Fingerprint(last)
		}
		return ""
	}
	soon(t, "no call was made", func() bool { return shows(&b.credentials.peers) != "" && shows(&caller.peers) != "" })

	next := issue(t, ca, "a", now, time.Hour)
	if err := WritePair(files, next, overwrite); err != nil {
		t.Fatal(err)
	}
	want := Fingerprint(keyPair(t, next).Leaf)
	soon(t, "the node does not read its files", func() bool { return Fingerprint(a.credentials.Leaf()) == want })
	soon(t, "the peer that it calls sees the former certificate",
		func() bool { return shows(&b.credentials.peers) == want })
	soon(t, "the peer that calls it sees the former certificate", func() bool { return shows(&caller.peers) == want })
	soon(t, "former connections stay open", func() bool { return a.FormerConnections() == 0 })
	for i, c := range live {
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("connection %d is open", i)
		}
		_ = c.Close()
	}
	if b.FormerConnections() != 0 {
		t.Error("the peer, whose certificate is the same, counts former connections")
	}
}

// A connection whose certificate has expired ends once its node has shown a later one; without one
// it stays, since ending it would stop a cluster that nobody renewed.
func TestRefresh_AnExpiredCertificateThatWasReplacedEndsItsConnections(t *testing.T) {
	ca, now := authorityFor(t), time.Now()
	old, later := issue(t, ca, "b", now.Add(-time.Hour), time.Hour-time.Minute), issue(t, ca, "b", now, time.Hour)
	leaf := keyPair(t, old).Leaf
	var peers peerCertificates
	if peers.isOutdated(leaf, now) || peers.refused(leaf) != "" {
		t.Error("refused although no later one is known")
	}
	peers.shown.Store("b", leaf)
	if peers.isOutdated(leaf, now) {
		t.Error("refused for itself")
	}
	peers.shown.Store("b", keyPair(t, later).Leaf)
	if !peers.isOutdated(leaf, now) || peers.refused(leaf) == "" {
		t.Error("taken although its node has shown a later one")
	}
	if peers.isOutdated(keyPair(t, later).Leaf, now) || peers.isOutdated(leaf, now.Add(-30*time.Minute)) {
		t.Error("one that has not expired is refused")
	}
}
