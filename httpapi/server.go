package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac.dev/bivouac/cluster"
)

// Server is the HTTP API of one node.
type Server struct {
	cfg     Config
	cluster Cluster
	secrets Secrets
	// discards are the deletions of secrets under way; each is bounded.
	discards sync.WaitGroup
	agents   Agents
	log      *slog.Logger

	handler   http.Handler
	router    *router
	metrics   *metrics
	keys      *keyring
	providers *providerChecker
	door      *door
	// packing has a token for each snapshot that is on its way out.
	packing chan struct{}
	started time.Time
	// lastRequest is when the newest API request came, in Unix nanoseconds.
	lastRequest atomic.Int64
	// draining makes /ready say no, so that a load balancer turns away before
	// the listener closes.
	draining atomic.Bool
}

// New builds a Server. It starts nothing. It fails on a bad Config and when
// cfg.Registerer already holds metrics of another Server.
func New(cfg Config, c Cluster, secrets Secrets, agents Agents) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuring the HTTP API: %w", err)
	}
	m, err := newMetrics(cfg.Registerer)
	if err != nil {
		return nil, fmt.Errorf("registering the HTTP API's metrics: %w", err)
	}
	s := &Server{
		cfg: cfg, cluster: c, secrets: secrets, agents: agents, log: cfg.Logger,
		metrics: m, keys: newKeyring(c), providers: newProviderChecker(cfg), started: time.Now(),
		packing: make(chan struct{}, max(1, cfg.Snapshots.AtATime)),
	}
	s.lastRequest.Store(s.started.UnixNano())
	s.router = newRouter(s, routes())
	if s.door, err = newDoor(s); err != nil {
		return nil, fmt.Errorf("registering the door's metrics: %w", err)
	}
	s.handler = s.edge(s.door.front(s.cors(s.limitRate(s.router))))
	return s, nil
}

// Handler gives the whole API as one handler, for tests and for servers of
// one's own.
func (s *Server) Handler() http.Handler { return s.handler }

// Run serves on every listener until ctx ends, then finishes the requests in
// progress, at most for Config.DrainTimeout, and returns. It closes the
// listeners. The error is nil after an orderly end.
func (s *Server) Run(ctx context.Context, listeners ...net.Listener) error {
	conns := newConnections(s.cfg.MaxConnections, s.cfg.TLS == nil)
	server := &http.Server{
		ConnState:         conns.note,
		Handler:           s.handler,
		ReadHeaderTimeout: s.cfg.ReadHeaderTimeout,
		ReadTimeout:       s.cfg.ReadTimeout,
		WriteTimeout:      s.cfg.WriteTimeout,
		IdleTimeout:       s.cfg.IdleTimeout,
		MaxHeaderBytes:    s.cfg.MaxHeaderBytes,
		TLSConfig:         s.cfg.TLS,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, l := range listeners {
		group.Go(func() error { return s.serve(server, conns.listen(l)) })
	}
	group.Go(func() error {
		<-ctx.Done()
		return s.drain(server, conns)
	})
	err := group.Wait()
	s.discards.Wait()
	return err
}

func (s *Server) serve(server *http.Server, l net.Listener) error {
	var err error
	if s.cfg.TLS != nil {
		err = server.ServeTLS(l, "", "")
	} else {
		err = server.Serve(l)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serving HTTP on %s: %w", l.Addr(), err)
}

func (s *Server) drain(server *http.Server, conns *connections) error {
	s.draining.Store(true)
	s.door.streams.drain()
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.DrainTimeout)
	defer cancel()
	conns.closeFresh()
	var err error
	if err = server.Shutdown(ctx); err != nil {
		err = errors.Join(fmt.Errorf("finishing requests in progress: %w", err), server.Close())
	}
	// Upgraded connections are not the http.Server's any more.
	ctx, cancel = context.WithTimeout(context.Background(), 2*closeTime)
	defer cancel()
	return errors.Join(err, s.door.streams.stop(ctx))
}

// localIndex is the log index this node's own store has reached.
func (s *Server) localIndex() uint64 {
	v, err := s.cluster.View(context.Background(), cluster.Stale)
	if err != nil {
		return 0
	}
	return v.Index()
}
