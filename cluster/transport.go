package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

const (
	// dialTimeout bounds connecting, TLS included. Short, because a peer that
	// comes back is noticed only when the hanging dial gives up.
	dialTimeout = 2 * time.Second
	// handshakeTimeout bounds how long a stranger can hold a place in the lobby.
	handshakeTimeout = 5 * time.Second
	// raftTimeout bounds one Raft message.
	raftTimeout = 5 * time.Second
	raftPool    = 3
	// keepAlive finds connections to machines that are gone.
	keepAlive = 15 * time.Second
	// acceptRetry is the pause after a failed accept.
	acceptRetry = 50 * time.Millisecond
)

// peerPort is the real Network: one TCP listener whose TLS connections go to
// Raft or to the HTTP/2 server, by ALPN.
type peerPort struct {
	listener    net.Listener
	advertise   string
	credentials *credentials
	logger      *slog.Logger

	stream *raftStream
	calls  *connQueue
	out    *callClient

	// ctx ends with Close.
	ctx       context.Context
	cancel    context.CancelFunc
	accepting sync.WaitGroup
	lobby     lobby

	// host is the node; nil in tests of the port alone.
	host host

	mu        sync.Mutex
	started   bool
	transport *raft.NetworkTransport
}

// openPeerPort listens; nothing is accepted before Serve or Transport.
func openPeerPort(cfg Config, creds *credentials) (*peerPort, error) {
	l := cfg.Listener
	if l == nil {
		var err error
		if l, err = net.Listen("tcp", cfg.PeerAddress); err != nil {
			return nil, fmt.Errorf("listening for peers: %w", err)
		}
	}
	advertise, err := advertised(cfg, l.Addr().String())
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	addr := peerAddr(advertise)
	p := &peerPort{
		listener: l, advertise: advertise, credentials: creds, logger: cfg.Logger,
		stream: &raftStream{connQueue: newConnQueue(addr), credentials: creds, open: map[*streamConn]struct{}{}},
		calls:  newConnQueue(addr), out: newCallClient(creds),
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p, nil
}

// advertised is the address told to peers: as configured, with the port really
// listened on where that was left open.
func advertised(cfg Config, listening string) (string, error) {
	_, listenPort, err := net.SplitHostPort(listening)
	if err != nil {
		return "", fmt.Errorf("reading listener address: %w", err)
	}
	address := cfg.AdvertiseAddress
	if address == "" {
		address = listening
		if cfg.Listener == nil {
			address = cfg.PeerAddress
		}
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("reading advertised address: %w", err)
	}
	if unspecified(host) {
		return "", fmt.Errorf("AdvertiseAddress must be set: peers can't reach %q", address)
	}
	if port == "0" {
		port = listenPort
	}
	return net.JoinHostPort(host, port), nil
}

// identify hands in the node, before anything is sent or accepted.
func (p *peerPort) identify(h host) {
	p.host, p.stream.host = h, h
	p.out.self = h.greet("").From
}

// Addr implements Network.
func (p *peerPort) Addr() string { return p.advertise }

// Transport implements Network.
func (p *peerPort) Transport(addresses raft.ServerAddressProvider, logger hclog.Logger) raft.Transport {
	t := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		ServerAddressProvider: addresses,
		Logger:                logger,
		Stream:                p.stream,
		MaxPool:               raftPool,
		Timeout:               raftTimeout,
	})
	p.mu.Lock()
	p.transport = t
	p.mu.Unlock()
	p.start()
	return t
}

// Call implements Network.
func (p *peerPort) Call(ctx context.Context, address, name string, request []byte) ([]byte, error) {
	return p.out.call(ctx, address, name, request)
}

// Serve implements Network.
func (p *peerPort) Serve(ctx context.Context, handle Handler) error {
	p.start()
	return serveCalls(ctx, p.calls, handle, &p.credentials.papers, p.logger)
}

// Close implements Network.
func (p *peerPort) Close() error {
	p.mu.Lock()
	p.started = true // too late to start
	transport := p.transport
	p.mu.Unlock()
	p.cancel()
	err := p.listener.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	if transport != nil {
		transport.CloseStreams()
		err = errors.Join(err, transport.Close())
	}
	p.out.close()
	err = errors.Join(err, p.stream.Close(), p.calls.Close())
	p.accepting.Wait()
	p.stream.serving.Wait()
	return err
}

func (p *peerPort) start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.started {
		p.started = true
		p.accepting.Go(p.accept)
	}
}

// accept hands every connection to its own handshake.
func (p *peerPort) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			select {
			case <-p.ctx.Done():
				return
			case <-time.After(acceptRetry): // out of file descriptors, most likely
				p.logger.Error("cluster: accepting peer connections", "error", err)
				continue
			}
		}
		g := p.lobby.enter(p.ctx, conn)
		if g == nil {
			_ = conn.Close()
			return
		}
		p.accepting.Go(func() { p.admit(g) })
	}
}

// admit does the TLS handshake and queues the connection for its protocol.
func (p *peerPort) admit(g *guest) {
	ctx, cancel := context.WithTimeout(p.ctx, handshakeTimeout)
	defer cancel()
	config := p.credentials.server()
	choose := config.GetConfigForClient
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if !p.lobby.spoke(g) {
			return nil, net.ErrClosed
		}
		return choose(hello)
	}
	secured := tls.Server(g.conn, config)
	err := secured.HandshakeContext(ctx)
	if !p.lobby.leave(g) {
		if count := p.lobby.crowd(time.Now()); count > 0 {
			p.logger.Warn("cluster: the peer port is crowded by connections that show no certificate; they are closed to let others in",
				"count", count, "address", g.conn.RemoteAddr().String())
		}
		_ = g.conn.Close()
		return
	}
	if err != nil {
		level := slog.LevelWarn
		if errors.Is(err, io.EOF) { // a load balancer or a person looking whether the port is open
			level = slog.LevelDebug
		}
		p.logger.Log(ctx, level, "cluster: peer connection refused", "address", g.conn.RemoteAddr().String(), "error", err)
		_ = g.conn.Close()
		return
	}
	if err := p.receive(ctx, secured); err != nil {
		p.logger.Warn("cluster: peer connection refused", "address", g.conn.RemoteAddr().String(), "error", err)
		_ = g.conn.Close()
		return
	}
	queue := p.calls
	if secured.ConnectionState().NegotiatedProtocol != protoCalls {
		queue = p.stream.connQueue
	}
	queue.put(secured)
}

// receive has a peer that wants to speak to Raft say who it is.
func (p *peerPort) receive(ctx context.Context, c *tls.Conn) error {
	state := c.ConnectionState()
	switch {
	case state.NegotiatedProtocol == protoCalls || p.host == nil:
		return nil
	case state.NegotiatedProtocol == protoOlder && p.host.speaksOlder():
		return nil
	case state.NegotiatedProtocol == protoOlder:
		return errors.New("it speaks the protocol that names no members: upgrade it")
	}
	name, err := nodeOf(state.PeerCertificates[0])
	if err != nil {
		return err
	}
	return exchange(ctx, c, func() error { return receive(c, p.host, name) })
}

// dialPeer connects to a peer with one of the protocols.
func dialPeer(ctx context.Context, creds *credentials, address string, protos ...string) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	d := &net.Dialer{KeepAlive: keepAlive}
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	secured := tls.Client(conn, creds.client(protos...))
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("securing connection to %s: %w", address, err)
	}
	return secured, nil
}

// peerAddr is an advertised address as a net.Addr.
type peerAddr string

func (a peerAddr) Network() string { return "tcp" }
func (a peerAddr) String() string  { return string(a) }

// connQueue is a net.Listener fed by admit.
type connQueue struct {
	addr   net.Addr
	conns  chan *tls.Conn
	closed chan struct{}
	once   sync.Once
}

func newConnQueue(addr net.Addr) *connQueue {
	return &connQueue{addr: addr, conns: make(chan *tls.Conn), closed: make(chan struct{})}
}

// put waits until the connection is taken or the queue closed.
func (q *connQueue) put(c *tls.Conn) {
	select {
	case q.conns <- c:
	case <-q.closed:
		_ = c.NetConn().Close()
	}
}

// Accept implements net.Listener. The http.Server needs the *tls.Conn itself
// to see what was negotiated.
func (q *connQueue) Accept() (net.Conn, error) {
	select {
	case c := <-q.conns:
		return c, nil
	case <-q.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (q *connQueue) Close() error {
	q.once.Do(func() { close(q.closed) })
	return nil
}

// Addr implements net.Listener.
func (q *connQueue) Addr() net.Addr { return q.addr }

// raftStream is the peer port as Raft's stream layer. It remembers every
// connection: hashicorp/raft leaves the incoming ones open when its transport
// closes, and does not wait for their goroutines, which may still write to the
// stable store.
type raftStream struct {
	*connQueue
	credentials *credentials
	host        host

	mu    sync.Mutex
	ended bool
	open  map[*streamConn]struct{}
	// serving counts the connections that Raft has accepted and not closed.
	serving sync.WaitGroup
}

type streamConn struct {
	*tls.Conn
	stream   *raftStream
	accepted bool
}

// Close implements net.Conn; for an accepted connection it is the last that
// Raft's goroutine does.
func (c *streamConn) Close() error {
	c.stream.mu.Lock()
	_, open := c.stream.open[c]
	delete(c.stream.open, c)
	c.stream.mu.Unlock()
	if open && c.accepted {
		c.stream.serving.Done()
	}
	// Not tls.Conn.Close: its farewell would wait for a peer that is gone.
	return c.NetConn().Close()
}

func (s *raftStream) remember(c *tls.Conn, accepted bool) net.Conn {
	tracked := &streamConn{c, s, accepted}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		_ = c.NetConn().Close()
		return tracked
	}
	s.open[tracked] = struct{}{}
	if accepted {
		s.serving.Add(1)
	}
	return tracked
}

// Accept implements raft.StreamLayer.
func (s *raftStream) Accept() (net.Conn, error) {
	select {
	case c := <-s.conns:
		return s.remember(c, true), nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

// Dial implements raft.StreamLayer. An address without a member's id is none of the
// address book's: Raft falls back to its own where that gives an error.
func (s *raftStream) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	id, hostPort := SplitAddress(string(address))
	if s.host != nil && (id == "" || hostPort == "") {
		return nil, fmt.Errorf("%q names no member, or no place: nobody is called", address)
	}
	ctx, cancel := context.WithTimeout(context.Background(), min(timeout, dialTimeout))
	defer cancel()
	protos := []string{protoRaft}
	if s.host == nil || s.host.speaksOlder() {
		protos = append(protos, protoOlder)
	}
	c, err := dialPeer(ctx, s.credentials, hostPort, protos...)
	if err != nil {
		return nil, err
	}
	if c.ConnectionState().NegotiatedProtocol == protoRaft && s.host != nil {
		if err := exchange(ctx, c, func() error { return introduceTo(c, s.host, raft.ServerID(id), hostPort) }); err != nil {
			_ = c.NetConn().Close()
			return nil, err
		}
	}
	return s.remember(c, false), nil
}

// Close implements raft.StreamLayer: no more connections, and none that works.
func (s *raftStream) Close() error {
	s.mu.Lock()
	s.ended = true
	for c := range s.open {
		_ = c.NetConn().Close()
	}
	s.mu.Unlock()
	return s.connQueue.Close()
}
