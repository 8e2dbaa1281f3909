//go:build linux

package chaos

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// Link says what happens to the packets from one host to another. The zero Link delivers them
// all.
type Link struct {
	// Cut drops every packet.
	Cut bool
	// Loss is the fraction of dropped packets, 0 to 1.
	Loss float64
	// Delay is added to each packet, and up to Jitter on top, so packets may be reordered.
	Delay, Jitter time.Duration
}

// with returns the worse of two links in every respect.
func (l Link) with(o Link) Link {
	return Link{
		Cut: l.Cut || o.Cut, Loss: 1 - (1-l.Loss)*(1-o.Loss),
		Delay: l.Delay + o.Delay, Jitter: l.Jitter + o.Jitter,
	}
}

// Packets are the router's counters.
type Packets struct {
	Passed, Lost, Delayed uint64
}

// traffic is the state of all links.
type traffic struct {
	seed                  uint64
	links                 [][]atomic.Pointer[Link] // from, to
	passed, lost, delayed atomic.Uint64
}

func newTraffic(hosts int, seed uint64) traffic {
	links := make([][]atomic.Pointer[Link], hosts)
	for i := range links {
		links[i] = make([]atomic.Pointer[Link], hosts)
	}
	return traffic{seed: seed, links: links}
}

// Set changes the link from one node to another in that direction only.
func (t *traffic) Set(from, to int, l Link) { t.links[from][to].Store(&l) }

// Heal restores all links.
func (t *traffic) Heal() {
	for i := range t.links {
		for j := range t.links[i] {
			t.links[i][j].Store(nil)
		}
	}
}

// Packets returns the counters.
func (t *traffic) Packets() Packets {
	return Packets{Passed: t.passed.Load(), Lost: t.lost.Load(), Delayed: t.delayed.Load()}
}

// route forwards one host's packets until the network closes.
func (n *Network) route(from int) {
	buf := make([]byte, 1<<16)
	chance := rand.New(rand.NewPCG(n.seed, uint64(from)))
	for !n.closing.Load() {
		size, err := n.ports[from].file.Read(buf)
		if err != nil {
			return
		}
		to, known := n.destination(buf[:size])
		if !known {
			continue
		}
		n.carry(buf[:size], from, to, chance)
	}
}

// destination returns the host that an IPv4 packet is for.
func (n *Network) destination(packet []byte) (int, bool) {
	if len(packet) < 20 || packet[0]>>4 != 4 {
		return 0, false // the kernel also sends IPv6
	}
	switch last := int(packet[19]); {
	case last == gatewayHost:
		return len(n.ports) - 1, true
	case last >= 1 && last < len(n.ports):
		return last - 1, true
	}
	return 0, false
}

// carry delivers or drops one packet.
func (n *Network) carry(packet []byte, from, to int, chance *rand.Rand) {
	l := n.links[from][to].Load()
	if l == nil {
		l = &Link{}
	}
	if l.Cut || l.Loss > 0 && chance.Float64() < l.Loss {
		n.lost.Add(1)
		return
	}
	wait := l.Delay
	if l.Jitter > 0 {
		wait += time.Duration(chance.Int64N(int64(l.Jitter)))
	}
	if wait == 0 {
		n.deliver(packet, to)
		return
	}
	n.delayed.Add(1)
	kept := append([]byte(nil), packet...)
	time.AfterFunc(wait, func() { n.deliver(kept, to) })
}

// deliver writes a packet to its host. A full queue drops it, as in any network.
func (n *Network) deliver(packet []byte, to int) {
	if _, err := n.ports[to].file.Write(packet); err != nil {
		n.lost.Add(1)
		return
	}
	n.passed.Add(1)
}
