package httpapi

import (
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"bivouac.dev/bivouac/httpapi/proxy"
)

// endless sends until it fails and reports the number of bytes.
type endless struct {
	sent  atomic.Int64
	ended chan struct{}
}

// flood responds with endless bytes or WebSocket messages until the other side closes.
func (e *endless) flood(_ string, w http.ResponseWriter, r *http.Request) bool {
	defer close(e.ended)
	chunk := []byte(strings.Repeat("x", 64<<10))
	if asksForUpgrade(r) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return true
		}
		defer func() { _ = conn.CloseNow() }()
		for conn.Write(r.Context(), websocket.MessageBinary, chunk) == nil {
			e.sent.Add(int64(len(chunk)))
		}
		return true
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for {
		n, err := w.Write(chunk)
		if e.sent.Add(int64(n)); err != nil {
			return true
		}
	}
}

// stalls waits until sending stops and returns the number of bytes.
func (e *endless) stalls(t *testing.T) int64 {
	t.Helper()
	last, since := int64(-1), time.Now()
	until(t, "the sender is held up", func() bool {
		if now := e.sent.Load(); now != last {
			last, since = now, time.Now()
		}
		return last > 0 && time.Since(since) > 300*time.Millisecond
	})
	return last
}

// mostInFlight is the most data in transit on one connection: the kernel's buffers of two sockets
// plus a little.
const mostInFlight = 64 << 20

// TestProxy_ReadersThatStop: a client that stops reading an event stream or a WebSocket delays only
// its sandbox. The node buffers next to nothing, serves others and keeps nothing after the client
// leaves.
func TestProxy_ReadersThatStop(t *testing.T) {
	for name, request := range map[string]string{
		"event stream": "GET /sandboxes/{box}/WORKER_1/ HTTP/1.1\r\nHost: x\r\nX-Session-API-Key: {key}\r\n\r\n",
		"WebSocket through the proxy": "GET /sandboxes/{box}/WORKER_1/ HTTP/1.1\r\nHost: x\r\nX-Session-API-Key: " +
			"{key}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
			"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
		"the agent server's WebSocket": "GET /sandboxes/{box}/AGENT_SERVER/sockets/events/x HTTP/1.1\r\nHost: " +
			"x\r\nX-Session-API-Key: {key}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
			"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			h, behind := newProxyHarness(t)
			source := &endless{ended: make(chan struct{})}
			behind.serve(source.flood)
			conn, err := net.Dial("tcp", h.front.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, strings.NewReplacer("{box}", h.id, "{key}", h.key).Replace(request)); err != nil {
				t.Fatal(err)
			}
			before := heap()
			if sent := source.stalls(t); sent > mostInFlight {
				t.Errorf("%d bytes were taken for a client that reads none", sent)
			}
			if grown := heap() - before; grown > 8<<20 {
				t.Errorf("%d bytes of memory are kept for it", grown)
			}
			behind.serve(nil)
			h.ask("GET", h.at("WORKER_2", "/"), "", proxy.HeaderKey, h.key).want(t, 200)
			conn.Close()
			until(t, "the sandbox hears that its reader is gone", func() bool {
				select {
				case <-source.ended:
					return h.server.proxy.Load().Sessions == 0
				default:
					return false
				}
			})
		})
	}
}

// heap is the memory in use after a collection, in bytes.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse)
}
