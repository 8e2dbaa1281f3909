package agentserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Limits of the HTTP server. Sizes are in bytes.
const (
	maxBody       = 8 << 20
	maxUpload     = 256 << 20
	drainTime     = 10 * time.Second
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	// uploadTimeout limits reading one request, including the largest upload.
	uploadTimeout = 5 * time.Minute
)

// Server is the agent server. New creates it, Run serves until its context ends.
type Server struct {
	cfg     Config
	logger  *slog.Logger
	store   *store
	bash    *bash
	sockets sockets
	// gits has a place for each git request at a time.
	gits chan struct{}
	// relay is nil in a sandbox that reaches no node.
	relay   *relay
	handler http.Handler
	started time.Time
	// activity is the time of the last activity, relative to started.
	activity atomic.Int64
	// ctx ends when the server stops, by stop.
	ctx  context.Context //nolint:containedctx // runs outlive the requests that start them
	stop context.CancelCauseFunc
	runs sync.WaitGroup
	// webhooks tell the control plane of conversations.
	webhooks *webhooks
	// slots bounds the runs.
	slots chan struct{}
}

// New opens the conversations on disk. It binds and starts nothing.
func New(cfg Config) (*Server, error) { return openServer(cfg, time.Now()) }

// openServer is New for a process started at started.
func openServer(cfg Config, started time.Time) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.Environ == nil {
		cfg.Environ = os.Environ()
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if err := cfg.protect(); err != nil {
		return nil, err
	}
	st, err := openStore(cfg.ConversationsPath, newSealer(cfg.SecretKey), cfg.Logger)
	if err != nil {
		return nil, err
	}
	if cfg.newEngine == nil {
		cfg.newEngine = newEngine
	}
	if n := endOrphans(st.dir, cfg.tools); n > 0 {
		cfg.Logger.Warn("the last server was killed; what it had started was ended", "count", n)
	}
	cfg.Env = marked(cfg.Env, st.dir)
	ctx, stop := context.WithCancelCause(context.Background())
	s := &Server{cfg: cfg, logger: cfg.Logger, store: st, ctx: ctx, stop: stop, slots: make(chan struct{},
		cmp.Or(cfg.MaxRuns, defaultRuns)),
		bash: newBash(cfg), started: started, gits: make(chan struct{}, maxGit), relay: newRelay(cfg)}
	s.sockets.authTime = defaultAuthTime
	s.webhooks = newWebhooks(cfg)
	s.runs.Go(func() { s.webhooks.run(ctx) })
	s.touch()
	s.handler = s.middleware(s.routes())
	return s, nil
}

// Handler returns the API's handler, for tests and embedding.
func (s *Server) Handler() http.Handler { return s.handler }

// Run binds and serves until ctx ends. It then waits a limited time for requests in progress, kills
// running commands and returns.
func (s *Server) Run(ctx context.Context) error {
	ln, err := s.cfg.listen()
	if err != nil {
		return err
	}
	return s.Serve(ctx, ln)
}

func (c Config) listen() (net.Listener, error) {
	addr := net.JoinHostPort(c.bindHost(), strconv.Itoa(c.Port))
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("binding %s: %w", addr, err)
	}
	return ln, nil
}

// Serve is Run on a bound listener, which it closes.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	if len(s.cfg.Keys) == 0 {
		s.logger.Warn("no session key is set: the server is open to whoever reaches it", "address", ln.Addr().String())
	}
	s.logger.Info("serving", "address", ln.Addr().String(), "path", s.cfg.ConversationsPath)
	defer s.close()
	return serveHandler(ctx, ln, s.handler, s.logger)
}

// close ends sockets and commands, which outlive their requests.
func (s *Server) close() {
	s.stopRuns()
	s.relay.close()
	s.sockets.close()
	s.bash.close()
}

// serveHandler serves h on ln until ctx ends, then drains.
func serveHandler(ctx context.Context, ln net.Listener, h http.Handler, logger *slog.Logger) error {
	var fresh freshConns
	hs := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       uploadTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelWarn),
		ConnState:         fresh.note,
	}
	failed := make(chan error, 1)
	go func() { failed <- hs.Serve(ln) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serving: %w", err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	fresh.close()
	err := hs.Shutdown(drain)
	if errors.Is(err, context.DeadlineExceeded) {
		logger.Warn("requests were still in progress; closing", "duration", drainTime)
		err = hs.Close()
	}
	<-failed
	logger.Info("stopped")
	if err != nil {
		return fmt.Errorf("stopping: %w", err)
	}
	return nil
}
