package httpapi

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// SandboxURLDoor is the Config.SandboxURL with which clients reach sandboxes
// through the door of the nodes.
const SandboxURLDoor = "door"

// DoorConfig is how a node proxies requests to sandboxes.
type DoorConfig struct {
	// PublicURL ("https://bivouac.example.org") is how clients reach the API.
	// Without it, links are built from the request's own Host.
	PublicURL string
	// Domain, when set, gives every port of every sandbox a host of its own,
	// "<name>-<id>.<Domain>", which a wildcard DNS entry leads to the nodes. What
	// runs in a sandbox then has an origin of its own, apart from the API's and
	// from every other sandbox's. Recommended wherever browsers are used.
	Domain string
	// Wake lets a message, a run or ?wake=true resume a paused sandbox.
	Wake bool
	// StartWait bounds how long a request waits for a sandbox that starts.
	StartWait time.Duration
	// DialTimeout bounds connecting to a sandbox, HeaderTimeout waiting for the
	// header of its answer (a command that runs may take minutes to answer).
	DialTimeout, HeaderTimeout time.Duration
	// AuthTimeout bounds waiting for the first frame of a WebSocket that brings
	// its key there.
	AuthTimeout time.Duration
	// CookieAge is how long a browser stays authorised without another request.
	CookieAge time.Duration
	// Activity hears of traffic; nil for nobody.
	Activity Activity
}

// defaultDoor gives the values the documentation promises.
func defaultDoor() DoorConfig {
	return DoorConfig{
		Wake: true, StartWait: 30 * time.Second, DialTimeout: 5 * time.Second, HeaderTimeout: 10 * time.Minute,
		AuthTimeout: 10 * time.Second, CookieAge: time.Hour,
	}
}

// validate names the first field that can't be right.
func (c DoorConfig) validate() error {
	for name, d := range map[string]time.Duration{"StartWait": c.StartWait, "DialTimeout": c.DialTimeout,
		"HeaderTimeout": c.HeaderTimeout, "AuthTimeout": c.AuthTimeout, "CookieAge": c.CookieAge} {
		if d <= 0 {
			return fmt.Errorf("Door.%s must be positive, is %s", name, d)
		}
	}
	host, err := c.publicHost()
	if err != nil {
		return fmt.Errorf("Door.PublicURL: %w", err)
	}
	if c.Domain == "" {
		return nil
	}
	u, err := url.Parse("http://" + c.Domain)
	if err != nil || u.Host != c.Domain || u.Port() != "" || strings.ToLower(c.Domain) != c.Domain || strings.Trim(c.Domain, ".") != c.Domain {
		return fmt.Errorf("Door.Domain must be a lower-case host name, is %q", c.Domain)
	}
	if strings.HasSuffix(host, "."+c.Domain) {
		return fmt.Errorf("Door.PublicURL must not be below Door.Domain (%s): every name there is a sandbox's", c.Domain)
	}
	return nil
}

// publicHost checks PublicURL and gives its host name.
func (c DoorConfig) publicHost() (string, error) {
	if c.PublicURL == "" {
		return "", nil
	}
	u, err := url.Parse(c.PublicURL)
	if err != nil {
		return "", errors.New("must be a URL")
	}
	bare := url.URL{Scheme: u.Scheme, Host: u.Host}
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || bare.String() != strings.TrimRight(c.PublicURL, "/") {
		return "", fmt.Errorf("must be a URL such as %q, without a path", "https://bivouac.example.org")
	}
	return strings.ToLower(u.Hostname()), nil
}
