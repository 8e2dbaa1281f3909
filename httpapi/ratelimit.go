package httpapi

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"

	"bivouac.dev/bivouac/httpapi/response"
)

// maxClients is how many clients are tracked; the least recently used is dropped first.
const maxClients = 16_384

// rateClient is whom requests count for: the sandbox or the user of a good credential, else an address.
type rateClient struct{ sandbox, user, address string }

// rateDelay is how long a request above the soft limit waits.
const rateDelay = time.Second

// clientRate holds the two limiters of one client.
type clientRate struct {
	soft, hard *rate.Limiter
}

// newRates makes the memory of the rate limit; nil without a limit.
func newRates(perSecond float64) *lru.Cache[rateClient, *clientRate] {
	if perSecond == 0 {
		return nil
	}
	clients, err := lru.New[rateClient, *clientRate](maxClients)
	if err != nil {
		panic("the size of the rate limit's memory is a constant: " + err.Error())
	}
	return clients
}

// limitRate delays requests of a client above Config.RatePerSecond and refuses them above twice that.
// Those to the API and to sandboxes count together; health and metrics are exempt. A request with a
// key counts once the key is judged: a good one for its sandbox or user (admit), so that no neighbour
// behind the same address can refuse it, another for its address.
func (s *Server) limitRate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info := requestInfoOf(r.Context())
		if s.live.Load().rates == nil || isQuiet(r.URL.Path) && !s.proxy.Handles(r) {
			info.Counted = true
			next.ServeHTTP(w, r)
			return
		}
		if hasKey(r) {
			next.ServeHTTP(w, r)
			if !info.Counted {
				s.noteRate(rateClient{address: info.Address})
			}
			return
		}
		info.Counted = true
		if err := s.count(r.Context(), rateClient{address: info.Address}); err != nil {
			response.FailureOf(err, response.FormatDetail, "").Write(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// hasKey reports whether a request presents a key. Cookies and passes of pages are none.
func hasKey(r *http.Request) bool {
	for _, name := range []string{"Authorization", "X-Session-Api-Key", "X-Api-Key", "X-Goog-Api-Key"} {
		if len(r.Header[name]) > 0 {
			return true
		}
	}
	return strings.Contains(r.URL.RawQuery, "key=")
}

// count counts a request. It waits above the rate and refuses above twice that.
func (s *Server) count(ctx context.Context, of rateClient) error {
	now := s.live.Load()
	if now.rates == nil {
		return nil
	}
	limiters := rateOf(now.rates, of, now.RatePerSecond)
	if !limiters.hard.Allow() {
		s.metrics.limits.WithLabelValues(limitRate).Inc()
		return response.TooManyRequests()
	}
	if !limiters.soft.Allow() {
		select {
		case <-time.After(rateDelay):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// noteRate counts a request that was served.
func (s *Server) noteRate(of rateClient) {
	if now := s.live.Load(); now.rates != nil {
		limiters := rateOf(now.rates, of, now.RatePerSecond)
		limiters.hard.Allow()
		limiters.soft.Allow()
	}
}

// admit notes that a request has a good credential: it counts for a client, and its connection gives
// way to no newcomer.
func (s *Server) admit(ctx context.Context, of rateClient) error {
	info := requestInfoOf(ctx)
	if !info.Counted {
		info.Counted = true
		if err := s.count(ctx, of); err != nil {
			return err
		}
	}
	info.Admit()
	return nil
}

// rateOf returns the limiters of a client, creating them if needed.
func rateOf(clients *lru.Cache[rateClient, *clientRate], of rateClient, perSecond float64) *clientRate {
	if known, found := clients.Get(of); found {
		return known
	}
	burst := max(1, int(perSecond))
	fresh := &clientRate{
		soft: rate.NewLimiter(rate.Limit(perSecond), burst),
		hard: rate.NewLimiter(rate.Limit(2*perSecond), 2*burst),
	}
	// A concurrent request of the same client may have added them first.
	if known, found, _ := clients.PeekOrAdd(of, fresh); found {
		return known
	}
	return fresh
}

// Limits on the log lines of failed requests, those of clients and those of the node apart.
const (
	failuresPerSecond = 10
	failureBurst      = 100
)

// failureLog samples the log lines of failed requests: anyone can send them, and each is a write to
// the disk.
type failureLog struct{ client, node *sampler }

// sampler bounds the rate of lines. dropped counts those since the last line that was written.
type sampler struct {
	limiter *rate.Limiter
	dropped atomic.Uint64
}

func newFailureLog() failureLog {
	return failureLog{client: newSampler(), node: newSampler()}
}

// sample reports whether a line is written, and how many were not since the last one.
func (f failureLog) sample(status int) (write bool, dropped uint64) {
	s := f.client
	if status >= http.StatusInternalServerError {
		s = f.node
	}
	return s.sample()
}

func (s *sampler) sample() (write bool, dropped uint64) {
	if !s.limiter.Allow() {
		s.dropped.Add(1)
		return false, 0
	}
	return true, s.dropped.Swap(0)
}
