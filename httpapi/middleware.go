package httpapi

import (
	"cmp"
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

	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/limits"
	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/requestid"
	"bivouac.dev/bivouac/httpapi/response"
)

// recorder records the status and adds X-Bivouac-Index if the handler did not.
type recorder struct {
	http.ResponseWriter
	index  func() uint64
	status int
	// client is the request's connection, nil for one without a body.
	client *limits.Conn
}

// WriteHeader implements http.ResponseWriter. net/http waits for the rest of a body before it sends
// the response. After a refusal it does so for a second only, unless the credential was good.
func (w *recorder) WriteHeader(status int) {
	if w.status == 0 && (status >= http.StatusOK || status == http.StatusSwitchingProtocols) {
		if w.status = status; status >= http.StatusBadRequest && w.client != nil && !w.client.HasCredential() {
			_ = http.NewResponseController(
				w.ResponseWriter,
			).SetReadDeadline(
				time.Now().Add(limits.RefusalTime),
			) // the server's own is left
		}
		if status == http.StatusRequestEntityTooLarge {
			w.Header().Set("Connection", "close") // the rest of the body is no request
		}
		if w.Header().Get(response.HeaderIndex) == "" {
			w.Header().Set(response.HeaderIndex, strconv.FormatUint(w.index(), 10))
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

// NoteStatus records the status of a hijacked connection.
func (w *recorder) NoteStatus(status int) {
	w.status = cmp.Or(w.status, status)
}

// linger reads the rest of a body that was too large, of a client with a good credential.
func (w *recorder) linger(r *http.Request) {
	if w.status != http.StatusRequestEntityTooLarge || r.ProtoMajor != 1 || w.client == nil || !w.client.HasCredential() {
		return
	}
	decode.Linger(w.ResponseWriter, r.Body)
}

// Unwrap is for http.ResponseController.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// accessLog is the outermost handler. It assigns the request id, recovers from panics, measures and
// writes the access log.
func (s *Server) accessLog(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		ex := &proxy.RequestInfo{ID: requestID(r), Route: routeUnknown, Address: s.clientAddress(r)}
		h := w.Header()
		h.Set(response.HeaderRequestID, ex.ID)
		response.SetFixed(h)
		// net/http hides a Content-Length next to chunks, but a proxy in front may have used it.
		// Closing the connection prevents request smuggling. A trusted one has to refuse or normalise
		// such a request, as HAProxy does.
		if r.ProtoMajor == 1 && len(r.TransferEncoding) > 0 && !s.fromTrusted(r) || s.draining.Load() {
			h.Set("Connection", "close") // HTTP/2: GOAWAY
		}
		rec := &recorder{ResponseWriter: w, index: s.localIndex}
		if b := limits.ConnIn(r.Context()); b != nil {
			if ex.Client = b; r.ContentLength != 0 {
				rec.client = b
			}
		}
		defer rec.linger(r)
		s.metrics.inFlight.Inc()
		defer s.metrics.inFlight.Dec()
		// Aborted requests are logged too.
		defer func() { s.finish(rec, r, ex, time.Since(start)) }()
		ctx := request.WithInfo(requestid.With(r.Context(), ex.ID), ex)
		s.guard(next, rec, r.WithContext(ctx), ex)
	})
}

// guard turns a panic into a 500. The access log has the stack under the request's id.
func (s *Server) guard(next http.Handler, w *recorder, r *http.Request, ex *proxy.RequestInfo) {
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler:
			panic(p)
		default:
			ex.Err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			if w.status == 0 {
				response.FailureOf(ex.Err, response.FormatDetail, "").Write(w)
			}
		}
	}()
	next.ServeHTTP(w, r)
}

// finish updates the metrics and writes the request's log line. It omits the query string and the
// bodies, which may hold secrets.
func (s *Server) finish(w *recorder, r *http.Request, ex *proxy.RequestInfo, took time.Duration) {
	w.status = cmp.Or(w.status, http.StatusOK)
	method := knownMethod(r.Method)
	s.logRefused(r.Context(), ex, method+" "+ex.Route)
	s.metrics.served(ex.Route, method, w.status, took, ex.Err)
	level := levelOf(method, ex.Route, w.status)
	if !s.log.Enabled(r.Context(), level) {
		return
	}
	dropped := uint64(0)
	if level >= slog.LevelInfo {
		var write bool
		if write, dropped = s.requests.sample(w.status, ex.Route, ex.User); !write {
			s.metrics.unlogged.Inc()
			return
		}
	}
	attrs := []slog.Attr{
		slog.String("request", ex.ID), slog.String("route", method+" "+ex.Route), slog.Int("status", w.status),
		slog.Duration("duration", took), slog.String("user", ex.User), slog.String("address", ex.Address),
	}
	if dropped > 0 {
		attrs = append(attrs, slog.Uint64("not_logged", dropped))
	}
	if ex.Sandbox != "" {
		attrs = append(attrs, slog.String("sandbox", ex.Sandbox))
	}
	if ex.Task != "" {
		attrs = append(attrs, slog.String("task", ex.Task))
	}
	if ex.Err != nil && w.status >= http.StatusInternalServerError {
		attrs = append(attrs, slog.String("error", ex.Err.Error()))
	}
	s.log.LogAttrs(r.Context(), level, "request served", attrs...)
}

// levelOf returns the level of a request's log line. Successful reads are at debug: a line each
// would cost more than the read.
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

// knownMethod bounds the method label, which a client could otherwise make up.
func knownMethod(m string) string {
	switch m {
	case http.MethodGet,
		http.MethodHead,
		http.MethodPost,
		http.MethodPut,
		http.MethodPatch,
		http.MethodDelete,
		http.MethodOptions:
		return m
	}
	return "OTHER"
}

// isQuiet reports whether a route is polled by monitoring and load balancers.
func isQuiet(path string) bool {
	switch path {
	case "/alive", "/health", "/ready", "/metrics":
		return true
	}
	return false
}

// requestID returns the client's id if it is safe to log, otherwise a new one.
func requestID(r *http.Request) string {
	if id := r.Header.Get(requestid.Header); requestid.Valid(id) {
		return id
	}
	return uuid.NewString()
}

// clientAddress is the peer's address or, behind trusted proxies, the first address from the right
// in X-Forwarded-For that is not trusted.
func (s *Server) clientAddress(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	if len(s.live.Load().TrustedProxies) == 0 {
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

// isForwarded reports whether a proxy says that it forwards a request. A client that says so itself
// gains nothing.
func isForwarded(r *http.Request) bool {
	return r.Header.Get("X-Forwarded-For") != "" || r.Header.Get("Forwarded") != ""
}

// fromTrusted reports whether a trusted proxy sends a request.
func (s *Server) fromTrusted(r *http.Request) bool {
	peer, _, err := net.SplitHostPort(r.RemoteAddr)
	return err == nil && s.trusted(peer)
}

func (s *Server) trusted(host string) bool {
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(s.live.Load().TrustedProxies, func(p netip.Prefix) bool { return p.Contains(addr.Unmap()) })
}

// front sends requests for sandboxes to the proxy, those to models to the gateway, and all others to
// next. One CORS policy covers all sandboxes: a preflight has no key, so it could not reach a paused
// one.
func (s *Server) front(next http.Handler) http.Handler {
	proxied, models := s.cors(s.limitRate(s.proxy)), s.limitRate(s.models)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case s.models.Handles(r) && !s.proxy.Handles(r):
			models.ServeHTTP(w, r)
		case !s.proxy.Handles(r):
			next.ServeHTTP(w, r)
		case s.proxy.AnswersCORS(r):
			s.proxy.ServeHTTP(w, r)
		default:
			proxied.ServeHTTP(w, r)
		}
	})
}

// cors answers preflights and adds the CORS headers for allowed origins (API.md, "CORS"). No other
// origin may read what a session's cookie is answered.
func (s *Server) cors(next http.Handler) http.Handler {
	options := cors.Options{
		AllowOriginFunc:  s.allowedOrigin,
		AllowCredentials: true,
		AllowedMethods: []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
			http.MethodDelete, http.MethodOptions},
		AllowedHeaders: []string{"*"},
		ExposedHeaders: []string{response.HeaderIndex, response.HeaderRequestID, "Retry-After"},
		MaxAge:         600,
	}
	byKey := cors.New(options).Handler(next)
	options.AllowCredentials = false
	bySession := cors.New(options).Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if byCookie(r) {
			bySession.ServeHTTP(w, r)
			return
		}
		byKey.ServeHTTP(w, r)
	})
}

func (s *Server) allowedOrigin(origin string) bool {
	if origins := s.sharedNow().origins; len(origins) > 0 {
		return slices.Contains(origins, strings.TrimRight(origin, "/"))
	}
	u, err := url.Parse(origin)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return false
	}
	return u.Hostname() == "localhost" || u.Hostname() == "127.0.0.1"
}

// keepHealth answers 503 on connections above the limits, except for health and metrics.
func (s *Server) keepHealth(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !limits.ConnIn(r.Context()).OnlyHealth() {
			next.ServeHTTP(w, r)
			return
		}
		if r.ContentLength != 0 {
			w.Header().Set("Connection", "close") // nobody waits for the body
		}
		if isQuiet(r.URL.Path) && !s.proxy.Handles(r) {
			next.ServeHTTP(w, r)
			return
		}
		s.metrics.refuse()
		w.Header().Set("Connection", "close")
		refusal := &response.HTTPError{
			Status:     http.StatusServiceUnavailable,
			Text:       limits.TooManyConnections,
			RetryAfter: time.Second,
		}
		response.FailureOf(refusal, response.FormatDetail, "").Write(w)
	})
}

// checkHost answers 421 to a request for a name that is not this server's (Config.Hosts). A browser
// takes a page of another name that leads to this machine for the same origin.
func (s *Server) checkHost(next http.Handler) http.Handler {
	if s.cfg.Hosts == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name := hostName(r.Host); !isLoopbackName(name) && !slices.Contains(s.cfg.Hosts, name) {
			request.InfoOf(r.Context()).Counted = true
			err := response.Error(http.StatusMisdirectedRequest,
				"This server has another name: use localhost, or let it answer this one (bivouac dev --allow-host)")
			response.FailureOf(err, response.FormatDetail, "").Write(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// hostName is the name in a Host header, in lower case and without the port.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}

// isLoopbackName reports whether a name always means the client's own machine.
func isLoopbackName(name string) bool {
	if addr, err := netip.ParseAddr(name); err == nil {
		return addr.Unmap().IsLoopback()
	}
	return name == proxy.DomainLocal || strings.HasSuffix(name, "."+proxy.DomainLocal)
}
