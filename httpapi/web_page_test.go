package httpapi

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac.dev/bivouac/httpapi/page"
	"bivouac.dev/bivouac/httpapi/session"
)

// withPage is the configuration of a node that serves a page of one script.
func withPage(t *testing.T) func(*Config) {
	t.Helper()
	dir := t.TempDir()
	m := page.Manifest{Routes: []string{"/", "/conversations/:id", "/settings"}, Files: map[string]page.File{}}
	for name, body := range map[string]string{
		page.Index: "<!DOCTYPE html>", page.Docs: "docs", "assets/a-12345678.js": "1", "health": "2",
	} {
		at := filepath.Join(dir, page.FilesDir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
		m.Files[name] = page.File{Type: "text/html; charset=utf-8", Size: int64(len(body)), Sum: "00"}
	}
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, page.ManifestName), b, 0o600); err != nil {
		t.Fatal(err)
	}
	opened, err := page.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return func(c *Config) { c.Page = opened }
}

// TestPage_TakesNothingFromTheAPI: the page is at its own paths, and every other request is answered
// as without it.
func TestPage_TakesNothingFromTheAPI(t *testing.T) {
	without, with := newHarness(t), newHarness(t, withPage(t))
	for _, path := range []string{"/", "/settings", "/settings/", "/conversations/7", "/assets/a-12345678.js"} {
		for _, method := range []string{"GET", "HEAD"} {
			r := with.do("", method, path, "").want(t, 200)
			if ct := r.header.Get("Content-Type"); ct != "text/html; charset=utf-8" {
				t.Errorf("%s %s: %s", method, path, ct)
			}
			if r.header.Get("Pragma") != "" || r.header.Get("Expires") != "" {
				t.Errorf("%s %s: Pragma or Expires are there", method, path)
			}
		}
		for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"} {
			same(t, method, path, without, with)
		}
	}
	paths := []string{"/api", "/api/", "/api/unknown", "/api/v1/unknown", "/api/settings", "/api/v1/sandboxes",
		"/api/v1/app-conversations/search", "/api/v1/app-conversations/", "/alive", "/health", "/health/", "/sandboxes",
		"/sandboxes/", "/sandboxes/x/AGENT_SERVER/", "/llm", "/llm/v1/models", "/metrics/", "/other", "/assets/", "/assets",
		"/assets/b.js", "/index", "/manifest.json", "/assets/..%2findex.html", "/%2e%2e/manifest.json", "//", "//assets/a",
		"/.", "/conversations/7/8"}
	for _, path := range paths {
		for _, method := range []string{"GET", "HEAD", "POST"} {
			same(t, method, path, without, with)
		}
	}
	with.do("", "GET", "/api/v1/unknown", "").want(t, 404).is(t, `{"detail":"Not Found"}`)
}

// same fails unless both nodes answer a request alike.
func same(t *testing.T, method, path string, without, with *harness) {
	t.Helper()
	a, b := without.do("", method, path, ""), with.do("", method, path, "")
	if a.status != b.status || string(a.body) != string(b.body) ||
		a.header.Get("Content-Type") != b.header.Get("Content-Type") ||
		strings.Join(a.header.Values("Allow"), "") != strings.Join(b.header.Values("Allow"), "") {
		t.Errorf("%s %s: %d %q without the page, %d %q with it", method, path, a.status, a.body, b.status, b.body)
	}
}

// TestDocs: the page of the description is the page's file, with its policy; a node without a page says so.
func TestDocs(t *testing.T) {
	got := newHarness(t, withPage(t)).do("", "GET", "/docs", "").want(t, 200)
	if string(got.body) != "docs" || !strings.Contains(got.header.Get("Content-Security-Policy"), "script-src 'self'") {
		t.Errorf("%s with %q", got.body, got.header.Get("Content-Security-Policy"))
	}
	without := newHarness(t).do("", "GET", "/docs", "").want(t, 404)
	if !strings.Contains(string(without.body), "GET /openapi.json is the description") {
		t.Errorf("without a page: %s", without.body)
	}
}

// TestPage_PolicyNamesTheSandboxesHosts: the page may call the sandboxes' own hosts, as the client
// sees them.
func TestPage_PolicyNamesTheSandboxesHosts(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"no domain": {func(*Config) {}, "frame-src 'self';"},
		"domain":    {func(c *Config) { c.Proxy.Domain = "sb.example.net" }, "frame-src 'self' http://*.sb.example.net;"},
		"public URL": {func(c *Config) {
			c.Proxy.Domain, c.Proxy.PublicURL = "sb.example.net", "https://api.example.org:8443"
		}, "frame-src 'self' https://*.sb.example.net:8443;"},
		"direct": {func(c *Config) {
			c.SandboxURL, c.Proxy.Domain = "http://{address}:{port}", "sb.example.net"
		}, "frame-src 'self';"},
	} {
		h := newHarness(t, withPage(t), test.change)
		policy := h.do("", "GET", "/", "").want(t, 200).header.Get("Content-Security-Policy")
		if !strings.Contains(policy, test.want) {
			t.Errorf("%s: %s", name, policy)
		}
	}
}

// TestPage_CountsForItsAddress: a flood of the page's files is refused, whatever it presents.
func TestPage_CountsForItsAddress(t *testing.T) {
	for name, header := range map[string][]string{
		"nothing":   nil,
		"a key":     {"Authorization", "Bearer nonsense"},
		"a header":  {"X-Session-API-Key", "nonsense"},
		"a session": {"Cookie", session.CookiePlain + "=nonsense"},
	} {
		h := newHarness(t, withPage(t), slowRate)
		refused := 0
		for range 4 {
			if h.do("", "GET", "/assets/a-12345678.js", "", header...).status == 429 {
				refused++
			}
		}
		if refused != 2 {
			t.Errorf("%s: %d of 4 requests were refused", name, refused)
		}
	}
}
