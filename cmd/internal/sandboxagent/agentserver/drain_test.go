package agentserver

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"
)

// A connection without a request does not delay the shutdown.
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
	// Connections are accepted in order: once a later one has a response, these are accepted.
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
