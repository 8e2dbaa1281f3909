package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"bivouac.dev/bivouac/httpapi/limits"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/session"
)

// limitRate delays requests of a client above Config.RatePerSecond and refuses them above twice that.
// Those to the API and to sandboxes count together; health and metrics are exempt. A request with a
// key counts once the key is judged: a good one for its sandbox or user (admit), so that no neighbour
// behind the same address can refuse it, another for its address.
func (s *Server) limitRate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info := request.InfoOf(r.Context())
		if s.live.Load().rates == nil || isQuiet(r.URL.Path) && !s.proxy.Handles(r) {
			info.Counted = true
			next.ServeHTTP(w, r)
			return
		}
		if hasKey(r) {
			next.ServeHTTP(w, r)
			if !info.Counted {
				s.live.Load().rates.Note(limits.Client{Address: info.Address})
			}
			return
		}
		info.Counted = true
		if err := s.count(r.Context(), limits.Client{Address: info.Address}); err != nil {
			response.FailureOf(err, response.FormatDetail, "").Write(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// hasKey reports whether a request presents a key or a session. Cookies and passes of sandboxes'
// pages are none.
func hasKey(r *http.Request) bool {
	if session.Carries(r) {
		return true
	}
	for _, name := range []string{"Authorization", "X-Session-Api-Key", "X-Api-Key", "X-Goog-Api-Key"} {
		if len(r.Header[name]) > 0 {
			return true
		}
	}
	return strings.Contains(r.URL.RawQuery, "key=")
}

// count counts a request. It waits above the rate and refuses above twice that.
func (s *Server) count(ctx context.Context, of limits.Client) error {
	err := s.live.Load().rates.Count(ctx, of)
	if _, refused := errors.AsType[*response.HTTPError](err); refused {
		s.metrics.limits.WithLabelValues(limitRate).Inc()
	}
	return err
}

// admit notes that a request has a good credential: it counts for a client, and its connection gives
// way to no newcomer.
func (s *Server) admit(ctx context.Context, of limits.Client) error {
	info := request.InfoOf(ctx)
	if !info.Counted {
		info.Counted = true
		if err := s.count(ctx, of); err != nil {
			return err
		}
	}
	info.Admit()
	return nil
}
