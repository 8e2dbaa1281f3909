package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"
)

// errHostPolicy is why a connection to a host was not made.
var errHostPolicy = errors.New("the host policy does not allow this address")

// parseGitHost reads the host member of a provider: a host, host:port, either
// with a path behind it, or a URL. The answer's scheme is empty when none was
// given.
func parseGitHost(host string) (*url.URL, error) {
	text := host
	if !strings.Contains(text, "://") {
		text = "//" + text
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Hostname() == "" || strings.ContainsAny(host, " \t\r\n\\"):
		return nil, errors.New("host must be a host name or a URL")
	case u.Scheme != "" && u.Scheme != "https" && u.Scheme != "http":
		return nil, errors.New("host must be an http or https URL")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("host must not hold credentials, a query or a fragment")
	}
	return u, nil
}

// newPolicyTransport makes connections to public addresses only, except to the
// hosts named. The address is looked at when it is dialled, so a name that
// resolves differently the second time gains nothing. Proxies of the environment
// are not used: they would dial for us.
func newPolicyTransport(allowed []string, timeout time.Duration) *http.Transport {
	free := &net.Dialer{Timeout: timeout}
	guarded := &net.Dialer{Timeout: timeout, ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
		return checkAddress(address)
	}}
	return &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if isAllowedHost(allowed, address) {
				return free.DialContext(ctx, network, address)
			}
			return guarded.DialContext(ctx, network, address)
		},
		TLSHandshakeTimeout:    timeout,
		ResponseHeaderTimeout:  timeout,
		MaxResponseHeaderBytes: 64 << 10,
		DisableKeepAlives:      true,
		ForceAttemptHTTP2:      true,
	}
}

// isAllowedHost reports whether host:port is named by "host" or by "host:port".
func isAllowedHost(allowed []string, address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(allowed, func(a string) bool {
		return strings.EqualFold(a, address) || strings.EqualFold(a, host)
	})
}

// checkAddress refuses addresses that are not on the public internet.
func checkAddress(address string) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %s", errHostPolicy, "not an address")
	}
	addr := ap.Addr().Unmap()
	closed := !addr.IsGlobalUnicast() || addr.IsPrivate() || addr.IsLoopback() || addr.IsLinkLocalUnicast()
	if closed || slices.ContainsFunc(reservedPrefixes(), func(p netip.Prefix) bool { return p.Contains(addr) }) {
		return errHostPolicy
	}
	return nil
}

// reservedPrefixes are the ranges that netip does not count as private although
// they lead, or may lead, inside.
func reservedPrefixes() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("0.0.0.0/8"),
		netip.MustParsePrefix("100.64.0.0/10"), // carrier-grade NAT
		netip.MustParsePrefix("192.0.0.0/24"),
		netip.MustParsePrefix("198.18.0.0/15"), // benchmarks
		netip.MustParsePrefix("240.0.0.0/4"),
		netip.MustParsePrefix("64:ff9b::/96"), // NAT64 of any IPv4 address
		netip.MustParsePrefix("64:ff9b:1::/48"),
		netip.MustParsePrefix("2002::/16"), // 6to4 of any IPv4 address
		netip.MustParsePrefix("2001::/32"), // Teredo
		netip.MustParsePrefix("fec0::/10"),
	}
}
