package httpapi

import (
	"net/http"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/proxy"
)

// cookieOf returns the proxy's cookie as a browser sends it.
func cookieOf(t *testing.T, r reply) (cookie string, whole *http.Cookie) {
	t.Helper()
	for _, line := range r.header.Values("Set-Cookie") {
		if c, err := http.ParseSetCookie(line); err == nil && c.Name == proxy.CookieName {
			return c.Name + "=" + c.Value, c
		}
	}
	t.Fatalf("no cookie in %v", r.header)
	return "", nil
}

// host returns the host of a port with a domain.
func (h *proxyHarness) host(port string) string {
	return proxy.HostName(port) + "-" + strings.ToLower(h.id) + "." + fuzzDomain
}

func withDomain(c *Config) { c.Proxy.Domain = fuzzDomain }

func TestProxy_CookieLetsABrowserBackIn(t *testing.T) {
	h, behind := newProxyHarness(t, withDomain)
	first := h.ask("GET", h.front.URL+"/?folder=/w", "", "Host", h.host("VSCODE"), proxy.HeaderKey, h.key).want(t, 200)
	cookie, whole := cookieOf(t, first)
	if whole.Path != "/" || !whole.HttpOnly || whole.SameSite != http.SameSiteLaxMode || whole.MaxAge != 3600 ||
		whole.Secure || whole.Domain != "" {
		t.Errorf("%+v", whole)
	}
	for name, c := range map[string]struct {
		method, port string
		headers      []string
		want         int
	}{
		"again":              {"GET", "VSCODE", nil, 200},
		"a write":            {"POST", "VSCODE", []string{"Origin", "http://" + h.host("VSCODE")}, 200},
		"of the same origin": {"GET", "VSCODE", []string{"Sec-Fetch-Site", "same-origin"}, 200},
		"a link": {
			"GET",
			"VSCODE",
			[]string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"},
			200,
		},
		"another origin": {"POST", "VSCODE", []string{"Origin", "https://evil.org"}, 401},
		"no origin":      {"POST", "VSCODE", []string{"Origin", "null"}, 401},
		"another sandbox's page": {
			"GET",
			"VSCODE",
			[]string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "cors"},
			401,
		},
		"a form of another site": {
			"POST",
			"VSCODE",
			[]string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate"},
			401,
		},
		"another port":                {"GET", "WORKER_1", nil, 401},
		"the agent server has no use": {"GET", "AGENT_SERVER", nil, 401},
	} {
		t.Run(name, func(t *testing.T) {
			got := h.ask(c.method, h.front.URL+"/x", "",
				append(c.headers, "Host", h.host(c.port), "Cookie", cookie+"; theirs=1; sandbox-own=2")...).want(t, c.want)
			if want := "vscode-tkn=" + h.key + "; own=2"; c.want == 200 && behind.last().header.Get("Cookie") != want {
				t.Errorf("the sandbox got %v", behind.last().header)
			}
			if c.want == 200 && len(got.header.Values("Set-Cookie")) != 0 {
				t.Errorf("a cookie for a cookie")
			}
			if policy := got.header.Get("Content-Security-Policy"); !strings.HasPrefix(policy, "frame-ancestors 'self' http") &&
				c.port != "AGENT_SERVER" {
				t.Errorf("policy %q", policy)
			}
			// On the API's address no cookie counts.
			h.ask(c.method, h.at(c.port, "/x"), "", append(c.headers, "Cookie", cookie)...).want(t, 401)
		})
	}
	other := h.createSandbox(h.alice)
	h.ask("GET", h.front.URL, "", "Host", "vscode-"+strings.ToLower(other)+"."+fuzzDomain, "Cookie", cookie).want(t, 401)
	for _, junk := range []string{
		"bivouac_proxy=",
		"bivouac_proxy=x",
		"bivouac_proxy=99999999999.",
		cookie + "x",
		strings.Replace(cookie, "=", "=9", 1),
	} {
		h.ask("GET", h.front.URL+"/x", "", "Host", h.host("VSCODE"), "Cookie", junk).want(t, 401)
	}
	// A new sandbox key invalidates it.
	h.secrets.set(func(s *fakeSecrets) { s.entries[fsm.SandboxKeyPath(h.id)][0]["key"] = "another" })
	h.ask("GET", h.front.URL+"/x", "", "Host", h.host("VSCODE"), "Cookie", cookie).want(t, 401)
}

// Under HTTPS no other host can set the proxy's cookie or a sandbox's.
func TestProxy_CookiesBelongToOneHost(t *testing.T) {
	h, behind := newProxyHarness(t, withDomain, func(c *Config) { c.Proxy.PublicURL = "https://api.example.org" })
	behind.serve(func(_ string, w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Add("Set-Cookie", "a=1; Domain=example.org; Path=/deep; HttpOnly")
		w.Header().Add("Set-Cookie", "bivouac_proxy=evil; Path=/")
		return false
	})
	to := []string{"Host", h.host("WORKER_1")}
	got := h.ask("GET", h.front.URL, "", append(to, proxy.HeaderKey, h.key)...).want(t, 200)
	all := got.header.Values("Set-Cookie")
	set := all[len(all)-1]
	if !strings.HasPrefix(set, "__Host-bivouac_proxy=") || !strings.Contains(set, "; Path=/;") ||
		!strings.Contains(set, "; Secure") || strings.Contains(set, "Domain") {
		t.Errorf("%s", set)
	}
	pass := strings.TrimPrefix(strings.SplitN(set, ";", 2)[0], "__Host-")
	h.ask("GET", h.front.URL, "", append(to, "Cookie", pass)...).want(t, 401)
	got = h.ask("GET", h.front.URL, "",
		append(to, "Cookie", "__Host-"+pass+"; sandbox-a=planted; a=planted; __Host-sandbox-b=own")...).want(t, 200)
	if sent := behind.last().header.Get("Cookie"); sent != "b=own" {
		t.Errorf("the sandbox got %q", sent)
	}
	want := "__Host-sandbox-a=1; HttpOnly; Path=/; Secure\n__Host-sandbox-bivouac_proxy=evil; Path=/; Secure"
	if set := strings.Join(got.header.Values("Set-Cookie"), "\n"); set != want {
		t.Errorf("cookies\n%s\nwant\n%s", set, want)
	}
}

// A front end puts its own credentials before sandboxes. Their ports get none of them.
func TestProxy_NoCredentialsOfAFrontEnd(t *testing.T) {
	h, behind := newProxyHarness(t, withDomain)
	for _, port := range []string{"WORKER_1", "VSCODE", "AGENT_SERVER"} {
		for where, ask := range map[string]func(headers ...string) reply{
			"path": func(headers ...string) reply { return h.ask("GET", h.at(port, "/x"), "", headers...) },
			"host": func(headers ...string) reply {
				return h.ask("GET", h.front.URL+"/x", "", append(headers, "Host", h.host(port))...)
			},
		} {
			for _, authorisation := range []string{"Basic eDp5", "Bearer front-end"} {
				ask(proxy.HeaderKey, h.key, "Cookie", "_oauth2_proxy=front-end; a=1", "Authorization", authorisation,
					"Proxy-Authorization", "Basic eDp5").want(t, 200)
				got := behind.last().header
				cookie := ""
				if port == "VSCODE" {
					cookie = "vscode-tkn=" + h.key
				}
				if got.Get("Authorization") != "" || got.Get("Proxy-Authorization") != "" || got.Get("Cookie") != cookie {
					t.Errorf("%s by %s got Authorization %q, Cookie %q", port, where, got.Get("Authorization"), got.Get("Cookie"))
				}
			}
			ask(proxy.HeaderKey, h.key, proxy.HeaderAuthorization, "Bearer own").want(t, 200)
			got, want := behind.last().header, "Bearer own"
			if port == "AGENT_SERVER" {
				want = ""
			}
			if got.Get("Authorization") != want || got.Get(proxy.HeaderAuthorization) != "" {
				t.Errorf("%s by %s: its own authorisation arrived as %q", port, where, got.Get("Authorization"))
			}
		}
	}
}

// A page below the domain can set 180 cookies of 4 KiB for every host there.
func TestProxy_CookiesOfSiblingsAreDropped(t *testing.T) {
	h, behind := newProxyHarness(t, withDomain)
	stop := h.run()
	defer stop()
	planted := make([]string, 180)
	for i := range planted {
		planted[i] = "c" + itoa(i) + "=" + strings.Repeat("x", 4000)
	}
	for _, port := range []string{"WORKER_1", "AGENT_SERVER"} {
		h.ask("GET", h.front.URL+"/x", "", "Host", h.host(port), proxy.HeaderKey, h.key, "Cookie",
			strings.Join(planted, "; ")).want(t, 200)
		if got := behind.last().header.Get("Cookie"); got != "" {
			t.Errorf("%s got %d bytes of cookies", port, len(got))
		}
	}
}

// TestProxy_NoKeyInAURL: the sandbox's key in the query of a URL opens no page. The parameter is
// the page's own.
func TestProxy_NoKeyInAURL(t *testing.T) {
	h, behind := newProxyHarness(t, withDomain)
	for _, name := range []string{"tkn", "session_api_key"} {
		for _, port := range []string{"VSCODE", "WORKER_1", "AGENT_SERVER"} {
			for _, method := range []string{"GET", "HEAD", "POST"} {
				h.ask(method, h.front.URL+"/x?"+name+"="+h.key, "", "Host", h.host(port)).want(t, 401)
				h.ask(method, h.at(port, "/x?"+name+"="+h.key), "").want(t, 401)
			}
		}
	}
	if _, res, err := h.dial(h.at("WORKER_1", "/ws?tkn="+h.key)); err == nil || res.StatusCode != 401 {
		t.Errorf("a WebSocket: %v %v", err, res)
	}
	if behind.count() != 0 {
		t.Error("the key arrived")
	}
	h.ask("GET", h.at("WORKER_1", "/x?tkn=own"), "", proxy.HeaderKey, h.key).want(t, 200)
	if uri := behind.last().uri; uri != "/x?tkn=own" {
		t.Errorf("arrived as %s", uri)
	}
}

func TestProxy_SlashAfterThePort(t *testing.T) {
	h, _ := newProxyHarness(t)
	bare := h.ask("GET", h.at("WORKER_1", "?x=1"), "", proxy.HeaderKey, h.key).want(t, 303)
	if at := bare.header.Get("Location"); at != proxy.Path+h.id+"/WORKER_1/?x=1" {
		t.Errorf("Location %s", at)
	}
}

func TestProxy_HostNames(t *testing.T) {
	h, behind := newProxyHarness(t, func(c *Config) { c.Proxy.Domain = "boxes.example.org" })
	lower := strings.ToLower(h.id)
	for host, want := range map[string]int{
		"agent-server-" + lower + ".boxes.example.org":       200,
		"AGENT-SERVER-" + h.id + ".Boxes.Example.Org":        200,
		"worker-1-" + lower + ".boxes.example.org:8440":      200,
		"8011-" + lower + ".boxes.example.org.":              200,
		"worker-3-" + lower + ".boxes.example.org":           401,
		"22-" + lower + ".boxes.example.org":                 401,
		lower + ".boxes.example.org":                         401,
		"agent-server-.boxes.example.org":                    401,
		"x.agent-server-" + lower + ".boxes.example.org":     401,
		"agent-server-" + lower + "x.boxes.example.org":      401,
		"agent-server-" + lower + ".boxes.example.org.evil":  404,
		"agent-server-" + lower + "xboxes.example.org":       404,
		"boxes.example.org":                                  404,
		"..boxes.example.org":                                401,
		"agent_server-" + lower + ".boxes.example.org":       401,
		"agent-server-" + lower + "%2eboxes.example.org.org": 404,
	} {
		got := h.ask("GET", h.front.URL+"//a%2Fb/../c?x=1", "", "Host", host, proxy.HeaderKey, h.key)
		if got.status != want {
			t.Errorf("%s: %d %s", host, got.status, got.body)
		}
		if one := behind.last(); want == 200 && (one.uri != "//a%2Fb/../c?x=1" || one.host != host ||
			one.header.Get("X-Forwarded-Prefix") != "") {
			t.Errorf("%s: arrived %+v", host, one)
		}
	}
	// All paths on a sandbox's host belong to the sandbox.
	if got := h.ask("GET", h.front.URL+"/alive", "", "Host", "worker-1-"+lower+".boxes.example.org", proxy.HeaderKey,
		h.key).want(t, 200); string(got.body) != "WORKER_1" {
		t.Errorf("%s", got.body)
	}
	h.ask("GET", h.front.URL+"/alive", "", "Host", "x.boxes.example.org").want(t, 401)

	var page struct {
		Items []struct {
			ExposedURLs []exposedURL `json:"exposed_urls"`
		}
	}
	h.do(h.alice, "GET", "/api/v1/sandboxes/search", "").json(t, &page)
	if at := page.Items[0].ExposedURLs[0].URL; at != "http://agent-server-"+lower+".boxes.example.org" {
		t.Errorf("URL %s", at)
	}
}

func TestProxy_HostNamesThatFitTwo(t *testing.T) {
	h, _ := newProxyHarness(t, func(c *Config) { c.Proxy.Domain = "boxes.example.org" })
	twin := func(id string) {
		h.apply("alice",
			&fsm.SandboxCreateBody{
				ID:      id,
				SpecID:  "all",
				KeyRef:  fsm.SecretRef{Path: "p", Version: 1},
				KeyHash: apikey.Hash(id),
			})
		h.id = id
		h.place()
	}
	twin("aBc")
	h.ask("GET", h.front.URL, "", "Host", "worker-1-abc.boxes.example.org", proxy.HeaderKey, "aBc").want(t, 200)
	twin("AbC")
	for _, key := range []string{"aBc", "AbC", h.alice} {
		h.ask("GET", h.front.URL, "", "Host", "worker-1-abc.boxes.example.org", proxy.HeaderKey, key).want(t, 401)
	}
	h.ask("GET", h.at("WORKER_1", "/"), "", proxy.HeaderKey, "AbC").want(t, 200)
}
