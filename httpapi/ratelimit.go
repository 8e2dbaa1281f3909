package httpapi

import (
	"net/http"
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

// limitRate delays requests of a client address above Config.RatePerSecond and refuses them above
// twice that. Health and metrics are exempt.
func (s *Server) limitRate(next http.Handler) http.Handler {
	perSecond := s.cfg.RatePerSecond
	if perSecond == 0 {
		return next
	}
	clients, err := lru.New[string, *clientRate](maxClients)
	if err != nil {
		panic("the size of the rate limit's memory is a constant: " + err.Error())
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isQuiet(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		client := rateOf(clients, s.clientAddress(r), perSecond)
		if !client.hard.Allow() {
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
