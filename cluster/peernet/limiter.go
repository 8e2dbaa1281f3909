package peernet

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// queueSize is how many connections without a certificate each of the limiter's two
	// queues holds. Each is an open file of the node.
	queueSize = 64
	// addressShare is how many connections of a queue one address has before it is the
	// first to lose one: what a peer opens at once, its Raft connections and one for calls.
	addressShare = raftPool + 1
	// silentTimeout is how long a connection may take until its TLS hello, which a peer
	// sends at once. New connections wait as long in the kernel's queue, so the port takes
	// queueSize/silentTimeout = 3,200 connections a second.
	silentTimeout = 20 * time.Millisecond
	// helloTimeout is how long a connection may take from its hello to its certificate. It
	// bounds the handshakes begun, which cost CPU, to 320 a second.
	helloTimeout = 200 * time.Millisecond
	// reportInterval is how often, at most, refused connections are logged.
	reportInterval = 10 * time.Second
)

// limiter is the handshake limiter: it holds the connections that have not shown a
// certificate yet. Anyone who reaches the port can open many of them, so a full queue drops
// its oldest. Two rules protect a peer that is in its handshake. Connections before their
// TLS hello have a queue of their own, so they displace only each other. In either queue the
// address with the most connections loses one first, once it has more than addressShare; a
// new connection of another address displaces it at once.
//
// So a peer connects at once beside any number of silent connections, and beside hellos from fewer
// than queueSize/addressShare other addresses. Beside hellos from more addresses, or from its own,
// it connects after several tries: helloTimeout admits a share of all who send one. Without it a
// few hundred silent strangers keep peers apart (TestReal_AFloodOfStrangersKeepsNobodyOut). The
// limiter does not protect the kernel's queue, which more connections a second than silentTimeout
// allows fill. That needs a firewall.
type limiter struct {
	mu sync.Mutex
	// silent and speaking are the two queues, oldest first.
	silent, speaking []*pending
	refused          int // since reported
	reported         time.Time
}

// pending is one connection in the limiter.
type pending struct {
	conn  net.Conn
	from  netip.Prefix
	since time.Time // in this queue
}

// enter queues a connection, which may take silentTimeout; nil when ctx ended.
func (l *limiter) enter(ctx context.Context, conn net.Conn) *pending {
	p := &pending{conn: conn, from: originOf(conn.RemoteAddr())}
	for {
		wait := l.admit(p)
		if wait <= 0 {
			return p
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// admit queues p, or returns how long the next connection to drop may still stay.
func (l *limiter) admit(p *pending) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.silent) >= queueSize {
		next, _ := nextToDrop(l.silent)
		if wait := silentTimeout - time.Since(l.silent[next].since); wait > 0 {
			return wait
		}
		l.silent = l.drop(l.silent, next)
	}
	p.since = time.Now()
	l.silent = append(l.silent, p)
	return 0
}

// hello moves a connection that has sent its TLS hello to the other queue. It returns false
// if the connection is dropped, or was before.
func (l *limiter) hello(p *pending) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.silent, p)
	if i < 0 {
		return false
	}
	if len(l.speaking) >= queueSize {
		next, count := nextToDrop(l.speaking)
		greedy := count[l.speaking[next].from] > addressShare && count[p.from] < addressShare
		if !greedy && time.Since(l.speaking[next].since) < helloTimeout {
			l.silent = l.drop(l.silent, i)
			return false
		}
		l.speaking = l.drop(l.speaking, next)
	}
	l.silent = slices.Delete(l.silent, i, i+1)
	p.since = time.Now()
	l.speaking = append(l.speaking, p)
	return true
}

// leave removes a connection whose handshake ended; false if it was dropped.
func (l *limiter) leave(p *pending) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, queue := range []*[]*pending{&l.silent, &l.speaking} {
		if i := slices.Index(*queue, p); i >= 0 {
			*queue = slices.Delete(*queue, i, i+1)
			return true
		}
	}
	return false
}

// report returns how many connections were dropped since the last report, at most once in
// reportInterval, else 0.
func (l *limiter) report(now time.Time) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.reported) < reportInterval {
		return 0
	}
	count := l.refused
	l.refused, l.reported = 0, now
	return count
}

// drop closes a connection and removes it from its queue. The caller holds mu.
func (l *limiter) drop(queue []*pending, i int) []*pending {
	if tcp, ok := queue[i].conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // the kernel drops it at once too
	}
	_ = queue[i].conn.Close() // nothing was agreed on over it
	l.refused++
	return slices.Delete(queue, i, i+1)
}

// nextToDrop gives the connection that a full queue drops next: the oldest of the address
// with the most connections if that is more than its share, else the oldest of all. It
// returns the count of each address too.
func nextToDrop(queue []*pending) (int, map[netip.Prefix]int) {
	count := make(map[netip.Prefix]int, len(queue))
	most := addressShare
	for _, p := range queue {
		count[p.from]++
		most = max(most, count[p.from])
	}
	if most == addressShare {
		return 0, count
	}
	return slices.IndexFunc(queue, func(p *pending) bool { return count[p.from] == most }), count
}

// originOf gives what counts as one address: with IPv6 the /64 network, of which one
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
