package peernet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/peernet/peernettest"
)

// hello is the first that a peer says.
func hello(t testing.TB) []byte {
	t.Helper()
	near, far := net.Pipe()
	go func() {
		_ = tls.Client(near, &tls.Config{ServerName: serverName, NextProtos: []string{protoRaft}}).Handshake()
		_ = near.Close()
	}()
	header := make([]byte, 5)
	if _, err := io.ReadFull(far, header); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, int(header[3])<<8|int(header[4]))
	if _, err := io.ReadFull(far, body); err != nil {
		t.Fatal(err)
	}
	_ = far.Close()
	return append(header, body...)
}

func TestPeerPort_PeersGetInThroughAFloodOfStrangers(t *testing.T) {
	const width = 300
	peers := func(int) net.IP { return net.IPv4(127, 0, 0, 1) }
	another := func(int) net.IP { return net.IPv4(127, 0, 0, 2) }
	many := func(i int) net.IP { return net.IPv4(127, 0, byte(1+i/200), byte(1+i%200)) }
	first := hello(t)
	for name, flood := range map[string]*peernettest.Flood{ // the last two cost a peer some tries
		"silent, at the peer's address":     {Width: width, From: peers},
		"silent, at another address":        {Width: width, From: another},
		"silent, at many addresses":         {Width: width, From: many},
		"half a hello, the peer's address":  {Width: width, From: peers, Say: first[:len(first)/2]},
		"half a hello, many addresses":      {Width: width, From: many, Say: first[:len(first)/2]},
		"a hello, at another address":       {Width: width, From: another, Say: first},
		"a hello, at ten others' addresses": {Width: width, From: func(i int) net.IP { return many(i % 10) }, Say: first},
	} {
		t.Run(name, func(t *testing.T) {
			if len(flood.Say) == len(first) && os.Getenv("BIVOUAC_DRILL") != "long" {
				t.Skip("its handshakes take the CPU that the peer's needs beside other packages; make large runs it")
			}
			now, ca := time.Now(), authorityFor(t)
			port := openPort(t, write(t, t.TempDir(), ca, issue(t, ca, "a", now, time.Hour)), echo)
			go echoStream(port.stream)
			peer := creds(t, write(t, t.TempDir(), ca, issue(t, ca, "b", now, time.Hour)))
			flood.Start(t, port.Addr())
			for i := range 2 {
				getIn(t, fmt.Sprintf("call %d", i), func() error { return newCall(t.Context(), peer, port.Addr()) })
				getIn(t, fmt.Sprintf("raft stream %d", i), func() error { return newStream(peer, port.Addr()) })
			}
			t.Logf("meanwhile %d strangers were closed", flood.Closed.Load())
		})
	}
}

// getIn tries again like a peer does, for as long as a starved machine may need.
func getIn(t *testing.T, what string, try func() error) {
	t.Helper()
	begin := time.Now()
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Since(begin) > 3*time.Minute {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// newCall makes a call over a connection of its own.
func newCall(ctx context.Context, peer *Credentials, address string) error {
	c := NewClient(peer)
	defer c.Close()
	answer, err := c.Call(ctx, address, "hello", []byte("x"))
	if err == nil && string(answer) != "b hello x" {
		err = fmt.Errorf("answered %q", answer)
	}
	return err
}

// newStream opens a stream of Raft's and sends a few bytes there and back.
func newStream(peer *Credentials, address string) error {
	s := &raftStream{connQueue: newConnQueue(peerAddr("")), credentials: peer, open: map[*streamConn]struct{}{}}
	conn, err := s.Dial(raft.ServerAddress(address), raftTimeout)
	if err != nil {
		return errors.Join(err, s.Close())
	}
	_ = conn.SetDeadline(time.Now().Add(raftTimeout))
	buffer := []byte("append entries")
	if _, err = conn.Write(buffer); err == nil {
		_, err = io.ReadFull(conn, buffer)
	}
	if err == nil && string(buffer) != "append entries" {
		err = fmt.Errorf("read %q", buffer)
	}
	return errors.Join(err, conn.Close(), s.Close())
}

// echoStream stands for Raft on the other side.
func echoStream(s *raftStream) {
	for {
		conn, err := s.Accept()
		if err != nil {
			return
		}
		go func() {
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}()
	}
}

func TestLimiter_NextOut(t *testing.T) {
	room := func(from ...string) (room []*pending) {
		for _, address := range from {
			room = append(room, &pending{from: originOf(net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address)))})
		}
		return room
	}
	for name, test := range map[string]struct {
		room []*pending
		want int
	}{
		"nobody has too many": {room("10.0.0.1:1", "10.0.0.2:1", "10.0.0.2:2", "10.0.0.2:3", "10.0.0.2:4"), 0},
		"one has": {
			room("10.0.0.1:1", "10.0.0.2:1", "10.0.0.2:2", "10.0.0.2:3", "10.0.0.2:4", "10.0.0.2:5"),
			1,
		},
		"two have": {
			room("10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3", "10.0.0.1:4", "10.0.0.1:5", "10.0.0.2:1", "10.0.0.2:2",
				"10.0.0.2:3", "10.0.0.2:4", "10.0.0.2:5", "10.0.0.2:6"),
			5,
		},
		"a network is one": {
			room("[2001:db8::1]:1", "[2001:db8:0:1::1]:1", "[2001:db8:0:1::2]:1", "[2001:db8:0:1::3]:1", "[2001:db8:0:1::4]:1",
				"[2001:db8:0:1::5]:1"),
			1,
		},
		"IPv4 however it is put": {
			room("10.0.0.1:1", "[::ffff:10.0.0.2]:1", "10.0.0.2:2", "[::ffff:10.0.0.2]:3", "10.0.0.2:4", "10.0.0.2:5"),
			1,
		},
	} {
		if got, _ := nextToDrop(test.room); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}

func TestLimiter_WhoSaidHelloIsNotPushedOutByTheSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l limiter
		enter := func(ctx context.Context) *pending { near, _ := net.Pipe(); return l.enter(ctx, near) }
		begin := time.Now()
		peer := enter(t.Context())
		if !l.hello(peer) {
			t.Fatal("shown out of an empty room")
		}
		var strangers []*pending
		for range 3 * queueSize {
			strangers = append(strangers, enter(t.Context()))
		}
		if took := time.Since(begin); took != 2*silentTimeout {
			t.Errorf("two rooms full made way in %v, want each its %v", took, silentTimeout)
		}
		if !slices.Equal(l.silent, strangers[2*queueSize:]) {
			t.Errorf("%d are in the room, want the last %d", len(l.silent), queueSize)
		}
		if first, more := l.report(time.Now()), l.report(time.Now()); first != 2*queueSize || more != 0 {
			t.Errorf("told of %d and %d, want %d once", first, more, 2*queueSize)
		}
		if l.hello(strangers[0]) || l.leave(strangers[0]) {
			t.Error("who was shown out is let in")
		}
		if !l.leave(peer) || l.leave(peer) {
			t.Error("who said hello was shown out, or stays for ever")
		}
		ctx, stop := context.WithCancel(t.Context())
		stop()
		if enter(ctx) != nil {
			t.Error("let in by a port that is closed")
		}
	})
}

func TestLimiter_WhoSaidHello(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l limiter
		conn, _ := net.Pipe()
		say := func(from string) *pending {
			g := &pending{conn: conn, from: originOf(net.TCPAddrFromAddrPort(netip.MustParseAddrPort(from)))}
			l.admit(g)
			if !l.hello(g) {
				return nil
			}
			return g
		}
		for range queueSize {
			if say("10.0.0.1:1") == nil {
				t.Fatal("refused although there is room")
			}
		}
		first := l.speaking[0]
		if say("10.0.0.1:1") != nil {
			t.Error("the address that has every place gets another before its grace is over")
		}
		if l.leave(first) == false {
			t.Error("the first was pushed out before its grace was over")
		}
		if say("10.0.0.1:1") == nil || say("10.0.0.2:1") == nil || len(l.speaking) != queueSize {
			t.Error("who is at another address does not get in at once")
		}
		time.Sleep(helloTimeout)
		next := l.speaking[0]
		if say("10.0.0.1:1") == nil || l.leave(next) {
			t.Error("the oldest stays although its grace is over")
		}
	})
}
