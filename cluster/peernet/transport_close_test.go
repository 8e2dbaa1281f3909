package peernet

import (
	"context"
	"crypto/tls"
	"net"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

// TestTransport_AConnectionAtTheEndIsClosed: the port closes just when a connection was accepted. Close
// waits for each accepted connection, so one that Raft never took would keep a node from stopping.
func TestTransport_AConnectionAtTheEndIsClosed(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	stream := &raftStream{connQueue: newConnQueue(peerAddr("127.0.0.1:1")), open: map[*streamConn]struct{}{}}
	transport := &Transport{port: &Port{ctx: ctx, stream: stream}, logger: hclog.NewNullLogger()}
	for range 200 {
		here, there := net.Pipe()
		_ = there.Close()
		secured := tls.Server(here, &tls.Config{MinVersion: tls.VersionTLS13})
		transport.serve(stream.remember(queuedConn{Conn: secured}, true).(*streamConn))
	}
	closed := make(chan struct{})
	go func() {
		stream.serving.Wait()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(time.Minute):
		stream.mu.Lock()
		defer stream.mu.Unlock()
		t.Fatalf("%d of 200 connections were never closed", len(stream.open))
	}
}
