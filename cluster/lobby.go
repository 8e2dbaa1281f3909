package cluster

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// roomSize is how many connections without a certificate each of the lobby's
	// two rooms holds. They are files that the node's other neighbours lack.
	roomSize = 64
	// roomShare is how many of a room one address has before it is the first to
	// make way: what a peer opens at once, its Raft connections and one for calls.
	roomShare = raftPool + 1
	// silentGrace is what every connection gets to say its TLS hello, which a peer
	// sends with the connection. Newcomers wait as long in the kernel's queue, so
	// strangers are let in at roomSize/silentGrace, 3,200 a second.
	silentGrace = 20 * time.Millisecond
	// helloGrace is what a connection gets from its hello to its certificate. It
	// bounds the handshakes begun, which is what costs CPU, to 320 a second.
	helloGrace = 200 * time.Millisecond
	// crowdInterval is how often, at most, a full lobby is told of.
	crowdInterval = 10 * time.Second
)

// lobby is where connections to the peer port wait until they have shown a
// certificate. Whoever reaches the port can open as many as it likes, so nobody
// has a place for long: where it is full, who came first makes way. Two rules keep
// that from being a peer that is just shaking hands. Those that have not said
// hello have a room of their own, so they push out only each other. And in either
// room the address with the most connections loses one first, once it has more
// than roomShare; for newcomers that are not of such an address, at once.
//
// So a peer gets in at once through any number of silent connections, from
// wherever, and through whatever fewer than roomSize/roomShare other addresses
// say. Against strangers who say hello from more addresses, or from the peer's
// own, it gets in at one of several tries: as often as helloGrace lets one of all
// who say hello begin. What this does not hold is more connections a second than
// silentGrace lets in, which fill the kernel's queue. That needs a firewall.
type lobby struct {
	mu sync.Mutex
	// silent and speaking are the two rooms, who came first at the front.
	silent, speaking []*guest
	refused          int // since told
	told             time.Time
}

// guest is one connection in the lobby.
type guest struct {
	conn  net.Conn
	from  netip.Prefix
	since time.Time // in this room
}

// enter takes a connection in, which may wait for silentGrace; nil when ctx ended.
func (l *lobby) enter(ctx context.Context, conn net.Conn) *guest {
	g := &guest{conn: conn, from: originOf(conn.RemoteAddr())}
	for {
		wait := l.admit(g)
		if wait <= 0 {
			return g
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// admit takes g in, or says how long the next to make way may still stay.
func (l *lobby) admit(g *guest) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.silent) >= roomSize {
		out, _ := nextOut(l.silent)
		if wait := silentGrace - time.Since(l.silent[out].since); wait > 0 {
			return wait
		}
		l.silent = l.refuse(l.silent, out)
	}
	g.since = time.Now()
	l.silent = append(l.silent, g)
	return 0
}

// spoke moves a guest that has said hello to the other room; false when it has to
// go, or had to before.
func (l *lobby) spoke(g *guest) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.silent, g)
	if i < 0 {
		return false
	}
	if len(l.speaking) >= roomSize {
		out, count := nextOut(l.speaking)
		greedy := count[l.speaking[out].from] > roomShare && count[g.from] < roomShare
		if !greedy && time.Since(l.speaking[out].since) < helloGrace {
			l.silent = l.refuse(l.silent, i)
			return false
		}
		l.speaking = l.refuse(l.speaking, out)
	}
	l.silent = slices.Delete(l.silent, i, i+1)
	g.since = time.Now()
	l.speaking = append(l.speaking, g)
	return true
}

// leave ends a guest's stay; false when it was refused.
func (l *lobby) leave(g *guest) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, room := range []*[]*guest{&l.silent, &l.speaking} {
		if i := slices.Index(*room, g); i >= 0 {
			*room = slices.Delete(*room, i, i+1)
			return true
		}
	}
	return false
}

// crowd gives how many were refused since it last gave a number, once in
// crowdInterval, else 0.
func (l *lobby) crowd(now time.Time) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.told) < crowdInterval {
		return 0
	}
	count := l.refused
	l.refused, l.told = 0, now
	return count
}

// refuse closes a connection. The caller holds mu.
func (l *lobby) refuse(room []*guest, i int) []*guest {
	if tcp, ok := room[i].conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // the kernel, too, is to forget it at once
	}
	_ = room[i].conn.Close() // nothing was agreed on over it
	l.refused++
	return slices.Delete(room, i, i+1)
}

// nextOut is who makes way next in a room: of the address with the most
// connections there if they are more than its share, else of all, the oldest. It
// counts each address's too.
func nextOut(room []*guest) (int, map[netip.Prefix]int) {
	count := make(map[netip.Prefix]int, len(room))
	most := roomShare
	for _, g := range room {
		count[g.from]++
		most = max(most, count[g.from])
	}
	if most == roomShare {
		return 0, count
	}
	return slices.IndexFunc(room, func(g *guest) bool { return count[g.from] == most }), count
}

// originOf is what counts as one address: with IPv6 the network, of which one
// machine may have every address.
func originOf(address net.Addr) netip.Prefix {
	from, err := netip.ParseAddrPort(address.String())
	if err != nil {
		return netip.Prefix{}
	}
	ip, bits := from.Addr().Unmap().WithZone(""), 32
	if ip.Is6() {
		bits = 64
	}
	return netip.PrefixFrom(ip, bits).Masked()
}
