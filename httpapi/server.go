package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/limits"
	"bivouac.dev/bivouac/httpapi/llm"
	"bivouac.dev/bivouac/httpapi/operators"
	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/session"
)

// Server is the HTTP API of one node.
type Server struct {
	cfg     Config
	cluster Cluster
	secrets request.Secrets
	// calls is what each request needs.
	calls  *request.Server
	agents Agents
	log    *slog.Logger

	handler http.Handler
	router  *router
	metrics *metrics
	keys    *authenticator
	// login is the page on which browsers sign in. signIns bounds what each address signs in, allSignIns
	// what all do.
	login      *session.Page
	signIns    *limits.PerKey[netip.Prefix]
	allSignIns *rate.Limiter
	devices    deviceLimits
	// live has the settings that Reload replaces; reloading guards the replacing, and conns, which
	// Run sets.
	live      atomic.Pointer[live]
	reloading sync.Mutex
	conns     *limits.Connections
	// requests samples the log lines of requests.
	requests requestLog
	settings settingsResponses
	// refused samples the log lines of refused keys.
	refused *sampler
	// shared is made of the cluster's configuration; see sharedNow.
	shared atomic.Pointer[shared]
	proxy  *proxy.Proxy
	models *llm.Gateway
	// exposition is the node's metrics in Prometheus's text format.
	exposition http.Handler
	// operators serves the routes of operators.
	operators *operators.Server
	// downloads has the conversations that are being downloaded, as user/id.
	downloads sync.Map
	// admission bounds the requests of one user.
	admission *limits.Admission
	// titles bounds how often sandboxes change titles.
	titles *limits.PerKey[string]
	// appends bounds how often sandboxes send events, eventBytes how many bytes.
	appends, eventBytes *limits.PerKey[string]
	started             time.Time
	// lastRequest is the time of the latest API request, in Unix nanoseconds.
	lastRequest atomic.Int64
	// draining is set by Drain.
	draining atomic.Bool
}

// New creates a Server and starts nothing. It fails on an invalid Config and panics if
// cfg.Registerer already has metrics of another Server.
func New(cfg Config, c Cluster, secrets request.Secrets, agents Agents) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuring the HTTP API: %w", err)
	}
	s := &Server{
		cfg: cfg, cluster: c, secrets: secrets, agents: agents, log: cfg.Logger,
		metrics:    newMetrics(cfg.Registerer, routes()),
		login:      session.NewPage(),
		signIns:    newSignIns(),
		devices:    newDeviceLimits(),
		allSignIns: rate.NewLimiter(allSignIns*rate.Every(signInPause), allSignIns*signInBurst),
		requests:   newRequestLog(),
		settings:   newSettingsResponses(),
		refused:    newSampler(failuresPerSecond),
		exposition: promhttp.HandlerFor(cfg.Gatherer, promhttp.HandlerOpts{MaxRequestsInFlight: metricsInFlight}),
		admission:  limits.NewAdmission(runtime.GOMAXPROCS(0)),
		titles:     limits.NewPerKey[string](rate.Every(titlePause), titleBurst),
		appends:    limits.NewPerKey[string](eventCalls, eventBurst),
		eventBytes: limits.NewPerKey[string](eventBytes, eventByteBurst),
		started:    time.Now(),
	}
	s.keys = newAuthenticator(c, s.placeOf)
	s.calls = &request.Server{
		Cluster: c, Secrets: secrets, Log: s.log, RequestTimeout: cfg.RequestTimeout,
		Answers: limits.NewBudget(), Read: s.metrics.read,
	}
	s.operators = operators.New(cfg.Operator, operators.Node{
		Cluster: c, Secrets: secrets, Log: s.log, ReadEntry: s.calls.ReadEntry, Installation: s.installation,
		MaxUpload: func() int64 { return s.live.Load().MaxUpload }, Draining: s.draining.Load,
	})
	s.shared.Store(s.newShared(s.installation(fsm.NewStore().View()), 0))
	s.lastRequest.Store(s.started.UnixNano())
	s.live.Store(&live{Reloadable: cfg.Reloadable(), rates: limits.NewRates(cfg.RatePerSecond)})
	s.router = newRouter(s.dispatch, slices.DeleteFunc(routes(), func(r route) bool {
		return cfg.OwnMetrics &&
			r.name == "metrics"
	}))
	if cfg.Page != nil {
		s.router.other = s.servePage
	}
	s.proxy, s.models = proxy.New(cfg.Proxy, s.forProxy()), llm.New(cfg.LLM, s.forModels())
	s.handler = s.accessLog(s.checkHost(s.keepHealth(s.front(s.cors(s.limitRate(s.router))))))
	return s, nil
}

// errKeyChanging is the proxy's refusal when this node does not know of a sandbox's other key yet.
func errKeyChanging() error {
	return &response.HTTPError{
		Status: http.StatusServiceUnavailable, RetryAfter: time.Second,
		Text: "The sandbox's key is not in the secret store: the sandbox gets another one, or is being deleted. Try again.",
	}
}

// forProxy returns what the sandbox proxy needs of s.
func (s *Server) forProxy() proxy.Server {
	return proxy.Server{
		Cluster: s.cluster, Info: request.InfoOf, Seen: s.seenAs, ClientAddress: s.clientAddress,
		SandboxKey: func(ctx context.Context, ref fsm.SecretRef) (string, error) {
			entry, err := s.secrets.Read(ctx, ref)
			switch {
			case fsm.CodeOf(err) == fsm.CodeNotFound:
				return "", errKeyChanging()
			case err != nil:
				return "", request.SecretFailure(err)
			}
			return entry[fsm.MemberKey], nil
		},
		AskCluster:     s.keys.mayAsk,
		Admitted:       s.admitted,
		Origins:        func() []string { return s.sharedNow().origins },
		RequestTimeout: s.cfg.RequestTimeout, Logger: s.log, Registerer: s.cfg.Registerer,
	}
}

// forModels returns what the model gateway needs of s.
func (s *Server) forModels() llm.Server {
	return llm.Server{
		Cluster: s.cluster, Info: request.InfoOf, AskCluster: s.keys.mayAsk, Logger: s.log, Registerer: s.cfg.Registerer,
		Secret: func(ctx context.Context, ref fsm.SecretRef, member string) (string, error) {
			entry, err := s.secrets.Read(ctx, ref)
			return entry[member], err
		},
		// nginx asks with HTTP/1.0 by default, and takes any informational response for the answer.
		Informs:  func(r *http.Request) bool { return r.ProtoAtLeast(1, 1) && !isForwarded(r) && !s.fromTrusted(r) },
		Admitted: func(ctx context.Context, sandbox string) error { return s.admit(ctx, limits.Client{Sandbox: sandbox}) },
	}
}

// admitted notes a request that the proxy admitted with a credential. It refuses one above the rate
// limit.
func (s *Server) admitted(ctx context.Context, by fsm.Credential) error {
	of := limits.Client{Sandbox: by.SandboxID}
	now := time.Now()
	s.lastRequest.Store(now.UnixNano())
	if by.Lookup != "" {
		v, err := s.cluster.View(context.Background(), cluster.Local)
		if err != nil {
			return err
		}
		key := v.APIKeyByLookup(by.Lookup)
		s.keys.uses.note(key, now)
		if of = (limits.Client{Address: request.InfoOf(ctx).Address}); key != nil {
			of = limits.Client{User: key.UserID}
		}
	}
	return s.admit(ctx, of)
}

// Handler returns the whole API as one handler, for tests and for servers other than Run's.
func (s *Server) Handler() http.Handler { return s.handler }

// Drain makes /ready fail, and every response closes its connection (HTTP/2: GOAWAY), so that load
// balancers and clients go to other nodes. Requests and new streams are served until Run's context
// ends. Call it before that if balancers need time to notice.
func (s *Server) Drain() {
	s.draining.Store(true)
	s.metrics.draining.Set(1)
}

// Run serves on every listener until ctx ends. Then it closes the listeners, closes the agent
// servers' WebSockets with 1012, and waits for requests in progress and other upgraded connections,
// for Config.DrainTimeout at most. It returns nil after an orderly shutdown.
func (s *Server) Run(ctx context.Context, listeners ...net.Listener) error {
	conns := limits.NewConnections(s.cfg.places(), s.cfg.TLS == nil, s.trusted, s.metrics.conns())
	s.keep(conns)
	server := &http.Server{
		ConnState:         conns.Note,
		ConnContext:       limits.ConnContext,
		Handler:           s.handler,
		ReadHeaderTimeout: s.cfg.ReadHeaderTimeout,
		ReadTimeout:       s.cfg.ReadTimeout,
		WriteTimeout:      s.cfg.WriteTimeout,
		IdleTimeout:       s.cfg.IdleTimeout,
		MaxHeaderBytes:    s.cfg.headerBytes(),
		TLSConfig:         s.cfg.TLS,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, l := range listeners {
		group.Go(func() error { return s.serve(server, conns.Listen(l)) })
	}
	group.Go(func() error { s.keys.uses.run(ctx, s.cfg.RequestTimeout); return nil })
	group.Go(func() error { s.models.Run(ctx); return nil })
	group.Go(func() error {
		<-ctx.Done()
		return s.drain(server, conns)
	})
	err := group.Wait()
	conns.Wait()
	s.calls.Wait()
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

func (s *Server) drain(server *http.Server, conns *limits.Connections) error {
	s.Drain()
	// These run once the listeners are closed: who is sent away can't come back.
	server.RegisterOnShutdown(s.proxy.Drain)
	server.RegisterOnShutdown(conns.CloseSilent)
	ctx, cancel := context.WithTimeout(context.Background(), s.live.Load().DrainTimeout)
	defer cancel()
	var err error
	if err = server.Shutdown(ctx); err != nil {
		err = errors.Join(fmt.Errorf("finishing requests in progress: %w", err), server.Close())
	}
	s.proxy.Drain() // without connections Shutdown does not wait for its functions
	// http.Server does not track upgraded connections.
	s.proxy.Await(ctx)
	ctx, cancel = context.WithTimeout(context.Background(), 2*proxy.CloseTime)
	defer cancel()
	return errors.Join(err, s.proxy.Stop(ctx))
}

// localIndex is the log index that this node's store has applied.
func (s *Server) localIndex() uint64 {
	v, err := s.cluster.View(context.Background(), cluster.Local)
	if err != nil {
		return 0
	}
	return v.Index()
}
