package proxy

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// Config configures the sandbox proxy of one node.
type Config struct {
	// PublicURL ("https://bivouac.example.org") is the API's URL for clients. Without it, links use
	// the request's own Host.
	PublicURL string
	// Domain, if set, gives every port of every sandbox its own host, "<name>-<id>.<Domain>". A
	// wildcard DNS entry must point to the nodes. Each port then has its own origin, separate from
	// the API's and other sandboxes'. Set it wherever browsers open sandboxes. Browsers resolve
	// DomainLocal by themselves and programs do not, so that there the agent server's URL is a path.
	Domain string
	// Wake lets a message, a run or ?wake=true resume a paused sandbox.
	Wake bool
	// StartWait limits how long a request waits for a starting sandbox.
	StartWait time.Duration
	// DialTimeout limits connecting to a sandbox. HeaderTimeout limits the wait for the response's
	// header; a command may run for minutes before it.
	DialTimeout, HeaderTimeout time.Duration
	// AuthTimeout limits the wait for the first frame of a WebSocket that sends its key there.
	AuthTimeout time.Duration
	// CookieAge is how long a cookie is valid.
	CookieAge time.Duration
	// Activity receives the sandboxes' traffic; nil disables it.
	Activity Activity
	// MaxSessions limits the open requests and streams of one sandbox on one node, so that one user
	// can't exhaust the node's sockets.
	MaxSessions int
	// MaxUnauthenticated limits the WebSockets on one node that have not sent a key yet or are
	// being refused, MaxUnauthenticatedPerAddress those of one client address. The oldest gives way
	// to a new one.
	MaxUnauthenticated, MaxUnauthenticatedPerAddress int
	// MaxFollowers limits the clients that follow one sandbox's logs on one node.
	MaxFollowers int
	// MaxStale is how long open streams go on on a node that has no leader: it can't learn who was
	// locked out.
	MaxStale time.Duration
	// Transport replaces the built-in transport in tests.
	Transport http.RoundTripper
}

// DomainLocal is the domain whose names lead browsers to their own machine.
const DomainLocal = "localhost"

// DefaultConfig returns the documented defaults.
func DefaultConfig() Config {
	return Config{
		Wake: true, StartWait: 30 * time.Second, DialTimeout: 5 * time.Second, HeaderTimeout: 10 * time.Minute,
		AuthTimeout: 10 * time.Second, CookieAge: time.Hour,
		MaxSessions: 1024, MaxUnauthenticated: 1024, MaxUnauthenticatedPerAddress: 64, MaxFollowers: 32,
		MaxStale: 5 * time.Minute,
	}
}

// Validate returns an error for an invalid field.
func (c Config) Validate() error {
	for name, n := range map[string]int{"MaxSessions": c.MaxSessions, "MaxUnauthenticated": c.MaxUnauthenticated,
		"MaxUnauthenticatedPerAddress": c.MaxUnauthenticatedPerAddress, "MaxFollowers": c.MaxFollowers} {
		if n < 1 {
			return fmt.Errorf("Proxy.%s must be positive, is %d", name, n)
		}
	}
	for name, d := range map[string]time.Duration{"StartWait": c.StartWait, "DialTimeout": c.DialTimeout,
		"HeaderTimeout": c.HeaderTimeout, "AuthTimeout": c.AuthTimeout, "CookieAge": c.CookieAge, "MaxStale": c.MaxStale} {
		if d <= 0 {
			return fmt.Errorf("Proxy.%s must be positive, is %s", name, d)
		}
	}
	host, err := c.publicHost()
	if err != nil {
		return fmt.Errorf("Proxy.PublicURL: %w", err)
	}
	if c.Domain == "" {
		return nil
	}
	u, err := url.Parse("http://" + c.Domain)
	if err != nil || u.Host != c.Domain || u.Port() != "" || strings.ToLower(c.Domain) != c.Domain ||
		strings.Trim(c.Domain, ".") != c.Domain {
		return fmt.Errorf("Proxy.Domain must be a lower-case host name, is %q", c.Domain)
	}
	if strings.HasSuffix(host, "."+c.Domain) {
		return fmt.Errorf("Proxy.PublicURL must not be below Proxy.Domain (%s): every name there is a sandbox's", c.Domain)
	}
	return nil
}

// publicHost validates PublicURL and returns its host name.
func (c Config) publicHost() (string, error) {
	if c.PublicURL == "" {
		return "", nil
	}
	u, err := url.Parse(c.PublicURL)
	if err != nil {
		return "", errors.New("must be a URL")
	}
	bare := url.URL{Scheme: u.Scheme, Host: u.Host}
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" ||
		bare.String() != strings.TrimRight(c.PublicURL, "/") {
		return "", fmt.Errorf("must be a URL such as %q, without a path", "https://bivouac.example.org")
	}
	return strings.ToLower(u.Hostname()), nil
}

// Base returns the API's scheme and host for clients: PublicURL's, or those that the client used.
func (c Config) Base(seen url.URL) url.URL {
	if c.PublicURL != "" {
		if u, err := url.Parse(c.PublicURL); err == nil {
			return url.URL{Scheme: u.Scheme, Host: u.Host}
		}
	}
	return seen
}

// URL returns the client's URL of a sandbox's port, without a trailing slash.
func (c Config) URL(base url.URL, id, name string) string {
	if c.Domain != "" && (c.Domain != DomainLocal || name != fsm.PortAgentServer) {
		host := HostName(name) + "-" + strings.ToLower(id) + "." + c.Domain
		if port := base.Port(); port != "" {
			host = net.JoinHostPort(host, port)
		}
		return (&url.URL{Scheme: base.Scheme, Host: host}).String()
	}
	return base.String() + Path + id + "/" + name
}

// Hosts is the pattern of the sandboxes' own hosts as a Content-Security-Policy has it, with their
// scheme; zero where they have none.
func (c Config) Hosts(base url.URL) url.URL {
	if c.Domain == "" {
		return url.URL{}
	}
	host := "*." + c.Domain
	if port := base.Port(); port != "" {
		host = net.JoinHostPort(host, port)
	}
	return url.URL{Scheme: base.Scheme, Host: host}
}

// HostName returns a port's name in the form used in host names.
func HostName(name string) string {
	return strings.ReplaceAll(strings.ToLower(name), "_", "-")
}
