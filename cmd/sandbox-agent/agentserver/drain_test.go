package agentserver

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"
)

// A connection that a client opened in advance does not hold up the stop.
func TestServer_StopsAtOnce_WithUnusedConnections(t *testing.T) {
	s := newServer(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- serveHandler(ctx, ln, s.s.Handler(), s.s.logger) }()
	var unused []net.Conn
	for range 3 {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		unused = append(unused, c)
	}
	// Connections are accepted in order: these are when a later one is answered.
	resp, err := http.Get("http://" + ln.Addr().String() + "/health")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(3 * time.Second):
		t.Fatal("still waiting for connections over which nothing was asked")
	}
	if _, err := unused[0].Read(make([]byte, 1)); err == nil {
		t.Error("an unused connection is still open")
	}
}
