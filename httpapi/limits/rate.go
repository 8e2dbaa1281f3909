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
	clients, err := lru.New[Client, *clientRate](MaxClients)
	if err != nil {
		panic("the size of the rate limit's memory is a constant: " + err.Error())
	}
	return &Rates{perSecond: perSecond, clients: clients}
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
	if known, found := r.clients.Get(client); found {
		return known
	}
	burst := max(1, int(r.perSecond))
	fresh := &clientRate{
		soft: rate.NewLimiter(rate.Limit(r.perSecond), burst),
		hard: rate.NewLimiter(rate.Limit(2*r.perSecond), 2*burst),
	}
	// A concurrent request of the same client may have added them first.
	if known, found, _ := r.clients.PeekOrAdd(client, fresh); found {
		return known
	}
	return fresh
}
