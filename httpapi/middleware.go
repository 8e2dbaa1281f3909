package httpapi

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/rs/cors"
)

// exchange is what the edge wants to know about a request when it is over.
// Handlers fill it in; one goroutine at a time has it.
type exchange struct {
	id    string
	route string
	user  string
	// sandbox is set for what goes through the door.
	sandbox string
	err     error
}

type exchangeKey struct{}

// exchangeOf gives the request's exchange; outside of the edge, a spare one.
func exchangeOf(ctx context.Context) *exchange {
	if ex, ok := ctx.Value(exchangeKey{}).(*exchange); ok {
		return ex
	}
	return &exchange{}
}

// recorder notes the status on its way out and adds the headers that every
// answer carries.
type recorder struct {
	http.ResponseWriter
	index  func() uint64
	status int
}

// WriteHeader implements http.ResponseWriter.
func (w *recorder) WriteHeader(status int) {
	if w.status == 0 && (status >= http.StatusOK || status == http.StatusSwitchingProtocols) {
		w.status = status
		if w.Header().Get(headerIndex) == "" {
			w.Header().Set(headerIndex, strconv.FormatUint(w.index(), 10))
		}
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *recorder) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// everyAnswer are headers of every answer, under their canonical names. The
// values are shared by all answers: net/http replaces values, never changes them.
var everyAnswer = http.Header{
	"Cache-Control":          {"no-cache, no-store, must-revalidate, max-age=0"},
	"Pragma":                 {"no-cache"},
	"Expires":                {"0"},
	"X-Content-Type-Options": {"nosniff"},
}

// edge is the outermost handler: it names the request, catches panics, measures
// and writes the access log.
func (s *Server) edge(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		ex := &exchange{id: requestID(r), route: "unknown"}
		h := w.Header()
		h[headerRequestID] = []string{ex.id}
		for name, values := range everyAnswer {
			h[name] = values
		}
		// A length beside the chunks is not shown to us any more, and a proxy in front
		// may have gone by it: what follows on the connection is nobody's request.
		if r.ProtoMajor == 1 && len(r.TransferEncoding) > 0 {
			h.Set("Connection", "close")
		}
		rec := &recorder{ResponseWriter: w, index: s.localIndex}
		s.metrics.inFlight.Inc()
		defer s.metrics.inFlight.Dec()
		// A request that is broken off was one, too.
		defer func() { s.finish(rec, r, ex, time.Since(start)) }()
		s.guard(next, rec, r.WithContext(context.WithValue(r.Context(), exchangeKey{}, ex)), ex)
	})
}

// guard turns a panic into a 500 that carries the request id of the log line.
func (s *Server) guard(next http.Handler, w *recorder, r *http.Request, ex *exchange) {
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler:
			panic(p)
		default:
			ex.err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			if w.status == 0 {
				failureOf(ex.err, shapeDetail, "").write(w)
			}
		}
	}()
	next.ServeHTTP(w, r)
}

// finish writes the metrics and the one log line of a request. The query string
// and the bodies are not in it: both may hold secrets.
func (s *Server) finish(w *recorder, r *http.Request, ex *exchange, took time.Duration) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	method := knownMethod(r.Method)
	s.metrics.requests.WithLabelValues(ex.route, method, statusText(w.status)).Inc()
	s.metrics.duration.WithLabelValues(ex.route).Observe(took.Seconds())
	level := levelOf(method, ex.route, w.status)
	if !s.log.Enabled(r.Context(), level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("request", ex.id), slog.String("route", method+" "+ex.route), slog.Int("status", w.status),
		slog.Duration("duration", took), slog.String("user", ex.user), slog.String("address", s.clientAddress(r)),
	}
	if ex.sandbox != "" {
		attrs = append(attrs, slog.String("sandbox", ex.sandbox))
	}
	if ex.err != nil && w.status >= http.StatusInternalServerError {
		attrs = append(attrs, slog.String("error", ex.err.Error()))
	}
	s.log.LogAttrs(r.Context(), level, "request served", attrs...)
}

// levelOf gives the level of a request's log line: a read that went well tells
// little and there are many of them, so a line each would cost more than the
// reads.
func levelOf(method, route string, status int) slog.Level {
	read := method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions
	switch {
	case status >= http.StatusInternalServerError:
		return slog.LevelWarn
	case isQuiet(route), read && status < http.StatusBadRequest && status != http.StatusSwitchingProtocols:
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// statusText is strconv.Itoa without a new string for the usual ones.
func statusText(status int) string {
	switch status {
	case http.StatusOK:
		return "200"
	case http.StatusCreated:
		return "201"
	}
	return strconv.Itoa(status)
}

// knownMethod keeps a client from making up metric labels.
func knownMethod(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return m
	}
	return "OTHER"
}

// isQuiet reports whether a route is asked by machines all day long.
func isQuiet(path string) bool {
	switch path {
	case "/alive", "/health", "/ready", "/metrics":
		return true
	}
	return false
}

// requestID takes the client's id when it is fit for a log line, else makes one.
func requestID(r *http.Request) string {
	id := r.Header.Get(headerRequestID)
	fit := id != "" && len(id) <= 128 && !slices.ContainsFunc([]byte(id), func(b byte) bool {
		return (b < '0' || b > '9') && (b < 'A' || b > 'Z') && (b < 'a' || b > 'z') && b != '-' && b != '_' && b != '.'
	})
	if fit {
		return id
	}
	return uuid.NewString()
}

// clientAddress is the address a request comes from: the peer's, or what
// trusted proxies say in X-Forwarded-For, read from the right up to the first
// address that is not theirs.
func (s *Server) clientAddress(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	if len(s.cfg.TrustedProxies) == 0 {
		return host
	}
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for i := len(hops) - 1; i >= 0 && s.trusted(host); i-- {
		hop, err := netip.ParseAddr(strings.TrimSpace(hops[i]))
		if err != nil {
			break
		}
		host = hop.Unmap().String()
	}
	return host
}

func (s *Server) trusted(host string) bool {
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(s.cfg.TrustedProxies, func(p netip.Prefix) bool { return p.Contains(addr.Unmap()) })
}

// cors answers preflights and marks answers for the web origins that may call
// us (api-contract.md A.0.1).
func (s *Server) cors(next http.Handler) http.Handler {
	return cors.New(cors.Options{
		AllowOriginFunc:  s.allowedOrigin,
		AllowCredentials: true,
		AllowedMethods: []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
			http.MethodDelete, http.MethodOptions},
		AllowedHeaders: []string{"*"},
		ExposedHeaders: []string{headerIndex, headerRequestID, "Retry-After"},
		MaxAge:         600,
	}).Handler(next)
}

func (s *Server) allowedOrigin(origin string) bool {
	if len(s.cfg.CORSOrigins) > 0 {
		return slices.Contains(s.cfg.CORSOrigins, strings.TrimRight(origin, "/"))
	}
	u, err := url.Parse(origin)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return false
	}
	return u.Hostname() == "localhost" || u.Hostname() == "127.0.0.1"
}
