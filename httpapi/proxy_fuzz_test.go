package httpapi

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/proxy"
)

const fuzzDomain = "boxes.example.org"

// sentOn records what the proxy sends to sandboxes, instead of a network.
type sentOn struct{ requests []*http.Request }

// RoundTrip implements http.RoundTripper. It reads the request like a server and records the bytes.
func (s *sentOn) RoundTrip(r *http.Request) (*http.Response, error) {
	var wire bytes.Buffer
	if err := r.Write(&wire); err != nil {
		return nil, err
	}
	in := bufio.NewReader(&wire)
	got, err := http.ReadRequest(in)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(got.Body)
	if err != nil {
		return nil, err
	}
	rest, _ := io.ReadAll(in)
	got.Body = io.NopCloser(bytes.NewReader(append(body, rest...)))
	got.ContentLength = int64(len(rest)) // what follows the request
	got.URL.Host = r.URL.Host
	s.requests = append(s.requests, got)
	return &http.Response{StatusCode: 200, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{
			"Content-Type": {"text/plain"},
			"Set-Cookie":   {"a=b; Domain=" + fuzzDomain, proxy.CookieName + "=x"},
		}, Body: io.NopCloser(strings.NewReader("ok"))}, nil
}

// FuzzProxy sends arbitrary bytes as an HTTP request; "{key}" becomes the key of alice's sandbox.
// Whatever is forwarded goes to a port of that sandbox, is one request with the client's path, and
// contains no key unless it goes to the agent server.
func FuzzProxy(f *testing.F) {
	head := func(line string, headers ...string) []byte {
		return []byte(line + "\r\nHost: x\r\nX-Session-API-Key: {key}\r\n" + strings.Join(append(headers, "", ""), "\r\n"))
	}
	for _, path := range []string{"/sandboxes/{box}/AGENT_SERVER/a/b?c=d", "/sandboxes/{box}/WORKER_1/",
		"/sandboxes/{bobs}/AGENT_SERVER/", "/sandboxes/{box}/../{bobs}/AGENT_SERVER/",
		"/sandboxes/{box}/AGENT_SERVER/%2e%2e/%2e%2e/{bobs}/AGENT_SERVER/", "/sandboxes/{box}%2f..%2f{bobs}/AGENT_SERVER/",
		"http://evil.example/sandboxes/{box}/WORKER_1/x",
		"/sandboxes/{box}/AGENT_SERVER//evil.example/x", "/sandboxes/{box}/AGENT_SERVER/x?session_api_key={key}&tkn={key}",
		"/sandboxes/{box}/8011", "/sandboxes/{box}/WORKER_1/?tkn={key}"} {
		f.Add(head("GET " + path + " HTTP/1.1"))
		f.Add(head("POST "+path+" HTTP/1.1", "Content-Length: 5", "Transfer-Encoding: chunked", "", "0", "",
			"GET /x HTTP/1.1"))
		f.Add(
			[]byte(
				"GET " + path + " HTTP/1.1\r\nHost: worker-1-{box}." + fuzzDomain + "\r\nAuthorization: Bearer " +
					"{alice}\r\nCookie: bivouac_proxy=1.2; a=b\r\n\r\n",
			),
		)
	}
	f.Add(head("GET /sandboxes/{box}/AGENT_SERVER/sockets/events/x HTTP/1.1", "Connection: Upgrade",
		"Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="))
	f.Add(head("GET /sandboxes/{box}/WORKER_1/x HTTP/1.1", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c",
		"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"))
	f.Add(head("OPTIONS * HTTP/1.1"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		out := &sentOn{}
		h := newHarness(t, func(c *Config) { c.Proxy.Domain, c.Proxy.Transport = fuzzDomain, out })
		ports := map[string]int{
			fsm.PortAgentServer: 21000,
			proxy.PortVSCode:    21001,
			proxy.PortWorker1:   21011,
			proxy.PortWorker2:   21012,
		}
		h.apply("", &fsm.SpecApplyBody{Replace: true, Specs: []fsm.Spec{{ID: "all",
			Template: fsm.Template{Driver: fsm.DriverRawExec, Isolation: fsm.IsolationNone, Command: "/x", CPU: 1, Memory: 1,
				Ports: map[string]int{
					fsm.PortAgentServer: 0,
					proxy.PortVSCode:    8001,
					proxy.PortWorker1:   8011,
					proxy.PortWorker2:   8012,
				}}}}})
		sb, bobs := h.createSandbox(h.alice), h.createSandbox(h.bob)
		for id, address := range map[string]string{sb: "10.0.0.1", bobs: "10.0.0.2"} {
			h.observe(id,
				fsm.SandboxStatus{
					State:     fsm.SandboxRunning,
					Placement: &fsm.Placement{AllocID: "a-" + id, Address: address, Workspace: "/w", Ports: ports},
				})
		}
		key := h.secrets.last(fsm.SandboxKeyPath(sb))["key"]
		text := strings.NewReplacer("{box}", sb, "{bobs}", bobs, "{key}", key, "{alice}", h.alice).Replace(string(raw))
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
		if err != nil || r.Host == "" {
			return
		}
		r.RemoteAddr = "192.0.2.1:1234"
		if r.URL.Path == "" { // as net/http's server does for "GET http://host"
			r.URL.Path = "/"
		}
		w := httptest.NewRecorder()
		h.handler.ServeHTTP(w, r)
		if w.Code == http.StatusInternalServerError {
			t.Fatalf("%q: %d %s", text, w.Code, w.Body)
		}
		for _, got := range out.requests {
			checkSentOn(t, h, r, got, key)
		}
		for _, c := range w.Result().Cookies() {
			if c.Domain != "" || c.Name == proxy.CookieName && c.Value == "x" {
				t.Fatalf("%q: the cookie %s", text, c)
			}
		}
	})
}

// checkSentOn checks one forwarded request for the incoming one.
func checkSentOn(t *testing.T, h *harness, in, got *http.Request, key string) {
	t.Helper()
	host, port, _ := strings.Cut(got.URL.Host, ":")
	if host != "10.0.0.1" {
		t.Fatalf("%s %s went to %s", in.Method, in.RequestURI, got.URL.Host)
	}
	if got.ContentLength != 0 {
		t.Fatalf("%s %s: more than one request was sent", in.Method, in.RequestURI)
	}
	if got.Method != in.Method || got.Proto != "HTTP/1.1" {
		t.Fatalf("%s %s went out as %s %s", in.Method, in.RequestURI, got.Method, got.Proto)
	}
	path, _, _ := strings.Cut(got.RequestURI, "?")
	if was := in.URL.EscapedPath(); !strings.HasSuffix(was, path) && path != "/" {
		t.Fatalf("%s went out as %s", was, path)
	}
	var wire bytes.Buffer
	_ = got.Header.Write(&wire)
	for name, secret := range map[string]string{"alice's key": h.alice, "bob's key": h.bob, "root's key": h.root} {
		// A client that puts its key in a path or another header discloses it itself.
		if strings.Contains(wire.String(), secret) && !strings.Contains(strings.Join(in.Header.Values("Cookie"),
			"")+in.RequestURI, secret) && in.Header.Get("Authorization") == "Bearer "+secret {
			t.Fatalf("%s is in what went out: %s", name, wire.String())
		}
	}
	if port != "21000" && got.Header.Get(proxy.HeaderKey) != "" {
		t.Fatalf("port %s was shown the key", port)
	}
	if port == "21000" && got.Header.Get(proxy.HeaderKey) != key {
		t.Fatalf("the agent server got the key %q", got.Header.Get(proxy.HeaderKey))
	}
	for _, c := range got.Cookies() {
		if c.Name == proxy.CookieName {
			t.Fatal("the proxy's cookie went out")
		}
	}
}
