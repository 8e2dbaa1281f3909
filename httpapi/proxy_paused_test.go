package httpapi

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/httpapi/session"
)

// An open page reconnects and polls the sandbox's state. None of that ends a pause.
func TestProxy_PauseHoldsWhileATabIsOpen(t *testing.T) {
	h, behind := newProxyHarness(t, withDomain, func(c *Config) { c.Proxy.AuthTimeout = 100 * time.Millisecond })
	behind.serve(echoes)
	host := h.host("VSCODE")
	cookie, _ := cookieOf(t, h.ask("GET", h.front.URL, "", "Host", host, proxy.HeaderKey, h.key).want(t, 200))
	h.pause()
	commands, reached := h.cluster.count(), behind.count()
	for range 3 {
		for name, code := range map[string]int{
			"event socket":              int(ended(t, h.mustDial("AGENT_SERVER", eventSocket, proxy.HeaderKey, h.key))),
			"event socket, first frame": int(ended(t, h.dialWithoutKey(h.key))),
			"event socket with wake": int(ended(t,
				h.mustDial("AGENT_SERVER", eventSocket+"?wake=true", proxy.HeaderKey, h.key))),
			"worker's socket": int(ended(t, h.mustDial("WORKER_1", "/ws", proxy.HeaderKey, h.key))),
		} {
			if code != 4409 {
				t.Errorf("%s: close code %d", name, code)
			}
		}
		for _, path := range []string{"/api/conversations/x/events/search", "/api/conversations", "/health"} {
			h.ask("GET", h.at("AGENT_SERVER", path), "", proxy.HeaderKey, h.key).want(t, 409)
		}
		h.ask("POST", h.at("AGENT_SERVER", "/api/conversations/x/pause"), "", proxy.HeaderKey, h.key).want(t, 409)
		h.ask("POST", h.at("WORKER_1", "/api/conversations/x/events"), "{}", proxy.HeaderKey, h.key).want(t, 409)
		h.ask("GET", h.front.URL+"/x", "", "Host", host, "Cookie", cookie).want(t, 409)
		// Another site's page that embeds the sandbox or links to it.
		h.ask("GET", h.front.URL+"/?wake=true", "", "Host", host, "Cookie", cookie, "Sec-Fetch-Site", "cross-site",
			"Sec-Fetch-Mode", "navigate").want(t, 409)
	}
	if n := h.cluster.count() - commands; n != 0 || behind.count() != reached {
		t.Errorf("%d commands, and the sandbox got %d requests", n, behind.count()-reached)
	}
	if row := h.row(); row.Desired != fsm.DesiredPaused {
		t.Errorf("it is desired %s", row.Desired)
	}
}

// A page view of a paused sandbox gets a page with a button instead of JSON.
func TestProxy_PausedPage(t *testing.T) {
	h, behind := newProxyHarness(t)
	resumes, stop := h.scheduled()
	defer stop()
	h.pause()
	html := []string{
		"Accept",
		"text/html,application/xhtml+xml,*/*;q=0.8",
		"Sec-Fetch-Mode",
		"navigate",
		proxy.HeaderKey,
		h.key,
	}
	at := h.at("WORKER_1", `/a%2Fb?q=%22%3E%3Cscript%3E&wake=false&tkn=`)
	page := h.ask("GET", at, "", html...).want(t, http.StatusConflict)
	if kind := page.header.Get("Content-Type"); kind != "text/html; charset=utf-8" ||
		strings.Contains(string(page.body), "<script>") {
		t.Errorf("%s: %s", kind, page.body)
	}
	if csp := strings.Join(page.header.Values("Content-Security-Policy"),
		", "); !strings.Contains(csp, "default-src 'none'") {
		t.Errorf("CSP %q", csp)
	}
	// What a browser makes of the form: the inputs become the query.
	inputs := regexp.MustCompile(`name="([^"]*)" value="([^"]*)"`).FindAllStringSubmatch(string(page.body), -1)
	query := url.Values{}
	for _, one := range inputs {
		query.Add(one[1], strings.NewReplacer("&#34;", `"`, "&gt;", ">", "&lt;", "<").Replace(one[2]))
	}
	if query.Get("wake") != "true" || query.Get("q") != `"><script>` {
		t.Fatalf("the form sends %v", query)
	}
	before := behind.count()
	woken := h.ask("GET", h.at("WORKER_1", "/a%2Fb?"+query.Encode()), "", html...).want(t, http.StatusSeeOther)
	if got, want := woken.header.Get(
		"Location",
	), proxy.Path+h.id+"/WORKER_1/a%2Fb?q=%22%3E%3Cscript%3E&tkn="; got != want {
		t.Errorf("then to %s, want %s", got, want)
	}
	if resumes() != 1 || behind.count() != before {
		t.Errorf("%d resumes, %d requests reached the sandbox", resumes(), behind.count()-before)
	}
	// The sandbox runs now: the page's own parameter wake stays.
	h.ask("GET", h.at("WORKER_1", "/x?wake=true"), "", html...).want(t, 200)
	if got := behind.last().uri; got != "/x?wake=true" {
		t.Errorf("the sandbox got %s", got)
	}
}

// A page of a paused sandbox opens its socket again and again, with the key in the first frame. Each
// attempt is one request: the sandbox's if the browser is signed in here, else the address's.
func TestProxy_PausedSocketCountsOnce(t *testing.T) {
	for name, one := range map[string]struct {
		headers []string
		left    []int // what two other requests of the address then come to
	}{
		"a browser that is signed in": {[]string{"Cookie", session.CookiePlain + "=x"}, []int{200, 200}},
		"another client":              {nil, []int{200, 429}},
	} {
		h, _ := newProxyHarness(t, func(c *Config) { c.RatePerSecond = 0.001 }) // one at once, a second one late
		h.pause()
		conn := h.mustDial("AGENT_SERVER", eventSocket, one.headers...)
		_ = conn.Write(t.Context(), websocket.MessageText, []byte(`{"type":"auth","session_api_key":"`+h.key+`"}`))
		if code := int(ended(t, conn)); code != 4409 {
			t.Errorf("%s: close code %d", name, code)
		}
		for i, want := range one.left {
			if got := h.ask("GET", h.front.URL+"/login", "").status; got != want {
				t.Errorf("%s: request %d of the address: %d, not %d", name, i+1, got, want)
			}
		}
	}
}
