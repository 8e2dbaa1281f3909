package peernet

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// Transport is Raft's transport. Each message that it hands in names its sender in the header, as
// the certificate and the greeting of the connection do: another id is refused here.
//
// hashicorp/raft does not say by which connection a message came. So each incoming connection has a
// raft.NetworkTransport of its own, which accepts that connection alone. The embedded one sends.
type Transport struct {
	*raft.NetworkTransport
	port   *Port
	logger hclog.Logger
	// forged counts messages in another member's name; it may be nil.
	forged func(member, named string)
	// receive takes the messages, beat the heartbeats.
	receive atomic.Pointer[Receiver]
	beat    atomic.Pointer[func(raft.RPC)]
	rpcs    chan raft.RPC
}

// Receiver takes one message. It gives up when gone is closed: nobody waits for the answer then.
type Receiver func(rpc raft.RPC, gone <-chan struct{})

// openTransport makes the transport of a port, which accepts connections from then on.
func openTransport(p *Port, addresses raft.ServerAddressProvider, logger hclog.Logger) *Transport {
	t := &Transport{port: p, logger: logger, rpcs: make(chan raft.RPC)}
	t.NetworkTransport = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		ServerAddressProvider: addresses, Logger: logger, Stream: dialOnly{p.stream}, MaxPool: raftPool, Timeout: raftTimeout,
	})
	queue := Receiver(func(rpc raft.RPC, gone <-chan struct{}) {
		select {
		case t.rpcs <- rpc:
		case <-gone:
		}
	})
	t.receive.Store(&queue)
	if watcher, ok := p.host.(interface{ Forged(member, named string) }); ok {
		t.forged = watcher.Forged
	}
	p.accepting.Go(func() {
		for {
			c, err := p.stream.Accept()
			if err != nil {
				return
			}
			p.accepting.Go(func() { t.serve(c.(*streamConn)) })
		}
	})
	return t
}

// Consumer implements raft.Transport. It has the messages until Receive is called.
func (t *Transport) Consumer() <-chan raft.RPC { return t.rpcs }

// Receive has the connections hand in their messages by a call, without a channel in between.
func (t *Transport) Receive(receive Receiver) { t.receive.Store(&receive) }

// SetHeartbeatHandler implements raft.Transport.
func (t *Transport) SetHeartbeatHandler(handle func(raft.RPC)) { t.beat.Store(&handle) }

// serve passes the messages of one connection on until it ends.
func (t *Transport) serve(c *streamConn) {
	ctx, cancel := context.WithCancel(t.port.ctx)
	defer cancel()
	one := &oneConn{streamConn: c, conns: make(chan net.Conn, 1), closed: make(chan struct{}), ended: cancel}
	one.conns <- one
	inner := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Logger:  t.logger,
		Stream:  one.stream(),
		Timeout: raftTimeout,
	})
	pass := func(rpc raft.RPC) {
		if !t.refused(c, rpc) {
			(*t.receive.Load())(rpc, ctx.Done())
		}
	}
	inner.SetHeartbeatHandler(func(rpc raft.RPC) {
		beat := t.beat.Load()
		if beat == nil {
			pass(rpc)
		} else if !t.refused(c, rpc) {
			(*beat)(rpc)
		}
	})
	for {
		select {
		case rpc := <-inner.Consumer():
			pass(rpc)
		case <-ctx.Done():
			_ = inner.Close()
			select {
			case <-one.conns: // inner ended before it took the connection, and does not close it
				_ = c.Close()
			default:
			}
			return
		}
	}
}

// refused answers a message that names another sender than its connection, and reports whether it
// did.
func (t *Transport) refused(c *streamConn, rpc raft.RPC) bool {
	message, ok := rpc.Command.(raft.WithRPCHeader)
	named := ""
	if ok {
		named = string(message.GetRPCHeader().ID)
	}
	if t.port.host == nil || named != "" && (named == c.member ||
		c.member == "" && NodeName(raft.ServerID(named)) == c.node) {
		return false
	}
	if t.forged != nil {
		t.forged(c.member, named)
	}
	err := fmt.Errorf("the message is of %q, and the connection of %q (node %q)", named, c.member, c.node)
	if rpc.Reader != nil {
		_ = c.NetConn().Close() // what follows is a snapshot
	}
	rpc.Respond(nil, err)
	return true
}

// dialOnly is a stream layer without incoming connections.
type dialOnly struct{ *raftStream }

// Accept implements raft.StreamLayer.
func (s dialOnly) Accept() (net.Conn, error) {
	<-s.closed
	return nil, net.ErrClosed
}

// oneConn is a connection, whose end ends its stream layer too.
type oneConn struct {
	*streamConn
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
	ended  context.CancelFunc
}

// Close implements net.Conn.
func (c *oneConn) Close() error {
	defer c.ended()
	return c.streamConn.Close()
}

func (c *oneConn) stream() raft.StreamLayer { return (*oneStream)(c) }

// oneStream is the stream layer of one accepted connection.
type oneStream oneConn

// Accept implements raft.StreamLayer.
func (s *oneStream) Accept() (net.Conn, error) {
	select {
	case c := <-s.conns:
		return c, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

// Close implements raft.StreamLayer.
func (s *oneStream) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

// Addr implements raft.StreamLayer.
func (s *oneStream) Addr() net.Addr { return s.stream.Addr() }

// Dial implements raft.StreamLayer: nothing is sent by this transport.
func (s *oneStream) Dial(raft.ServerAddress, time.Duration) (net.Conn, error) {
	return nil, net.ErrClosed
}
