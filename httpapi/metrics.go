package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/sync/errgroup"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/limits"
	"bivouac.dev/bivouac/httpapi/places"
	"bivouac.dev/bivouac/httpapi/proxy"
)

// metrics are the API's metrics. Labels hold route patterns instead of paths, which bounds their
// number.
type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	inFlight prometheus.Gauge
	draining prometheus.Gauge
	// connections are open. refused got a 503; dropped gave way to a newcomer.
	connections      prometheus.Gauge
	refused, dropped prometheus.Counter
	// unlogged counts the failed requests without a log line.
	unlogged prometheus.Counter
	// reads counts reads of the state by consistency and outcome.
	reads *prometheus.CounterVec
	// limits counts what limits refused, by the limit's name.
	limits *prometheus.CounterVec
	// all and good are the pair of the service level objective.
	all, good, clientErrors prometheus.Counter
	// objective are the routes that the pair counts.
	objective map[string]bool
}

// sloLatency is within what an answer must be given to count as good.
const sloLatency = time.Second

// routeUnknown stands for the requests without a route of the table.
const routeUnknown = "unknown"

// routePage stands for the files and paths of the web page.
const routePage = "page"

// Names of limits that are not in the state.
const (
	limitRate         = "rate_per_second"
	limitBody         = "body_size"
	limitSnapshotSize = "snapshot_size"
	limitConnections  = "connections"
	limitUserRequests = "user_requests"
)

func newMetrics(r prometheus.Registerer, table []route) *metrics {
	factory := promauto.With(r)
	counter := func(name, help string) prometheus.Counter {
		return factory.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		requests: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "bivouac_http_requests_total",
			Help: "Requests served, by route pattern, method and class of the status.",
		}, []string{"route", "method", "class"}),
		duration: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "bivouac_http_request_duration_seconds",
			Help:    "Time to serve a request, by route pattern.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10},
		}, []string{"route"}),
		inFlight: factory.NewGauge(prometheus.GaugeOpts{
			Name: "bivouac_http_requests_in_flight",
			Help: "Requests being served now.",
		}),
		draining: factory.NewGauge(prometheus.GaugeOpts{
			Name: "bivouac_draining",
			Help: "1 while the node finishes its requests before it stops.",
		}),
		connections: factory.NewGauge(prometheus.GaugeOpts{
			Name: "bivouac_http_connections",
			Help: "Open connections of clients.",
		}),
		reads: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "bivouac_reads_total",
			Help: "Reads of the state for requests, by consistency and outcome.",
		}, []string{"consistency", "outcome"}),
		limits: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "bivouac_limits_hit_total",
			Help: "Requests and connections that a limit refused, by the limit's name.",
		}, []string{"limit"}),
		refused: counter("bivouac_http_connections_refused_total",
			"Connections answered 503 because limits { connections } or connections_per_address was reached."),
		unlogged: counter("bivouac_http_requests_not_logged_total",
			"Requests that the log leaves out: it bounds the lines of failed requests and of writes a second."),
		dropped: counter("bivouac_http_connections_dropped_total",
			"Connections without a good credential, or idle, that were closed for new ones."),
		all: counter("bivouac_slo_requests_total",
			"Requests that count for the service level objective: answered without a client error, on routes with a key, "+
				"but not transfers, logs and what agent servers answer."),
		good: counter("bivouac_slo_good_requests_total",
			"Requests of bivouac_slo_requests_total that were answered without a server error and within a second."),
		clientErrors: counter("bivouac_slo_client_errors_total",
			"Requests on routes of the service level objective that were answered 4xx, which count neither as good nor as bad."),
		objective: map[string]bool{},
	}
	m.start(table)
	return m
}

// start makes the series of all known labels, so that they exist before their first event.
func (m *metrics) start(table []route) {
	for _, r := range table {
		for _, class := range []string{"2xx", "4xx", "5xx"} {
			m.requests.WithLabelValues(r.path, r.method, class)
		}
		m.duration.WithLabelValues(r.path)
		m.objective[r.path] = m.objective[r.path] || counts(r)
	}
	for _, path := range []string{routeUnknown, routePage, proxy.Path} {
		for _, class := range []string{"2xx", "4xx", "5xx"} {
			m.requests.WithLabelValues(path, http.MethodGet, class)
		}
		m.duration.WithLabelValues(path)
	}
	for _, consistency := range []string{"linearizable", "stale"} {
		m.reads.WithLabelValues(consistency, "ok")
		m.reads.WithLabelValues(consistency, "failed")
	}
	for _, scope := range []string{fsm.LimitOfUser, fsm.LimitOfInstallation} {
		for _, name := range []string{
			fsm.LimitRunning,
			fsm.LimitTotal,
			fsm.LimitStarts,
			fsm.LimitCPU,
			fsm.LimitMemory,
			fsm.LimitState,
		} {
			m.limits.WithLabelValues(scope + name)
		}
	}
	m.limits.WithLabelValues(fsm.LimitOfUser + fsm.LimitEvents)
	for _, name := range []string{limitRate, limitBody, limitSnapshotSize, limitConnections, limitUserRequests} {
		m.limits.WithLabelValues(name)
	}
}

// counts reports whether a route's requests count for the service level objective. The time of the
// others is the client's, the agent server's or the size's.
func counts(r route) bool {
	if r.access == open || r.access == signIn || r.upload {
		return false
	}
	if r.name != "conversation.pending_message" && slices.ContainsFunc(conversationRoutes(),
		func(one route) bool { return one.name == r.name }) {
		return false
	}
	switch r.name {
	case "snapshot.save", "sandbox.logs", "sandbox.operator_logs", "conversation.send_message":
		return false
	}
	return true
}

// served records a request that was answered.
func (m *metrics) served(route, method string, status int, took time.Duration, err error) {
	m.requests.WithLabelValues(route, method, strconv.Itoa(status/100)+"xx").Inc()
	m.duration.WithLabelValues(route).Observe(took.Seconds())
	m.limited(route, status, err)
	switch {
	case !m.objective[route]:
	case status >= http.StatusBadRequest && status < http.StatusInternalServerError:
		m.clientErrors.Inc()
	default:
		m.all.Inc()
		if status < http.StatusInternalServerError && took <= sloLatency {
			m.good.Inc()
		}
	}
}

// read records one read of the state.
func (m *metrics) read(consistency cluster.Consistency, err error) {
	labels := []string{"linearizable", "ok"}
	if consistency == cluster.Stale {
		labels[0] = "stale"
	}
	if err != nil {
		labels[1] = "failed"
	}
	m.reads.WithLabelValues(labels...).Inc()
}

// limited counts the limit that refused a request, if one did.
func (m *metrics) limited(route string, status int, err error) {
	var e *fsm.Error
	switch {
	case errors.As(err, &e) && e.Code == fsm.CodeLimit && e.Limit != "":
		m.limits.WithLabelValues(e.Limit).Inc()
	case errors.Is(err, limits.ErrUserRequests):
		m.limits.WithLabelValues(limitUserRequests).Inc()
	case status == http.StatusRequestEntityTooLarge && route == pathOperator+"/restore":
		m.limits.WithLabelValues(limitSnapshotSize).Inc()
	case status == http.StatusRequestEntityTooLarge && m.objective[route]:
		m.limits.WithLabelValues(limitBody).Inc()
	}
}

// conns are those of connections.
func (m *metrics) conns() limits.ConnMetrics {
	return limits.ConnMetrics{Open: m.connections, Dropped: m.dropped, Refuse: m.refuse}
}

// refuse counts a connection that got no place.
func (m *metrics) refuse() {
	m.refused.Inc()
	m.limits.WithLabelValues(limitConnections).Inc()
}

// Bounds of the metrics' own listener, which serves a few scrapers.
const (
	metricsConnections, metricsShare = 64, 16
	// metricsInFlight bounds the answers in the making, which take CPU; more get 503.
	metricsInFlight = 8
	metricsHeader   = 8 << 10
	metricsDrain    = time.Second
)

// RunMetrics serves GET /metrics and nothing else on a listener of its own, until ctx ends. With
// Config.OwnMetrics the API's listener has it no more.
func (s *Server) RunMetrics(ctx context.Context, l net.Listener) error {
	few := places.Limits{Total: metricsConnections, Each: metricsShare}
	conns := limits.NewConnections(few, true, func(string) bool { return false }, s.metrics.conns())
	routes := http.NewServeMux()
	routes.HandleFunc("GET /metrics", s.serveMetrics)
	server := &http.Server{
		ConnState: conns.Note, ConnContext: limits.ConnContext, Handler: routes,
		ReadHeaderTimeout: s.cfg.ReadHeaderTimeout, ReadTimeout: s.cfg.ReadHeaderTimeout,
		WriteTimeout: s.cfg.WriteTimeout, IdleTimeout: s.cfg.IdleTimeout, MaxHeaderBytes: metricsHeader,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := server.Serve(conns.Listen(l)); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serving metrics on %s: %w", l.Addr(), err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		conns.CloseSilent()
		last, cancel := context.WithTimeout(context.Background(), metricsDrain)
		defer cancel()
		if server.Shutdown(last) != nil {
			_ = server.Close() // a scraper that reads slowly is cut off
		}
		return nil
	})
	err := group.Wait()
	conns.Wait()
	return err
}
