package agentserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/bash"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/conversation"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/conversationapi"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/files"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/git"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/socket"
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
	cfg     config.Config
	logger  *slog.Logger
	bash    *bash.Runner
	sockets *socket.Set
	files   *files.API
	git     *git.API
	api     *conversationapi.API
	router  *router
	handler http.Handler
	started time.Time
	// activity is the time of the last activity, relative to started.
	activity      atomic.Int64
	conversations *conversation.Service
}

// New opens the conversations on disk. It binds and starts nothing.
func New(cfg config.Config) (*Server, error) { return openServer(cfg, time.Now()) }

// openServer is New for a process started at started.
func openServer(cfg config.Config, started time.Time) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Environ == nil {
		cfg.Environ = os.Environ()
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if err := cfg.Protect(); err != nil {
		return nil, err
	}
	if err := cfg.MakeConversationsPath(); err != nil {
		return nil, err
	}
	if cfg.NewEngine == nil {
		cfg.NewEngine = newEngine
	}
	if n := endOrphans(cfg.ConversationsPath, cfg.Tools); n > 0 {
		cfg.Logger.Warn("the last server was killed; what it had started was ended", "count", n)
	}
	cfg.Env = marked(cfg.Env, cfg.ConversationsPath)
	all, err := conversation.Open(cfg)
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg:           cfg,
		logger:        cfg.Logger,
		files:         files.New(cfg),
		git:           git.New(cfg.Logger),
		started:       started,
		conversations: all,
	}
	s.sockets = socket.New(cfg.KeyFits, s.touch)
	s.bash = bash.New(cfg, s.sockets, s.touch)
	s.api = conversationapi.New(cfg, all, s.sockets)
	s.touch()
	s.router = newRouter(s.table())
	s.handler = s.middleware()
	return s, nil
}

// Handler returns the API's handler, for tests and embedding.
func (s *Server) Handler() http.Handler { return s.handler }

// Run binds and serves until ctx ends. It then waits a limited time for requests in progress, kills
// running commands and returns.
func (s *Server) Run(ctx context.Context) error {
	ln, err := s.cfg.Listen()
	if err != nil {
		return err
	}
	return s.Serve(ctx, ln)
}

// Serve is Run on a bound listener, which it closes.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	if len(s.cfg.Keys) == 0 {
		s.logger.Warn("no session key is set: the server is open to whoever reaches it", "address", ln.Addr().String())
	}
	s.logger.Info("serving", "address", ln.Addr().String(), "path", s.cfg.ConversationsPath)
	defer s.close()
	return serveHandler(ctx, ln, s.Handler(), s.logger)
}

// close ends sockets and commands, which outlive their requests.
func (s *Server) close() {
	s.conversations.Close()
	s.sockets.Close()
	s.bash.Close()
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
