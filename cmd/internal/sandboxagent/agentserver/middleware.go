package agentserver

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/wire"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/credential"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/requestid"
	"bivouac.dev/bivouac/scheduler/agent"
)

// middleware wraps the router with panic recovery, CORS and logging, and does what the row of a request's
// route says: the key, the body's bound, activity, the user of files.
func (s *Server) middleware() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begin := time.Now()
		r = s.ownPath(pathStyle(r))
		rec := &recorder{ResponseWriter: w}
		defer rec.linger(r, r.Body)
		defer func() {
			if p := recover(); p != nil {
				if p == http.ErrAbortHandler { //nolint:errorlint // the sentinel is panicked as it is
					panic(p)
				}
				wire.WriteFailure(rec, r, s.logger, fmt.Errorf("panic: %v", p))
			}
			attrs := []any{"route", r.Method + " " + r.URL.Path, "status", rec.status, "duration", time.Since(begin)}
			if id := r.Header.Get(requestid.Header); requestid.Valid(id) {
				attrs = append(attrs, "request", id)
			}
			s.logger.Debug("request", attrs...)
		}()
		if s.cors(rec, r) {
			return
		}
		if r.URL.Path == config.InitPath {
			wire.WriteDetail(rec, http.StatusNotFound, "Not Found") // only a deferred server has it
			return
		}
		needs := s.router.find(r)
		if !needs.open && !s.cfg.KeyFits(r.Header.Get(agent.KeyHeader)) {
			wire.WriteDetail(rec, http.StatusUnauthorized, "Unauthorized")
			return
		}
		if !needs.idle {
			s.touch()
		}
		r.Body = http.MaxBytesReader(rec, r.Body, cmp.Or(needs.body, maxBody))
		serve := s.router.ServeHTTP
		if needs.asTools {
			serve = s.asTools(serve)
		}
		serve(rec, r)
	})
}

// cors sets the CORS headers for allowed origins. It answers a preflight and then returns true.
func (s *Server) cors(w http.ResponseWriter, r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	w.Header().Add("Vary", "Origin")
	if !s.originAllowed(origin) {
		return false
	}
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Allow-Credentials", "true")
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Set("Access-Control-Allow-Methods", "GET, POST, PUT, PATCH, DELETE, OPTIONS")
	h.Set("Access-Control-Allow-Headers", "Content-Type, "+agent.KeyHeader)
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}

func (s *Server) originAllowed(origin string) bool {
	for _, o := range s.cfg.CORSOrigins {
		if strings.TrimSuffix(o, "/") == origin {
			return true
		}
	}
	u, err := url.Parse(origin)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") {
		return false
	}
	return u.Hostname() == "localhost" || u.Hostname() == "127.0.0.1"
}

type recorder struct {
	http.ResponseWriter
	status int
}

// WriteHeader records the status.
func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		if r.status = status; status == http.StatusRequestEntityTooLarge {
			r.Header().Set("Connection", "close") // the rest of the body is no request
		}
	}
	r.ResponseWriter.WriteHeader(status)
}

// linger reads the rest of a body that was too large. Only who has a key gets that far.
func (r *recorder) linger(req *http.Request, body io.Reader) {
	if r.status == http.StatusRequestEntityTooLarge && req.ProtoMajor == 1 {
		decode.Linger(r.ResponseWriter, body)
	}
}

// Unwrap is for http.ResponseController and WebSocket upgrades.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// Write records 200 for a body without WriteHeader.
func (r *recorder) Write(b []byte) (int, error) {
	r.status = cmp.Or(r.status, http.StatusOK)
	return r.ResponseWriter.Write(b)
}

// asTools serves requests that use files of the workspace, with the files' permissions of the
// tools' user: the server's own files are not theirs, whatever links lead there.
func (s *Server) asTools(h http.HandlerFunc) http.HandlerFunc {
	if s.cfg.Tools == nil {
		return h
	}
	return func(w http.ResponseWriter, r *http.Request) {
		r = r.WithContext(credential.NewContext(r.Context(), s.cfg.Tools))
		if err := credential.Do(s.cfg.Tools, func() error { h(w, r); return nil }); err != nil {
			wire.WriteFailure(w, r, s.logger, err)
		}
	}
}
