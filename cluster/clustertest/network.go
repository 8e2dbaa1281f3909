package clustertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/peernet"
)

const (
	// latency is how long a peer call takes, each way.
	latency = time.Millisecond
	// dialTimeout is how long a call to a separated peer takes to fail.
	dialTimeout = time.Second
	// raftTimeout bounds a message between transports.
	raftTimeout = 500 * time.Millisecond
)

// Fault reports whether the answer to a peer call is lost. The call was handled; the caller sees a
// reset connection.
type Fault func(from, to, call string) bool

// Unknown reports whether the program of a node is too old to know a peer call.
type Unknown func(to, call string) bool

// fabric connects the ports of all nodes.
type fabric struct {
	mu    sync.Mutex
	ports map[string]*port // by address
	group map[string]int   // partitions; addresses of different groups are cut off
	fault Fault
	// mute is the address of a node that gets heartbeats and calls, but no entries.
	mute string
	// unknown is nil where every program knows every call.
	unknown Unknown
	terms   map[uint64]string // leader by term
	errs    []error
	// messages counts Raft's AppendEntries.
	messages int
}

func newFabric() *fabric {
	return &fabric{ports: map[string]*port{}, group: map[string]int{}, terms: map[uint64]string{}}
}

// port is one node's cluster.Network.
type port struct {
	fabric  *fabric
	name    string
	address string
	raft    *raft.InmemTransport

	mu      sync.Mutex
	beat    func(raft.RPC) // what Raft wants heartbeats handed to
	handle  peernet.Handler
	serving context.Context
	closed  bool
	calls   sync.WaitGroup
}

var _ cluster.Network = (*port)(nil)

// plug makes a port and connects it to all others.
func (f *fabric) plug(name, address string) *port {
	_, t := raft.NewInmemTransportWithTimeout(raft.ServerAddress(address), raftTimeout)
	p := &port{fabric: f, name: name, address: address, raft: t}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ports[address] = p
	f.connect()
	return p
}

func (f *fabric) unplug(p *port) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ports[p.address] == p {
		delete(f.ports, p.address)
	}
	for _, other := range f.ports {
		other.raft.Disconnect(raft.ServerAddress(p.address))
	}
	p.raft.DisconnectAll()
}

// partition separates the groups; an address in no group belongs to group 0.
func (f *fabric) partition(groups [][]string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.group = map[string]int{}
	for i, g := range groups {
		for _, a := range g {
			f.group[a] = i
		}
	}
	f.connect()
}

// connect connects the transports according to the groups. The caller holds mu.
func (f *fabric) connect() {
	for _, a := range f.ports {
		for _, b := range f.ports {
			switch {
			case a == b:
			case f.group[a.address] == f.group[b.address] && b.address != f.mute:
				a.raft.Connect(raft.ServerAddress(b.address), b.raft)
			default:
				a.raft.Disconnect(raft.ServerAddress(b.address))
			}
		}
	}
}

// reach returns the port at address if from can reach it.
func (f *fabric) reach(from *port, address string) (p *port, cut bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.group[from.address] != f.group[address] {
		return nil, true
	}
	return f.ports[address], false
}

// led records that a node sent entries as the leader of a term.
func (f *fabric) led(term uint64, leader string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if before, ok := f.terms[term]; ok && before != leader {
		f.errs = append(f.errs, fmt.Errorf("term %d has two leaders: %s and %s", term, before, leader))
	}
	f.terms[term] = leader
}

// Addr implements cluster.Network.
func (p *port) Addr() string { return p.address }

// Transport implements cluster.Network.
func (p *port) Transport(raft.ServerAddressProvider, hclog.Logger) raft.Transport {
	return &watched{p.raft, p}
}

// watched is a transport that reports leaders to the fabric.
type watched struct {
	*raft.InmemTransport
	port *port
}

// EncodePeer implements raft.Transport. As on a real network a member's address in a message has its
// id.
func (w *watched) EncodePeer(id raft.ServerID, address raft.ServerAddress) []byte {
	return []byte(peernet.AddressFor(id, string(address)))
}

// DecodePeer implements raft.Transport.
func (w *watched) DecodePeer(raw []byte) raft.ServerAddress {
	_, address := peernet.SplitAddress(string(raw))
	return raft.ServerAddress(address)
}

// AppendEntries implements raft.Transport; heartbeats go through it.
func (w *watched) AppendEntries(
	id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse,
) error {
	// A real network copies a message; Raft fills in its request again after a timeout.
	sent := *args
	args = &sent
	w.port.fabric.led(args.Term, w.port.address)
	w.port.fabric.count()
	to, cut := w.port.fabric.reach(w.port, string(target))
	if !isHeartbeat(args) || to == nil || cut || to.heartbeats() == nil {
		return w.InmemTransport.AppendEntries(id, target, args, resp)
	}
	answer := make(chan raft.RPCResponse, 1)
	go to.heartbeats()(raft.RPC{Command: args, RespChan: answer})
	select {
	case a := <-answer:
		if r, ok := a.Response.(*raft.AppendEntriesResponse); ok {
			*resp = *r
		}
		return a.Error
	case <-time.After(raftTimeout):
		return errors.New("command timed out")
	}
}

// count counts a message.
func (f *fabric) count() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.messages++
}

// SetHeartbeatHandler implements raft.Transport.
func (w *watched) SetHeartbeatHandler(handler func(raft.RPC)) {
	w.port.mu.Lock()
	defer w.port.mu.Unlock()
	w.port.beat = handler
}

// isHeartbeat is raft.NetworkTransport's rule.
func isHeartbeat(a *raft.AppendEntriesRequest) bool {
	return a.Term != 0 && a.PrevLogEntry == 0 && a.PrevLogTerm == 0 && len(a.Entries) == 0 && a.LeaderCommitIndex == 0
}

// heartbeats returns Raft's heartbeat handler, nil for none.
func (p *port) heartbeats() func(raft.RPC) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.beat
}

// Call implements cluster.Network.
func (p *port) Call(ctx context.Context, address, name string, request []byte) ([]byte, error) {
	id, address := peernet.SplitAddress(address)
	if err := pause(ctx, latency); err != nil {
		return nil, peernet.NotSent(err)
	}
	to, cut := p.fabric.reach(p, address)
	if cut {
		err := pause(ctx, dialTimeout)
		return nil, peernet.NotSent(errors.Join(fmt.Errorf("%s is cut off", address), err))
	}
	if to == nil {
		return nil, peernet.NotSent(fmt.Errorf("nobody listens at %s", address))
	}
	type reply struct {
		answer []byte
		err    error
	}
	replies := make(chan reply, 1)
	if !to.serve(ctx, func(ctx context.Context, handle peernet.Handler) {
		if p.fabric.lacks(to.name, name) {
			replies <- reply{nil, fmt.Errorf("unknown peer call %q", name)}
			return
		}
		answer, err := handle(peernet.WithParties(ctx, "", id), p.name, name, request)
		replies <- reply{answer, err}
	}) {
		return nil, peernet.NotSent(fmt.Errorf("nobody serves at %s", address))
	}
	select {
	case r := <-replies:
		peernet.Answered(ctx, to.name)
		if errors.Is(r.err, peernet.ErrMisdirected) || errors.Is(r.err, peernet.ErrUnwelcome) {
			return nil, peernet.NotSent(r.err)
		}
		p.fabric.mu.Lock()
		fault := p.fabric.fault
		p.fabric.mu.Unlock()
		if fault != nil && fault(p.name, to.name, name) {
			return nil, fmt.Errorf("connection to %s reset", address)
		}
		if _, cut := p.fabric.reach(p, address); cut {
			<-ctx.Done()
			return nil, fmt.Errorf("the answer of %s is lost", address)
		}
		return r.answer, errors.Join(r.err, pause(ctx, latency))
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// lacks reports whether a node's program does not know a call.
func (f *fabric) lacks(to, call string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.unknown != nil && f.unknown(to, call)
}

// Gone reports, like the real peer port, that no process listens at the address.
func (p *port) Gone(_ context.Context, address string) bool {
	to, cut := p.fabric.reach(p, address)
	return to == nil && !cut
}

// serve runs one call until the node stops, even if its caller is gone.
func (p *port) serve(ctx context.Context, call func(context.Context, peernet.Handler)) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.handle == nil || p.closed || p.serving.Err() != nil {
		return false
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(30 * time.Second)
	}
	handlerCtx, cancel := context.WithDeadline(p.serving, deadline)
	handle := p.handle
	p.calls.Go(func() {
		defer cancel()
		call(handlerCtx, handle)
	})
	return true
}

// Serve implements cluster.Network.
func (p *port) Serve(ctx context.Context, handle peernet.Handler) error {
	p.mu.Lock()
	p.handle, p.serving = handle, ctx
	p.mu.Unlock()
	<-ctx.Done()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.calls.Wait()
	return nil
}

// Close implements cluster.Network.
func (p *port) Close() error {
	p.fabric.unplug(p)
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
