package peernet

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/goleak"
)

// authorityFor makes a CA for tests.
func authorityFor(t testing.TB) PEM {
	t.Helper()
	ca, err := NewCA(time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// write puts a certificate and the CA to trust into a directory of its own.
func write(t testing.TB, dir string, trust, pair PEM) TLSFiles {
	t.Helper()
	files := TLSFiles{
		CAFile:   filepath.Join(dir, "ca.pem"),
		CertFile: filepath.Join(dir, "node.pem"),
		KeyFile:  filepath.Join(dir, "node-key.pem"),
	}
	for name, data := range map[string][]byte{
		files.CAFile:   trust.Certificate,
		files.CertFile: pair.Certificate,
		files.KeyFile:  pair.Key,
	} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

func issue(t testing.TB, ca PEM, node string, begin time.Time, lifetime time.Duration) PEM {
	t.Helper()
	pair, err := Issue(ca, node, nil, begin, lifetime)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func creds(t testing.TB, files TLSFiles) *Credentials {
	t.Helper()
	c, err := LoadCredentials(files, "", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// openPort serves handle on a free port until the test ends.
func openPort(t testing.TB, files TLSFiles, handle Handler) *Port {
	t.Helper()
	o := Options{Address: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)}
	p, err := Open(o, creds(t, files))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- p.Serve(ctx, handle) }()
	t.Cleanup(func() {
		stop()
		if err := errors.Join(<-served, p.Close()); err != nil {
			t.Error(err)
		}
	})
	return p
}

func echo(_ context.Context, from, name string, request []byte) ([]byte, error) {
	return append([]byte(from+" "+name+" "), request...), nil
}

func TestPeerPort_OnlyNodesOfTheClusterGetIn(t *testing.T) {
	now := time.Now()
	ca, other := authorityFor(t), authorityFor(t)
	port := openPort(t, write(t, t.TempDir(), ca, issue(t, ca, "a", now, time.Hour)), echo)
	good := issue(t, ca, "b", now, time.Hour)

	t.Run("a node", func(t *testing.T) {
		c := NewClient(creds(t, write(t, t.TempDir(), ca, good)))
		defer c.Close()
		answer, err := c.Call(t.Context(), port.Addr(), "hello", []byte("x"))
		if err != nil || string(answer) != "b hello x" {
			t.Errorf("got %q, %v", answer, err)
		}
	})

	refused := func(name string, trust, issuer, pair PEM) {
		t.Run(name, func(t *testing.T) {
			stranger := creds(t, write(t, t.TempDir(), issuer, pair))
			stranger.roots = pool(trust) // not from its files: no node loads what does not fit
			c := NewClient(stranger)
			defer c.Close()
			if answer, err := c.Call(t.Context(), port.Addr(), "hello", nil); err == nil {
				t.Errorf("answered %q", answer)
			}
			stream := &raftStream{connQueue: newConnQueue(peerAddr("")), credentials: stranger, open: map[*streamConn]struct{}{}}
			defer func() { _ = stream.Close() }()
			conn, err := stream.Dial(raft.ServerAddress(port.Addr()), time.Second)
			if err == nil { // TLS 1.3: the refusal comes with the first read
				_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
				if n, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("the raft stream is open: read %d, %v", n, err)
				}
			}
		})
	}
	refused("a certificate of another CA", ca, other, issue(t, other, "b", now, time.Hour))
	refused("trusting another CA", other, ca, good)
	refused("an expired certificate", ca, ca, issue(t, ca, "b", now.Add(-2*time.Hour), time.Hour))
	refused("a certificate from the future", ca, ca, issue(t, ca, "b", now.Add(30*time.Minute), time.Hour))

	for name, cfg := range map[string]*tls.Config{
		"no client certificate": {RootCAs: pool(ca), ServerName: serverName, NextProtos: []string{protoCalls}},
		"no protocol": {
			RootCAs:      pool(ca),
			ServerName:   serverName,
			Certificates: []tls.Certificate{keyPair(t, good)},
		},
		"HTTP/1.1": {
			RootCAs:      pool(ca),
			ServerName:   serverName,
			Certificates: []tls.Certificate{keyPair(t, good)},
			NextProtos:   []string{"http/1.1"},
		},
		"TLS 1.2": {
			RootCAs:      pool(ca),
			ServerName:   serverName,
			Certificates: []tls.Certificate{keyPair(t, good)},
			NextProtos:   []string{protoCalls},
			MaxVersion:   tls.VersionTLS12,
		},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := tls.Dial("tcp", port.Addr(), cfg)
			if err != nil {
				return
			}
			defer func() { _ = conn.Close() }()
			_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
			if _, err := conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")); err != nil {
				return
			}
			if n, err := conn.Read(make([]byte, 64)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the connection is open: read %d, %v", n, err)
			}
		})
	}

	t.Run("plain TCP", func(t *testing.T) {
		conn, err := net.Dial("tcp", port.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		_, _ = conn.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		buffer := make([]byte, 256)
		n, err := conn.Read(buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) || strings.HasPrefix(string(buffer[:n]), "HTTP") {
			t.Errorf("answered %q, %v", buffer[:n], err)
		}
	})
}

func TestPeerPort_OtherCertificatesOfTheCAAreNoNodes(t *testing.T) {
	ca := authorityFor(t)
	authority, err := parseCA(ca)
	if err != nil {
		t.Fatal(err)
	}
	port := openPort(t, write(t, t.TempDir(), ca, issue(t, ca, "a", time.Now(), time.Hour)), echo)
	for name, change := range map[string]func(*x509.Certificate){
		"not a server":  func(c *x509.Certificate) { c.DNSNames = []string{"b" + nodeDomain} },
		"no node":       func(c *x509.Certificate) { c.DNSNames = []string{serverName} },
		"not a client":  func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} },
		"a bad name":    func(c *x509.Certificate) { c.DNSNames = []string{serverName, "-b" + nodeDomain} },
		"a longer name": func(c *x509.Certificate) { c.DNSNames = []string{serverName, "x.b" + nodeDomain} },
	} {
		t.Run(name, func(t *testing.T) {
			serial, err := newSerial()
			if err != nil {
				t.Fatal(err)
			}
			template := &x509.Certificate{
				SerialNumber: serial, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
				KeyUsage:    x509.KeyUsageDigitalSignature,
				ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
				DNSNames:    []string{"b" + nodeDomain, serverName},
			}
			change(template)
			pair, err := sign(template, authority)
			if err != nil {
				t.Fatal(err)
			}
			conn, err := tls.Dial("tcp", port.Addr(), &tls.Config{
				RootCAs: pool(ca), ServerName: serverName, NextProtos: []string{
					protoRaft,
				}, Certificates: []tls.Certificate{keyPair(t, pair)},
			})
			if err == nil {
				_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
				_, err = conn.Read(make([]byte, 1))
				_ = conn.Close()
			}
			if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("let in: %v", err)
			}
			// As the dialled side it does not pass either.
			if name == "not a server" || name == "no node" {
				l, err := tls.Listen("tcp", "127.0.0.1:0",
					&tls.Config{Certificates: []tls.Certificate{keyPair(t, pair)}, NextProtos: []string{protoRaft}})
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = l.Close() }()
				go func() {
					if c, err := l.Accept(); err == nil {
						_ = c.(*tls.Conn).Handshake()
						_ = c.Close()
					}
				}()
				if c, err := dialPeer(t.Context(), port.credentials, l.Addr().String(), protoRaft); err == nil {
					_ = c.Close()
					t.Error("dialled a peer that is no node")
				}
			}
		})
	}
}

func TestPeerPort_CertificatesReloadWithoutARestart(t *testing.T) {
	now := time.Now()
	first, second := authorityFor(t), authorityFor(t)
	dir := t.TempDir()
	files := write(t, dir, first, issue(t, first, "a", now, time.Hour))
	port := openPort(t, files, echo)
	call := func(trust, pair PEM) error {
		c := NewClient(creds(t, write(t, t.TempDir(), trust, pair)))
		defer c.Close()
		_, err := c.Call(t.Context(), port.Addr(), "hello", nil)
		return err
	}
	old, renewed := issue(t, first, "b", now, time.Hour), issue(t, second, "b", now, time.Hour)
	if err := call(first, old); err != nil {
		t.Fatal(err)
	}
	if err := call(second, renewed); err == nil {
		t.Fatal("the second CA works before it was installed")
	}
	// A broken replacement changes nothing.
	if err := os.WriteFile(files.CertFile, []byte("half a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	lookAgain(port.credentials)
	if err := call(first, old); err != nil {
		t.Fatalf("with a broken certificate file: %v", err)
	}
	// Nor does another node's certificate.
	write(t, dir, second, issue(t, second, "z", now, time.Hour))
	touch(t, files, now.Add(5*time.Second))
	lookAgain(port.credentials)
	if err := call(first, old); err != nil {
		t.Fatalf("with another node's certificate: %v", err)
	}
	write(t, dir, second, issue(t, second, "a", now, time.Hour))
	touch(t, files, now.Add(10*time.Second))
	lookAgain(port.credentials)
	if err := call(second, renewed); err != nil {
		t.Errorf("after the new files: %v", err)
	}
	if err := call(first, old); err == nil {
		t.Error("the old CA still works")
	}
}

// lookAgain makes the next handshake look at the files.
func lookAgain(c *Credentials) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.looked = time.Time{}
}

func touch(t *testing.T, files TLSFiles, at time.Time) {
	t.Helper()
	for _, name := range []string{files.CAFile, files.CertFile, files.KeyFile} {
		if err := os.Chtimes(name, at, at); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPeerPort_Call_TellsWhatWasNeverSent(t *testing.T) {
	current := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, current) })
	ca := authorityFor(t)
	arrived := make(chan struct{})
	release := make(chan struct{})
	port := openPort(t, write(t, t.TempDir(), ca, issue(t, ca, "a", time.Now(), time.Hour)),
		func(_ context.Context, _, name string, request []byte) ([]byte, error) {
			if name == "hang" {
				arrived <- struct{}{}
				<-release
			}
			return request, nil
		})
	defer close(release)
	c := NewClient(creds(t, write(t, t.TempDir(), ca, issue(t, ca, "b", time.Now(), time.Hour))))
	defer c.Close()

	// Both on a new connection and on a pooled one.
	for i := range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-arrived
			cancel()
		}()
		if _, err := c.Call(ctx, port.Addr(), "hang", nil); err == nil || errors.Is(err, ErrNotSent) {
			t.Errorf("call %d: a call without an answer gave %v", i, err)
		}
	}
	if _, err := c.Call(t.Context(), port.Addr(), "big", make([]byte, MaxCallBytes+1)); err == nil {
		t.Error("a request of more than the bound was answered")
	}
	if answer, err := c.Call(t.Context(), port.Addr(), "big", bytes.Repeat([]byte("x"), MaxCallBytes)); err != nil ||
		len(answer) != MaxCallBytes {
		t.Errorf("a request of the bound: %d bytes, %v", len(answer), err)
	}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if _, err := c.Call(t.Context(), l.Addr().String(), "x", nil); !errors.Is(err, ErrNotSent) {
		t.Errorf("nobody listens: %v, want ErrNotSent", err)
	}
	// Somebody listens and never answers the handshake.
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	begin := time.Now()
	if _, err := c.Call(t.Context(), silent.Addr().String(), "x", nil); !errors.Is(err, ErrNotSent) {
		t.Errorf("no handshake: %v, want ErrNotSent", err)
	}
	if took := time.Since(begin); took > 3*dialTimeout {
		t.Errorf("gave up after %v", took)
	}
}

func pool(ca PEM) *x509.CertPool {
	p := x509.NewCertPool()
	p.AppendCertsFromPEM(ca.Certificate)
	return p
}

func keyPair(t testing.TB, p PEM) tls.Certificate {
	t.Helper()
	pair, err := tls.X509KeyPair(p.Certificate, p.Key)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}
