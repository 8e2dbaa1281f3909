package peernet

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// FuzzPeerRequest is a request on the peer port behind TLS: only a POST of a
// call, by a node, within the bounds, reaches the handler.
func FuzzPeerRequest(f *testing.F) {
	pair, err := Issue(authorityFor(f), "b", nil, time.Now(), time.Hour)
	if err != nil {
		f.Fatal(err)
	}
	leaf := keyPair(f, pair).Leaf
	f.Add("POST", "/v1/apply", "1000", []byte("{}"), true)
	f.Add("POST", "/v1/../v1/apply", "-5", []byte("{}"), true)
	f.Add("GET", "/v1/apply", "9223372036854775807", []byte(""), false)
	f.Add("POST", "/v1/", "1e9", []byte("x"), false)
	f.Fuzz(func(t *testing.T, method, path, timeout string, body []byte, node bool) {
		r, err := http.NewRequest("POST", "https://peer/", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Method, r.URL.Path = method, path
		r.Header.Set(timeoutHeader, timeout)
		r.TLS = &tls.ConnectionState{}
		if node {
			r.TLS.PeerCertificates = []*x509.Certificate{leaf}
		}
		var running Gate
		reached := false
		w := httptest.NewRecorder()
		callHandler(func(ctx context.Context, from, name string, request []byte) ([]byte, error) {
			reached = true
			if deadline, there := ctx.Deadline(); !there || time.Until(deadline) > MaxCallTimeout {
				t.Errorf("a call with the timeout %q has until %v", timeout, deadline)
			}
			if from != "b" || !strings.HasSuffix(path, name) || !bytes.Equal(request, body) {
				t.Errorf("%q %q %q came as %q %q %q", path, body, "b", name, request, from)
			}
			return nil, nil
		}, new(peerCertificates), &running).ServeHTTP(w, r)
		running.Close()
		if reached && (!node || method != http.MethodPost || !strings.HasPrefix(path, callPath)) {
			t.Fatalf("%s %q of a node %v got through", method, path, node)
		}
		if reached != (w.Code == http.StatusOK) {
			t.Fatalf("reached %v, answered %d", reached, w.Code)
		}
	})
}

// FuzzPeerPort writes bytes to the peer port before any TLS: the port closes
// the connection and nobody behind it hears of it.
func FuzzPeerPort(f *testing.F) {
	ca := authorityFor(f)
	port := openPort(f, write(f, f.TempDir(), ca, issue(f, ca, "a", time.Now(), time.Hour)), echo)
	f.Add([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
	f.Add([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
	f.Add([]byte("\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00"))
	f.Add([]byte("\x16\x03\x03\xff\xff" + strings.Repeat("\x01", 64)))
	f.Add([]byte("\x00\x01\x02\x03raft"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		ours, theirs := net.Pipe()
		var answer []byte
		over := make(chan struct{})
		go func() {
			defer close(over)
			go func() {
				_, _ = theirs.Write(raw) // may be refused halfway
				_ = theirs.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
			}()
			answer, _ = io.ReadAll(theirs)
			_ = theirs.Close()
		}()
		port.admit(port.limiter.enter(t.Context(), ours))
		<-over
		if len(answer) > 0 && answer[0] != 0x15 && answer[0] != 0x16 {
			t.Fatalf("%q was answered with %q, which is no TLS", raw, answer)
		}
	})
}

// pipeLayer is a raft.StreamLayer with one connection.
type pipeLayer struct {
	conns chan net.Conn
	done  chan struct{}
}

// Accept, Close, Addr and Dial implement raft.StreamLayer.
func (l *pipeLayer) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}
func (l *pipeLayer) Close() error   { close(l.done); return nil }
func (l *pipeLayer) Addr() net.Addr { return peerAddr("a:1") }
func (l *pipeLayer) Dial(raft.ServerAddress, time.Duration) (net.Conn, error) {
	return nil, net.ErrClosed
}

// FuzzRaftFrames writes bytes to Raft's own stream, as a node that went mad
// would, behind TLS: the library must not take this node down with it, nor its
// memory.
func FuzzRaftFrames(f *testing.F) {
	layer := &pipeLayer{conns: make(chan net.Conn), done: make(chan struct{})}
	transport := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Logger: hclog.NewNullLogger(), Stream: layer, MaxPool: raftPool, Timeout: raftTimeout,
	})
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			select {
			case rpc := <-transport.Consumer():
				if rpc.Reader != nil {
					_, _ = io.Copy(io.Discard, io.LimitReader(rpc.Reader, 1<<20)) // the peer is gone
				}
				rpc.Respond(nil, net.ErrClosed)
			case <-layer.done:
				return
			}
		}
	}()
	f.Cleanup(func() {
		_ = transport.Close()
		<-served
	})
	for kind := range byte(6) {
		f.Add([]byte{kind, 0x80})
		f.Add([]byte{kind, 0x81, 0xa4, 'T', 'e', 'r', 'm', 0x01})
		f.Add([]byte{kind, 0x81, 0xa7, 'E', 'n', 't', 'r', 'i', 'e', 's', 0xdd, 0x7f, 0xff, 0xff, 0xff})
		f.Add([]byte{kind, 0x81, 0xa4, 'D', 'a', 't', 'a', 0xc6, 0x7f, 0xff, 0xff, 0xff})
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		ours, theirs := net.Pipe()
		layer.conns <- ours
		go func() {
			_, _ = theirs.Write(raw) // the other end may close first
			_ = theirs.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
		}()
		_, _ = io.Copy(io.Discard, theirs)
		_ = theirs.Close()
	})
}
