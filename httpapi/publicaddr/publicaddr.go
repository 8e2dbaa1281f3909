// Package publicaddr tells addresses of the public internet from those that reach internal
// networks. What connects to hosts that users name checks each connection with it.
package publicaddr

import (
	"net/netip"
	"slices"
)

// Is reports whether an address is on the public internet: neither private, loopback nor link-local,
// and in no range that leads to one of these.
func Is(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("") // no prefix contains an address with a zone
	closed := !addr.IsGlobalUnicast() || addr.IsPrivate() || addr.IsLoopback() || addr.IsLinkLocalUnicast()
	return !closed && !slices.ContainsFunc(reservedPrefixes(), func(p netip.Prefix) bool { return p.Contains(addr) })
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
		netip.MustParsePrefix("::/96"),        // IPv4-compatible addresses
		netip.MustParsePrefix("64:ff9b::/96"), // NAT64 of any IPv4 address
		netip.MustParsePrefix("64:ff9b:1::/48"),
		netip.MustParsePrefix("2002::/16"), // 6to4 of any IPv4 address
		netip.MustParsePrefix("2001::/32"), // Teredo
		netip.MustParsePrefix("fec0::/10"),
	}
}
