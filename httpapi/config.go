package httpapi

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/git"
	"bivouac.dev/bivouac/httpapi/limits"
	"bivouac.dev/bivouac/httpapi/llm"
	"bivouac.dev/bivouac/httpapi/operators"
	"bivouac.dev/bivouac/httpapi/page"
	"bivouac.dev/bivouac/httpapi/places"
	"bivouac.dev/bivouac/httpapi/proxy"
)

// Config configures the API server of one node. Start from DefaultConfig.
type Config struct {
	// MaxBodyBytes limits a request's body; a longer one gets 413.
	MaxBodyBytes int64
	// MaxHeaderBytes limits a request's header; net/http adds 4 KiB of slack and responds 431. With
	// Proxy.Domain the limit is 1 MiB at least: a page may set cookies for other hosts.
	MaxHeaderBytes int
	// RequestTimeout limits one request's work, including the wait for a leader.
	RequestTimeout time.Duration
	// ReadHeaderTimeout, ReadTimeout, WriteTimeout and IdleTimeout are
	// http.Server's. WriteTimeout must leave room for RequestTimeout.
	ReadHeaderTimeout time.Duration
	ReadTimeout       time.Duration
	WriteTimeout      time.Duration
	IdleTimeout       time.Duration
	// MaxConnections limits the open connections, WebSockets included. Above it the oldest that has
	// no request in progress is closed for a new one. If all have one, the new one gets 503 for
	// everything but health and metrics. The process's limit of file descriptors may lower it.
	MaxConnections int
	// MaxConnectionsPerAddress is the same for one client address (with IPv6, a /64 network), except
	// for TrustedProxies. Zero means no such limit.
	MaxConnectionsPerAddress int
	// OwnMetrics takes /metrics off Run's listeners: RunMetrics serves it.
	OwnMetrics bool
	// DrainTimeout limits how long Run waits for requests in progress and upgraded connections after
	// its context has ended.
	DrainTimeout time.Duration

	// RatePerSecond is how many requests per second one user or sandbox may send, or one client address
	// without a good key. Requests above it
	// are delayed by a second; above twice that they get 429. Zero means no limit.
	RatePerSecond float64
	// TrustedProxies are the proxies whose X-Forwarded-* headers are believed.
	TrustedProxies []netip.Prefix
	// Hosts are the names, beside those of the loopback, that the Host of a request may have; nil is any.
	// They keep out a page whose name leads to this machine.
	Hosts []string
	// CORSOrigins are the web origins that may call the API with credentials. Empty means any port
	// of localhost and 127.0.0.1. They, and the hosts and the check of Git, count until the cluster
	// has a configuration of its own.
	CORSOrigins []string

	// Git configures the checks with git providers.
	Git git.Config

	// AgentTimeout limits how long a listing waits for the agent servers.
	AgentTimeout time.Duration
	// SandboxURL is how clients reach a sandbox's port: SandboxURLProxy, or a direct URL in which
	// {address}, {port}, {sandbox} and {name} (the port's name in lower case, with dashes) are
	// replaced.
	SandboxURL string
	// APIURLs are the nodes as sandboxes reach them; none where sandboxes get their users' model keys.
	APIURLs []string
	// Proxy configures the sandbox proxy. It runs whatever SandboxURL says.
	Proxy proxy.Config

	// LLM configures the model gateway.
	LLM llm.Config

	// Page is the web page, at what no route has; nil for none.
	Page *page.Page

	// Logs reads the logs of sandboxes; nil if this installation can't.
	Logs Logs

	// Events keeps events of conversations.
	Events Events

	// Operator configures the routes of operators.
	Operator operators.Config

	// Expired names the node's certificates that have expired, for /ready; nil for none.
	Expired func(now time.Time) []string

	// TLS serves HTTPS when not nil.
	TLS *tls.Config
	// Logger receives the access log and the server's own messages.
	Logger *slog.Logger
	// Registerer receives the API's metrics; /metrics shows what Gatherer collects.
	Registerer prometheus.Registerer
	Gatherer   prometheus.Gatherer
}

// DefaultConfig returns the documented defaults, without a logger and a metrics registry.
func DefaultConfig() Config {
	return Config{
		MaxBodyBytes:      6 << 20,
		MaxHeaderBytes:    64 << 10,
		RequestTimeout:    30 * time.Second,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       60 * time.Second,
		WriteTimeout:      90 * time.Second,
		IdleTimeout:       120 * time.Second,
		MaxConnections:    16384,
		DrainTimeout:      30 * time.Second,
		Git:               git.DefaultConfig(),
		AgentTimeout:      2 * time.Second,
		SandboxURL:        SandboxURLProxy,
		Proxy:             proxy.DefaultConfig(),
		LLM:               llm.DefaultConfig(),
		Operator:          operators.Config{Snapshots: operators.DefaultSnapshots()},

		MaxConnectionsPerAddress: 512,
	}
}

// siteCookies is what a browser keeps of cookies for one site: 180 of 4 KiB, and some room.
const siteCookies = 1 << 20

// headerBytes returns the limit of a request's header. Where sandboxes have hosts, one sandbox's
// page can set cookies for the hosts of others. They must arrive to be dropped.
func (c Config) headerBytes() int {
	if c.Proxy.Domain == "" || c.Proxy.Domain == proxy.DomainLocal {
		return c.MaxHeaderBytes
	}
	return max(c.MaxHeaderBytes, siteCookies)
}

// places are the configured limits of connections.
func (c Config) places() places.Limits {
	return places.Limits{Total: c.MaxConnections, Each: c.MaxConnectionsPerAddress}
}

// Validate returns an error for the first invalid field.
func (c Config) Validate() error {
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"RequestTimeout", c.RequestTimeout}, {"ReadHeaderTimeout", c.ReadHeaderTimeout}, {"ReadTimeout", c.ReadTimeout},
		{"WriteTimeout", c.WriteTimeout}, {"IdleTimeout", c.IdleTimeout}, {"DrainTimeout", c.DrainTimeout},
		{"AgentTimeout", c.AgentTimeout},
	} {
		if d.value <= 0 {
			return fmt.Errorf("%s must be positive, is %s", d.name, d.value)
		}
	}
	switch {
	case c.MaxBodyBytes < 1<<10 || c.MaxBodyBytes > decode.MaxAnyText:
		return fmt.Errorf("MaxBodyBytes must be between 1 KiB and %d MiB, is %d bytes", decode.MaxAnyText>>20, c.MaxBodyBytes)
	case c.MaxHeaderBytes < 1<<10:
		return fmt.Errorf("MaxHeaderBytes must be at least 1 KiB, is %d bytes", c.MaxHeaderBytes)
	case c.WriteTimeout <= c.RequestTimeout:
		return fmt.Errorf("WriteTimeout (%s) must be longer than RequestTimeout (%s)", c.WriteTimeout, c.RequestTimeout)
	case c.MaxConnections < 1:
		return fmt.Errorf("MaxConnections must be at least 1, is %d", c.MaxConnections)
	case c.MaxConnectionsPerAddress < 0:
		return fmt.Errorf("MaxConnectionsPerAddress must not be negative, is %d", c.MaxConnectionsPerAddress)
	case c.RatePerSecond < 0:
		return fmt.Errorf("RatePerSecond must not be negative, is %g", c.RatePerSecond)
	case c.SandboxURL != SandboxURLProxy && !strings.Contains(c.SandboxURL, "://"):
		return fmt.Errorf("SandboxURL must be %q or a URL, is %q", SandboxURLProxy, c.SandboxURL)
	case c.Logger == nil:
		return errors.New("Logger is missing")
	case c.Registerer == nil || c.Gatherer == nil:
		return errors.New("Registerer and Gatherer are needed")
	}
	return errors.Join(c.Git.Validate(), c.Proxy.Validate(), c.LLM.Validate(), c.Operator.Snapshots.Validate())
}

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
