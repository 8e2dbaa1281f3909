package drills

import (
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

	"bivouac.dev/bivouac/ops/fleet"
)

const (
	// fileLimit is how many files the besieged node may have open; half of what it
	// does not keep for itself is for clients.
	fileLimit = 1256
	// besiegers is how many connections each of four kinds of bad clients opens:
	// together more than the half.
	besiegers = 160
	// memoryBound is how much more memory the node may take meanwhile, in MiB.
	memoryBound = 256
)

// TestConnections: clients that open more connections than a node may have, and
// send or read as slowly as they can, are refused or cut off. Whoever was there
// before goes on being served, the other nodes notice nothing, memory stays
// bounded, and when they have left all is as before.
func TestConnections(t *testing.T) {
	f := fleet.StartBare(t, fleet.BareOptions{})
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
		return drip(c, "POST /api/settings HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nX-Session-API-Key: "+node.Key+"\r\nContent-Length: 4000000\r\n\r\n{", " ")
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
	fleet.Eventually(t, "some are refused or cut off", func() error {
		if siege.opened.Load() < 4*besiegers || siege.ended.Load() == 0 {
			return fmt.Errorf("%d of %d connections opened, %d ended", siege.opened.Load(), 4*besiegers, siege.ended.Load())
		}
		return nil
	})
	// Who was connected is served on, again and again; so is everybody elsewhere.
	for i := range 20 {
		honest.mustServe(t, fmt.Sprintf("during, %d", i))
	}
	for _, other := range f.Nodes[:2] {
		other.Sure(t, http.MethodPost, "/api/settings", map[string]any{"language": "en"}, nil)
	}
	if grown := rssOf(t, node) - memory; grown > memoryBound {
		t.Errorf("the node has taken %d MiB more", grown)
	} else {
		t.Logf("%d connections at once, %d refused or cut off so far; %d MiB more memory", siege.opened.Load(), siege.ended.Load(), grown)
	}
	// Headers must come within seconds: there is room for newcomers again although
	// nobody has left of his own accord.
	fleet.Eventually(t, "a newcomer is served while the others stay", func() error { return newRegular(node).ask() })
	siege.leave()
	fleet.Eventually(t, "all is as before", func() error {
		if err := newRegular(node).ask(); err != nil {
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

// poor makes the program one that may open few files.
func poor(t *testing.T, f *fleet.Fleet) {
	t.Helper()
	if err := os.Rename(f.Bivouac, f.Bivouac+".rich"); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\nulimit -n %d\nexec %q \"$@\"\n", fileLimit, f.Bivouac+".rich")
	if err := os.WriteFile(f.Bivouac, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
}

// regular is a client with one connection that it keeps.
type regular struct {
	node   *fleet.Node
	client *http.Client
}

func newRegular(n *fleet.Node) *regular {
	return &regular{n, &http.Client{Timeout: fleet.Patience, Transport: &http.Transport{MaxConnsPerHost: 1, IdleConnTimeout: fleet.Patience}}}
}

func (r *regular) ask() error {
	req, err := http.NewRequest(http.MethodGet, r.node.Base+"/api/v1/sandboxes/search", nil)
	if err != nil {
		return err
	}
	req.Header.Set("X-Session-API-Key", r.node.Key)
	res, err := r.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return errors.New(res.Status)
	}
	return nil
}

func (r *regular) mustServe(t *testing.T, when string) {
	t.Helper()
	if err := r.ask(); err != nil {
		t.Errorf("%s: a client that was there: %v", when, err)
	}
}

// besieging is many bad clients.
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

// done is closed when they leave.
func (b *besieging) done() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gone == nil {
		b.gone = make(chan struct{})
	}
	return b.gone
}

// open connects as many as there are of one kind. behave returns when its
// connection was ended.
func (b *besieging) open(kind string, behave func(net.Conn) error) {
	_ = b.done()
	for range besiegers {
		b.clients.Go(func() {
			conn, err := net.DialTimeout("tcp", b.address, fleet.Patience)
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

// drip writes a beginning, and then a little every second until it fails.
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

// rssOf is a node's resident memory in MiB.
func rssOf(t *testing.T, n *fleet.Node) int {
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

// goroutinesOf asks a node's metrics, however long it takes to get in.
func goroutinesOf(t *testing.T, n *fleet.Node) (count int) {
	t.Helper()
	fleet.Eventually(t, "the metrics answer", func() error {
		a, err := n.Try(http.MethodGet, "/metrics", nil)
		if err != nil {
			return err
		}
		m := regexp.MustCompile(`(?m)^go_goroutines (\d+)`).FindSubmatch(a.Body)
		if m == nil {
			return fmt.Errorf("no goroutines in %s", a)
		}
		count, err = strconv.Atoi(string(m[1]))
		return err
	})
	return count
}
