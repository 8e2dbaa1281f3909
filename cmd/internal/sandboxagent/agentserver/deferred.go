package agentserver

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/wire"
	"bivouac.dev/bivouac/scheduler/agent"
)

// Deferred is an agent server that runs but has no owner yet: a member of a warm pool
// (OH_DEFERRED_INIT, PROTOCOL.md, "Warm members"). Health works; everything else below /api and
// /sockets is 503 until POST /api/init configures it. From then on it is a Server. The
// configuration is only in memory: after a restart the server is dormant again. Initialised with
// the same secret key, it reads its earlier conversations.
type Deferred struct {
	cfg     config.Config
	logger  *slog.Logger
	started time.Time

	mu      sync.Mutex
	state   string
	failure *string
	server  *Server // set once state is ready
}

// NewDeferred creates a dormant server and starts nothing. cfg applies where POST /api/init has no
// value.
func NewDeferred(cfg config.Config) (*Deferred, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Deferred{cfg: cfg, logger: cfg.Logger, started: time.Now(), state: agent.StateDormant}, nil
}

// Handler returns the API's handler, for tests and embedding.
func (d *Deferred) Handler() http.Handler { return http.HandlerFunc(d.serve) }

// Run is Server.Run for a deferred server.
func (d *Deferred) Run(ctx context.Context) error {
	ln, err := d.cfg.Listen()
	if err != nil {
		return err
	}
	return d.Serve(ctx, ln)
}

// Serve is Run on a bound listener, which it closes.
func (d *Deferred) Serve(ctx context.Context, ln net.Listener) error {
	if d.cfg.SecretKey == "" {
		d.logger.Warn("no secret key is set: whoever reaches the server may initialise it", "address", ln.Addr().String())
	}
	d.logger.Info("serving", "address", ln.Addr().String(), "state", agent.StateDormant)
	defer func() {
		if s := d.current(); s != nil {
			s.close()
		}
	}()
	return serveHandler(ctx, ln, d.Handler(), d.logger)
}

// current returns the server, nil until it is ready.
func (d *Deferred) current() *Server {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.server
}

func (d *Deferred) serve(w http.ResponseWriter, r *http.Request) {
	s := d.current()
	switch path := r.URL.Path; {
	case path == config.InitPath:
		d.handleInit(w, r)
	case s != nil:
		s.handler.ServeHTTP(w, r)
	case strings.HasPrefix(path, "/api/"), strings.HasPrefix(path, "/sockets/"):
		w.Header().Set("Retry-After", "1")
		wire.WriteDetail(w, http.StatusServiceUnavailable, "The server is not initialised yet")
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		wire.WriteDetail(w, http.StatusMethodNotAllowed, "Method Not Allowed")
	case path == "/health", path == "/alive":
		wire.WriteJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	case path == agent.ProofPath && d.cfg.SecretKey != "":
		writeProof(w, r, []string{d.cfg.SecretKey})
	case path == "/ready":
		wire.WriteJSON(w, http.StatusServiceUnavailable,
			map[string]string{"status": agent.StateInitializing, "message": "waiting for POST " + config.InitPath})
	case path == "/server_info":
		up := time.Since(d.started)
		wire.WriteJSON(w, http.StatusOK, serverInfo(d.cfg.Version, up, up))
	default:
		wire.WriteDetail(w, http.StatusNotFound, "Not Found")
	}
}

// handleInit handles GET /api/init, which needs no key, and POST /api/init.
func (d *Deferred) handleInit(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		d.mu.Lock()
		out := agent.InitState{State: d.state, Error: d.failure}
		d.mu.Unlock()
		wire.WriteJSON(w, http.StatusOK, out)
	case http.MethodPost:
		d.initialise(w, r)
	default:
		w.Header().Set("Allow", "GET, POST")
		wire.WriteDetail(w, http.StatusMethodNotAllowed, "Method Not Allowed")
	}
}

// initialise creates the server once: only one of several concurrent calls does. After a failure
// the server is dormant again.
func (d *Deferred) initialise(w http.ResponseWriter, r *http.Request) {
	if !d.mayInit(r) {
		wire.WriteDetail(w, http.StatusUnauthorized, "Unauthorized")
		return
	}
	cfg, ok := config.FromInit(w, r, d.cfg)
	if !ok {
		return
	}
	d.mu.Lock()
	if d.state != agent.StateDormant {
		state := d.state
		d.mu.Unlock()
		wire.WriteDetail(w, http.StatusBadRequest, "The server is not dormant: "+state)
		return
	}
	d.state = agent.StateInitializing
	d.mu.Unlock()

	s, err := d.open(cfg)

	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		var raw [8]byte
		_, _ = rand.Read(raw[:]) // never fails (crypto/rand)
		id := hex.EncodeToString(raw[:])
		d.logger.Error("initialisation failed; dormant again", "request", id, "error", err)
		// GET shows this to everyone, so the reason is only in the log.
		text := "initialisation failed; error " + id
		d.state, d.failure = agent.StateDormant, &text
		wire.WriteJSON(w, http.StatusInternalServerError, map[string]string{
			"detail": "Internal Server Error", "exception": "InternalError", "error_id": id,
		})
		return
	}
	d.state, d.failure, d.server = agent.StateReady, nil, s
	d.logger.Info("initialised", "path", cfg.ConversationsPath, "duration", time.Since(d.started))
	wire.WriteJSON(w, http.StatusOK, agent.InitState{State: agent.StateReady})
}

// open creates the server. It converts a panic to an error, which would otherwise leave the state
// at initializing.
func (d *Deferred) open(cfg config.Config) (s *Server, err error) {
	defer func() {
		if p := recover(); p != nil {
			s, err = nil, errors.New("panic while initialising")
		}
	}()
	return openServer(cfg, d.started)
}

// mayInit checks the secret key in constant time. Without a secret key it allows everyone.
func (d *Deferred) mayInit(r *http.Request) bool {
	if d.cfg.SecretKey == "" {
		return true
	}
	got := sha256.Sum256([]byte(r.Header.Get(agent.InitKeyHeader)))
	want := sha256.Sum256([]byte(d.cfg.SecretKey))
	return subtle.ConstantTimeCompare(got[:], want[:]) == 1
}
