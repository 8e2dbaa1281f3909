package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"bivouac.dev/bivouac/httpapi"
)

var (
	nodeNamePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	envNamePattern  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// The rules for single values of configuration files, spec files and flags. Each error says
// what the value must be.

func notEmpty(s string) error {
	if strings.TrimSpace(s) == "" {
		return errors.New("must not be empty")
	}
	return nil
}

func isNodeName(s string) error {
	if !nodeNamePattern.MatchString(s) {
		return fmt.Errorf("%q must be 1 to 63 characters of a-z, 0-9 and \"-\", "+
			"beginning and ending with a letter or digit", s)
	}
	return nil
}

// isListenAddress accepts "host:port" with an empty host (every interface) and
// port 0 (any free port).
func isListenAddress(s string) error {
	_, port, err := net.SplitHostPort(s)
	if err == nil {
		err = isPort(port, 0)
	}
	if err != nil {
		return fmt.Errorf("%q must be \"host:port\"", s)
	}
	return nil
}

// isPeerAddress accepts a "host:port" that other nodes can dial.
func isPeerAddress(s string) error {
	host, port, err := net.SplitHostPort(s)
	if err == nil {
		err = isPort(port, 1)
	}
	if err != nil || host == "" {
		return fmt.Errorf("%q must be \"host:port\", with both given", s)
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return fmt.Errorf("%q is not an address that others can reach", s)
	}
	return nil
}

func isPort(s string, low int) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < low || n > 65535 {
		return fmt.Errorf("%q is not a port", s)
	}
	return nil
}

func isHTTPAddress(s string) error {
	u, err := url.Parse(s)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return fmt.Errorf("%q must be \"http://host:port\" or \"https://host:port\"", s)
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "" {
		return fmt.Errorf("%q must have nothing beside scheme, host and port", s)
	}
	return nil
}

func isEnvName(s string) error {
	if !envNamePattern.MatchString(s) {
		return fmt.Errorf("%q is not the name of an environment variable", s)
	}
	return nil
}

// oneOf accepts the listed words.
func oneOf(words ...string) func(string) error {
	return func(s string) error {
		if !slices.Contains(words, s) {
			return fmt.Errorf("%q must be one of %s", s, quotedList(words))
		}
		return nil
	}
}

func quotedList(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = strconv.Quote(w)
	}
	return strings.Join(quoted, ", ")
}

// isVaultPath accepts the path of a mount, or the name of a role.
func isVaultPath(s string) error {
	if strings.Trim(s, "/") == "" || strings.Contains(s, "..") || strings.ContainsAny(s, " ?#%") {
		return fmt.Errorf("%q must be a path in Vault, such as \"pki\"", s)
	}
	return nil
}

func isAbsolutePath(s string) error {
	if !filepath.IsAbs(s) {
		return fmt.Errorf("%q must be an absolute path", s)
	}
	return nil
}

// isSandboxURL accepts "proxy" and the pattern of a direct URL.
func isSandboxURL(s string) error {
	switch s {
	case httpapi.SandboxURLProxy:
		return nil
	case "door":
		return fmt.Errorf("%q is called %q now", s, httpapi.SandboxURLProxy)
	}
	return isURLPattern(s)
}

// isDomain accepts a lower-case domain name.
func isDomain(s string) error {
	u, err := url.Parse("http://" + s)
	if err != nil || u.Host != s || u.Port() != "" || s != strings.ToLower(s) || !strings.Contains(s, ".") ||
		strings.Trim(s, ".*") != s {
		return fmt.Errorf("%q must be a lower-case domain such as \"sandboxes.example.org\"", s)
	}
	return nil
}

// isURLPattern accepts the pattern of a sandbox's URL.
func isURLPattern(s string) error {
	u, err := url.Parse(strings.NewReplacer("{", "", "}", "").Replace(strings.ReplaceAll(s, ":{port}", "")))
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return fmt.Errorf("%q must be a URL such as \"http://{address}:{port}\" or "+
			"\"https://{name}-{sandbox}.example.org\"", s)
	}
	return nil
}

// isPrefix accepts a CIDR prefix such as "10.0.0.0/8", or a single address.
func isPrefix(s string) error {
	_, err := parsePrefix(s)
	return err
}

func parsePrefix(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, fmt.Errorf("%q must be an address or a range such as \"10.0.0.0/8\"", s)
	}
	return p, nil
}
