package httpapi

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
)

// What a node says of itself does not go through a load balancer.
func TestDirect_ForwardedRequestsAreRefused(t *testing.T) {
	h := newHarness(t, withPage(t))
	for _, path := range []string{"/metrics", "/server_info", "/openapi.json", "/docs"} {
		for name, want := range map[string]int{"X-Other": 200, "X-Forwarded-For": 404, "Forwarded": 404} {
			r := httptest.NewRequest(http.MethodGet, path, nil)
			r.Header.Set(name, "for=10.0.0.1")
			w := httptest.NewRecorder()
			h.server.Handler().ServeHTTP(w, r)
			if w.Code != want {
				t.Errorf("%s with %s: %d, want %d", path, name, w.Code, want)
			}
		}
	}
}

func TestRouter_WrongMethodAndUnknownPath(t *testing.T) {
	h := newHarness(t)
	for _, tt := range []struct{ method, path, allow string }{
		{"PUT", "/api/settings", "GET, POST"},
		{"DELETE", "/api/conversations", "POST"},
		{"GET", "/api/v1/sandboxes/x/pause", "POST"},
		{"POST", "/api/v1/sandboxes/search", "DELETE, GET"},
		{"GET", "/api/v1/sandboxes/x", "DELETE"},
		{"HEAD", "/api/settings", "GET, POST"},
		{"POST", "/health", "GET, HEAD"},
		{"BREW", "/alive", "GET, HEAD"},
	} {
		res := h.do(h.alice, tt.method, tt.path, "").want(t, 405)
		if tt.method != "HEAD" {
			res.is(t, `{"detail":"Method Not Allowed"}`)
		}
		if got := res.header.Get("Allow"); got != tt.allow {
			t.Errorf("%s %s: Allow %q", tt.method, tt.path, got)
		}
	}
	for _, path := range []string{
		"/", "/api", "/api/", "/API/settings", "//api/settings", "/api/v1/sandboxes//pause",
		"/api/v1/sandboxes/a/b/pause", "/api/v1/app-conversations/x/y", "/api/../alive", "/api/v1/operator",
	} {
		for _, method := range []string{"GET", "POST", "DELETE"} {
			res := h.do(h.alice, method, path, "").want(t, 404).is(t, `{"detail":"Not Found"}`)
			if res.header.Get("Location") != "" {
				t.Errorf("%s redirects", path)
			}
		}
	}
	h.do("", "OPTIONS", "/api/settings", "").want(t, 204)
	h.do("", "OPTIONS", "/nowhere", "").want(t, 404)
	for _, path := range []string{"/alive", "/health", "/ready", "/metrics"} {
		h.do("", "HEAD", path, "").want(t, 200)
	}
}

func TestEdge_HeadersOnEveryAnswer(t *testing.T) {
	h := newHarness(t)
	for _, res := range []reply{
		h.do(h.alice, "GET", "/api/v1/sandboxes/search",
			""), h.do("", "GET", "/api/settings", ""), h.do("", "GET", "/nowhere", ""),
		h.do(h.alice, "POST", "/api/settings",
			"{"), h.do("", "GET", "/health", ""), h.do(h.alice, "PATCH", "/api/settings", ""),
		h.do(h.alice, "POST", "/api/settings", "{}"),
	} {
		want := map[string]string{
			"Cache-Control": "no-cache, no-store, must-revalidate, max-age=0",
			"Pragma":        "no-cache",
			"Expires":       "0",
		}
		for k, v := range want {
			if res.header.Get(k) != v {
				t.Errorf("%s is %q", k, res.header.Get(k))
			}
		}
		if res.header.Get(response.HeaderRequestID) == "" || res.header.Get(response.HeaderIndex) == "" ||
			res.header.Get(response.HeaderIndex) == "0" {
			t.Errorf("headers %v", res.header)
		}
	}
	if got := h.do("", "GET", "/alive", "", response.HeaderRequestID,
		"my-id.1").header.Get(response.HeaderRequestID); got != "my-id.1" {
		t.Errorf("request id %q", got)
	}
	for _, bad := range []string{"a b", "x\"y", strings.Repeat("a", 129), "é"} {
		if got := h.do("", "GET", "/alive", "", response.HeaderRequestID,
			bad).header.Get(response.HeaderRequestID); got == bad {
			t.Errorf("request id %q was taken", got)
		}
	}
}

func TestEdge_IndexOfWritesAndReads(t *testing.T) {
	h := newHarness(t)
	index := func(r reply) string { return r.header.Get(response.HeaderIndex) }
	put := h.do(h.alice, "POST", "/api/settings", "{}").want(t, 200)
	if got := index(h.do(h.alice, "GET", "/api/settings", "")); got != index(put) {
		t.Fatalf("wrote at %s, read at %s", index(put), got)
	}
}

func TestReads_ConsistencyIsTheClients(t *testing.T) {
	h := newHarness(t)
	v, _ := h.cluster.View(t.Context(), cluster.Stale)
	h.cluster.set(func(c *fakeCluster) { c.behind = v })
	h.do(h.alice, "POST", "/api/settings", "{}").want(t, 200)
	h.do(h.alice, "GET", "/api/settings", "").want(t, 200)
	h.do(h.alice, "GET", "/api/settings", "", request.HeaderConsistency, "stale").want(t, 404)
	h.do(h.alice, "GET", "/api/settings?stale", "").want(t, 404)
	h.do(h.alice, "GET", "/api/settings?stale=true", "").want(t, 404)
	h.do(h.alice, "GET", "/api/settings?stale=false", "").want(t, 200)
	h.do(h.alice, "GET", "/api/settings", "", request.HeaderConsistency, "linearizable").want(t, 200)
	h.cluster.set(func(c *fakeCluster) { c.viewErr = fsm.Errorf(fsm.CodeNoLeader, "no leader") })
	res := h.do(h.alice, "GET", "/api/v1/sandboxes/search", "").want(t, 503)
	if res.header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After %q", res.header.Get("Retry-After"))
	}
	h.do(h.alice, "GET", "/api/v1/sandboxes/search?stale", "").want(t, 200)
}

func TestErrors_EveryCode(t *testing.T) {
	for code, want := range map[fsm.Code]int{
		fsm.CodeInvalid: 422, fsm.CodeUnauthorized: 401, fsm.CodeForbidden: 403, fsm.CodeNotFound: 404, fsm.CodeConflict: 409,
		fsm.CodeIdempotencyMismatch: 422, fsm.CodeNoLeader: 503, fsm.CodeOutcomeUnknown: 503, fsm.CodeSecretStore: 503,
		fsm.CodeScheduler: 503, fsm.CodeProtocol: 409, fsm.CodeShuttingDown: 503, fsm.CodeTimeout: 503,
		fsm.CodeInternal: 500, "new": 500,
	} {
		h := newHarness(t).withSpec()
		h.cluster.set(func(c *fakeCluster) { c.proposeErr = &fsm.Error{Code: code, Message: "words for the reader"} })
		res := h.do(h.alice, "POST", pathSandboxes+"/x/pause", "").want(t, want)
		if (want == 503) != (res.header.Get("Retry-After") != "") {
			t.Errorf("%s: Retry-After %q", code, res.header.Get("Retry-After"))
		}
		if want == 500 {
			res.is(t, `{"detail":"Internal Server Error"}`)
		}
		var body struct{ Detail any }
		res.json(t, &body)
		if body.Detail == nil {
			t.Errorf("%s: %s", code, res.body)
		}
	}
	h := newHarness(t).withSpec()
	h.cluster.set(func(c *fakeCluster) {
		c.proposeErr = &fsm.Error{Code: fsm.CodeNoLeader, Message: "x", RetryAfter: 1500 * time.Millisecond}
	})
	if got := h.do(h.alice, "POST", pathSandboxes, "").want(t, 503).header.Get("Retry-After"); got != "2" {
		t.Errorf("Retry-After %q", got)
	}
	// An error without a code has an unknown cause: the outcome is unknown, and its text is not for
	// the client.
	h.cluster.set(func(c *fakeCluster) { c.proposeErr = errors.New("dial tcp 10.0.0.1: secret words") })
	res := h.do(h.alice, "POST", pathSandboxes, "").want(t, 503)
	if strings.Contains(string(res.body), "secret words") || !strings.Contains(string(res.body), "unknown") {
		t.Errorf("body %s", res.body)
	}
}

func TestLimits_Body(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.MaxBodyBytes = 2048 })
	big := `{"language":"` + strings.Repeat("x", 2048) + `"}`
	h.do(h.alice, "POST", "/api/settings", big).want(t, 413).is(t, `{"detail":"Request body is larger than 2048 bytes"}`)
	h.do("", "POST", "/api/settings", big).want(t, 401)
	// Without a Content-Length.
	r := httptest.NewRequest("POST", "/api/settings", io.MultiReader(strings.NewReader(big)))
	r.Header.Set("X-Session-API-Key", h.alice)
	w := httptest.NewRecorder()
	h.handler.ServeHTTP(w, r)
	if w.Code != 413 {
		t.Fatalf("status %d", w.Code)
	}
	h.do(h.alice, "POST", pathSandboxes, big).want(t, 413)
}

func TestLimits_Rate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, func(c *Config) { c.RatePerSecond = 10 })
		counts := map[int]int{}
		start := time.Now()
		for range 10 {
			counts[h.do(h.alice, "GET", "/api/v1/sandboxes/search", "").status]++
		}
		if time.Since(start) != 0 || counts[200] != 10 {
			t.Fatalf("ten requests took %s: %v", time.Since(start), counts)
		}
		h.do(h.alice, "GET", "/api/v1/sandboxes/search", "").want(t, 200)
		if time.Since(start) != time.Second {
			t.Fatalf("the eleventh waited %s", time.Since(start))
		}
		time.Sleep(10 * time.Second)
		results := make(chan reply, 40)
		for range 40 {
			go func() { results <- h.do(h.alice, "GET", "/api/v1/sandboxes/search", "") }()
		}
		counts = map[int]int{}
		for range 40 {
			res := <-results
			counts[res.status]++
			if res.status == 429 {
				res.is(t, `{"message":"Too many requests","detail":"Too many requests"}`)
				if res.header.Get("Retry-After") != "1" {
					t.Errorf("Retry-After %q", res.header.Get("Retry-After"))
				}
			}
		}
		if counts[200] != 20 || counts[429] != 20 {
			t.Fatalf("forty at once: %v", counts)
		}
		h.do("", "GET", "/alive", "").want(t, 200)
	})
}

// Requests to sandboxes count with those to the API.
func TestLimits_RateOfTheProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, func(c *Config) { c.RatePerSecond = 10 })
		for range 10 {
			h.do("", "GET", "/sandboxes/none/AGENT_SERVER/", "").want(t, 401)
		}
		results := make(chan int, 20)
		for range cap(results) {
			go func() { results <- h.do("", "GET", "/sandboxes/none/AGENT_SERVER/", "").status }()
		}
		counts := map[int]int{}
		for range cap(results) {
			counts[<-results]++
		}
		if counts[401] != 10 || counts[429] != 10 {
			t.Errorf("thirty requests to a sandbox: after ten, %v", counts)
		}
		h.do("", "GET", "/ready", "").want(t, 200)
	})
}

// Failed requests are not a line each: all are counted, and the lines say how many are missing.
func TestLog_FailedRequestsAreSampled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const failures = 5 * logBurst
		h := newHarness(t)
		for range failures {
			h.do("nonsense", "GET", "/api/v1/sandboxes/search", "").want(t, 401)
		}
		h.do("", "GET", "/sandboxes/none/AGENT_SERVER/", "").want(t, 401)
		lines := strings.Count(h.logs.String(), `"status":401`)
		if lines != logBurst {
			t.Errorf("%d lines, want %d", lines, logBurst)
		}
		if n := h.metricValue("bivouac_http_requests_not_logged_total"); n != failures+1-logBurst {
			t.Errorf("%g are counted as not logged", n)
		}
		time.Sleep(time.Second)
		h.do("nonsense", "GET", "/api/v1/sandboxes/search", "").want(t, 401)
		if want := sprint(`"not_logged":%d`, failures+1-logBurst); !strings.Contains(h.logs.String(), want) {
			t.Errorf("no line says %s", want)
		}
		h.do(h.alice, "DELETE", "/api/v1/sandboxes/none", "").want(t, 404) // it is logged again
	})
}

// A line costs a tenth of a write: many writes share the lines of a few. What an operator changes
// has a line each.
func TestLog_WritesAreSampled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const writes = 3 * logBurst
		h := newHarness(t)
		before := strings.Count(h.logs.String(), "POST /api/settings")
		for range writes {
			h.do(h.alice, "POST", "/api/settings", `{}`).want(t, 200)
		}
		lines := strings.Count(h.logs.String(), "POST /api/settings") - before
		if lines < logBurst || lines > logBurst+2*userLogBurst {
			t.Errorf("%d writes have %d lines, want about %d", writes, lines, logBurst+userLogBurst)
		}
		if h.do(h.bob, "POST", "/api/settings", `{}`).want(t, 200); !strings.Contains(h.logs.String(), `"user":"bob"`) {
			t.Error("another user's write has no line")
		}
		if n := h.metricValue("bivouac_http_requests_not_logged_total"); int(n)+lines != writes {
			t.Errorf("%d lines, and %g are counted as not logged, of %d", lines, n, writes)
		}
		before = strings.Count(h.logs.String(), `"route":"POST /api/v1/operator/keys"`)
		for i := range 10 {
			h.do(h.root, "POST", "/api/v1/operator/keys", sprint(`{"user":"u%d","name":"k"}`, i)).want(t, 201)
		}
		if got := strings.Count(h.logs.String(), `"route":"POST /api/v1/operator/keys"`) - before; got != 10 {
			t.Errorf("%d of an operator's ten writes have a line", got)
		}
		time.Sleep(time.Second)
		h.do(h.alice, "POST", "/api/settings", `{}`).want(t, 200)
		if !strings.Contains(h.logs.String(), `"not_logged":`) {
			t.Error("no line says how many are missing")
		}
	})
}

func TestClientAddress(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} })
	for _, tt := range []struct{ remote, forwarded, want string }{
		{
			"1.2.3.4:5",
			"9.9.9.9",
			"1.2.3.4",
		}, {"10.0.0.1:5", "9.9.9.9", "9.9.9.9"}, {"10.0.0.1:5", "8.8.8.8, 9.9.9.9, 10.0.0.2", "9.9.9.9"},
		{"10.0.0.1:5", "", "10.0.0.1"}, {
			"10.0.0.1:5",
			"junk",
			"10.0.0.1",
		}, {"[::1]:5", "9.9.9.9", "::1"}, {"10.0.0.1:5", "10.0.0.3", "10.0.0.3"},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = tt.remote
		if tt.forwarded != "" {
			r.Header.Set("X-Forwarded-For", tt.forwarded)
		}
		if got := h.server.clientAddress(r); got != tt.want {
			t.Errorf("%s via %q: %s", tt.remote, tt.forwarded, got)
		}
	}
}

func TestCORS(t *testing.T) {
	preflight := func(h *harness, origin string) http.Header {
		return h.do("", "OPTIONS", "/api/settings", "", "Origin", origin, "Access-Control-Request-Method", "POST",
			"Access-Control-Request-Headers", "content-type,x-session-api-key").header
	}
	h := newHarness(t)
	for origin, fine := range map[string]bool{
		"http://localhost:3000": true, "https://localhost": true, "http://127.0.0.1:1234": true,
		"https://evil.example.org":          false,
		"http://localhost.evil.example.org": false, "null": false, "file://localhost": false,
	} {
		got := preflight(h, origin)
		if (got.Get("Access-Control-Allow-Origin") == origin) != fine {
			t.Errorf("%s: %v", origin, got)
		}
		if fine && (got.Get("Access-Control-Allow-Credentials") != "true" ||
			!strings.Contains(got.Get("Access-Control-Allow-Headers"), "x-session-api-key")) {
			t.Errorf("%s: %v", origin, got)
		}
	}
	h = newHarness(t, func(c *Config) { c.CORSOrigins = []string{"https://app.example.org"} })
	if preflight(h, "https://app.example.org").Get("Access-Control-Allow-Origin") == "" ||
		preflight(h, "http://localhost:1").Get("Access-Control-Allow-Origin") != "" {
		t.Error("configured origins")
	}
	res := h.do(h.alice, "GET", "/api/v1/sandboxes/search", "", "Origin", "https://app.example.org").want(t, 200)
	if res.header.Get("Access-Control-Allow-Origin") != "https://app.example.org" ||
		!strings.Contains(res.header.Get("Access-Control-Expose-Headers"), response.HeaderIndex) {
		t.Errorf("headers %v", res.header)
	}
}

func TestEdge_PanicIsA500WithTheRequestIDOfTheLog(t *testing.T) {
	h := newHarness(t).withSpec()
	id := h.createSandbox(h.alice)
	h.observe(id, running())
	h.conversation("alice", id)
	handler := h.server.accessLog(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("boom") }))
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest("GET", "/x", nil))
	if w.Code != 500 || w.Body.String() != `{"detail":"Internal Server Error"}` {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if id := w.Header().Get(response.HeaderRequestID); id == "" || !strings.Contains(h.logs.String(), id) ||
		!strings.Contains(h.logs.String(), "boom") {
		t.Fatal("the panic is not in the log")
	}
}

func TestEdge_AccessLogAndMetrics(t *testing.T) {
	h := newHarness(t)
	h.do(h.alice, "GET", "/api/v1/sandboxes/search?token=hush", "").want(t, 200)
	h.do(h.alice, "POST", "/api/v1/sandboxes/abc/pause", "").want(t, 404)
	h.do("", "GET", "/who?token=hush", "").want(t, 404)
	var lines []map[string]any
	for line := range strings.Lines(h.logs.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, m)
	}
	if len(lines) != 3 || lines[0]["route"] != "GET /api/v1/sandboxes/search" || lines[0]["user"] != "alice" ||
		lines[0]["status"] != 200.0 ||
		lines[1]["route"] != "POST /api/v1/sandboxes/:sandbox_id/pause" || lines[2]["route"] != "GET unknown" {
		t.Fatalf("lines %v", lines)
	}
	if strings.Contains(h.logs.String(), "hush") {
		t.Fatal("the query is in the log")
	}
	got := string(h.do("", "GET", "/metrics", "").want(t, 200).body)
	for _, want := range []string{
		`bivouac_http_requests_total{class="2xx",method="GET",route="/api/v1/sandboxes/search"} 1`,
		`bivouac_http_requests_total{class="4xx",method="POST",route="/api/v1/sandboxes/:sandbox_id/pause"} 1`,
		`bivouac_http_requests_total{class="4xx",method="GET",route="unknown"} 1`,
		`bivouac_http_request_duration_seconds_count{route="/api/v1/sandboxes/search"} 1`,
		`bivouac_http_requests_in_flight 1`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s", want)
		}
	}
}

func TestRoutes_TableIsWhole(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range routes() {
		if seen[r.name] || seen[r.method+r.path] {
			t.Errorf("%s twice", r.name)
		}
		seen[r.name], seen[r.method+r.path] = true, true
		if r.access == open && strings.ContainsAny(r.path, ":*") {
			t.Errorf("%s needs no key, so its path must be exact", r.name)
		}
		if (r.handle == nil) == (r.serve == nil) {
			t.Errorf("%s needs one handler", r.name)
		}
	}
	// The eleven endpoints of API.md, "Seed document".
	var missing []string
	for _, want := range []string{
		"POST/api/settings", "GET/api/settings", "POST/api/conversations", "POST/api/add-git-providers",
		"POST/api/v1/app-conversations", "GET/api/v1/app-conversations", "GET/api/v1/sandboxes/search",
		"POST/api/v1/sandboxes",
		"POST/api/v1/sandboxes/:sandbox_id/pause", "POST/api/v1/sandboxes/:sandbox_id/resume",
		"GET/api/v1/sandbox-specs/search",
	} {
		if !seen[want] {
			missing = append(missing, want)
		}
	}
	if diff := cmp.Diff([]string(nil), missing); diff != "" {
		t.Fatal(diff)
	}
}
