package session

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

// TestReturnTo: a browser that has signed in stays on the node's own origin, and off sandboxes'
// pages.
func TestReturnTo(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "/", "/": "/", "/conversations/1": "/conversations/1", "/a?b=c#d": "/a?b=c#d", "/a?next=//x": "/a?next=//x",
		"/sandboxesque": "/sandboxesque",
		// Other origins, as browsers read them.
		"https://evil.example": "/", "//evil.example": "/", `/\evil.example`: "/", `\\evil.example`: "/", `/a\b`: "/",
		"/\t/evil.example": "/", "/\n/evil.example": "/", " //evil.example": "/", "javascript:alert(1)": "/",
		"evil.example": "/", "/a//evil.example": "/", "https:evil.example": "/", "/%zz": "/", "?a=b": "/", "#a": "/",
		// Not the node's own.
		"/sandboxes/1/VSCODE/": "/", "/a/../sandboxes/1/": "/", "/%73andboxes/1/": "/", "/llm/x": "/", "/login": "/",
		"/login?returnTo=/x": "/", "/./login": "/", "/sandboxes": "/",
	} {
		if got := ReturnTo(text); got != want {
			t.Errorf("ReturnTo(%q) is %q, want %q", text, got, want)
		}
	}
}

// TestPage_Policy: the policy has the hashes of the one script and the one style, and nothing else
// runs.
func TestPage_Policy(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	NewPage().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/login", nil))
	body, policy := w.Body.String(), w.Header().Get("Content-Security-Policy")
	for _, element := range []string{"script", "style"} {
		found := regexp.MustCompile(`(?s)<`+element+`([^>]*)>(.*?)</`+element+`>`).FindAllStringSubmatch(body, -1)
		if len(found) != 1 || found[0][1] != "" {
			t.Fatalf("the page has %d elements %s, with %q", len(found), element, found)
		}
		sum := sha256.Sum256([]byte(found[0][2]))
		want := element + "-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
		if !strings.Contains(policy, want) {
			t.Errorf("the policy %q lacks %s", policy, want)
		}
	}
	for _, want := range []string{"default-src 'none'", "connect-src 'self'", "base-uri 'none'", "form-action 'none'",
		"frame-ancestors 'none'"} {
		if !strings.Contains(policy, want) {
			t.Errorf("the policy %q lacks %s", policy, want)
		}
	}
	if strings.Contains(policy, "unsafe") || strings.Contains(body, "://") || strings.Contains(body, " style=") ||
		regexp.MustCompile(` on[a-z]+=`).MatchString(body) {
		t.Errorf("the page asks for more than its policy has: %q", policy)
	}
}

// TestPlace: which cookie a browser gets, and in which words it gets none.
func TestPlace(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		place  Place
		cookie string
	}{
		"TLS": {Place{Secure: true},
			"__Host-bivouac_session=t; Path=/; Max-Age=604800; HttpOnly; Secure; SameSite=Strict"},
		"loopback":   {Place{Loopback: true}, "bivouac_session=t; Path=/; Max-Age=604800; HttpOnly; SameSite=Strict"},
		"plain HTTP": {Place{}, ""},
	} {
		if c.cookie == "" {
			if err := c.place.Refusal(); err == nil || !strings.Contains(err.Error(), "HTTPS") {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if got := c.place.New("t").String(); got != c.cookie || c.place.Refusal() != nil {
			t.Errorf("%s: %s, %v", name, got, c.place.Refusal())
		}
	}
}

// TestPlace_Token: only the place's own cookie counts, once and in its form.
func TestPlace_Token(t *testing.T) {
	t.Parallel()
	secure, plain := Place{Secure: true}, Place{Loopback: true}
	one, two := strings.Repeat("a", tokenLen), strings.Repeat("b", tokenLen)
	for name, c := range map[string]struct {
		place Place
		sent  string
		want  string
	}{
		"its own":                   {secure, Cookie + "=" + one, one},
		"among others":              {secure, "a=b; " + Cookie + "=" + one + "; c=d", one},
		"the plain one under TLS":   {secure, CookiePlain + "=" + one, ""},
		"both under TLS":            {secure, CookiePlain + "=" + two + "; " + Cookie + "=" + one, one},
		"its own in plain":          {plain, CookiePlain + "=" + one, one},
		"the other one in plain":    {plain, Cookie + "=" + one, ""},
		"two, one of another port":  {plain, CookiePlain + "=" + two + "; " + CookiePlain + "=" + one, ""},
		"another length":            {plain, CookiePlain + "=" + one + "x", ""},
		"plain HTTP from elsewhere": {Place{}, CookiePlain + "=" + one + "; " + Cookie + "=" + one, ""},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Cookie", c.sent)
		if got := c.place.Token(r); got != c.want || !Carries(r) {
			t.Errorf("%s: %q, want %q (%t)", name, got, c.want, Carries(r))
		}
	}
}

// TestPlace_Judge: what a page of another origin makes a browser send is refused.
func TestPlace_Judge(t *testing.T) {
	t.Parallel()
	const own = "https://bivouac.example.org"
	const site, by, up = "Sec-Fetch-Site", "Origin", "Upgrade"
	type said = map[string]string
	place := Place{Origin: own, Secure: true}
	for name, c := range map[string]struct {
		method  string
		headers said
		good    bool
	}{
		"a read of its page":          {"GET", said{site: "same-origin"}, true},
		"an address that is typed":    {"GET", said{site: "none"}, true},
		"a read of another port":      {"GET", said{site: "same-site"}, false},
		"a read of another site":      {"GET", said{site: "cross-site"}, false},
		"a link on another site":      {"GET", said{site: "cross-site", "Sec-Fetch-Mode": "navigate"}, false},
		"a read that says nothing":    {"GET", nil, false},
		"a head of another site":      {"HEAD", said{site: "cross-site"}, false},
		"a write of its page":         {"POST", said{site: "same-origin", by: own}, true},
		"a write of an older browser": {"POST", said{by: own}, true},
		"a write of another port":     {"POST", said{site: "same-site", by: own + ":81"}, false},
		"the same of an older one":    {"DELETE", said{by: own + ":81"}, false},
		"a write of a sandbox's page": {"POST", said{site: "cross-site", by: "null"}, false},
		"an opaque origin":            {"POST", said{by: "null"}, false},
		"its socket":                  {"GET", said{up: "websocket", by: own}, true},
		"its socket, as of today": {"GET", said{
			up: "websocket", by: own, site: "same-origin"}, true},
		"a socket of another port": {"GET", said{
			up: "websocket", by: own + ":81", site: "same-site"}, false},
		"a socket in plain":       {"GET", said{up: "websocket", by: "http://bivouac.example.org"}, false},
		"a socket without origin": {"GET", said{up: "websocket"}, false},
	} {
		r := httptest.NewRequest(c.method, own+"/api/x", nil)
		for key, value := range c.headers {
			r.Header.Set(key, value)
		}
		if err := place.Judge(r); (err == nil) != c.good {
			t.Errorf("%s: %v, want it to pass: %t", name, err, c.good)
		}
	}
}
