package httpapi

import (
	"net/netip"
	"time"

	"bivouac.dev/bivouac/httpapi/limits"
)

// Reloadable are the settings of a Config that Server.Reload replaces. Config explains each.
type Reloadable struct {
	MaxBodyBytes int64
	// MaxUpload is Operator.Snapshots.MaxUpload.
	MaxUpload                                int64
	RatePerSecond                            float64
	MaxConnections, MaxConnectionsPerAddress int
	TrustedProxies                           []netip.Prefix
	DrainTimeout                             time.Duration
}

// Reloadable returns those settings of c.
func (c Config) Reloadable() Reloadable {
	return Reloadable{
		MaxBodyBytes: c.MaxBodyBytes, MaxUpload: c.Operator.Snapshots.MaxUpload, RatePerSecond: c.RatePerSecond,
		MaxConnections: c.MaxConnections, MaxConnectionsPerAddress: c.MaxConnectionsPerAddress,
		TrustedProxies: c.TrustedProxies, DrainTimeout: c.DrainTimeout,
	}
}

// with returns c with those settings.
func (c Config) with(r Reloadable) Config {
	c.MaxBodyBytes, c.Operator.Snapshots.MaxUpload, c.RatePerSecond = r.MaxBodyBytes, r.MaxUpload, r.RatePerSecond
	c.MaxConnections, c.MaxConnectionsPerAddress = r.MaxConnections, r.MaxConnectionsPerAddress
	c.TrustedProxies, c.DrainTimeout = r.TrustedProxies, r.DrainTimeout
	return c
}

// live is what requests are served with.
type live struct {
	Reloadable
	// rates are the rate limiters of clients; nil without a limit.
	rates *limits.Rates
}

// Reload replaces the settings for requests and connections that come from now on; open connections
// stay. An invalid setting changes nothing. It is safe for concurrent use.
func (s *Server) Reload(r Reloadable) error {
	cfg := s.cfg.with(r)
	if err := cfg.Validate(); err != nil {
		return err
	}
	s.reloading.Lock()
	defer s.reloading.Unlock()
	next := &live{Reloadable: r, rates: limits.NewRates(r.RatePerSecond)}
	if now := s.live.Load(); now.RatePerSecond == r.RatePerSecond {
		next.rates = now.rates // what clients have sent counts on
	}
	s.live.Store(next)
	if s.conns != nil {
		s.conns.SetLimits(cfg.places())
	}
	return nil
}

// keep notes the connections of Run, which Reload bounds anew.
func (s *Server) keep(conns *limits.Connections) {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	s.conns = conns
	conns.SetLimits(s.cfg.with(s.live.Load().Reloadable).places())
}
