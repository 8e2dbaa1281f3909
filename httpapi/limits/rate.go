package limits

import (
	"context"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"

	"bivouac.dev/bivouac/httpapi/response"
)

// MaxClients is how many clients are tracked; the least recently used is dropped first.
const MaxClients = 16_384

// PerKey has a rate limiter for each key, of the MaxClients keys that were used last.
type PerKey[K comparable] struct {
	limit rate.Limit
	burst int
	byKey *lru.Cache[K, *rate.Limiter]
}

// NewPerKey makes limiters of so many a second, and so many at once.
func NewPerKey[K comparable](limit rate.Limit, burst int) *PerKey[K] {
	return &PerKey[K]{limit: limit, burst: burst, byKey: newMemory[K, *rate.Limiter]()}
}

// Allow reports whether one more may happen for a key now, and counts it.
func (p *PerKey[K]) Allow(key K) bool { return p.AllowN(key, 1) }

// AllowN reports whether n more may happen for a key now, and counts them.
func (p *PerKey[K]) AllowN(key K, n int) bool {
	return known(p.byKey, key, func() *rate.Limiter { return rate.NewLimiter(p.limit, p.burst) }).AllowN(time.Now(), n)
}

func newMemory[K comparable, V any]() *lru.Cache[K, V] {
	memory, err := lru.New[K, V](MaxClients)
	if err != nil {
		panic("the size of the memory of clients is a constant: " + err.Error())
	}
	return memory
}

// known returns what is kept for a key, made if needed. A concurrent request may have added it first.
func known[K comparable, V any](memory *lru.Cache[K, V], key K, fresh func() V) V {
	if kept, found := memory.Get(key); found {
		return kept
	}
	made := fresh()
	if kept, found, _ := memory.PeekOrAdd(key, made); found {
		return kept
	}
	return made
}

// Client is whom requests count for: the sandbox or the user of a good credential, else an address.
type Client struct{ Sandbox, User, Address string }

// rateDelay is how long a request above the soft limit waits.
const rateDelay = time.Second

// Rates are the rate limiters of clients; nil Rates have no limit.
type Rates struct {
	perSecond float64
	clients   *lru.Cache[Client, *clientRate]
}

// clientRate holds the two limiters of one client.
type clientRate struct {
	soft, hard *rate.Limiter
}

// NewRates makes the memory of a limit of requests a second; nil for 0, which is no limit.
func NewRates(perSecond float64) *Rates {
	if perSecond == 0 {
		return nil
	}
	return &Rates{perSecond: perSecond, clients: newMemory[Client, *clientRate]()}
}

// Count counts a request of a client. It waits above the rate and refuses above twice that.
func (r *Rates) Count(ctx context.Context, of Client) error {
	if r == nil {
		return nil
	}
	limiters := r.of(of)
	if !limiters.hard.Allow() {
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

// Note counts a request that was served.
func (r *Rates) Note(of Client) {
	if r != nil {
		limiters := r.of(of)
		limiters.hard.Allow()
		limiters.soft.Allow()
	}
}

// of returns the limiters of a client, creating them if needed.
func (r *Rates) of(client Client) *clientRate {
	return known(r.clients, client, func() *clientRate {
		burst := max(1, int(r.perSecond))
		return &clientRate{
			soft: rate.NewLimiter(rate.Limit(r.perSecond), burst),
			hard: rate.NewLimiter(rate.Limit(2*r.perSecond), 2*burst),
		}
	})
}
