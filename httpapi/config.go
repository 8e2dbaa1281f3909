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

	"bivouac.dev/bivouac/fsm"
)

// Config is how one node serves the API. Start from DefaultConfig.
type Config struct {
	// MaxBodyBytes bounds a request's body; a longer one is answered 413.
	MaxBodyBytes int64
	// MaxHeaderBytes bounds a request's header; net/http adds 4 KiB of slack
	// and answers 431.
	MaxHeaderBytes int
	// RequestTimeout bounds one request's work, waiting for a leader included.
	RequestTimeout time.Duration
	// ReadHeaderTimeout, ReadTimeout, WriteTimeout and IdleTimeout are
	// http.Server's. WriteTimeout must leave room for RequestTimeout.
	ReadHeaderTimeout time.Duration
	ReadTimeout       time.Duration
	WriteTimeout      time.Duration
	IdleTimeout       time.Duration
	// MaxConnections bounds the connections open at a time, WebSockets included;
	// further ones are answered 503 and closed. It is lowered to what the limit of
	// file descriptors allows.
	MaxConnections int
	// DrainTimeout bounds how long Run waits for requests in progress once its
	// context has ended.
	DrainTimeout time.Duration

	// RatePerSecond is how many requests per second one client address may make
	// before each is delayed by a second; above twice that it gets 429. Zero
	// means no limit.
	RatePerSecond float64
	// TrustedProxies may name the client's address in X-Forwarded-For.
	TrustedProxies []netip.Prefix
	// CORSOrigins are the web origins that may call the API with credentials.
	// None means any port of localhost and 127.0.0.1.
	CORSOrigins []string

	// VerifyGitTokens asks each git provider whether a token is good before it
	// is stored.
	VerifyGitTokens bool
	// GitSchemes are the URL schemes a provider host may be asked with.
	GitSchemes []string
	// AllowedGitHosts are provider hosts ("git.example.org" or "host:port") that
	// may be asked although their address is private, loopback or link-local.
	AllowedGitHosts []string
	// GitTimeout bounds one question to a git provider.
	GitTimeout time.Duration

	// AgentTimeout bounds how long a listing waits for the agent servers.
	AgentTimeout time.Duration
	// SandboxURL is how clients reach a sandbox's port: SandboxURLDoor, or the
	// pattern of a direct URL in which the texts {address}, {port}, {sandbox} and
	// {name} (the port's name, lower case, with dashes) are replaced.
	SandboxURL string
	// Door is how this node proxies to sandboxes. It does so whatever SandboxURL
	// says.
	Door DoorConfig

	// Logs reads what sandboxes wrote; nil when nothing can.
	Logs Logs

	// OrphanRetention is how long an orphaned workspace stays; it is shown.
	OrphanRetention time.Duration
	// Differs names what this node's configuration has otherwise than the
	// cluster; nil for nothing.
	Differs func(*fsm.View) []string

	// Membership is what the operators' routes about members ask; nil for none.
	Membership Membership
	// Snapshots is how GET /api/v1/operator/snapshot gives out the state.
	Snapshots SnapshotConfig

	// Backups tells of the backups; nil when this node makes none.
	Backups Backups

	// TLS serves HTTPS when not nil.
	TLS *tls.Config
	// Logger gets one line per request.
	Logger *slog.Logger
	// Registerer takes the API's metrics, and /metrics shows what Gatherer has.
	Registerer prometheus.Registerer
	Gatherer   prometheus.Gatherer
}

// DefaultConfig gives the values the documentation promises, without a logger
// and a metrics registry.
func DefaultConfig() Config {
	return Config{
		MaxBodyBytes:      4 << 20,
		MaxHeaderBytes:    64 << 10,
		RequestTimeout:    30 * time.Second,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       60 * time.Second,
		WriteTimeout:      90 * time.Second,
		IdleTimeout:       120 * time.Second,
		MaxConnections:    16384,
		DrainTimeout:      15 * time.Second,
		VerifyGitTokens:   true,
		GitSchemes:        []string{"https"},
		GitTimeout:        10 * time.Second,
		AgentTimeout:      2 * time.Second,
		SandboxURL:        SandboxURLDoor,
		Door:              defaultDoor(),
		Snapshots:         defaultSnapshots(),
	}
}

// Validate names the first field that can't be right.
func (c Config) Validate() error {
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"RequestTimeout", c.RequestTimeout}, {"ReadHeaderTimeout", c.ReadHeaderTimeout}, {"ReadTimeout", c.ReadTimeout},
		{"WriteTimeout", c.WriteTimeout}, {"IdleTimeout", c.IdleTimeout}, {"DrainTimeout", c.DrainTimeout},
		{"GitTimeout", c.GitTimeout}, {"AgentTimeout", c.AgentTimeout},
	} {
		if d.value <= 0 {
			return fmt.Errorf("%s must be positive, is %s", d.name, d.value)
		}
	}
	switch {
	case c.MaxBodyBytes < 1<<10 || c.MaxBodyBytes > maxAnyText:
		return fmt.Errorf("MaxBodyBytes must be between 1 KiB and %d MiB, is %d bytes", maxAnyText>>20, c.MaxBodyBytes)
	case c.MaxHeaderBytes < 1<<10:
		return fmt.Errorf("MaxHeaderBytes must be at least 1 KiB, is %d bytes", c.MaxHeaderBytes)
	case c.WriteTimeout <= c.RequestTimeout:
		return fmt.Errorf("WriteTimeout (%s) must be longer than RequestTimeout (%s)", c.WriteTimeout, c.RequestTimeout)
	case c.MaxConnections < 1:
		return fmt.Errorf("MaxConnections must be at least 1, is %d", c.MaxConnections)
	case c.RatePerSecond < 0:
		return fmt.Errorf("RatePerSecond must not be negative, is %g", c.RatePerSecond)
	case c.SandboxURL != SandboxURLDoor && !strings.Contains(c.SandboxURL, "://"):
		return fmt.Errorf("SandboxURL must be %q or a URL, is %q", SandboxURLDoor, c.SandboxURL)
	case c.Logger == nil:
		return errors.New("Logger is missing")
	case c.Registerer == nil || c.Gatherer == nil:
		return errors.New("Registerer and Gatherer are needed")
	}
	for _, s := range c.GitSchemes {
		if s != "https" && s != "http" {
			return fmt.Errorf("GitSchemes may hold https and http, not %q", s)
		}
	}
	return errors.Join(c.Door.validate(), c.Snapshots.validate())
}
