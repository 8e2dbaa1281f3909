package peernet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

const (
	// dialTimeout bounds connecting, TLS included. Short, because a peer that
	// comes back is noticed only when the hanging dial gives up.
	dialTimeout = 2 * time.Second
	// handshakeTimeout bounds a TLS handshake; the limiter may end it earlier.
	handshakeTimeout = 5 * time.Second
	// raftTimeout bounds one Raft message.
	raftTimeout = 5 * time.Second
	raftPool    = 3
	// keepAlive finds connections to machines that are gone.
	keepAlive = 15 * time.Second
	// goneTimeout bounds the dial of Gone.
	goneTimeout = 50 * time.Millisecond
	// acceptRetry is the pause after a failed accept.
	acceptRetry = 50 * time.Millisecond
)

// Options say where a Port listens.
type Options struct {
	// Address is the host:port to listen on, unless Listener is given.
	Address  string
	Listener net.Listener
	// Advertise is the address that peers use; empty means Address, or the listener's.
	Advertise string
	// Logger must not be nil.
	Logger *slog.Logger
}

// Port is a node's peer port: one TCP listener whose TLS connections go to Raft or to the
// HTTP/2 server, by ALPN.
type Port struct {
	listener    net.Listener
	advertise   string
	credentials *Credentials
	logger      *slog.Logger

	stream *raftStream
	calls  *connQueue
	out    *Client

	// ctx ends with Close.
	ctx       context.Context
	cancel    context.CancelFunc
	accepting sync.WaitGroup
	limiter   limiter

	// host is the node; nil in tests of the port alone.
	host Host

	mu        sync.Mutex
	started   bool
	transport *Transport
}

// Open listens. The port accepts nothing before Serve or Transport.
func Open(o Options, creds *Credentials) (*Port, error) {
	l := o.Listener
	if l == nil {
		var err error
		if l, err = net.Listen("tcp", o.Address); err != nil {
			return nil, fmt.Errorf("listening for peers: %w", err)
		}
	}
	advertise, err := Advertised(o, l.Addr().String())
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	addr := peerAddr(advertise)
	p := &Port{
		listener: l, advertise: advertise, credentials: creds, logger: o.Logger,
		stream: &raftStream{connQueue: newConnQueue(addr), credentials: creds, open: map[*streamConn]struct{}{}},
		calls:  newConnQueue(addr), out: NewClient(creds),
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p, nil
}

// Advertised is the address that peers use: as configured, with the port of the listener
// where the configured one is 0.
func Advertised(o Options, listening string) (string, error) {
	_, listenPort, err := net.SplitHostPort(listening)
	if err != nil {
		return "", fmt.Errorf("reading listener address: %w", err)
	}
	address := o.Advertise
	if address == "" {
		address = listening
		if o.Listener == nil {
			address = o.Address
		}
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("reading advertised address: %w", err)
	}
	if Unspecified(host) {
		return "", fmt.Errorf("AdvertiseAddress must be set: peers can't reach %q", address)
	}
	if port == "0" {
		port = listenPort
	}
	return net.JoinHostPort(host, port), nil
}

// Identify sets the node behind the port. Call it before Serve and Transport.
func (p *Port) Identify(h Host) {
	p.host, p.stream.host = h, h
	p.out.Self = h.Greet("").From
}

// Unspecified reports whether a host is empty or stands for every address, so that no peer
// can dial it.
func Unspecified(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || (ip != nil && ip.IsUnspecified())
}

// Addr is the address by which peers reach this port.
func (p *Port) Addr() string { return p.advertise }

// Transport gives Raft's transport. Call it once. addresses overrides the addresses of
// Raft's configuration.
func (p *Port) Transport(addresses raft.ServerAddressProvider, logger hclog.Logger) raft.Transport {
	t := openTransport(p, addresses, logger)
	p.mu.Lock()
	p.transport = t
	p.mu.Unlock()
	p.start()
	return t
}

// Call is Client.Call with this port's certificate and member id.
func (p *Port) Call(ctx context.Context, address, name string, request []byte) ([]byte, error) {
	return p.out.Call(ctx, address, name, request)
}

// Gone reports whether the machine at address refuses the connection, so that no process
// listens there. A process that is starved, stopped or partitioned looks different. The
// dial may take goneTimeout.
func (p *Port) Gone(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, goneTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err == nil {
		_ = conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// Serve answers peers' calls with handle until ctx ends or Close, and returns when no handler
// runs any more.
func (p *Port) Serve(ctx context.Context, handle Handler) error {
	p.start()
	var watching sync.WaitGroup
	watching.Go(func() { p.refresh(ctx) })
	defer watching.Wait()
	return serveCalls(ctx, p.calls, handle, p.credentials, p.logger)
}

// Close releases the listener and every connection, and waits for Raft's goroutines.
func (p *Port) Close() error {
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
	p.out.Close()
	err = errors.Join(err, p.stream.Close(), p.calls.Close())
	p.accepting.Wait()
	p.stream.serving.Wait()
	return err
}

func (p *Port) start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.started {
		p.started = true
		p.accepting.Go(p.accept)
	}
}

// accept hands every connection to its own handshake.
func (p *Port) accept() {
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
		c := p.limiter.enter(p.ctx, conn)
		if c == nil {
			_ = conn.Close()
			return
		}
		p.accepting.Go(func() { p.admit(c) })
	}
}

// admit does the TLS handshake and queues the connection for its protocol.
func (p *Port) admit(c *pending) {
	ctx, cancel := context.WithTimeout(p.ctx, handshakeTimeout)
	defer cancel()
	config := p.credentials.server()
	choose := config.GetConfigForClient
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if !p.limiter.hello(c) {
			return nil, net.ErrClosed
		}
		return choose(hello)
	}
	generation := p.credentials.generation.Load()
	secured := tls.Server(c.conn, config)
	err := secured.HandshakeContext(ctx)
	if !p.limiter.leave(c) {
		if count := p.limiter.report(time.Now()); count > 0 {
			p.logger.Warn("cluster: too many connections without a certificate on the peer port; the oldest are closed",
				"count", count, "address", c.conn.RemoteAddr().String())
		}
		_ = c.conn.Close()
		return
	}
	if err != nil {
		level := slog.LevelWarn
		if errors.Is(err, io.EOF) { // a health check that only connects
			level = slog.LevelDebug
		}
		p.logger.Log(ctx, level, "cluster: peer connection refused", "address", c.conn.RemoteAddr().String(), "error", err)
		_ = c.conn.Close()
		return
	}
	from, err := p.receive(ctx, secured)
	if err != nil {
		p.logger.Warn("cluster: peer connection refused", "address", c.conn.RemoteAddr().String(), "error", err)
		_ = c.conn.Close()
		return
	}
	queue := p.calls
	if secured.ConnectionState().NegotiatedProtocol != protoCalls {
		queue = p.stream.connQueue
	}
	queue.put(queuedConn{Conn: secured, generation: generation, peer: from})
}

// peer is who is at the other end of an accepted connection of Raft's: the node of the certificate,
// and the member of the greeting, empty without one.
type peer struct{ node, member string }

// receive has a peer that dials Raft greet first.
func (p *Port) receive(ctx context.Context, c *tls.Conn) (from peer, err error) {
	state := c.ConnectionState()
	if state.NegotiatedProtocol == protoCalls || p.host == nil {
		return from, nil
	}
	if from.node, err = nodeOf(state.PeerCertificates[0]); err != nil {
		return from, err
	}
	if state.NegotiatedProtocol == protoOlder {
		if !p.host.SpeaksOlder() {
			return from, errors.New("it speaks the protocol that names no members: upgrade it")
		}
		return from, nil
	}
	err = exchange(ctx, c, func() (err error) {
		from.member, err = receive(c, p.host, from.node)
		return err
	})
	return from, err
}

// dialPeer connects to a peer with one of the protocols.
func dialPeer(ctx context.Context, creds *Credentials, address string, protos ...string) (*tls.Conn, error) {
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
	conns  chan queuedConn
	closed chan struct{}
	once   sync.Once
	// generations has those of accepted connections, by *tls.Conn, until made takes them.
	generations sync.Map
}

// queuedConn is a connection with the generation of the certificate that it was made with.
type queuedConn struct {
	*tls.Conn
	generation uint64
	peer
}

func newConnQueue(addr net.Addr) *connQueue {
	return &connQueue{addr: addr, conns: make(chan queuedConn), closed: make(chan struct{})}
}

// put waits until the connection is taken or the queue closed.
func (q *connQueue) put(c queuedConn) {
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
		q.generations.Store(c.Conn, c.generation)
		return c.Conn, nil
	case <-q.closed:
		return nil, net.ErrClosed
	}
}

// made gives the generation of an accepted connection, once.
func (q *connQueue) made(c net.Conn) uint64 {
	value, _ := q.generations.LoadAndDelete(c)
	generation, _ := value.(uint64)
	return generation
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
	credentials *Credentials
	host        Host

	mu    sync.Mutex
	ended bool
	open  map[*streamConn]struct{}
	// serving counts the connections that Raft has accepted and not closed.
	serving sync.WaitGroup
}

type streamConn struct {
	*tls.Conn
	stream     *raftStream
	accepted   bool
	generation uint64 // of the certificate that it was made with
	peer              // of an accepted connection
	// replaced says that it was closed for its certificate; Raft notices at its next use.
	replaced bool
}

// Close implements net.Conn. For an accepted connection it is the last call of Raft's
// goroutine.
func (c *streamConn) Close() error {
	c.stream.mu.Lock()
	_, open := c.stream.open[c]
	delete(c.stream.open, c)
	c.stream.mu.Unlock()
	if open && c.accepted {
		c.stream.serving.Done()
	}
	// tls.Conn.Close would wait for a peer that is gone.
	return c.NetConn().Close()
}

func (s *raftStream) remember(c queuedConn, accepted bool) net.Conn {
	tracked := &streamConn{Conn: c.Conn, stream: s, accepted: accepted, generation: c.generation, peer: c.peer}
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

// Dial implements raft.StreamLayer. An address without a member's id is not the address
// book's: Raft falls back to its configuration where the book gives an error.
func (s *raftStream) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	id, hostPort := SplitAddress(string(address))
	if s.host != nil && (id == "" || hostPort == "") {
		return nil, fmt.Errorf("%q names no member, or no place: no connection is made", address)
	}
	ctx, cancel := context.WithTimeout(context.Background(), min(timeout, dialTimeout))
	defer cancel()
	protos := []string{protoRaft}
	if s.host == nil || s.host.SpeaksOlder() {
		protos = append(protos, protoOlder)
	}
	generation := s.credentials.generation.Load()
	c, err := dialPeer(ctx, s.credentials, hostPort, protos...)
	if err != nil {
		return nil, err
	}
	if s.host == nil {
		return s.remember(queuedConn{Conn: c, generation: generation}, false), nil
	}
	if err := isOf(c.ConnectionState(), id); err != nil {
		_ = c.NetConn().Close()
		return nil, err
	}
	if c.ConnectionState().NegotiatedProtocol == protoRaft {
		if err := exchange(ctx, c, func() error { return introduceTo(c, s.host, raft.ServerID(id), hostPort) }); err != nil {
			_ = c.NetConn().Close()
			return nil, err
		}
	}
	return s.remember(queuedConn{Conn: c, generation: generation}, false), nil
}

// Close implements raft.StreamLayer. It closes every open connection.
func (s *raftStream) Close() error {
	s.mu.Lock()
	s.ended = true
	for c := range s.open {
		_ = c.NetConn().Close()
	}
	s.mu.Unlock()
	return s.connQueue.Close()
}
