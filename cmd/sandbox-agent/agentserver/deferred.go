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
)

// The states GET /api/init tells.
const (
	stateDormant      = "dormant"
	stateInitializing = "initializing"
	stateReady        = "ready"
)

const initKeyHeader = "X-Init-API-Key"

// Deferred is an agent server that is up but belongs to nobody yet: the member
// of a warm pool (OH_DEFERRED_INIT, api-contract.md C.2). Health answers,
// everything below /api is 503 until one POST /api/init says whose it is; from
// then on it is a Server. What it was told is kept in memory only, so after a
// restart it is dormant again and has to be told anew; with the same secret
// key it then reads the conversations it had before.
type Deferred struct {
	cfg     Config
	logger  *slog.Logger
	started time.Time

	mu      sync.Mutex
	state   string
	failure *string
	server  *Server // once state is ready
}

// initState is the body of GET and POST /api/init.
type initState struct {
	State string  `json:"state"`
	Error *string `json:"error"`
}

// NewDeferred makes a dormant server; cfg's values hold where POST /api/init
// says nothing. It opens and starts nothing.
func NewDeferred(cfg Config) (*Deferred, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Deferred{cfg: cfg, logger: cfg.Logger, started: time.Now(), state: stateDormant}, nil
}

// Handler serves the API; for tests and for embedding.
func (d *Deferred) Handler() http.Handler { return http.HandlerFunc(d.serve) }

// Run is Server.Run.
func (d *Deferred) Run(ctx context.Context) error {
	ln, err := d.cfg.listen()
	if err != nil {
		return err
	}
	return d.Serve(ctx, ln)
}

// Serve is Run on a listener that is already bound; it closes it.
func (d *Deferred) Serve(ctx context.Context, ln net.Listener) error {
	if d.cfg.SecretKey == "" {
		d.logger.Warn("no secret key is set: whoever reaches the server may initialise it", "address", ln.Addr().String())
	}
	d.logger.Info("serving", "address", ln.Addr().String(), "status", stateDormant)
	defer func() {
		if s := d.current(); s != nil {
			s.close()
		}
	}()
	return serveHandler(ctx, ln, d.Handler(), d.logger)
}

// current is the server, nil before it is ready.
func (d *Deferred) current() *Server {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.server
}

func (d *Deferred) serve(w http.ResponseWriter, r *http.Request) {
	s := d.current()
	switch path := r.URL.Path; {
	case path == initPath:
		d.handleInit(w, r)
	case s != nil:
		s.handler.ServeHTTP(w, r)
	case strings.HasPrefix(path, "/api/"), strings.HasPrefix(path, "/sockets/"):
		w.Header().Set("Retry-After", "1")
		writeDetail(w, http.StatusServiceUnavailable, "The server is not initialised yet")
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		writeDetail(w, http.StatusMethodNotAllowed, "Method Not Allowed")
	case path == "/health", path == "/alive":
		writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	case path == "/ready":
		writeJSON(w, http.StatusServiceUnavailable, map[string]string{"status": stateInitializing, "message": "waiting for POST " + initPath})
	case path == "/server_info":
		up := time.Since(d.started)
		writeJSON(w, http.StatusOK, serverInfo(d.cfg.Version, up, up))
	default:
		writeDetail(w, http.StatusNotFound, "Not Found")
	}
}

// handleInit handles GET /api/init, open to all, and POST /api/init.
func (d *Deferred) handleInit(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		d.mu.Lock()
		out := initState{State: d.state, Error: d.failure}
		d.mu.Unlock()
		writeJSON(w, http.StatusOK, out)
	case http.MethodPost:
		d.initialise(w, r)
	default:
		w.Header().Set("Allow", "GET, POST")
		writeDetail(w, http.StatusMethodNotAllowed, "Method Not Allowed")
	}
}

// initialise makes the server, once: of callers at the same time one does it.
// What fails leaves it dormant, to be tried again.
func (d *Deferred) initialise(w http.ResponseWriter, r *http.Request) {
	if !d.mayInit(r) {
		writeDetail(w, http.StatusUnauthorized, "Unauthorized")
		return
	}
	cfg, ok := initConfig(w, r, d.cfg)
	if !ok {
		return
	}
	d.mu.Lock()
	if d.state != stateDormant {
		state := d.state
		d.mu.Unlock()
		writeDetail(w, http.StatusBadRequest, "The server is not dormant: "+state)
		return
	}
	d.state = stateInitializing
	d.mu.Unlock()

	s, err := d.open(cfg)

	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		var raw [8]byte
		_, _ = rand.Read(raw[:]) // never fails (crypto/rand)
		id := hex.EncodeToString(raw[:])
		d.logger.Error("initialisation failed; dormant again", "request", id, "error", err)
		// GET shows this to anyone, so the reason is only in the log.
		text := "initialisation failed; error " + id
		d.state, d.failure = stateDormant, &text
		writeJSON(w, http.StatusInternalServerError, map[string]string{
			"detail": "Internal Server Error", "exception": "InternalError", "error_id": id,
		})
		return
	}
	d.state, d.failure, d.server = stateReady, nil, s
	d.logger.Info("initialised", "path", cfg.ConversationsPath, "duration", time.Since(d.started))
	writeJSON(w, http.StatusOK, initState{State: stateReady})
}

// open makes the server; a panic is a failure like any other, or the state
// would stay initializing for ever.
func (d *Deferred) open(cfg Config) (s *Server, err error) {
	defer func() {
		if p := recover(); p != nil {
			s, err = nil, errors.New("panic while initialising")
		}
	}()
	return openServer(cfg, d.started)
}

// mayInit compares in constant time; without a secret key anyone may.
func (d *Deferred) mayInit(r *http.Request) bool {
	if d.cfg.SecretKey == "" {
		return true
	}
	got := sha256.Sum256([]byte(r.Header.Get(initKeyHeader)))
	want := sha256.Sum256([]byte(d.cfg.SecretKey))
	return subtle.ConstantTimeCompare(got[:], want[:]) == 1
}
