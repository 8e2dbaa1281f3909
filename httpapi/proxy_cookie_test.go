package httpapi

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// cookieOf gives the door's cookie as a browser sends it back.
func cookieOf(t *testing.T, r response) (cookie string, whole *http.Cookie) {
	t.Helper()
	for _, line := range r.header.Values("Set-Cookie") {
		if c, err := http.ParseSetCookie(line); err == nil && c.Name == doorCookie {
			return c.Name + "=" + c.Value, c
		}
	}
	t.Fatalf("no cookie in %v", r.header)
	return "", nil
}

func TestDoor_CookieLetsABrowserBackIn(t *testing.T) {
	h, behind := newDoorHarness(t)
	first := h.ask("GET", h.at("VSCODE", "/?tkn="+h.key+"&folder=/w"), "").want(t, 200)
	if got := behind.last().uri; got != "/?tkn="+h.key+"&folder=/w" {
		t.Errorf("VSCODE got %s", got)
	}
	cookie, whole := cookieOf(t, first)
	if whole.Path != pathDoor+h.id+"/VSCODE/" || !whole.HttpOnly || whole.SameSite != http.SameSiteLaxMode || whole.MaxAge != 3600 || whole.Secure || whole.Domain != "" {
		t.Errorf("%+v", whole)
	}
	origin := h.front.URL
	for name, c := range map[string]struct {
		method, port string
		headers      []string
		want         int
	}{
		"again":                       {"GET", "VSCODE", nil, 200},
		"a write":                     {"POST", "VSCODE", []string{"Origin", origin}, 200},
		"of the same origin":          {"GET", "VSCODE", []string{"Sec-Fetch-Site", "same-origin"}, 200},
		"a link":                      {"GET", "VSCODE", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"}, 200},
		"another origin":              {"POST", "VSCODE", []string{"Origin", "https://evil.org"}, 401},
		"no origin":                   {"POST", "VSCODE", []string{"Origin", "null"}, 401},
		"another sandbox's page":      {"GET", "VSCODE", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "cors"}, 401},
		"a form of another site":      {"POST", "VSCODE", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate"}, 401},
		"another port":                {"GET", "WORKER_1", nil, 401},
		"the agent server has no use": {"GET", "AGENT_SERVER", nil, 401},
	} {
		t.Run(name, func(t *testing.T) {
			got := h.ask(c.method, h.at(c.port, "/x"), "", append(c.headers, "Cookie", cookie+"; theirs=1")...).want(t, c.want)
			if c.want == 200 && behind.last().header.Get("Cookie") != "theirs=1" {
				t.Errorf("the sandbox got %v", behind.last().header)
			}
			if c.want == 200 && len(got.header.Values("Set-Cookie")) != 0 {
				t.Errorf("a cookie for a cookie")
			}
		})
	}
	other := h.createSandbox(h.alice)
	h.ask("GET", h.front.URL+pathDoor+other+"/VSCODE/", "", "Cookie", cookie).want(t, 401)
	for _, junk := range []string{"bivouac_door=", "bivouac_door=x", "bivouac_door=99999999999.", cookie + "x", strings.Replace(cookie, "=", "=9", 1)} {
		h.ask("GET", h.at("VSCODE", "/x"), "", "Cookie", junk).want(t, 401)
	}
	// With the key, the right ends.
	h.secrets.set(func(s *fakeSecrets) { s.entries[sandboxPath(h.id)][0]["key"] = "another" })
	h.ask("GET", h.at("VSCODE", "/x"), "", "Cookie", cookie).want(t, 401)
}

func TestCookie_Expires(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	value := newCookieValue("key", "box", "VSCODE", now.Add(time.Hour))
	for name, c := range map[string]struct {
		key, id, port string
		at            time.Time
		want          bool
	}{
		"now": {"key", "box", "VSCODE", now, true}, "just before": {"key", "box", "VSCODE", now.Add(time.Hour - time.Second), true},
		"too late": {"key", "box", "VSCODE", now.Add(time.Hour), false}, "key": {"kez", "box", "VSCODE", now, false},
		"sandbox": {"key", "boy", "VSCODE", now, false}, "port": {"key", "box", "WORKER_1", now, false}, "no key": {"", "box", "VSCODE", now, false},
	} {
		if got := cookieOpens(value, c.key, c.id, c.port, c.at); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestDoor_TokenBecomesACookie(t *testing.T) {
	h, behind := newDoorHarness(t)
	got := h.ask("GET", h.at("WORKER_1", "/app?a=1&tkn="+h.key+"&b=%32"), "").want(t, 303)
	if at := got.header.Get("Location"); at != pathDoor+h.id+"/WORKER_1/app?a=1&b=%32" {
		t.Errorf("Location %s", at)
	}
	cookie, _ := cookieOf(t, got)
	if behind.count() != 0 {
		t.Error("the key arrived")
	}
	h.ask("GET", h.front.URL+got.header.Get("Location"), "", "Cookie", cookie).want(t, 200)
	if uri := behind.last().uri; uri != "/app?a=1&b=%32" {
		t.Errorf("arrived as %s", uri)
	}
	h.ask("POST", h.at("WORKER_1", "/app?tkn="+h.key), "").want(t, 401)
	h.ask("GET", h.at("AGENT_SERVER", "/api/x?tkn="+h.key), "").want(t, 401)
	h.ask("GET", h.at("AGENT_SERVER", "/api/x?session_api_key="+h.key), "").want(t, 401)
	h.ask("GET", h.at("WORKER_1", "/?session_api_key="+h.key), "").want(t, 401)

	bare := h.ask("GET", h.at("WORKER_1", "?x=1"), "", headerSessionKey, h.key).want(t, 303)
	if at := bare.header.Get("Location"); at != pathDoor+h.id+"/WORKER_1/?x=1" {
		t.Errorf("Location %s", at)
	}
}

func TestDoor_HostNames(t *testing.T) {
	h, behind := newDoorHarness(t, func(c *Config) { c.Door.Domain = "boxes.example.org" })
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
		got := h.ask("GET", h.front.URL+"//a%2Fb/../c?x=1", "", "Host", host, headerSessionKey, h.key)
		if got.status != want {
			t.Errorf("%s: %d %s", host, got.status, got.body)
		}
		if one := behind.last(); want == 200 && (one.uri != "//a%2Fb/../c?x=1" || one.host != host || one.header.Get("X-Forwarded-Prefix") != "") {
			t.Errorf("%s: arrived %+v", host, one)
		}
	}
	// The sandbox's names are its own: no path there is the API's.
	if got := h.ask("GET", h.front.URL+"/alive", "", "Host", "worker-1-"+lower+".boxes.example.org", headerSessionKey, h.key).want(t, 200); string(got.body) != "WORKER_1" {
		t.Errorf("%s", got.body)
	}
	h.ask("GET", h.front.URL+"/alive", "", "Host", "x.boxes.example.org").want(t, 401)

	got := h.ask("GET", h.front.URL+"//evil.org/?tkn="+h.key, "", "Host", "worker-1-"+lower+".boxes.example.org").want(t, 303)
	if at := got.header.Get("Location"); at != "/.//evil.org/" {
		t.Errorf("Location %s", at)
	}
	if _, whole := cookieOf(t, got); whole.Path != "/" {
		t.Errorf("%+v", whole)
	}
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

func TestDoor_HostNamesThatFitTwo(t *testing.T) {
	h, _ := newDoorHarness(t, func(c *Config) { c.Door.Domain = "boxes.example.org" })
	twin := func(id string) {
		h.apply("alice", &fsm.SandboxCreateBody{ID: id, SpecID: "all", KeyRef: fsm.SecretRef{Path: "p", Version: 1}, KeyHash: hashKey(id)})
		h.id = id
		h.place()
	}
	twin("aBc")
	h.ask("GET", h.front.URL, "", "Host", "worker-1-abc.boxes.example.org", headerSessionKey, "aBc").want(t, 200)
	twin("AbC")
	for _, key := range []string{"aBc", "AbC", h.alice} {
		h.ask("GET", h.front.URL, "", "Host", "worker-1-abc.boxes.example.org", headerSessionKey, key).want(t, 401)
	}
	h.ask("GET", h.at("WORKER_1", "/"), "", headerSessionKey, "AbC").want(t, 200)
}

func TestLinks(t *testing.T) {
	h, _ := newDoorHarness(t)
	row := h.row()
	for name, c := range map[string]struct {
		change  func(*Config)
		peer    string
		headers []string
		want    string
	}{
		"as it came":     {want: "http://example.org/sandboxes/" + h.id + "/WORKER_1"},
		"untrusted peer": {headers: []string{"X-Forwarded-Host", "evil.org", "X-Forwarded-Proto", "https"}, want: "http://example.org/sandboxes/" + h.id + "/WORKER_1"},
		"trusted peer": {change: func(c *Config) { c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} }, peer: "10.1.1.1:1",
			headers: []string{"X-Forwarded-Host", "evil.org, api.example.org", "X-Forwarded-Proto", "https"}, want: "https://api.example.org/sandboxes/" + h.id + "/WORKER_1"},
		"trusted, odd": {change: func(c *Config) { c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} }, peer: "10.1.1.1:1",
			headers: []string{"X-Forwarded-Host", "a/b@c", "X-Forwarded-Proto", "gopher"}, want: "http://localhost/sandboxes/" + h.id + "/WORKER_1"},
		"configured": {change: func(c *Config) { c.Door.PublicURL = "https://api.example.org:8443/" }, want: "https://api.example.org:8443/sandboxes/" + h.id + "/WORKER_1"},
		"domain": {change: func(c *Config) { c.Door.PublicURL, c.Door.Domain = "https://api.example.org:8443", "box.example.org" },
			want: "https://worker-1-" + strings.ToLower(h.id) + ".box.example.org:8443"},
		"direct": {change: func(c *Config) { c.SandboxURL = "http://{address}:{port}/" }, want: "http://127.0.0.1:" + itoa(h.ports["WORKER_1"])},
	} {
		t.Run(name, func(t *testing.T) {
			change := c.change
			if change == nil {
				change = func(*Config) {}
			}
			s := newHarness(t, change).server
			r := httptest.NewRequest("GET", "http://example.org/", nil)
			if c.peer != "" {
				r.RemoteAddr = c.peer
			}
			for i := 0; i < len(c.headers); i += 2 {
				r.Header.Set(c.headers[i], c.headers[i+1])
			}
			if got := s.linksFor(r).port(row, "WORKER_1"); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

func TestDoorConfig_Validate(t *testing.T) {
	for name, change := range map[string]func(*DoorConfig){
		"no scheme": func(c *DoorConfig) { c.PublicURL = "example.org" }, "path": func(c *DoorConfig) { c.PublicURL = "https://example.org/x" },
		"user": func(c *DoorConfig) { c.PublicURL = "https://u@example.org" }, "capitals": func(c *DoorConfig) { c.Domain = "Example.org" },
		"port": func(c *DoorConfig) { c.Domain = "example.org:80" }, "dot": func(c *DoorConfig) { c.Domain = ".example.org" },
		"below":   func(c *DoorConfig) { c.Domain, c.PublicURL = "example.org", "https://api.example.org" },
		"no wait": func(c *DoorConfig) { c.StartWait = 0 }, "no dial": func(c *DoorConfig) { c.DialTimeout = -1 },
	} {
		c := defaultDoor()
		change(&c)
		if c.validate() == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	c := defaultDoor()
	c.PublicURL, c.Domain = "https://bivouac.example.org", "sandboxes.example.org"
	if err := c.validate(); err != nil {
		t.Error(err)
	}
}
