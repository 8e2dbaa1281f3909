package httpapi

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/httpapi/session"
	"bivouac.dev/bivouac/httpapi/wire"
)

// browser is a browser behind a load balancer that ends TLS.
type browser struct {
	*harness
	// cookie is what it sends.
	cookie string
}

// newBrowser returns a browser that is not signed in.
func newBrowser(t *testing.T, change ...func(*Config)) *browser {
	t.Helper()
	change = append(change, func(c *Config) { c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")} })
	return &browser{harness: newHarness(t, change...).withSpec().raised()}
}

// ask sends a request as the browser's page does.
func (b *browser) ask(method, path, body string, headers ...string) reply {
	b.t.Helper()
	sent := []string{"X-Forwarded-Proto", "https", "X-Forwarded-For", "198.51.100.7", "Sec-Fetch-Site", "same-origin"}
	if b.cookie != "" {
		sent = append(sent, "Cookie", b.cookie)
	}
	return b.do("", method, path, body, append(sent, headers...)...)
}

// signIn signs in and keeps the cookie.
func (b *browser) signIn(body string) wire.SignedIn {
	b.t.Helper()
	res := b.ask("POST", pathLogin, body).want(b.t, http.StatusOK)
	b.keep(res)
	var in wire.SignedIn
	res.json(b.t, &in)
	return in
}

// keep takes the cookie of an answer.
func (b *browser) keep(res reply) {
	b.t.Helper()
	c, err := http.ParseSetCookie(res.header.Get("Set-Cookie"))
	if err != nil {
		b.t.Fatalf("%v in %v", err, res.header)
	}
	if b.cookie = c.Name + "=" + c.Value; c.MaxAge < 0 {
		b.cookie = ""
	}
}

// code makes a code with a key.
func (b *browser) code(key string) string {
	b.t.Helper()
	var made wire.SignInCode
	b.do(key, "POST", pathLogin+"/codes", "").want(b.t, http.StatusOK).json(b.t, &made)
	if len(made.Code) != 22 || time.Until(made.ExpiresAt.Time) > 10*time.Minute {
		b.t.Errorf("made %+v", made)
	}
	return made.Code
}

const ownList = "/api/v1/sandboxes/search"

// TestSession: a browser signs in with a key or with a code, acts as the user, and signs out.
func TestSession(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	b.ask("POST", pathAuthenticate, "").want(t, http.StatusUnauthorized)
	b.ask("GET", ownList, "").want(t, http.StatusUnauthorized)
	in := b.signIn(`{"key":"` + b.alice + `","return_to":"/conversations/1"}`)
	if in.User != "alice" || in.Location != "/conversations/1" || !strings.HasPrefix(b.cookie, session.Cookie+"=") {
		t.Errorf("%+v with the cookie %s", in, b.cookie)
	}
	b.ask("POST", pathAuthenticate, "").want(t, http.StatusOK).is(t, `{"user":"alice"}`)
	b.ask("POST", "/api/v1/sandboxes", "").want(t, http.StatusOK)
	b.ask("GET", ownList, "").want(t, http.StatusOK)
	b.ask("GET", pathOperator+"/keys", "").want(t, http.StatusForbidden)
	b.ask("POST", "/api/analytics/events", `{"a":1}`).want(t, http.StatusNoContent)
	first := b.cookie
	b.keep(b.ask("POST", pathLogout, "").want(t, http.StatusOK))
	if b.cookie != "" {
		t.Errorf("the browser keeps %s", b.cookie)
	}
	b.cookie = first
	b.ask("GET", ownList, "").want(t, http.StatusUnauthorized)
	b.ask("POST", pathLogout, "").want(t, http.StatusOK) // once more is no error

	code := b.code(b.bob)
	b.ask("POST", pathLogin+"/code", `{"code":"`+code+`"}`).want(t, http.StatusOK).is(t, `{"user":"bob","key":"k"}`)
	if in := b.signIn(`{"code":"` + code + `"}`); in.User != "bob" || in.Location != "/" {
		t.Errorf("%+v", in)
	}
	b.ask("POST", pathAuthenticate, "").want(t, http.StatusOK).is(t, `{"user":"bob"}`)
	if b.cookie == first || strings.Contains(b.logs.String(), code) {
		t.Error("the token is an earlier one, or the log has the code")
	}
}

// TestSession_Attacks: what a page of another origin, an old token or a used code comes to.
func TestSession_Attacks(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	b.signIn(`{"key":"` + b.alice + `"}`)
	const refused, foreign = http.StatusUnauthorized, http.StatusForbidden
	spent, late := b.code(b.alice), session.NewCode()
	b.ask("POST", pathLogin, `{"code":"`+spent+`"}`).want(t, http.StatusOK)
	key := b.cluster.store.View().APIKeyByLookup(apikey.LookupOf(b.alice))
	old := fsm.NewCommand("late", time.Now().Add(-fsm.SignInCodeAge), "alice",
		&fsm.SessionOfferBody{Hash: apikey.Hash(late), KeyID: key.ID})
	if _, err := b.cluster.Propose(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	const evil = "https://evil.example"
	site := func(of string, more ...string) []string { return append([]string{"Sec-Fetch-Site", of}, more...) }
	sends := func(cookie string) []string { return []string{"Cookie", cookie} }
	withCode := func(code string) string { return `{"code":"` + code + `"}` }
	withKey, inPlain, name := `{"key":"`+b.alice+`"}`, []string{"X-Forwarded-Proto", "http"}, session.Cookie+"="
	for attack, c := range map[string]struct {
		method, path, body string
		headers            []string
		want               int
	}{
		"a write of another site":         {"POST", settingsPath, "{}", site("cross-site"), foreign},
		"a write of another port":         {"POST", settingsPath, "{}", site("same-site"), foreign},
		"a write of an older browser":     {"POST", settingsPath, "{}", site("", "Origin", evil), foreign},
		"a write of a sandboxed page":     {"POST", settingsPath, "{}", site("", "Origin", "null"), foreign},
		"a read of another port":          {"GET", ownList, "", site("same-site"), foreign},
		"a frame of another site":         {"GET", ownList, "", site("cross-site", "Sec-Fetch-Dest", "iframe"), foreign},
		"a read that says nothing":        {"GET", ownList, "", site(""), foreign},
		"a socket of another origin":      {"GET", ownList, "", []string{"Upgrade", "websocket", "Origin", evil}, foreign},
		"a sign-in by another site":       {"POST", pathLogin, withKey, site("cross-site"), foreign},
		"a look by another site":          {"POST", pathLogin + "/code", `{"code":"x"}`, site("cross-site"), foreign},
		"a sign-out by another site":      {"POST", pathLogout, "", site("cross-site"), foreign},
		"a code of the session":           {"POST", pathLogin + "/codes", "", nil, foreign},
		"an act of an operator":           {"POST", pathOperator + "/keys", "{}", nil, foreign},
		"a token that somebody chose":     {"GET", ownList, "", sends(name + strings.Repeat("a", 43)), refused},
		"the key as the token":            {"GET", ownList, "", sends(name + b.alice), refused},
		"the hash as the token":           {"GET", ownList, "", sends(name + apikey.Hash(b.cookie)), refused},
		"the cookie of plain HTTP":        {"GET", ownList, "", sends(strings.Replace(b.cookie, "__Host-", "", 1)), refused},
		"the cookie twice":                {"GET", ownList, "", sends(b.cookie + "; " + b.cookie), refused},
		"the cookie in plain":             {"GET", ownList, "", inPlain, refused},
		"a bad key beside the cookie":     {"GET", ownList, "", []string{"Authorization", "Bearer x"}, refused},
		"a code that was used":            {"POST", pathLogin, withCode(spent), nil, refused},
		"a look at a code that was used":  {"POST", pathLogin + "/code", withCode(spent), nil, refused},
		"a code that has expired":         {"POST", pathLogin, withCode(late), nil, refused},
		"a look at one that has expired":  {"POST", pathLogin + "/code", withCode(late), nil, refused},
		"a code that somebody guessed":    {"POST", pathLogin, withCode(session.NewCode()), nil, refused},
		"a key that is none":              {"POST", pathLogin, `{"key":"` + b.alice + `x"}`, nil, refused},
		"a sandbox's request by a cookie": {"GET", "/sandboxes/x/VSCODE/", "", nil, refused},
		"a model's request by a cookie":   {"POST", "/llm/v1/chat/completions", "{}", nil, refused},
		"neither key nor code":            {"POST", pathLogin, `{}`, nil, http.StatusUnprocessableEntity},
		"both":                            {"POST", pathLogin, `{"key":"x","code":"y"}`, nil, http.StatusUnprocessableEntity},
		"a sign-in in plain HTTP":         {"POST", pathLogin, withKey, inPlain, foreign},
	} {
		t.Run(attack, func(t *testing.T) {
			before := len(b.cluster.store.View().Sessions("alice"))
			res := b.ask(c.method, c.path, c.body, append(c.headers, "X-Forwarded-For", addressOf(attack))...)
			res.want(t, c.want)
			if got := res.header.Get("Set-Cookie"); got != "" {
				t.Errorf("it sets %s", got)
			}
			if after := len(b.cluster.store.View().Sessions("alice")); after != before {
				t.Errorf("there were %d sessions, and are %d", before, after)
			}
			b.ask("GET", ownList, "").want(t, http.StatusOK)
		})
	}
}

// addressOf spreads attacks over addresses, which sign in at a bounded rate.
func addressOf(attack string) string { return sprint("198.51.100.%d", len(attack)) }

// TestSession_NoCredentialsForOtherOrigins: an answer to the cookie is for no other origin to read;
// one to a key is, for those that the configuration names.
func TestSession_NoCredentialsForOtherOrigins(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	b.signIn(`{"key":"` + b.alice + `"}`)
	const name, front = "Access-Control-Allow-Credentials", "http://localhost:3000"
	if got := b.ask("GET", ownList, "", "Origin", front).header.Get(name); got != "" {
		t.Errorf("with the cookie: %s", got)
	}
	if got := b.ask("GET", ownList, "", "Origin", front, "Authorization", "Basic x").header.Get(name); got != "" {
		t.Errorf("with the cookie and a front end's authorisation: %s", got)
	}
	if got := b.ask("GET", ownList, "", "Origin", front, proxy.HeaderKey, b.alice).header.Get(name); got != "true" {
		t.Errorf("with a key: %q", got)
	}
}

// TestSession_SandboxesSeeNoCookie: the proxy forwards no session and lets no sandbox set one.
func TestSession_SandboxesSeeNoCookie(t *testing.T) {
	t.Parallel()
	h, behind := newProxyHarness(t)
	h.raised()
	behind.serve(func(_ string, w http.ResponseWriter, _ *http.Request) bool {
		for _, name := range []string{session.Cookie, session.CookiePlain} {
			w.Header().Add("Set-Cookie", name+"=theirs; Path=/")
		}
		return false
	})
	mine := session.Cookie + "=" + strings.Repeat("a", 43) + "; " + session.CookiePlain + "=" + strings.Repeat("a", 43)
	for _, port := range []string{"AGENT_SERVER", "VSCODE", "WORKER_1"} {
		res := h.ask("GET", h.at(port, "/x"), "", proxy.HeaderKey, h.key, "Cookie", mine).want(t, http.StatusOK)
		if got := behind.last().header.Get("Cookie"); strings.Contains(got, session.CookiePlain) {
			t.Errorf("%s gets %s", port, got)
		}
		if got := res.header.Values("Set-Cookie"); strings.Contains(strings.Join(got, " "), session.CookiePlain) {
			t.Errorf("%s sets %s", port, got)
		}
		h.ask("GET", h.at(port, "/x"), "", "Cookie", mine).want(t, http.StatusUnauthorized)
	}
}

// TestSession_Loopback: over plain HTTP a browser signs in on the node's own machine alone.
func TestSession_Loopback(t *testing.T) {
	t.Parallel()
	h := newHarness(t).raised()
	for name, c := range map[string]struct {
		peer, host string
		headers    http.Header
		want       int
	}{
		"this machine":            {"127.0.0.1:5000", "127.0.0.1:8440", nil, 200},
		"this machine, by a name": {"[::1]:5000", "localhost:8440", nil, 200},
		"another machine":         {"192.0.2.7:5000", "localhost:8440", nil, 403},
		"another name":            {"127.0.0.1:5000", "bivouac.example.org", nil, 403},
		"through a proxy": {"127.0.0.1:5000", "localhost:8440",
			http.Header{"X-Forwarded-For": {"192.0.2.7"}}, 403},
		"a proxy that nobody trusts": {"127.0.0.1:5000", "bivouac.example.org",
			http.Header{"X-Forwarded-Proto": {"https"}, "X-Forwarded-For": {"192.0.2.7"}}, 403},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest("POST", "http://x"+pathLogin, strings.NewReader(`{"key":"`+h.alice+`"}`))
			w := httptest.NewRecorder()
			r.RemoteAddr, r.Host = c.peer, c.host
			for key, values := range c.headers {
				r.Header[key] = values
			}
			h.handler.ServeHTTP(w, r)
			if w.Code != c.want {
				t.Fatalf("%d: %s", w.Code, w.Body)
			}
			cookie := w.Header().Get("Set-Cookie")
			if c.want != 200 {
				var said struct{ Detail string }
				if json.Unmarshal(w.Body.Bytes(), &said) != nil || !strings.Contains(said.Detail, "HTTPS") || cookie != "" {
					t.Errorf("it says %s, with the cookie %q", w.Body, cookie)
				}
				return
			}
			if !strings.HasPrefix(cookie, session.CookiePlain+"=") {
				t.Errorf("the cookie %s", cookie)
			}
		})
	}
}

// TestSession_BoundedSignIns: one address can try keys and codes at a bounded rate, and others go
// on.
func TestSession_BoundedSignIns(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	refused := 0
	for range 2 * signInBurst {
		if b.ask("POST", pathLogin+"/code", `{"code":"x"}`).status == http.StatusTooManyRequests {
			refused++
		}
	}
	if refused < signInBurst-5 {
		t.Errorf("%d of %d are refused", refused, 2*signInBurst)
	}
	b.ask("POST", pathLogin, `{"key":"`+b.alice+`"}`, "X-Forwarded-For", "198.51.100.8").want(t, http.StatusOK)
}

// TestSession_WrongCode: who has no good code writes nothing to the log.
func TestSession_WrongCode(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	before := b.cluster.count()
	b.ask("POST", pathLogin, `{"code":"x"}`).want(t, http.StatusUnauthorized)
	b.ask("POST", pathLogin, `{"key":"x"}`).want(t, http.StatusUnauthorized)
	if after := b.cluster.count(); after != before {
		t.Errorf("%d commands were proposed", after-before)
	}
}

// TestSession_AllSignIns: addresses without number sign in at a bounded rate, too.
func TestSession_AllSignIns(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	b.server.allSignIns.SetBurst(3)
	b.server.allSignIns.SetLimit(0)
	refused := 0
	for i := range 6 {
		res := b.ask("POST", pathLogin, `{"code":"x"}`, "X-Forwarded-For", sprint("198.51.100.%d", i))
		if res.status == http.StatusTooManyRequests {
			refused++
		}
	}
	if refused != 3 {
		t.Errorf("%d of 6 are refused, want 3", refused)
	}
}

// TestSession_EndedIsAskedOnce: a page that calls on after its session has ended gets 401 each time,
// and does not use up what its address may ask the cluster.
func TestSession_EndedIsAskedOnce(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	b.signIn(`{"key":"` + b.alice + `"}`)
	ended := b.cookie
	b.ask("POST", pathLogout, "").want(t, http.StatusOK)
	b.cookie = ended
	for range 2 * unknownKeyBurst {
		b.ask("GET", ownList, "").want(t, http.StatusUnauthorized)
	}
	b.cookie = ""
	// A session of another node is found, while this one is behind.
	b.lag(func() { b.signIn(`{"key":"` + b.alice + `"}`) })
	b.ask("GET", ownList, "").want(t, http.StatusOK)
}

// TestSession_CodeOnce: of many that use one code at the same time one signs in.
func TestSession_CodeOnce(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	code := b.code(b.alice)
	var mu sync.Mutex
	var wait sync.WaitGroup
	got := map[int]int{}
	for i := range 10 {
		wait.Go(func() {
			res := b.ask("POST", pathLogin, `{"code":"`+code+`"}`, "X-Forwarded-For", sprint("198.51.100.%d", i))
			mu.Lock()
			defer mu.Unlock()
			got[res.status]++
		})
	}
	wait.Wait()
	if got[http.StatusOK] != 1 || got[http.StatusUnauthorized] != 9 {
		t.Errorf("answers %v", got)
	}
}

// TestSession_Seen: a node notes the use of a session, at most once an hour.
func TestSession_Seen(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	token, uses := session.NewToken(), b.server.keys.uses
	key := b.cluster.store.View().APIKeyByLookup(apikey.LookupOf(b.alice))
	old := fsm.NewCommand("old", time.Now().Add(-2*time.Hour), "alice",
		&fsm.SessionCreateBody{Hash: apikey.Hash(token), KeyID: key.ID})
	if _, err := b.cluster.Propose(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	b.cookie = session.Cookie + "=" + token
	b.ask("GET", ownList, "").want(t, http.StatusOK)
	uses.send(t.Context(), time.Second)
	if row := b.cluster.store.View().Session(apikey.Hash(token)); time.Since(row.SeenAt) > time.Minute {
		t.Errorf("it was last seen at %s", row.SeenAt)
	}
	before := b.cluster.count()
	b.ask("GET", ownList, "").want(t, http.StatusOK)
	if uses.send(t.Context(), time.Second); b.cluster.count() != before {
		t.Error("it is noted again within the hour")
	}
}

// TestSession_ResumesForAPerson: what a page asks by itself ends no pause, what somebody does after
// the pause does, and a key always does.
func TestSession_ResumesForAPerson(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	b.signIn(`{"key":"` + b.alice + `"}`)
	id := b.createSandbox(b.alice)
	resume := pathSandboxes + "/" + id + "/resume"
	wish := func() fsm.Desired {
		v, err := b.cluster.View(t.Context(), cluster.Stale)
		if err != nil {
			t.Fatal(err)
		}
		return v.SandboxAny(id).Desired
	}
	b.ask("POST", resume, "").want(t, http.StatusOK) // it is not paused
	b.ask("POST", pathSandboxes+"/"+id+"/pause", "").want(t, http.StatusOK)
	for _, act := range []string{"", "3600000", "-1", "1s", "99999999999999999999"} {
		res := b.ask("POST", resume, "", headerAct, act).want(t, http.StatusConflict)
		if res.header.Get(headerAct) != "required" || !strings.Contains(string(res.body), "nobody has used this page") {
			t.Errorf("%q: %v %s", act, res.header, res.body)
		}
	}
	if wish() != fsm.DesiredPaused {
		t.Errorf("it is to be %s", wish())
	}
	b.ask("POST", resume, "", headerAct, "0").want(t, http.StatusOK)
	for _, headers := range [][]string{nil, {headerAct, "3600000"}} {
		b.apply("alice", &fsm.SandboxPauseBody{ID: id})
		b.do(b.alice, "POST", resume, "", headers...).want(t, http.StatusOK)
		if wish() != fsm.DesiredRunning {
			t.Errorf("a key with %q: it is to be %s", headers, wish())
		}
	}
	b.ask("POST", pathSandboxes+"/nope/resume", "").want(t, http.StatusNotFound)
}
