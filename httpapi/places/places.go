// Package places bounds what clients hold open at a time: connections, and WebSockets that have
// sent no key. It caps each address, and those without a good credential give way to newcomers, then
// those that wait for their client.
package places

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
)

// State says how readily a place is taken away.
type State int

// The states of a place. A newcomer takes the place of the oldest Unauthenticated one, else of the
// oldest Idle one, never of a Busy one.
const (
	// Unauthenticated is a client that has shown no good credential, whatever it asks for. Every place
	// begins so.
	Unauthenticated State = iota
	// Idle is a client that was served with a good credential and may ask for more.
	Idle
	// Busy is a client that is being served with a good credential.
	Busy
)

// Limits bound a Room.
type Limits struct {
	// Total is for all addresses together. Each is for one of them; 0 is no such limit.
	Total, Each int
}

// Room is a bounded number of places. Create it with New.
type Room struct {
	mu      sync.Mutex
	limits  Limits
	all     line
	origins map[netip.Prefix]*line
}

// line counts places and orders those that may be taken away, the oldest first.
type line struct {
	count   int
	waiting [Busy]list.List // of *Place
}

// Place is one client's. Its owner calls Leave.
type Place struct {
	room   *Room
	from   netip.Prefix
	origin *line
	evict  func()

	// The room's mutex guards these.
	state State
	gone  bool
	// element is the place in all.waiting, own in origin.waiting; nil while it is Busy.
	element, own *list.Element
}

// New makes a room.
func New(limits Limits) *Room {
	return &Room{limits: limits, origins: map[netip.Prefix]*line{}}
}

// Take gives a place to a client of an address. The zero Prefix is exempt from Limits.Each. If a
// limit is reached, a waiting place is taken away and its evict is called, which must not wait. It
// returns nil if nobody gives way.
func (r *Room) Take(from netip.Prefix, evict func()) *Place {
	r.mu.Lock()
	origin := r.origins[from]
	var victim *Place
	switch {
	case from.IsValid() && r.limits.Each > 0 && origin != nil && origin.count >= r.limits.Each:
		if victim = origin.next(); victim == nil {
			r.mu.Unlock()
			return nil
		}
	case r.all.count >= r.limits.Total:
		if victim = r.all.next(); victim == nil {
			r.mu.Unlock()
			return nil
		}
	}
	if victim != nil {
		victim.remove()
		origin = r.origins[from] // the victim may have been its last
	}
	if origin == nil {
		origin = &line{}
		r.origins[from] = origin
	}
	p := &Place{room: r, from: from, origin: origin, evict: evict, state: Busy}
	r.all.count++
	origin.count++
	p.move(Unauthenticated)
	r.mu.Unlock()
	if victim != nil {
		victim.evict()
	}
	return p
}

// next is the place that gives way first, nil if none does.
func (l *line) next() *Place {
	for i := range l.waiting {
		if first := l.waiting[i].Front(); first != nil {
			return first.Value.(*Place)
		}
	}
	return nil
}

// Set changes the state. An idle place that becomes idle again is the youngest.
func (p *Place) Set(s State) {
	p.room.mu.Lock()
	defer p.room.mu.Unlock()
	if !p.gone {
		p.move(s)
	}
}

// Leave gives the place back. Only the first call has an effect.
func (p *Place) Leave() {
	p.room.mu.Lock()
	defer p.room.mu.Unlock()
	if !p.gone {
		p.remove()
	}
}

// move changes the state. The caller holds the room's mutex.
func (p *Place) move(to State) {
	if p.state < Busy {
		p.room.all.waiting[p.state].Remove(p.element)
		p.origin.waiting[p.state].Remove(p.own)
	}
	if p.state = to; to < Busy {
		p.element = p.room.all.waiting[to].PushBack(p)
		p.own = p.origin.waiting[to].PushBack(p)
	}
}

// remove gives the place back. The caller holds the room's mutex.
func (p *Place) remove() {
	p.move(Busy)
	p.gone = true
	p.room.all.count--
	if p.origin.count--; p.origin.count == 0 {
		delete(p.room.origins, p.from)
	}
}

// SetLimits bounds the room anew. Who is above a lower limit stays, and gives way to newcomers.
func (r *Room) SetLimits(limits Limits) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.limits = limits
}

// Limits are the room's.
func (r *Room) Limits() Limits {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.limits
}

// Open is how many places are taken.
func (r *Room) Open() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all.count
}

// Unauthenticated are the evict functions of all places that are Unauthenticated.
func (r *Room) Unauthenticated() []func() {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []func()
	for e := r.all.waiting[Unauthenticated].Front(); e != nil; e = e.Next() {
		out = append(out, e.Value.(*Place).evict)
	}
	return out
}

// Origin is what counts as one address: with IPv6 the /64 network, of which one machine may have
// every address. It is the zero Prefix for what is no address.
func Origin(address string) netip.Prefix { return network(address, 64) }

// Network is the network that one site has: with IPv6 the /48, of which it may have every Origin.
func Network(address string) netip.Prefix { return network(address, 48) }

func network(address string, bitsOf6 int) netip.Prefix {
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return netip.Prefix{}
	}
	ip = ip.Unmap().WithZone("")
	bits := 32
	if ip.Is6() {
		bits = bitsOf6
	}
	return netip.PrefixFrom(ip, bits).Masked()
}
