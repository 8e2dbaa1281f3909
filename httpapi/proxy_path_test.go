package httpapi

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/proxy"
)

// passOf opens a port's page with a code and returns the URL with the pass.
func (h *proxyHarness) passOf(port, rest string) string {
	h.t.Helper()
	h.raised()
	code := proxy.NewCode(h.key, h.row(), port, time.Now())
	return h.opened(h.exchange(port, code, true)) + rest
}

// A page on the API's address has neither the API's origin nor another sandbox's.
func TestProxy_PathPageHasNoOrigin(t *testing.T) {
	h, behind := newProxyHarness(t)
	behind.serve(func(_ string, w http.ResponseWriter, _ *http.Request) bool {
		for name, value := range map[string]string{"Content-Security-Policy": "sandbox allow-same-origin allow-scripts",
			"Set-Cookie":             "a=1",
			"Service-Worker-Allowed": "/", "Clear-Site-Data": "*", "Referrer-Policy": "unsafe-url",
			"X-Content-Type-Options": "theirs"} {
			w.Header().Set(name, value)
		}
		return false
	})
	key := []string{proxy.HeaderKey, h.key}
	for name, got := range map[string]reply{
		"a worker, with the key":    h.ask("GET", h.at("WORKER_1", "/"), "", key...).want(t, 200),
		"VSCODE, with the key":      h.ask("GET", h.at("VSCODE", "/"), "", key...).want(t, 200),
		"the agent server":          h.ask("GET", h.at("AGENT_SERVER", "/page.html"), "", key...).want(t, 200),
		"a write":                   h.ask("POST", h.at("WORKER_1", "/"), "", key...).want(t, 200),
		"with a pass":               h.ask("GET", h.passOf("WORKER_1", "/app"), "").want(t, 200),
		"VSCODE, with a pass":       h.ask("GET", h.passOf("VSCODE", "/app"), "").want(t, 200),
		"a redirect":                h.ask("GET", h.at("WORKER_1", ""), "", key...).want(t, 303),
		"refused":                   h.ask("GET", h.at("WORKER_1", "/"), "").want(t, 401),
		"refused, the agent server": h.ask("GET", h.at("AGENT_SERVER", "/"), "").want(t, 401),
		"an unknown sandbox":        h.ask("GET", h.front.URL+proxy.Path+"nosuch/WORKER_1/", "").want(t, 401),
		"an unknown port":           h.ask("GET", h.at("7", "/"), "", key...).want(t, 404),
		"a service worker": h.ask("GET", h.at("WORKER_1", "/sw.js"), "",
			append(key, "Service-Worker", "script")...).want(t, 403),
		"a service worker, by pass": h.ask("GET", h.passOf("WORKER_1", "/sw.js"), "", "Service-Worker",
			"script").want(t, 403),
		"the web page's script": h.ask("GET", h.at("WORKER_1", "/a.js"), "",
			append(key, "Sec-Fetch-Site", "same-origin", "Sec-Fetch-Dest", "script")...).want(t, 403),
		"the web page's worker": h.ask("GET", h.passOf("WORKER_1", "/a.js"), "", "Sec-Fetch-Site", "same-origin",
			"Sec-Fetch-Dest", "worker").want(t, 403),
		"the page's own script": h.ask("GET", h.passOf("WORKER_1", "/a.js"), "", "Sec-Fetch-Site", "cross-site",
			"Sec-Fetch-Dest", "script").want(t, 200),
		"a service worker, of agent": h.ask("GET", h.at("AGENT_SERVER", "/sw.js"), "",
			append(key, "Service-Worker", "script")...).want(t, 403),
	} {
		sandboxed := false
		for _, policy := range got.header.Values("Content-Security-Policy") {
			sandboxed = sandboxed || strings.HasPrefix(policy, "sandbox") && !strings.Contains(policy, "allow-same-origin")
		}
		if !sandboxed {
			t.Errorf("%s: policies %q", name, got.header.Values("Content-Security-Policy"))
		}
		for header, want := range map[string]string{
			"Set-Cookie":             "",
			"Service-Worker-Allowed": "",
			"Clear-Site-Data":        "",
			"X-Content-Type-Options": "nosniff",
		} {
			if have := strings.Join(got.header.Values(header), ", "); have != want {
				t.Errorf("%s: %s %q", name, header, have)
			}
		}
	}
}

func TestProxy_PassInThePath(t *testing.T) {
	h, behind := newProxyHarness(t)
	to := h.passOf("WORKER_1", "/a%2Fb")
	prefix := strings.TrimSuffix(strings.TrimPrefix(to, h.front.URL), "/a%2Fb")
	if !strings.HasPrefix(prefix, proxy.Path+h.id+"/WORKER_1/.bivouac/") || strings.Contains(to, h.key) {
		t.Fatalf("redirected to %s", to)
	}
	got := h.ask("GET", to+"?x=1", "", "Origin", "null", "Cookie", "front=1; sandbox-a=1").want(t, 200)
	if one := behind.last(); one.uri != "/a%2Fb?x=1" || one.header.Get("X-Forwarded-Prefix") != prefix ||
		one.header.Get("Cookie") != "" || one.header.Get("Origin") != h.front.URL {
		t.Errorf("arrived %+v", one)
	}
	for name, want := range map[string]string{
		"Access-Control-Allow-Origin":      "null",
		"Access-Control-Allow-Credentials": "true",
		"Referrer-Policy":                  "no-referrer",
	} {
		if have := got.header.Get(name); have != want {
			t.Errorf("%s: %q", name, have)
		}
	}
	h.ask("POST", to, "x", "Origin", "null").want(t, 200)
	flight := h.ask("OPTIONS", to, "", "Origin", "null", "Access-Control-Request-Method", "PUT",
		"Access-Control-Request-Headers", "x-a").want(t, 204)
	if flight.header.Get("Access-Control-Allow-Methods") != "PUT" ||
		flight.header.Get("Access-Control-Allow-Headers") != "x-a" {
		t.Errorf("preflight %v", flight.header)
	}
	bare := h.ask("GET", h.front.URL+prefix+"?y=1", "").want(t, 303)
	if at := bare.header.Get("Location"); at != prefix+"/?y=1" {
		t.Errorf("Location %s", at)
	}
	pass := strings.TrimPrefix(prefix, proxy.Path+h.id+"/WORKER_1")
	other := h.createSandbox(h.alice)
	for name, at := range map[string]string{
		"another port": h.at("WORKER_2", pass+"/"), "the agent server": h.at("AGENT_SERVER",
			pass+"/"), "another sandbox": h.front.URL + proxy.Path + other + "/WORKER_1" + pass + "/",
		"another time": h.at("WORKER_1",
			strings.Replace(pass, ".bivouac/", ".bivouac/9", 1)+"/"), "cut off": h.at("WORKER_1", pass[:len(pass)-1]+"/"),
	} {
		if got := h.ask("GET", at, ""); got.status != 401 {
			t.Errorf("%s: %d", name, got.status)
		}
	}
	behind.serve(func(_ string, w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Location", r.URL.Query().Get("to"))
		w.WriteHeader(302)
		return true
	})
	if at := h.ask("GET", to+"?to=/login", "").want(t, 302).header.Get("Location"); at != prefix+"/login" {
		t.Errorf("Location %s", at)
	}
	behind.serve(echoes)
	conn, _, err := h.dial(h.front.URL+prefix+"/ws", "Origin", "null")
	if err != nil {
		t.Fatal(err)
	}
	if got := say(t, conn, "hi"); got != "echo hi" {
		t.Errorf("got %s", got)
	}
	// A new sandbox key invalidates it.
	h.secrets.set(func(s *fakeSecrets) { s.entries[fsm.SandboxKeyPath(h.id)][0]["key"] = "another" })
	h.ask("GET", to, "").want(t, 401)
}

// TestProxy_PathScripts: of whatever a page of the API's origin asks for, nothing that would run there
// comes from a sandbox; what only shows comes.
func TestProxy_PathScripts(t *testing.T) {
	h, _ := newProxyHarness(t)
	for dest, want := range map[string]int{
		"script": 403, "worker": 403, "sharedworker": 403, "audioworklet": 403, "paintworklet": 403, "xslt": 403,
		"image": 200, "iframe": 200, "empty": 200,
	} {
		t.Run(dest, func(t *testing.T) {
			h.ask("GET", h.passOf("WORKER_1", "/a"), "", "Sec-Fetch-Site", "same-origin", "Sec-Fetch-Dest", dest).want(t, want)
		})
	}
}
