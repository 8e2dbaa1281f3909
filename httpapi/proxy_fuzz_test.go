package httpapi

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
)

const fuzzDomain = "boxes.example.org"

// FuzzDoorTarget reads hosts and paths: what is for the door names a sandbox
// and a port in plain words or nothing at all, and what is left for the sandbox
// is the client's path, to the letter.
func FuzzDoorTarget(f *testing.F) {
	for _, p := range []string{"/sandboxes/abc/AGENT_SERVER/x", "/sandboxes/abc/8011", "/sandboxes/a%2fb/c/d", "/sandboxes/../x/y/", "/sandboxes//a//b",
		"/sandboxes/abc/AGENT_SERVER/%2e%2e/%2f", "/sandboxes", "//sandboxes/a/b/", "/sandboxes/a;b/c/", `/sandboxes/a\b/c/`, "/api/v1/sandboxes/a/b"} {
		for _, h := range []string{"", "example.org", "agent-server-abc." + fuzzDomain, "AGENT-server-ABC." + fuzzDomain + ".:8440", "a.b." + fuzzDomain,
			"." + fuzzDomain, fuzzDomain, "x" + fuzzDomain, "[::1]:80", "worker-1-a%2e." + fuzzDomain} {
			f.Add(h, p)
		}
	}
	f.Fuzz(func(t *testing.T, host, path string) {
		if u, err := url.ParseRequestURI(path); err != nil || u.Path == "" || u.Host != "" {
			return // net/http lets none of these in
		}
		to, ours := targetOf(fuzzDomain, host, path)
		if !ours {
			if strings.HasPrefix(path, pathDoor) {
				t.Fatalf("%q %q is not the door's", host, path)
			}
			return
		}
		for what, word := range map[string]string{"id": to.id, "name": to.name, "label": to.label} {
			if word != "" && !isWord(word) {
				t.Fatalf("%q %q has the %s %q", host, path, what, word)
			}
		}
		switch {
		case to.label != "" && (to.id != "" || to.rest != path || to.prefix != ""):
			t.Fatalf("%q %q: %+v", host, path, to)
		case to.id != "" && (to.prefix+to.rest != path || to.rest != "" && to.rest[0] != '/' || strings.Count(to.prefix, "/") != 3):
			t.Fatalf("%q %q: %+v", host, path, to)
		case (to.id == "") != (to.name == ""):
			t.Fatalf("%q %q: %+v", host, path, to)
		}
	})
}

// sentOn is what the door sends to sandboxes, in place of a network.
type sentOn struct{ requests []*http.Request }

// RoundTrip implements http.RoundTripper. It reads the request to its end, as a
// server would, and puts the bytes aside.
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
	got.ContentLength = int64(len(rest)) // how much was not the request's
	got.URL.Host = r.URL.Host
	s.requests = append(s.requests, got)
	return &http.Response{StatusCode: 200, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {"text/plain"}, "Set-Cookie": {"a=b; Domain=" + fuzzDomain, doorCookie + "=x"}}, Body: io.NopCloser(strings.NewReader("ok"))}, nil
}

// FuzzDoor sends any bytes as an HTTP request, with the key of alice's sandbox
// put where "{key}" stands. Whatever they say, what goes out goes to a port of
// that one sandbox, is one request, carries the client's path, and shows no key
// to a port that is not the agent server's.
func FuzzDoor(f *testing.F) {
	head := func(line string, headers ...string) []byte {
		return []byte(line + "\r\nHost: x\r\nX-Session-API-Key: {key}\r\n" + strings.Join(append(headers, "", ""), "\r\n"))
	}
	for _, path := range []string{"/sandboxes/{box}/AGENT_SERVER/a/b?c=d", "/sandboxes/{box}/WORKER_1/", "/sandboxes/{bobs}/AGENT_SERVER/", "/sandboxes/{box}/../{bobs}/AGENT_SERVER/",
		"/sandboxes/{box}/AGENT_SERVER/%2e%2e/%2e%2e/{bobs}/AGENT_SERVER/", "/sandboxes/{box}%2f..%2f{bobs}/AGENT_SERVER/", "http://evil.example/sandboxes/{box}/WORKER_1/x",
		"/sandboxes/{box}/AGENT_SERVER//evil.example/x", "/sandboxes/{box}/AGENT_SERVER/x?session_api_key={key}&tkn={key}", "/sandboxes/{box}/8011", "/sandboxes/{box}/WORKER_1/?tkn={key}"} {
		f.Add(head("GET " + path + " HTTP/1.1"))
		f.Add(head("POST "+path+" HTTP/1.1", "Content-Length: 5", "Transfer-Encoding: chunked", "", "0", "", "GET /x HTTP/1.1"))
		f.Add([]byte("GET " + path + " HTTP/1.1\r\nHost: worker-1-{box}." + fuzzDomain + "\r\nAuthorization: Bearer {alice}\r\nCookie: bivouac_door=1.2; a=b\r\n\r\n"))
	}
	f.Add(head("GET /sandboxes/{box}/AGENT_SERVER/sockets/events/x HTTP/1.1", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="))
	f.Add(head("GET /sandboxes/{box}/WORKER_1/x HTTP/1.1", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"))
	f.Add(head("OPTIONS * HTTP/1.1"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		h := newHarness(t, func(c *Config) { c.Door.Domain = fuzzDomain })
		ports := map[string]int{fsm.PortAgentServer: 21000, portVSCode: 21001, portWorker1: 21011, portWorker2: 21012}
		h.apply("", &fsm.SpecApplyBody{Replace: true, Specs: []fsm.Spec{{ID: "all", Template: fsm.Template{Driver: fsm.DriverRawExec, Command: "/x", CPU: 1, Memory: 1,
			Ports: map[string]int{fsm.PortAgentServer: 0, portVSCode: 8001, portWorker1: 8011, portWorker2: 8012}}}}})
		box, bobs := h.createSandbox(h.alice), h.createSandbox(h.bob)
		for id, address := range map[string]string{box: "10.0.0.1", bobs: "10.0.0.2"} {
			h.observe(id, fsm.SandboxStatus{State: fsm.SandboxRunning, Placement: &fsm.Placement{AllocID: "a-" + id, Address: address, Workspace: "/w", Ports: ports}})
		}
		out := &sentOn{}
		h.server.door.proxy.Transport, h.server.door.sockets.client.Transport = out, out
		key := h.secrets.last(sandboxPath(box))["key"]
		text := strings.NewReplacer("{box}", box, "{bobs}", bobs, "{key}", key, "{alice}", h.alice).Replace(string(raw))
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
			if c.Domain != "" || c.Name == doorCookie && c.Value == "x" {
				t.Fatalf("%q: the cookie %s", text, c)
			}
		}
	})
}

// checkSentOn looks at one request the door made for in.
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
		// A client that writes its key into a path or another header has told it.
		if strings.Contains(wire.String(), secret) && !strings.Contains(strings.Join(in.Header.Values("Cookie"), "")+in.RequestURI, secret) && in.Header.Get("Authorization") == "Bearer "+secret {
			t.Fatalf("%s is in what went out: %s", name, wire.String())
		}
	}
	if port != "21000" && got.Header.Get(headerSessionKey) != "" {
		t.Fatalf("port %s was shown the key", port)
	}
	if port == "21000" && got.Header.Get(headerSessionKey) != key {
		t.Fatalf("the agent server got the key %q", got.Header.Get(headerSessionKey))
	}
	for _, c := range got.Cookies() {
		if c.Name == doorCookie {
			t.Fatal("the door's cookie went out")
		}
	}
}
