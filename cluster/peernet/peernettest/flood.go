// Package peernettest attacks peer ports, for tests.
package peernettest

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// retryInterval is the pause after a failed dial.
const retryInterval = 50 * time.Millisecond

// Flood keeps connections without a certificate open to a peer port, and opens another for
// each that is closed.
type Flood struct {
	// Width is how many connections it keeps. From gives the local address of each; nil leaves
	// it to the system. Say is what each sends, and no more.
	Width int
	From  func(i int) net.IP
	Say   []byte
	// Pause is how long each waits before it connects again, so that a flood beside a cluster
	// takes its connections and not its CPU.
	Pause time.Duration
	// Closed counts the connections that the other side has closed.
	Closed atomic.Int64
}

// Start returns when every connection was opened once. It ends with the test.
func (f *Flood) Start(t testing.TB, address string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var workers, opened sync.WaitGroup
	t.Cleanup(func() { stop(); workers.Wait() })
	for i := range f.Width {
		opened.Add(1)
		once := sync.OnceFunc(opened.Done)
		dialer := &net.Dialer{}
		if f.From != nil {
			dialer.LocalAddr = &net.TCPAddr{IP: f.From(i)}
		}
		workers.Go(func() {
			for ctx.Err() == nil {
				f.hold(ctx, dialer, address, once)
			}
			once()
		})
	}
	opened.Wait()
}

// hold opens one connection and keeps it until the other side closes it.
func (f *Flood) hold(ctx context.Context, dialer *net.Dialer, address string, opened func()) {
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		select { // no port is free, or the node is down
		case <-ctx.Done():
		case <-time.After(retryInterval):
		}
		return
	}
	opened()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err = conn.Write(f.Say); err == nil {
		_, _ = io.Copy(io.Discard, conn) // what the server answers to a hello
	}
	_ = conn.Close()
	f.Closed.Add(1)
	select {
	case <-ctx.Done():
	case <-time.After(f.Pause):
	}
}
