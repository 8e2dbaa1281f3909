package llm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/publicaddr"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// errHost is the error of a connection that the operator does not allow.
var errHost = errors.New("the operator's list of hosts (llm { hosts }) does not allow this address")

// hosts is what the gateway may connect to.
type hosts struct {
	names    []string
	prefixes []netip.Prefix
	ports    []netip.AddrPort
}

// CheckHost returns an error if s can't be a member of llm { hosts }. It is stricter than the state,
// which knows no addresses.
func CheckHost(s string) error {
	if err := fsm.CheckModelHost(s); err != nil {
		return err
	}
	if _, err := netip.ParsePrefix(s); strings.Contains(s, "/") {
		if err != nil {
			return fmt.Errorf("%q is no prefix such as \"10.1.2.0/24\"", s)
		}
		return nil
	}
	// Resolvers take a name whose last label is a number for an address, in forms that netip refuses.
	last := s[strings.LastIndexByte(s, '.')+1:]
	_, number := strconv.ParseUint(strings.ToLower(last), 0, 64)
	_, digits := strconv.ParseUint(last, 10, 64)
	if number == nil || digits == nil || strings.HasPrefix(s, "[") || strings.Count(s, ":") > 1 ||
		strings.Contains(last, ":") && strings.Trim(s, "0123456789.:") == "" {
		bare := s
		if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
			bare = s[1 : len(s)-1]
		}
		_, addr := netip.ParseAddr(bare)
		_, port := netip.ParseAddrPort(s)
		if addr != nil && port != nil {
			return fmt.Errorf("%q is no address such as \"10.1.2.3\", \"10.1.2.3:8000\" or \"fd00::1\"", s)
		}
	}
	return nil
}

func newHosts(list []string) hosts {
	var h hosts
	if len(list) == 0 {
		list = []string{fsm.HostsVendors}
	}
	for _, one := range list {
		prefix, err := netip.ParsePrefix(one)
		addr, notAddr := netip.ParseAddr(strings.Trim(one, "[]"))
		port, notPort := netip.ParseAddrPort(one)
		switch {
		case err == nil:
			h.prefixes = append(h.prefixes, prefix.Masked())
		case notAddr == nil:
			h.prefixes = append(h.prefixes, netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen()))
		case notPort == nil:
			h.ports = append(h.ports, netip.AddrPortFrom(port.Addr().Unmap(), port.Port()))
		case one == fsm.HostLocal:
			h.prefixes = append(h.prefixes, netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"))
		case one == fsm.HostsVendors:
			h.names = append(h.names, vendorHosts()...)
		default:
			h.names = append(h.names, strings.ToLower(one))
		}
	}
	return h
}

func vendorHosts() (list []string) {
	for _, v := range preset.Vendors() {
		for _, api := range []wire{wireOpenAI, wireAnthropic, wireGemini} {
			if u, err := url.Parse(api.baseOf(v)); err == nil && u.Host != "" {
				list = append(list, u.Host)
			}
		}
	}
	return list
}

// named reports whether the list has a name. address is "host:port".
func (h hosts) named(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	host, address = strings.ToLower(strings.TrimSuffix(host, ".")), strings.ToLower(address)
	return slices.ContainsFunc(h.names, func(name string) bool {
		domain, star := strings.CutPrefix(name, "*.")
		return name == host || name == address || star && strings.HasSuffix(host, "."+domain)
	})
}

// listed reports whether the list has an address itself.
func (h hosts) listed(to netip.AddrPort) bool {
	addr := to.Addr().Unmap()
	return slices.Contains(h.ports, netip.AddrPortFrom(addr, to.Port())) ||
		slices.ContainsFunc(h.prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// check judges the address that a connection is about to be made to. A listed name may lead to
// public addresses only; others are listed themselves.
func (h hosts) check(named, tls bool, address string) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %q is no address", errHost, address)
	}
	switch {
	case h.listed(ap):
		return nil
	case !named || !publicaddr.Is(ap.Addr()):
		return errHost
	case !tls:
		return fmt.Errorf("%w without TLS: the key would be readable on the way", errHost)
	}
	return nil
}

// dialer connects to allowed addresses only. Each connection is judged as it is made, so a name that
// changes its address gains nothing.
func (h hosts) dialer(
	timeout time.Duration,
	tls bool,
) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		named := h.named(address)
		d := &net.Dialer{Timeout: timeout, KeepAlive: 15 * time.Second,
			ControlContext: func(_ context.Context, _, to string, _ syscall.RawConn) error {
				return h.check(named, tls, to)
			}}
		return d.DialContext(ctx, network, address)
	}
}

// transports are the connections to endpoints under one policy. http and https have one each,
// because a dial does not know the scheme, and so has each server with certificates of its own.
type transports struct {
	policy     fsm.LLM
	plain, tls *http.Transport
	own        map[string]*http.Transport // by the server's name in the policy
}

func newTransports(cfg Config, policy fsm.LLM) transports {
	h := newHosts(policy.Hosts)
	made := func(tls bool) *http.Transport {
		return &http.Transport{
			DialContext:            h.dialer(cfg.DialTimeout, tls),
			TLSHandshakeTimeout:    cfg.DialTimeout,
			ResponseHeaderTimeout:  cfg.HeaderTimeout,
			MaxResponseHeaderBytes: 256 << 10,
			MaxIdleConns:           256,
			MaxIdleConnsPerHost:    64,
			IdleConnTimeout:        90 * time.Second,
			ForceAttemptHTTP2:      true,
			DisableCompression:     true,
		}
	}
	t := transports{policy: policy, plain: made(false), tls: made(true), own: map[string]*http.Transport{}}
	for _, s := range policy.Servers {
		if s.CA != "" {
			t.own[s.Host] = trusting(made(true), s.CA)
		}
	}
	return t
}

// RoundTrip implements http.RoundTripper. It follows no redirect and uses no forward proxy.
func (t transports) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme == "https" {
		if s := serverAt(t.policy, r.URL); s != nil && t.own[s.Host] != nil {
			return t.own[s.Host].RoundTrip(r)
		}
		return t.tls.RoundTrip(r)
	}
	return t.plain.RoundTrip(r)
}

// close ends the connections that are not in use.
func (t transports) close() {
	t.plain.CloseIdleConnections()
	t.tls.CloseIdleConnections()
	for _, own := range t.own {
		own.CloseIdleConnections()
	}
}
