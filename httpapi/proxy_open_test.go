package httpapi

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/proxy"
)

// exchange posts a code to a port, on its host or, with path, on the API's address.
func (h *proxyHarness) exchange(port, code string, path bool) reply {
	h.t.Helper()
	if path {
		return h.ask("POST", h.at(port, "/.bivouac/open"), `{"code":"`+code+`"}`, "Origin", "null")
	}
	return h.ask("POST", h.front.URL+"/.bivouac/open", `{"code":"`+code+`"}`, "Host", h.host(port))
}

// opened returns the URL of a page after an exchange on the API's address.
func (h *proxyHarness) opened(r reply) string {
	h.t.Helper()
	var out struct{ To string }
	if err := json.Unmarshal(r.want(h.t, 200).body, &out); err != nil {
		h.t.Fatal(err)
	}
	return h.front.URL + out.To
}

// shown returns the URL of a port of the sandbox as the API shows it.
func (h *proxyHarness) shown(port string) string {
	h.t.Helper()
	var page struct {
		Items []struct {
			ID          string
			ExposedURLs []exposedURL `json:"exposed_urls"`
		}
	}
	h.do(h.alice, "GET", "/api/v1/sandboxes/search", "").json(h.t, &page)
	for _, item := range page.Items {
		for _, u := range item.ExposedURLs {
			if item.ID == h.id && u.Name == port {
				return u.URL
			}
		}
	}
	h.t.Fatalf("no %s", port)
	return ""
}

func codeIn(t *testing.T, at string) string {
	t.Helper()
	_, code, is := strings.Cut(at, "#bivouac=")
	if !is {
		t.Fatalf("no code in %s", at)
	}
	return code
}

// A URL opens a page once, and has no key.
func TestProxy_CodeOpensAPageOnce(t *testing.T) {
	h, behind := newProxyHarness(t, withDomain)
	h.raised()
	for _, path := range []bool{false, true} {
		at := h.shown("VSCODE")
		if strings.Contains(at, h.key) || !strings.HasPrefix(at, "http://"+h.host("VSCODE")+"/?folder=/w#bivouac=") {
			t.Fatalf("URL %s", at)
		}
		if again := h.shown("VSCODE"); again != at {
			t.Errorf("a frame would load anew: %s, then %s", at, again)
		}
		code := codeIn(t, at)
		for _, wrong := range []string{
			"",
			"x",
			code + "x",
			"9" + code,
			strings.Replace(code, ".", "..", 1),
			h.key,
			strings.Join(strings.Split(code, ".")[:2], "."),
		} {
			h.exchange("VSCODE", wrong, path).want(t, 401)
		}
		h.exchange("WORKER_1", code, path).want(t, 401)
		h.exchange("AGENT_SERVER", code, path).want(t, 401)
		got := h.exchange("VSCODE", code, path).want(t, 200)
		if path {
			h.ask("GET", h.opened(got)+"/", "").want(t, 200)
			if got.header.Get("Access-Control-Allow-Origin") != "null" || got.header.Get("Set-Cookie") != "" {
				t.Errorf("%v", got.header)
			}
		} else {
			cookie, _ := cookieOf(t, got)
			h.ask("GET", h.front.URL, "", "Host", h.host("VSCODE"), "Cookie", cookie).want(t, 200)
		}
		if sent := behind.last().header.Get("Cookie"); sent != "vscode-tkn="+h.key {
			t.Errorf("the editor got %q", sent)
		}
		h.exchange("VSCODE", code, path).want(t, 401)
		h.exchange("VSCODE", code, !path).want(t, 401)
	}
	h.ask("GET", h.at("WORKER_1", "/.bivouac/open"), "").want(t, 405)
	h.exchange("WORKER_1", strings.Repeat("x", 5000), true).want(t, 400)
	code := codeIn(t, h.shown("VSCODE"))
	h.secrets.set(func(s *fakeSecrets) { s.entries[fsm.SandboxKeyPath(h.id)][0]["key"] = "another" })
	h.exchange("VSCODE", code, true).want(t, 401)
}

// TestProxy_CodeOfAWorker: the API's URLs of the other ports open their pages too, those in answers
// to writes have no code, and the agent server's never has one.
func TestProxy_CodeOfAWorker(t *testing.T) {
	for name, domain := range map[string][]func(*Config){"path": nil, "host": {withDomain}} {
		t.Run(name, func(t *testing.T) {
			h, _ := newProxyHarness(t, domain...)
			if at := h.shown("WORKER_1"); strings.Contains(at, "#") {
				t.Errorf("below protocol version 5 it can't be used up: %s", at)
			}
			h.raised()
			if at := h.shown("AGENT_SERVER"); strings.Contains(at, "#") {
				t.Errorf("the agent server's: %s", at)
			}
			for _, port := range []string{"WORKER_1", "WORKER_2"} {
				at := h.shown(port)
				code := codeIn(t, at)
				want := "http://" + h.host(port) + "/#bivouac="
				if domain == nil {
					want = "http://example.org" + proxy.Path + h.id + "/" + port + "/#bivouac="
				}
				if !strings.HasPrefix(at, want) || strings.Contains(at, h.key) {
					t.Errorf("URL %s", at)
				}
				h.exchange(port, code, domain == nil).want(t, 200)
				h.exchange(port, code, domain == nil).want(t, 401)
				if next := codeIn(t, h.shown(port)); next == code {
					t.Error("the API shows a code that was used")
				}
			}
		})
	}
}

// A page view without permission gets a page that exchanges a code. It tells nothing.
func TestProxy_PageThatOpens(t *testing.T) {
	h, _ := newProxyHarness(t, withDomain)
	html := []string{"Accept", "text/html,*/*;q=0.8", "Sec-Fetch-Mode", "navigate"}
	known := h.ask("GET", h.at("WORKER_1", "/a?b=c"), "", html...).want(t, 401)
	unknown := h.ask("GET", h.front.URL+proxy.Path+"nosuch/WORKER_1/a?b=c", "", html...).want(t, 401)
	if strings.ReplaceAll(string(known.body), h.id, "nosuch") != string(unknown.body) {
		t.Errorf("%s, and of an unknown sandbox %s", known.body, unknown.body)
	}
	policy := strings.Join(known.header.Values("Content-Security-Policy"), ", ")
	if !strings.Contains(policy, "default-src 'none'") || !strings.Contains(policy, "script-src 'sha256-") ||
		!strings.HasPrefix(policy, "sandbox ") {
		t.Errorf("policy %s", policy)
	}
	_, after, _ := strings.Cut(string(known.body), "<script>")
	script, _, _ := strings.Cut(after, "</script>")
	if hash := sha256.Sum256([]byte(script)); !strings.Contains(policy,
		"'sha256-"+base64.StdEncoding.EncodeToString(hash[:])+"'") {
		t.Errorf("the policy %s does not let this script run:%s", policy, script)
	}
	h.ask("GET", h.front.URL+"/", "", append(html, "Host", h.host("WORKER_1"))...).want(t, 401)
	if got := h.ask("GET", h.at("AGENT_SERVER", "/"), "",
		html...).want(t, 401); got.header.Get("Content-Type") != "application/json" {
		t.Errorf("the agent server answers %s", got.header.Get("Content-Type"))
	}
}

func TestSandboxShare(t *testing.T) {
	h, behind := newProxyHarness(t, withDomain)
	h.raised()
	to := pathSandboxes + "/" + h.id + "/ports/worker-1/share"
	var share shareAnswer
	h.do(h.alice, "POST", to, `{}`).json(t, &share)
	token := codeIn(t, share.URL)
	if share.Port != "WORKER_1" || strings.Contains(share.URL, h.key) ||
		!strings.HasPrefix(share.URL, "http://"+h.host("WORKER_1")+"/#") {
		t.Errorf("%+v", share)
	}
	for name, want := range map[string]int{
		"AGENT_SERVER": 404, "nosuch": 404,
	} {
		h.do(h.alice, "POST", pathSandboxes+"/"+h.id+"/ports/"+name+"/share", `{}`).want(t, want)
	}
	h.do(h.bob, "POST", to, `{}`).want(t, 404)
	h.do(h.bob, "DELETE", to, "").want(t, 404)
	for _, until := range []string{"yesterday", "2020-01-01T00:00:00Z", "9999-01-01T00:00:00Z"} {
		h.do(h.alice, "POST", to, `{"expires_at":"`+until+`"}`).want(t, 422)
	}

	// It opens the port again and again, and nothing else.
	for _, other := range []string{"WORKER_2", "VSCODE", "AGENT_SERVER"} {
		h.exchange(other, token, true).want(t, 401)
	}
	page := h.opened(h.exchange("WORKER_1", token, true))
	h.ask("GET", page+"/", "").want(t, 200)
	cookie, whole := cookieOf(t, h.exchange("WORKER_1", token, false).want(t, 200))
	byCookie := func(want int) {
		t.Helper()
		h.ask("GET", h.front.URL, "", "Host", h.host("WORKER_1"), "Cookie", cookie).want(t, want)
	}
	byCookie(200)
	if whole.MaxAge != 3600 {
		t.Errorf("%+v", whole)
	}
	h.ask("GET", strings.Replace(page, "WORKER_1", "WORKER_2", 1)+"/", "").want(t, 401)
	// Without its share a pass is none, and nobody's share is the owner's.
	h.ask("GET", page[:strings.LastIndex(page, ".")]+"/", "").want(t, 401)
	h.exchange("WORKER_1", share.ID+".x", true).want(t, 401)

	h.pause()
	byCookie(409)
	h.ask("GET", page+"/?wake=true", "").want(t, 409)
	h.apply("alice", &fsm.SandboxResumeBody{ID: h.id})
	h.place()

	// Revoked, it ends what it opened.
	behind.serve(echoes)
	conn, _, err := h.dial(page + "/ws")
	if err != nil {
		t.Fatal(err)
	}
	say(t, conn, "x")
	var second shareAnswer
	h.do(h.alice, "POST", to,
		`{"expires_at":"`+time.Now().Add(time.Minute).UTC().Format(time.RFC3339)+`"}`).json(t, &second)
	h.do(h.alice, "DELETE", to+"?id="+share.ID, "").want(t, 200)
	ended(t, conn)
	byCookie(401)
	h.ask("GET", page+"/", "").want(t, 401)
	h.exchange("WORKER_1", token, true).want(t, 401)
	_, short := cookieOf(t, h.exchange("WORKER_1", codeIn(t, second.URL), false).want(t, 200))
	if short.MaxAge > 60 {
		t.Errorf("its cookie outlives a share: %+v", short)
	}
	h.do(h.alice, "DELETE", to, "").want(t, 200)
	h.exchange("WORKER_1", codeIn(t, second.URL), false).want(t, 401)
	h.do(h.alice, "DELETE", to, "").want(t, http.StatusOK)
}

// A share of the editor does not give its holder's browser the sandbox's key.
func TestSandboxShare_OfTheEditorHasNoKey(t *testing.T) {
	h, _ := newProxyHarness(t, withDomain)
	h.raised()
	var share shareAnswer
	h.do(h.alice, "POST", pathSandboxes+"/"+h.id+"/ports/VSCODE/share", `{}`).json(t, &share)
	got := h.exchange("VSCODE", codeIn(t, share.URL), false).want(t, 200)
	if all := strings.Join(got.header.Values("Set-Cookie"), "\n"); strings.Contains(all, h.key) ||
		!strings.Contains(all, "bivouac_proxy=") {
		t.Errorf("cookies %s", all)
	}
}

// TestSandboxShares: the owner and operators see the shares in force, never a token, and both can
// revoke them.
func TestSandboxShares(t *testing.T) {
	h, _ := newProxyHarness(t)
	h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.VersionAccess})
	own, operators := pathSandboxes+"/"+h.id, pathOperator+"/sandboxes/"+h.id
	share := func(port string) (out shareAnswer) {
		h.do(h.alice, "POST", own+"/ports/"+port+"/share", `{}`).json(t, &out)
		return out
	}
	older := share("WORKER_1")
	h.do(h.root, "DELETE", operators+"/ports/WORKER_1/share", "").want(t, 409)
	h.raised()
	newer, other := share("WORKER_1"), share("VSCODE")
	list := func(key, from string) (ids string) {
		t.Helper()
		var page struct {
			Items []struct {
				ID, Port  string
				CreatedAt *time.Time `json:"created_at"`
				ExpiresAt time.Time  `json:"expires_at"`
			}
			NextPageID *string `json:"next_page_id"`
		}
		got := h.do(key, "GET", from, "").want(t, 200)
		got.json(t, &page)
		for _, one := range []shareAnswer{older, newer, other} {
			if strings.Contains(string(got.body), codeIn(t, one.URL)) {
				t.Errorf("the list has a token: %s", got.body)
			}
		}
		for _, item := range page.Items {
			ids += item.ID + " "
			if (item.CreatedAt == nil) != (item.ID == older.ID) || !item.ExpiresAt.After(time.Now()) {
				t.Errorf("%+v", item)
			}
		}
		return ids
	}
	all := older.ID + " " + newer.ID + " " + other.ID + " "
	for name, c := range map[string]struct{ key, from, want string }{
		"the owner's": {h.alice, own + "/shares", all}, "an operator's": {h.root, operators + "/shares", all},
		"of a port": {
			h.alice,
			own + "/shares?port=worker-1",
			older.ID + " " + newer.ID + " ",
		}, "of a port, an operator's": {h.root, operators + "/shares?port=VSCODE", other.ID + " "},
		"of a port without": {h.alice, own + "/shares?port=WORKER_2", ""},
	} {
		if got := list(c.key, c.from); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	h.do(h.bob, "GET", own+"/shares", "").want(t, 404)
	h.do(h.alice, "GET", own+"/shares?port=nosuch", "").want(t, 404)
	h.do(h.alice, "GET", operators+"/shares", "").want(t, 403)
	h.do(h.root, "GET", own+"/shares", "").want(t, 404)
	h.do(h.alice, "DELETE", operators+"/ports/WORKER_1/share", "").want(t, 403)
	h.do(h.root, "DELETE", operators+"/ports/nosuch/share", "").want(t, 404)

	h.do(h.root, "DELETE", operators+"/ports/worker-1/share?id="+older.ID, "").want(t, 200)
	h.exchange("WORKER_1", codeIn(t, older.URL), true).want(t, 401)
	h.exchange("WORKER_1", codeIn(t, newer.URL), true).want(t, 200)
	h.do(h.root, "DELETE", operators+"/ports/worker-1/share", "").want(t, 200)
	h.exchange("WORKER_1", codeIn(t, newer.URL), true).want(t, 401)
	if got := list(h.alice, own+"/shares"); got != other.ID+" " {
		t.Errorf("left: %s", got)
	}
	if text := h.logs.String(); !strings.Contains(text, `"act":"revoke shares"`) ||
		!strings.Contains(text, `"act":"list shares"`) {
		t.Errorf("the log: %s", text)
	}
}

// shareAnswer is a newShare as a client reads it.
type shareAnswer struct{ ID, Port, URL string }
