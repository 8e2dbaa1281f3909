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
)

// endless sends as long as it can, and says how much that was.
type endless struct {
	sent  atomic.Int64
	ended chan struct{}
}

// flood answers a request with bytes, or a WebSocket with messages, until the
// other side does not want them any more.
func (e *endless) flood(_ string, w http.ResponseWriter, r *http.Request) bool {
	defer close(e.ended)
	chunk := []byte(strings.Repeat("x", 64<<10))
	if isUpgrade(r) {
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

// stalls waits until nothing more is sent, and gives how much was.
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

// mostInFlight is what one connection may have under way: the kernel's buffers
// of two sockets, and little of ours.
const mostInFlight = 64 << 20

// TestDoor_ReadersThatStop: a client that stops reading an event stream or a
// WebSocket holds its sandbox up and nothing else: the node keeps next to nothing
// for it, others are served, and when it leaves nothing is left.
func TestDoor_ReadersThatStop(t *testing.T) {
	for name, request := range map[string]string{
		"event stream": "GET /sandboxes/{box}/WORKER_1/ HTTP/1.1\r\nHost: x\r\nX-Session-API-Key: {key}\r\n\r\n",
		"WebSocket through the proxy": "GET /sandboxes/{box}/WORKER_1/ HTTP/1.1\r\nHost: x\r\nX-Session-API-Key: {key}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
			"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
		"the agent server's WebSocket": "GET /sandboxes/{box}/AGENT_SERVER/sockets/events/x HTTP/1.1\r\nHost: x\r\nX-Session-API-Key: {key}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
			"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			h, behind := newDoorHarness(t)
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
			h.ask("GET", h.at("WORKER_2", "/"), "", headerSessionKey, h.key).want(t, 200)
			conn.Close()
			until(t, "the sandbox hears that its reader is gone", func() bool {
				select {
				case <-source.ended:
					return h.server.door.streams.count() == 0
				default:
					return false
				}
			})
		})
	}
}

// heap is what is in use after a collection, in bytes.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse)
}
