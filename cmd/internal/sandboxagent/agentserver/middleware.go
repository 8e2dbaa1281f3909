package agentserver

import (
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/requestid"
	"bivouac.dev/bivouac/scheduler/agent"
)

// middleware wraps every request with panic recovery, CORS, logging, the body limit and, below
// /api, the key check.
func (s *Server) middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begin := time.Now()
		r = pathStyle(r)
		rec := &recorder{ResponseWriter: w}
		defer rec.linger(r, r.Body)
		defer func() {
			if p := recover(); p != nil {
				if p == http.ErrAbortHandler { //nolint:errorlint // the sentinel is panicked as it is
					panic(p)
				}
				s.failed(rec, r, fmt.Errorf("panic: %v", p))
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
		if r.URL.Path == initPath {
			writeDetail(rec, http.StatusNotFound, "Not Found") // only a deferred server has it
			return
		}
		if strings.HasPrefix(r.URL.Path, "/api/") && !s.authorised(r) {
			writeDetail(rec, http.StatusUnauthorized, "Unauthorized")
			return
		}
		if isActivity(r) {
			s.touch()
		}
		limit := int64(maxBody)
		if r.URL.Path == "/api/file/upload" {
			limit = maxUpload
		}
		r.Body = http.MaxBytesReader(rec, r.Body, limit)
		next.ServeHTTP(rec, r)
	})
}

func (s *Server) authorised(r *http.Request) bool { return s.keyFits(r.Header.Get(agent.KeyHeader)) }

// keyFits reports whether a key is one of the server's, or none is required. It compares with every
// key in constant time.
func (s *Server) keyFits(key string) bool {
	if len(s.cfg.Keys) == 0 {
		return true
	}
	got := sha256.Sum256([]byte(key))
	ok := 0
	for _, k := range s.cfg.Keys {
		want := sha256.Sum256([]byte(k))
		ok |= subtle.ConstantTimeCompare(got[:], want[:])
	}
	return ok == 1
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
