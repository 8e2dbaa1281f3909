package httpapi

import (
	"net/http"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"

	"bivouac.dev/bivouac/httpapi/response"
)

// maxClients is how many client addresses are tracked; the least recently used is dropped first.
const maxClients = 16_384

// rateDelay is how long a request above the soft limit waits.
const rateDelay = time.Second

// clientRate holds the two limiters of one client address.
type clientRate struct {
	soft, hard *rate.Limiter
}

// newRates makes the memory of the rate limit; nil without a limit.
func newRates(perSecond float64) *lru.Cache[string, *clientRate] {
	if perSecond == 0 {
		return nil
	}
	clients, err := lru.New[string, *clientRate](maxClients)
	if err != nil {
		panic("the size of the rate limit's memory is a constant: " + err.Error())
	}
	return clients
}

// limitRate delays requests of a client address above Config.RatePerSecond and refuses them above
// twice that. Those to the API and to sandboxes count together; health and metrics are exempt.
func (s *Server) limitRate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		now := s.live.Load()
		if now.rates == nil || isQuiet(r.URL.Path) && !s.proxy.Handles(r) {
			next.ServeHTTP(w, r)
			return
		}
		client := rateOf(now.rates, requestInfoOf(r.Context()).Address, now.RatePerSecond)
		if !client.hard.Allow() {
			s.metrics.limits.WithLabelValues(limitRate).Inc()
			response.FailureOf(response.TooManyRequests(), response.FormatDetail, "").Write(w)
			return
		}
		if !client.soft.Allow() {
			select {
			case <-time.After(rateDelay):
			case <-r.Context().Done():
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// rateOf returns the limiters of an address, creating them if needed.
func rateOf(clients *lru.Cache[string, *clientRate], address string, perSecond float64) *clientRate {
	if known, found := clients.Get(address); found {
		return known
	}
	burst := max(1, int(perSecond))
	fresh := &clientRate{
		soft: rate.NewLimiter(rate.Limit(perSecond), burst),
		hard: rate.NewLimiter(rate.Limit(2*perSecond), 2*burst),
	}
	// A concurrent request of the same address may have added them first.
	if known, found, _ := clients.PeekOrAdd(address, fresh); found {
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
