package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// Flood is strangers that keep connections to a peer port open, and open another
// for each that is closed.
type Flood struct {
	// Width is how many connections there are; From gives the address of each, nil
	// for the system's choice; Say is what each says, and no more.
	Width int
	From  func(i int) net.IP
	Say   []byte
	// Pause is how long each waits before it comes back, so that a flood beside a
	// cluster takes its places and not its CPU.
	Pause time.Duration
	// Closed counts the connections that the other side has closed.
	Closed atomic.Int64
}

// Start returns when every connection was opened once. It ends with the test.
func (f *Flood) Start(t testing.TB, address string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var workers, opened sync.WaitGroup
	t.Cleanup(func() { stop(); workers.Wait() })
	for i := range f.Width {
		opened.Add(1)
		once := sync.OnceFunc(opened.Done)
		dialer := &net.Dialer{}
		if f.From != nil {
			dialer.LocalAddr = &net.TCPAddr{IP: f.From(i)}
		}
		workers.Go(func() {
			for ctx.Err() == nil {
				f.hold(ctx, dialer, address, once)
			}
			once()
		})
	}
	opened.Wait()
}

// hold opens one connection and keeps it for as long as the other side does.
func (f *Flood) hold(ctx context.Context, dialer *net.Dialer, address string, opened func()) {
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		select { // no port is free, or the node is down
		case <-ctx.Done():
		case <-time.After(acceptRetry):
		}
		return
	}
	opened()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err = conn.Write(f.Say); err == nil {
		_, _ = io.Copy(io.Discard, conn) // what the server answers to a hello
	}
	_ = conn.Close()
	f.Closed.Add(1)
	select {
	case <-ctx.Done():
	case <-time.After(f.Pause):
	}
}

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
	for name, flood := range map[string]*Flood{ // the last two cost a peer some tries
		"silent, at the peer's address":     {Width: width, From: peers},
		"silent, at another address":        {Width: width, From: another},
		"silent, at many addresses":         {Width: width, From: many},
		"half a hello, the peer's address":  {Width: width, From: peers, Say: first[:len(first)/2]},
		"half a hello, many addresses":      {Width: width, From: many, Say: first[:len(first)/2]},
		"a hello, at another address":       {Width: width, From: another, Say: first},
		"a hello, at ten others' addresses": {Width: width, From: func(i int) net.IP { return many(i % 10) }, Say: first},
	} {
		t.Run(name, func(t *testing.T) {
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
func newCall(ctx context.Context, peer *credentials, address string) error {
	c := newCallClient(peer)
	defer c.close()
	answer, err := c.call(ctx, address, "hello", []byte("x"))
	if err == nil && string(answer) != "b hello x" {
		err = fmt.Errorf("answered %q", answer)
	}
	return err
}

// newStream opens a stream of Raft's and sends a few bytes there and back.
func newStream(peer *credentials, address string) error {
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

func TestLobby_NextOut(t *testing.T) {
	room := func(from ...string) (room []*guest) {
		for _, address := range from {
			room = append(room, &guest{from: originOf(net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address)))})
		}
		return room
	}
	for name, test := range map[string]struct {
		room []*guest
		want int
	}{
		"nobody has too many":    {room("10.0.0.1:1", "10.0.0.2:1", "10.0.0.2:2", "10.0.0.2:3", "10.0.0.2:4"), 0},
		"one has":                {room("10.0.0.1:1", "10.0.0.2:1", "10.0.0.2:2", "10.0.0.2:3", "10.0.0.2:4", "10.0.0.2:5"), 1},
		"two have":               {room("10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3", "10.0.0.1:4", "10.0.0.1:5", "10.0.0.2:1", "10.0.0.2:2", "10.0.0.2:3", "10.0.0.2:4", "10.0.0.2:5", "10.0.0.2:6"), 5},
		"a network is one":       {room("[2001:db8::1]:1", "[2001:db8:0:1::1]:1", "[2001:db8:0:1::2]:1", "[2001:db8:0:1::3]:1", "[2001:db8:0:1::4]:1", "[2001:db8:0:1::5]:1"), 1},
		"IPv4 however it is put": {room("10.0.0.1:1", "[::ffff:10.0.0.2]:1", "10.0.0.2:2", "[::ffff:10.0.0.2]:3", "10.0.0.2:4", "10.0.0.2:5"), 1},
	} {
		if got, _ := nextOut(test.room); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}

func TestLobby_WhoSaidHelloIsNotPushedOutByTheSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lobby
		enter := func(ctx context.Context) *guest { near, _ := net.Pipe(); return l.enter(ctx, near) }
		begin := time.Now()
		peer := enter(t.Context())
		if !l.spoke(peer) {
			t.Fatal("shown out of an empty room")
		}
		var strangers []*guest
		for range 3 * roomSize {
			strangers = append(strangers, enter(t.Context()))
		}
		if took := time.Since(begin); took != 2*silentGrace {
			t.Errorf("two rooms full made way in %v, want each its %v", took, silentGrace)
		}
		if !slices.Equal(l.silent, strangers[2*roomSize:]) {
			t.Errorf("%d are in the room, want the last %d", len(l.silent), roomSize)
		}
		if first, more := l.crowd(time.Now()), l.crowd(time.Now()); first != 2*roomSize || more != 0 {
			t.Errorf("told of %d and %d, want %d once", first, more, 2*roomSize)
		}
		if l.spoke(strangers[0]) || l.leave(strangers[0]) {
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

func TestLobby_WhoSaidHello(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lobby
		conn, _ := net.Pipe()
		say := func(from string) *guest {
			g := &guest{conn: conn, from: originOf(net.TCPAddrFromAddrPort(netip.MustParseAddrPort(from)))}
			l.admit(g)
			if !l.spoke(g) {
				return nil
			}
			return g
		}
		for range roomSize {
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
		if say("10.0.0.1:1") == nil || say("10.0.0.2:1") == nil || len(l.speaking) != roomSize {
			t.Error("who is at another address does not get in at once")
		}
		time.Sleep(helloGrace)
		next := l.speaking[0]
		if say("10.0.0.1:1") == nil || l.leave(next) {
			t.Error("the oldest stays although its grace is over")
		}
	})
}
