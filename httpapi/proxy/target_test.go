package proxy

import (
	"net/url"
	"strings"
	"testing"
)

const testDomain = "boxes.example.org"

// FuzzTarget parses arbitrary hosts and paths. A target for the proxy names a sandbox and a port by
// plain words or nothing, and the sandbox's path is exactly the client's.
func FuzzTarget(f *testing.F) {
	for _, p := range []string{"/sandboxes/abc/AGENT_SERVER/x", "/sandboxes/abc/8011", "/sandboxes/a%2fb/c/d",
		"/sandboxes/../x/y/", "/sandboxes//a//b",
		"/sandboxes/abc/AGENT_SERVER/%2e%2e/%2f", "/sandboxes", "//sandboxes/a/b/", "/sandboxes/a;b/c/", `/sandboxes/a\b/c/`,
		"/api/v1/sandboxes/a/b"} {
		for _, h := range []string{"", "example.org", "agent-server-abc." + testDomain,
			"AGENT-server-ABC." + testDomain + ".:8440", "a.b." + testDomain,
			"." + testDomain, testDomain, "x" + testDomain, "[::1]:80", "worker-1-a%2e." + testDomain} {
			f.Add(h, p)
		}
	}
	f.Fuzz(func(t *testing.T, host, path string) {
		if u, err := url.ParseRequestURI(path); err != nil || u.Path == "" || u.Host != "" {
			return // net/http rejects these
		}
		to, ours := targetOf(testDomain, host, path)
		if !ours {
			if strings.HasPrefix(path, Path) {
				t.Fatalf("%q %q is not the proxy's", host, path)
			}
			return
		}
		for what, word := range map[string]string{"id": to.id, "name": to.name, "label": to.label} {
			if word != "" && !isWord(word) {
				t.Fatalf("%q %q has the %s %q", host, path, what, word)
			}
		}
		switch {
		case to.label != "" && (to.id != "" || to.rest != path || to.prefix != ""):
			t.Fatalf("%q %q: %+v", host, path, to)
		case to.id != "" && (to.prefix+to.rest != path || to.rest != "" && to.rest[0] != '/' ||
			strings.Count(to.prefix, "/") != 3 && to.pass == ""):
			t.Fatalf("%q %q: %+v", host, path, to)
		case (to.id == "") != (to.name == ""):
			t.Fatalf("%q %q: %+v", host, path, to)
		}
	})
}
