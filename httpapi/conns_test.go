package httpapi

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// served runs the server on its own port and returns its address. stop ends it and returns Run's
// error.
func served(t *testing.T, h *harness) (address string, stop func() error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.server.Run(ctx, l) }()
	ended := false
	stop = func() error { cancel(); ended = true; return <-done }
	t.Cleanup(func() {
		if !ended {
			if err := stop(); err != nil {
				t.Error(err)
			}
		}
	})
	return l.Addr().String(), stop
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

// exchangeOver sends one request over a connection and reads the response.
func exchangeOver(c net.Conn, request string) (status int, body string, err error) {
	if _, err := io.WriteString(c, request); err != nil {
		return 0, "", err
	}
	reply, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, "", err
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	return reply.StatusCode, string(text), err
}

const aliveRequest = "GET /alive HTTP/1.1\r\nHost: x\r\n\r\n"

func TestServer_ConnectionsAboveTheLimitAreRefusedAndOthersServed(t *testing.T) {
	const limit = 5
	h := newHarness(t, func(c *Config) { c.MaxConnections = limit })
	address, _ := served(t, h)
	var open []net.Conn
	for i := range limit {
		c := dial(t, address)
		if status, _, err := exchangeOver(c, aliveRequest); status != http.StatusOK || err != nil {
			t.Fatalf("connection %d: %d, %v", i, status, err)
		}
		open = append(open, c)
	}
	for range 3 * limit {
		c := dial(t, address)
		status, body, err := exchangeOver(c, "")
		if status != http.StatusServiceUnavailable || !strings.Contains(body, "too many open connections") || err != nil {
			t.Fatalf("above the limit: %d %q, %v", status, body, err)
		}
		if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
			t.Fatalf("the refused connection stays open: %d, %v", n, err)
		}
	}
	for i, c := range open {
		if status, _, err := exchangeOver(c, aliveRequest); status != http.StatusOK || err != nil {
			t.Errorf("open connection %d: %d, %v", i, status, err)
		}
	}
	_ = open[0].Close()
	for deadline := time.Now().Add(30 * time.Second); ; {
		if status, _, err := exchangeOver(dial(t, address), aliveRequest); status == http.StatusOK && err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a closed connection's place is not given away")
		}
	}
}

// A connection without a request must not delay the shutdown: http.Server.Shutdown alone would wait
// five seconds for it.
func TestServer_StopsWithoutWaitingForConnectionsNothingWasAskedOver(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.DrainTimeout = 2 * time.Second })
	address, stop := served(t, h)
	silent := dial(t, address)
	// The silent connection was accepted before.
	if status, _, err := exchangeOver(dial(t, address), aliveRequest); status != http.StatusOK || err != nil {
		t.Fatal(status, err)
	}
	if err := stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if n, err := silent.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the silent connection is open: %d, %v", n, err)
	}
}

// A client that sends its header or body too slowly, or does not read responses, loses its
// connection. The limit is one connection, so others can then connect.
func TestServer_SlowClientsAreCutOff(t *testing.T) {
	h := newHarness(t, func(c *Config) {
		c.MaxConnections = 1
		c.ReadHeaderTimeout, c.ReadTimeout = 50*time.Millisecond, 100*time.Millisecond
		c.RequestTimeout, c.WriteTimeout = 100*time.Millisecond, 300*time.Millisecond
		c.IdleTimeout = 50 * time.Millisecond
	})
	address, _ := served(t, h)
	others := func(name string) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); ; {
			c := dial(t, address)
			status, _, err := exchangeOver(c, aliveRequest)
			_ = c.Close()
			if status == http.StatusOK && err == nil {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: the connection is held: %d, %v", name, status, err)
			}
		}
	}
	put := "POST /api/settings HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + h.alice + "\r\nContent-Type: application/json\r\n"
	for name, begin := range map[string]string{
		"nothing": "", "half a header": put, "half a body": put + "Content-Length: 100\r\n\r\n{",
		"no end of a chunked body": put + "Transfer-Encoding: chunked\r\n\r\n5\r\n{",
	} {
		if _, err := io.WriteString(dial(t, address), begin); err != nil {
			t.Fatal(err)
		}
		others(name)
	}
	// Endless requests whose responses are never read.
	deaf := dial(t, address)
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		request := strings.Repeat("GET /server_info HTTP/1.1\r\nHost: x\r\n\r\n", 1000)
		for {
			if _, err := io.WriteString(deaf, request); err != nil {
				return
			}
		}
	}()
	others("no answer read")
	_ = deaf.Close()
	<-asked
}

func TestFinish_ReadsThatWentWellAreOnlyDebug(t *testing.T) {
	for _, test := range []struct {
		method, route string
		status        int
		want          slog.Level
	}{
		{"GET", "/api/settings", 200, slog.LevelDebug}, {"HEAD", "/alive", 200, slog.LevelDebug}, {"GET", "/api/settings", 404, slog.LevelInfo},
		{"GET", "/api/settings", 503, slog.LevelWarn}, {"POST", "/api/settings", 200, slog.LevelInfo}, {"DELETE", "/x", 204, slog.LevelInfo},
		{"GET", "/ready", 503, slog.LevelWarn}, {"GET", "/sandboxes/:id", 101, slog.LevelInfo}, {"POST", "/api/settings", 500, slog.LevelWarn},
	} {
		if got := levelOf(test.method, test.route, test.status); got != test.want {
			t.Errorf("%s %s %d: %v, want %v", test.method, test.route, test.status, got, test.want)
		}
	}
}
