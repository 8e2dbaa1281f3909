package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

const (
	// fileLimit is the limit of open files of the attacked node. Half of those that it does not
	// reserve for itself are for clients.
	fileLimit = 1256
	// besiegers is the number of connections of each of four kinds of bad clients. Together
	// they exceed the clients' half.
	besiegers = 160
	// besiegersAddress is where they come from.
	besiegersAddress = "127.0.0.66"
	// memoryBound is how much the node's memory may grow during the attack, in MiB.
	memoryBound = 256
)

// TestConnections: clients of one address open more connections than a node accepts, and send or
// read as slowly as they can. The node rejects them or closes their connections. Clients of other
// addresses are served, also those that come during the attack, the other nodes are not affected,
// and memory stays bounded. After the attack the node is as before.
func TestConnections(t *testing.T) {
	f := testcluster.Start(t, testcluster.Options{Bare: true})
	node := f.Nodes[2]
	poor(t, f)
	node.Kill()
	node.Start(t)
	node.Ready(t)
	memory, routines := rssOf(t, node), goroutinesOf(t, node)
	address := strings.TrimPrefix(node.Base, "http://")

	honest := newRegular(node)
	honest.mustServe(t, "before")
	siege := &besieging{t: t, address: address, key: node.Key}
	siege.open("a header that never ends", func(c net.Conn) error {
		return drip(c, "GET /ready HTTP/1.1\r\nHost: x\r\n", "X-A: b\r\n")
	})
	siege.open("a body that never ends", func(c net.Conn) error {
		return drip(c,
			"POST /api/settings HTTP/1.1\r\nHost: x\r\nContent-Type: "+
				"application/json\r\nX-Session-API-Key: "+node.Key+"\r\nContent-Length: 4000000\r\n\r\n{", " ")
	})
	siege.open("answers that are never read", func(c net.Conn) error {
		_, err := io.WriteString(c, strings.Repeat("GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n", 400))
		if err != nil {
			return err
		}
		<-siege.done()
		return nil
	})
	siege.open("nothing at all", func(c net.Conn) error {
		_, err := io.Copy(io.Discard, c)
		return errors.Join(err, io.EOF)
	})
	testcluster.Eventually(t, "some are refused or cut off", func() error {
		if siege.opened.Load() < 4*besiegers || siege.ended.Load() == 0 {
			return fmt.Errorf("%d of %d connections opened, %d ended", siege.opened.Load(), 4*besiegers, siege.ended.Load())
		}
		return nil
	})
	// Connected clients are still served, and so are the clients of the other nodes.
	for i := range 20 {
		honest.mustServe(t, fmt.Sprintf("during, %d", i))
		newcomer, prober := newRegular(node), newRegular(node)
		newcomer.mustServe(t, fmt.Sprintf("a newcomer, %d", i))
		prober.mustBeReady(t)
		newcomer.leave()
		prober.leave()
	}
	for _, other := range f.Nodes[:2] {
		other.Sure(t, http.MethodPost, "/api/settings", map[string]any{"language": "en"}, nil)
	}
	if grown := rssOf(t, node) - memory; grown > memoryBound {
		t.Errorf("the node has taken %d MiB more", grown)
	} else {
		t.Logf("%d connections at once, %d refused or cut off so far; %d MiB more memory", siege.opened.Load(),
			siege.ended.Load(), grown)
	}
	siege.leave()
	testcluster.Eventually(t, "all is as before", func() error {
		// Each of its connections costs the node goroutines, so it leaves before they are counted.
		newcomer := newRegular(node)
		err := newcomer.ask()
		newcomer.leave()
		if err != nil {
			return err
		}
		if now := goroutinesOf(t, node); now > routines+50 {
			return fmt.Errorf("%d goroutines, %d before", now, routines)
		}
		return nil
	})
	honest.mustServe(t, "after")
	if !node.Alive() {
		t.Fatal("the node ended")
	}
}

// poor runs the program with a low limit of open files.
func poor(t *testing.T, f *testcluster.Cluster) {
	t.Helper()
	if err := os.Rename(f.Bivouac, f.Bivouac+".rich"); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\nulimit -n %d\nexec %q \"$@\"\n", fileLimit, f.Bivouac+".rich")
	if err := os.WriteFile(f.Bivouac, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
}

// regular is a client with one persistent connection.
type regular struct{ testcluster.Client }

func newRegular(n *testcluster.Node) *regular {
	c := n.Client
	c.HTTP = &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1, IdleConnTimeout: testcluster.Patience}}
	return &regular{c}
}

// leave closes the connection.
func (r *regular) leave() { r.HTTP.CloseIdleConnections() }

func (r *regular) ask() error {
	ctx, cancel := context.WithTimeout(context.Background(), testcluster.Patience)
	defer cancel()
	a, err := r.Send(ctx, http.MethodGet, "/api/v1/sandboxes/search", nil)
	if err != nil {
		return err
	}
	return a.Decode(nil)
}

func (r *regular) mustServe(t *testing.T, when string) {
	t.Helper()
	if err := r.ask(); err != nil {
		t.Errorf("%s: a client that was there: %v", when, err)
	}
}

func (r *regular) mustBeReady(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testcluster.Patience)
	defer cancel()
	if a, err := r.Send(ctx, http.MethodGet, "/ready", nil); err != nil || a.Status != http.StatusOK {
		t.Errorf("/ready: %v, %v", a, err)
	}
}

// besieging is a group of bad clients.
type besieging struct {
	t            *testing.T
	address, key string
	opened       atomic.Int64
	ended        atomic.Int64
	clients      sync.WaitGroup

	mu    sync.Mutex
	gone  chan struct{}
	conns []net.Conn
}

// done is closed when the clients shall leave.
func (b *besieging) done() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gone == nil {
		b.gone = make(chan struct{})
	}
	return b.gone
}

// open opens the connections of one kind. behave returns when its connection was closed.
func (b *besieging) open(kind string, behave func(net.Conn) error) {
	_ = b.done()
	for range besiegers {
		b.clients.Go(func() {
			dialer := net.Dialer{Timeout: testcluster.Patience, LocalAddr: &net.TCPAddr{IP: net.ParseIP(besiegersAddress)}}
			conn, err := dialer.Dial("tcp", b.address)
			b.opened.Add(1)
			if err != nil {
				b.ended.Add(1)
				return
			}
			b.mu.Lock()
			b.conns = append(b.conns, conn)
			b.mu.Unlock()
			if err := behave(conn); err != nil {
				b.ended.Add(1)
			}
		})
	}
	b.t.Logf("%d clients: %s", besiegers, kind)
}

// leave closes every connection and waits for the clients.
func (b *besieging) leave() {
	close(b.gone)
	b.mu.Lock()
	for _, c := range b.conns {
		c.Close()
	}
	b.mu.Unlock()
	b.clients.Wait()
}

// drip writes a beginning, and then a few bytes every second until a write fails.
func drip(c net.Conn, begin, little string) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for text := begin; ; text = little {
		if _, err := io.WriteString(c, text); err != nil {
			return err
		}
		<-tick.C
	}
}

// rssOf returns a node's resident memory in MiB.
func rssOf(t *testing.T, n *testcluster.Node) int {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(raw)
	if m == nil {
		t.Fatalf("no VmRSS in %s", raw)
	}
	kib, err := strconv.Atoi(string(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	return kib / 1024
}

// goroutinesOf reads the goroutine count from a node's metrics, and retries while the node is
// full.
func goroutinesOf(t *testing.T, n *testcluster.Node) (count int) {
	t.Helper()
	testcluster.Eventually(t, "the metrics answer", func() error {
		values, err := n.Metrics(t.Context())
		if count = int(values["go_goroutines"]); err == nil && count == 0 {
			err = errors.New("no goroutines")
		}
		return err
	})
	return count
}
