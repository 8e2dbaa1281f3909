package git

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

// errHostPolicy means that the host policy forbids a connection.
var errHostPolicy = errors.New("the host policy does not allow this address")

// parseHost parses the host member of a provider: a host or host:port, with or without a path,
// or a URL. The result's scheme is empty if none was given.
func parseHost(host string) (*url.URL, error) {
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

// newPolicyTransport connects to public addresses only, except for the allowed hosts. It checks the
// address on connect, so DNS rebinding does not help. It ignores the environment's proxies, because
// they would connect in its place.
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

// isAllowedHost reports whether the list has the address as "host" or "host:port".
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

// reservedPrefixes are ranges that netip does not count as private and that can reach internal
// networks.
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
