package httpapi

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/proxy"
)

const pathCloudProxy = "/api/cloud-proxy"

// envelope is a call of the sandbox's agent server as a page sends it, with changes.
func (h *proxyHarness) envelope(changes map[string]any) string {
	h.t.Helper()
	all := map[string]any{
		"host": h.front.URL + proxy.Path + h.id + "/AGENT_SERVER", "method": "GET",
		"path":    "/api/git/commits?path=/w&limit=50",
		"headers": map[string]string{"X-Session-API-Key": h.key},
	}
	maps.Copy(all, changes)
	b, err := json.Marshal(all)
	if err != nil {
		h.t.Fatal(err)
	}
	return string(b)
}

// through makes a call through the node's own origin.
func (h *proxyHarness) through(changes map[string]any) reply {
	h.t.Helper()
	return h.ask("POST", h.front.URL+pathCloudProxy, h.envelope(changes), "Authorization", "Bearer "+h.alice,
		"Content-Type", "application/json", "Cookie", "__Host-x=canary", "Origin", h.front.URL)
}

// TestCloudProxy_Call sends what was asked for with the sandbox's key, and gives back the answer as data.
func TestCloudProxy_Call(t *testing.T) {
	h, behind := newProxyHarness(t)
	behind.serve(func(_ string, w http.ResponseWriter, r *http.Request) bool {
		for name, value := range map[string]string{
			"Content-Type": "text/html", "Set-Cookie": "a=b", "Clear-Site-Data": `"*"`, "Service-Worker-Allowed": "/",
			"Content-Disposition": "inline", "X-Content-Type-Options": "none", "Refresh": "0; url=/",
			"Link":                        "</x>; rel=preload",
			"Access-Control-Allow-Origin": "*", "Content-Security-Policy": "default-src *", "Trailer": "Set-Cookie",
		} {
			w.Header().Set(name, value)
		}
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "<script>")
		return true
	})
	res := h.through(map[string]any{"method": "POST", "path": "/api/conversations/c/condense",
		"body": map[string]any{"n": 1},
		"headers": map[string]string{"X-Session-API-Key": "wrong", "Accept": "application/json", "Host": "evil",
			"Cookie":        "c=d",
			"Authorization": "Bearer stolen", "Connection": "Upgrade", "Upgrade": "websocket", "Transfer-Encoding": "chunked",
			"Content-Length": "3", "X-Forwarded-For": "6.6.6.6", "X-Bivouac-Index": "9"}}).want(t, 418)
	if string(res.body) != "<script>" || res.header.Get("Content-Type") != "text/html" ||
		res.header.Get("X-Content-Type-Options") != "nosniff" || res.header.Get("Content-Disposition") != "attachment" ||
		res.header.Get("Content-Security-Policy") != "sandbox; default-src 'none'" {
		t.Errorf("the answer is %q with %v", res.body, res.header)
	}
	for _, name := range []string{
		"Set-Cookie", "Clear-Site-Data", "Service-Worker-Allowed", "Refresh", "Link", "Trailer",
	} {
		if v := res.header.Values(name); len(v) > 0 {
			t.Errorf("%s came back: %v", name, v)
		}
	}
	got := behind.last()
	if got.method != "POST" || got.uri != "/api/conversations/c/condense" || got.body != `{"n":1}` ||
		got.header.Get(proxy.HeaderKey) != h.key || got.header.Get("Content-Type") != "application/json" ||
		got.header.Get("Accept") != "application/json" {
		t.Errorf("the agent server got %+v", got)
	}
	for _, name := range []string{"Authorization", "Cookie", "Upgrade", "Origin", "Transfer-Encoding", "X-Bivouac-Index"} {
		if v := got.header.Values(name); len(v) > 0 {
			t.Errorf("%s was sent: %v", name, v)
		}
	}
	if strings.Contains(got.header.Get("X-Forwarded-For"), "6.6.6.6") || got.host == "evil" {
		t.Errorf("the agent server got %+v", got)
	}
	// A text is sent as it is, with the type that the page says.
	h.through(map[string]any{"method": "PUT", "path": "/api/x", "body": "a=b",
		"headers": map[string]string{"content-type": "text/plain"}}).want(t, 418)
	if got := behind.last(); got.body != "a=b" || got.header.Get("Content-Type") != "text/plain" {
		t.Errorf("the agent server got %+v", got)
	}
}

// TestCloudProxy_Attacks: nothing but the agent server of an own sandbox is reached, by any envelope.
func TestCloudProxy_Attacks(t *testing.T) {
	h, behind := newProxyHarness(t)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("another server was called")
	}))
	defer elsewhere.Close()
	bobs := h.createSandbox(h.bob)
	h.observe(bobs, fsm.SandboxStatus{State: fsm.SandboxRunning, Placement: &fsm.Placement{
		AllocID: "a2", NodeID: "m1", Address: "127.0.0.1", Workspace: "/w", Ports: h.ports,
	}})
	own := h.front.URL + proxy.Path + h.id + "/AGENT_SERVER"
	theirs := h.front.URL + proxy.Path + bobs
	host, path := strings.TrimPrefix(h.front.URL, "http://"), proxy.Path+h.id+"/AGENT_SERVER"
	for name, c := range map[string]struct {
		changes map[string]any
		want    int
	}{
		"another server":              {map[string]any{"host": elsewhere.URL}, 403},
		"another server, own path":    {map[string]any{"host": elsewhere.URL + path}, 403},
		"the sandbox itself":          {map[string]any{"host": "http://127.0.0.1:" + portText(h.ports["AGENT_SERVER"])}, 403},
		"another user's":              {map[string]any{"host": h.front.URL + proxy.Path + bobs + "/AGENT_SERVER"}, 403},
		"an unknown sandbox":          {map[string]any{"host": h.front.URL + proxy.Path + "nobody/AGENT_SERVER"}, 403},
		"another port of the sandbox": {map[string]any{"host": h.front.URL + proxy.Path + h.id + "/WORKER_1"}, 403},
		"the node":                    {map[string]any{"host": h.front.URL}, 403},
		"the node's metadata":         {map[string]any{"host": "http://169.254.169.254"}, 403},
		"userinfo":                    {map[string]any{"host": "http://" + host + "@" + "127.0.0.1" + path}, 422},
		"userinfo of our own":         {map[string]any{"host": "http://a:b@" + host + path}, 422},
		"another TCP port":            {map[string]any{"host": "http://127.0.0.1:1" + path}, 403},
		"no TCP port":                 {map[string]any{"host": "http://127.0.0.1" + path}, 403},
		"another scheme":              {map[string]any{"host": "https://" + host + path}, 403},
		"no HTTP":                     {map[string]any{"host": "file://" + host + path}, 422},
		"a suffix":                    {map[string]any{"host": "http://" + host + ".evil.example" + path}, 422},
		"a suffix of the name":        {map[string]any{"host": strings.Replace(own, "0.1:", "0.1.evil.example:", 1)}, 403},
		"a final dot":                 {map[string]any{"host": strings.Replace(own, "127.0.0.1", "127.0.0.1.", 1)}, 403},
		"a longer path":               {map[string]any{"host": own + "/api"}, 403},
		"dots in host":                {map[string]any{"host": theirs + "/../" + h.id + "/AGENT_SERVER"}, 403},
		"escaped dots in host":        {map[string]any{"host": theirs + "/%2e%2e/" + h.id + "/AGENT_SERVER"}, 403},
		"an escaped letter in host":   {map[string]any{"host": strings.Replace(own, "AGENT", "%41GENT", 1)}, 403},
		"a query in host":             {map[string]any{"host": own + "?x=1"}, 422},
		"a fragment in host":          {map[string]any{"host": own + "#"}, 422},
		"a backslash in host":         {map[string]any{"host": `http://evil.example\@` + host + path}, 422},
		"a line in host":              {map[string]any{"host": own + "\r\nX: y"}, 422},
		"no host":                     {map[string]any{"host": nil}, 422},
		"an absolute path":            {map[string]any{"path": elsewhere.URL + "/api/x"}, 422},
		"a path of another host":      {map[string]any{"path": "//evil.example/api/x"}, 422},
		"a path without a slash":      {map[string]any{"path": "@evil.example/api/x"}, 422},
		"dots":                        {map[string]any{"path": "/api/../../" + bobs + "/AGENT_SERVER/api/x"}, 422},
		"one dot":                     {map[string]any{"path": "/api/./x"}, 422},
		"escaped dots":                {map[string]any{"path": "/api/%2e%2e/x"}, 422},
		"half escaped dots":           {map[string]any{"path": "/api/.%2E/x"}, 422},
		"twice escaped dots":          {map[string]any{"path": "/api/%252e%252e/x"}, 422},
		"an escaped slash":            {map[string]any{"path": "/api%2f..%2fx"}, 422},
		"an escaped backslash":        {map[string]any{"path": "/api/..%5cx"}, 422},
		"a backslash":                 {map[string]any{"path": `/api\x`}, 422},
		"a double slash":              {map[string]any{"path": "/api//x"}, 422},
		"a line in the path":          {map[string]any{"path": "/api/x HTTP/1.1\r\nHost: evil\r\n\r\n"}, 422},
		"a NUL":                       {map[string]any{"path": "/api/x%00"}, 422},
		"a socket":                    {map[string]any{"path": "/sockets/events/x"}, 422},
		"no API":                      {map[string]any{"path": "/.bivouac/open"}, 422},
		"a long path":                 {map[string]any{"path": "/api/" + strings.Repeat("x", maxProxyPath)}, 422},
		"CONNECT":                     {map[string]any{"method": "CONNECT"}, 422},
		"TRACE":                       {map[string]any{"method": "TRACE"}, 422},
		"a method with a line":        {map[string]any{"method": "GET / HTTP/1.1\r\nX: y\r\n\r\nGET"}, 422},
		"a header's value with a line": {map[string]any{
			"headers": map[string]string{"Accept": "a\r\nX-Session-API-Key: y"}}, 422},
		"a header's name with a line": {map[string]any{"headers": map[string]string{"Accept: a\r\nX": "y"}}, 422},
		"many headers":                {map[string]any{"headers": manyHeaders()}, 422},
		"no time":                     {map[string]any{"timeout_seconds": 0}, 422},
	} {
		t.Run(name, func(t *testing.T) {
			before := behind.count()
			h.through(c.changes).want(t, c.want)
			if n := behind.count(); n != before {
				t.Errorf("the sandbox was called: %+v", behind.last())
			}
		})
	}
	huge := h.envelope(map[string]any{"method": "POST", "body": strings.Repeat("x", int(DefaultConfig().MaxBodyBytes))})
	h.do(h.alice, "POST", pathCloudProxy, huge).want(t, 413)
	for _, key := range []string{h.bob, ""} {
		want := map[bool]int{true: 403, false: 401}[key != ""]
		h.ask("POST", h.front.URL+pathCloudProxy, h.envelope(nil), "Authorization", "Bearer "+key).want(t, want)
	}
	h.ask("POST", h.front.URL+pathCloudProxy, h.envelope(nil), proxy.HeaderKey, h.key).want(t, 401) // a sandbox's key
}

func portText(n int) string { return strconv.Itoa(n) }

func manyHeaders() map[string]string {
	out := map[string]string{}
	for i := range maxProxyHeaders + 1 {
		out["X-"+strings.Repeat("a", i+1)] = "b"
	}
	return out
}

// TestCloudProxy_Answers bounds what a sandbox sends, and in what time.
func TestCloudProxy_Answers(t *testing.T) {
	h, behind := newProxyHarness(t)
	gone := make(chan struct{})
	for name, c := range map[string]struct {
		handle http.HandlerFunc
		want   int
	}{
		"a redirect to the node": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, h.front.URL+"/api/settings", http.StatusTemporaryRedirect)
		}, 502},
		"a redirect below": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/api/keys")
			w.WriteHeader(http.StatusFound)
		}, 502},
		"a large one": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "99999999999")
			_, _ = io.WriteString(w, "x")
		}, 502},
		"another protocol": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "Upgrade")
			w.Header().Set("Upgrade", "raw")
			w.WriteHeader(http.StatusSwitchingProtocols)
		}, 502},
		"a slow one": {func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			close(gone)
		}, 504},
	} {
		t.Run(name, func(t *testing.T) {
			behind.serve(func(_ string, w http.ResponseWriter, r *http.Request) bool { c.handle(w, r); return true })
			seconds := map[bool]any{true: 0.2, false: 20}[c.want == 504]
			res := h.through(map[string]any{"timeout_seconds": seconds}).want(t, c.want)
			if at := res.header.Get("Location"); at != "" {
				t.Errorf("the answer leads to %s", at)
			}
		})
	}
	<-gone // the call ended with its time
	behind.serve(func(_ string, w http.ResponseWriter, r *http.Request) bool {
		for range maxProxyAnswer>>20 + 1 {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				break
			}
		}
		return true
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "POST", h.front.URL+pathCloudProxy, strings.NewReader(h.envelope(nil)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+h.alice)
	res, err := client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if n, err := io.Copy(io.Discard, res.Body); err == nil || n > maxProxyAnswer {
		t.Errorf("%d bytes of an endless answer came, %v", n, err)
	}
}

// TestCloudProxy_Wakes: a message wakes a paused sandbox, and nothing else does.
func TestCloudProxy_Wakes(t *testing.T) {
	h, behind := newProxyHarness(t)
	behind.serve(echoes)
	resumes, stop := h.scheduled()
	defer stop()
	h.pause()
	h.through(nil).want(t, 409)
	h.through(map[string]any{"method": "POST", "path": "/api/conversations/c/condense"}).want(t, 409)
	if n := resumes(); n != 0 {
		t.Fatalf("%d resumes", n)
	}
	message := map[string]any{"content": "x"}
	h.through(map[string]any{"method": "POST", "path": "/api/conversations/c/events", "body": message}).want(t, 200)
	if n := resumes(); n != 1 {
		t.Errorf("%d resumes", n)
	}
}

// TestCloudProxy_Domain compares with the addresses that sandboxes have on hosts of their own.
func TestCloudProxy_Domain(t *testing.T) {
	h, behind := newProxyHarness(t, func(c *Config) { c.Proxy.Domain = "sbx.example.org" })
	port := ":" + portText(portOf(t, h.front.URL))
	good := "http://agent-server-" + strings.ToLower(h.id) + ".sbx.example.org" + port
	h.through(map[string]any{"host": good + "/"}).want(t, 200)
	before := behind.count()
	for _, host := range []string{
		strings.Replace(good, "sbx.example.org", "sbx.example.org.evil.example", 1),
		strings.Replace(good, "agent-server", "worker-1", 1),
		strings.Replace(good, ".sbx", ".x.sbx", 1), strings.Replace(good, "http://", "http://x-", 1),
	} {
		h.through(map[string]any{"host": host}).want(t, 403)
	}
	if n := behind.count(); n != before {
		t.Errorf("the sandbox was called: %+v", behind.last())
	}
}

// TestCloudProxy_Confirms: a call is confirmed with the cluster as one to the sandbox itself, however
// stale a read the page asks for, and goes on while there is no leader.
func TestCloudProxy_Confirms(t *testing.T) {
	h, behind := newProxyHarness(t)
	h.raised()
	call := func(query string) reply {
		return h.ask("POST", h.front.URL+pathCloudProxy+query, h.envelope(nil), "Authorization", "Bearer "+h.alice)
	}
	before := h.cluster.store.View()
	h.revoke(h.alice)
	arrived := 0
	for _, query := range []string{"", "?stale=true"} {
		t.Run("a revoked key"+query, func(t *testing.T) {
			h.behind(before)
			call(query).want(t, 401)
			if n := behind.count() - arrived; n != 0 {
				t.Errorf("%d calls arrived", n)
			}
		})
		t.Run("without a leader"+query, func(t *testing.T) {
			h.behind(before)
			h.cluster.set(func(c *fakeCluster) { c.viewErr = fsm.Errorf(fsm.CodeNoLeader, "no leader") })
			call(query).want(t, 200)
			h.cluster.set(func(c *fakeCluster) { c.viewErr = nil })
			arrived = behind.count()
		})
	}
}

// TestCloudProxy_KnowsWhatAnotherNodeHasJustMade: a sandbox that this node's store does not have yet.
func TestCloudProxy_KnowsWhatAnotherNodeHasJustMade(t *testing.T) {
	h, _ := newProxyHarness(t)
	before := h.cluster.store.View()
	h.id = h.createSandbox(h.alice)
	h.place()
	h.behind(before)
	h.through(nil).want(t, 200)
}
