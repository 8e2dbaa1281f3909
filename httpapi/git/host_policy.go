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

	"bivouac.dev/bivouac/httpapi/publicaddr"
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
	guarded := &net.Dialer{Timeout: timeout,
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
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
	if !publicaddr.Is(ap.Addr()) {
		return errHostPolicy
	}
	return nil
}
