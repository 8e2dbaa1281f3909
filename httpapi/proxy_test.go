package httpapi

import (
	"bufio"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/httpapi/response"
)

func TestProxy_WhoMayPass(t *testing.T) {
	h, behind := newProxyHarness(t)
	bobs := h.createSandbox(h.bob)
	bobsKey := h.secrets.last(fsm.SandboxKeyPath(bobs))["key"]
	for name, c := range map[string]struct {
		port    string
		headers []string
		want    int
	}{
		"sandbox key":    {"AGENT_SERVER", []string{proxy.HeaderKey, h.key}, 200},
		"owner's key":    {"AGENT_SERVER", []string{proxy.HeaderKey, h.alice}, 200},
		"owner's bearer": {"AGENT_SERVER", []string{"Authorization", "Bearer " + h.alice}, 200},
		"owner's bearer, sandbox key": {
			"AGENT_SERVER",
			[]string{"Authorization", "Bearer " + h.alice, proxy.HeaderKey, h.key},
			200,
		},
		"stranger's bearer, right key": {
			"AGENT_SERVER",
			[]string{"Authorization", "Bearer " + h.bob, proxy.HeaderKey, h.key},
			200,
		},
		"worker":                     {"WORKER_1", []string{proxy.HeaderKey, h.key}, 200},
		"worker by its number":       {"8011", []string{proxy.HeaderKey, h.key}, 200},
		"as a host name has it":      {"worker-1", []string{proxy.HeaderKey, h.key}, 200},
		"no key":                     {"AGENT_SERVER", nil, 401},
		"no key, worker":             {"WORKER_1", nil, 401},
		"empty key":                  {"AGENT_SERVER", []string{proxy.HeaderKey, ""}, 401},
		"wrong key":                  {"AGENT_SERVER", []string{proxy.HeaderKey, h.key + "x"}, 401},
		"the key's hash":             {"AGENT_SERVER", []string{proxy.HeaderKey, apikey.Hash(h.key)}, 401},
		"another sandbox's key":      {"AGENT_SERVER", []string{proxy.HeaderKey, bobsKey}, 401},
		"another user":               {"AGENT_SERVER", []string{proxy.HeaderKey, h.bob}, 401},
		"another user's bearer":      {"AGENT_SERVER", []string{"Authorization", "Bearer " + h.bob}, 401},
		"an operator is no owner":    {"AGENT_SERVER", []string{proxy.HeaderKey, h.root}, 401},
		"sandbox key as a bearer":    {"AGENT_SERVER", []string{"Authorization", "Bearer " + h.key}, 401},
		"no such port":               {"WORKER_3", []string{proxy.HeaderKey, h.key}, 404},
		"no such port, no key":       {"WORKER_3", nil, 401},
		"number not exposed":         {"22", []string{proxy.HeaderKey, h.key}, 404},
		"number with a zero":         {"08011", []string{proxy.HeaderKey, h.key}, 404},
		"the port behind the number": {itoa(h.ports["WORKER_1"]), []string{proxy.HeaderKey, h.key}, 404},
	} {
		t.Run(name, func(t *testing.T) {
			before := behind.count()
			h.ask("GET", h.at(c.port, "/x"), "", c.headers...).want(t, c.want)
			if passed := behind.count() > before; passed != (c.want == 200) {
				t.Errorf("passed on: %v", passed)
			}
		})
	}
}

func TestProxy_TellsNothingToStrangers(t *testing.T) {
	h, _ := newProxyHarness(t)
	deleted := h.createSandbox(h.alice)
	h.apply("alice", &fsm.SandboxDeleteBody{ID: deleted})
	paused := h.createSandbox(h.alice)
	h.apply("alice", &fsm.SandboxPauseBody{ID: paused})
	for _, key := range []string{
		"",
		h.bob,
		h.key[:42] + "!",
		"bvk_" + apikey.Random(apikey.LookupLen) + "_" + apikey.Random(apikey.SecretLen),
	} {
		want := h.ask("GET", h.at("AGENT_SERVER", "/"), "", proxy.HeaderKey, key).want(t, 401)
		for _, id := range []string{"nosuchsandbox", deleted, paused} {
			for _, port := range []string{"AGENT_SERVER", "WORKER_1", "99"} {
				got := h.ask("GET", h.front.URL+proxy.Path+id+"/"+port+"/", "", proxy.HeaderKey, key).want(t, 401)
				if string(got.body) != string(want.body) {
					t.Errorf("%s %s: %s, want %s", id, port, got.body, want.body)
				}
				for name := range got.header {
					if _, there := want.header[name]; !there {
						t.Errorf("%s: header %s gives it away", id, name)
					}
				}
			}
		}
	}
}

func TestProxy_KnowsWhatAnotherNodeHasJustMade(t *testing.T) {
	h, _ := newProxyHarness(t)
	before := h.cluster.store.View()
	fresh := h.createSandbox(h.alice)
	key := h.secrets.last(fsm.SandboxKeyPath(fresh))["key"]
	h.id = fresh
	h.place()
	h.cluster.set(func(c *fakeCluster) { c.behind = before })
	h.ask("GET", h.at("AGENT_SERVER", "/"), "", proxy.HeaderKey, key).want(t, 200)
}

func TestProxy_TellsNothingUnderLoad(t *testing.T) {
	h, _ := newProxyHarness(t)
	for range allUnknownKeys * unknownKeyBurst {
		h.server.keys.allUnknown.Allow()
	}
	for _, id := range []string{h.id, "nosuchsandbox"} {
		h.ask("GET", h.front.URL+proxy.Path+id+"/AGENT_SERVER/", "", proxy.HeaderKey, "x").want(t, 401)
	}
}

func TestProxy_WhatTheSandboxGets(t *testing.T) {
	h, behind := newProxyHarness(t)
	headers := []string{"X-Custom", "1", "X-Forwarded-For", "6.6.6.6", "X-Forwarded-Host", "evil", "X-Forwarded-Proto",
		"https", "Forwarded", "for=evil",
		"X-Real-Ip", "6.6.6.6", "Cookie", "a=1; bivouac_proxy=x; b=2", "Connection", "X-Hop", "X-Hop", "1",
		response.HeaderRequestID, "req-1"}
	h.ask("POST", h.at("AGENT_SERVER", "/api/x?b=2&a=%31;c&session_api_key=k"), "hello",
		append(headers, "Authorization", "Bearer "+h.alice)...).want(t, 200)
	got := behind.last()
	if got.method != "POST" || got.uri != "/api/x?b=2&a=%31;c" || got.body != "hello" ||
		got.host != strings.TrimPrefix(h.front.URL, "http://") {
		t.Errorf("got %+v", got)
	}
	for name, want := range map[string]string{proxy.HeaderKey: h.key, "Authorization": "", "X-Custom": "1", "X-Hop": "",
		"Forwarded": "", "X-Real-Ip": "",
		"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Host": got.host, "X-Forwarded-Proto": "http",
		"X-Forwarded-Prefix": proxy.Path + h.id + "/AGENT_SERVER", "Cookie": "", response.HeaderRequestID: "req-1"} {
		if have := strings.Join(got.header.Values(name), ", "); have != want {
			t.Errorf("%s: %q, want %q", name, have, want)
		}
	}

	h.ask("GET", h.at("WORKER_1", "/"), "", "Authorization", "Bearer "+h.alice, proxy.HeaderKey, h.key).want(t, 200)
	got = behind.last()
	if got.header.Get(proxy.HeaderKey) != "" || got.header.Get("Authorization") != "" {
		t.Errorf("a worker got %v", got.header)
	}
}

func TestProxy_PathsArriveAsTheyWere(t *testing.T) {
	h, behind := newProxyHarness(t)
	for _, rest := range []string{"/", "/a/b", "/a%2Fb", "/%2e%2e/%2e", "//a//b", "/a/../../../b", "/..", "/.%2e/x",
		"/%41", "/a;b=c/d", "/%E4%B8%96", "/*", "//evil.org/x",
		"/sandboxes/x/AGENT_SERVER/y", "/%00", "/%0d%0aX:%20y", "/a?b", "/?", "/?x=%zz&y=;", "/a?b#"} {
		want, _, _ := strings.Cut(rest, "#")
		answer := h.raw(
			"GET " + proxy.Path + h.id + "/AGENT_SERVER" + want + " HTTP/1.1\r\nHost: x\r\nX-Session-API-Key: " +
				h.key + "\r\nConnection: close\r\n\r\n",
		)
		if !strings.HasPrefix(answer, "HTTP/1.1 200 ") {
			t.Errorf("%s: %.80q", rest, answer)
			continue
		}
		if got := behind.last().uri; got != want && got+"?" != want {
			t.Errorf("%s arrived as %s", rest, got)
		}
	}
	h.ask("POST", h.at("AGENT_SERVER", ""), "", proxy.HeaderKey, h.key).want(t, 200)
	if got := behind.last().uri; got != "/" {
		t.Errorf("no path arrived as %s", got)
	}
}

func TestProxy_PathsThatNameNothing(t *testing.T) {
	h, behind := newProxyHarness(t)
	for _, path := range []string{"/sandboxes/", "/sandboxes//AGENT_SERVER/", "/sandboxes/" + h.id,
		"/sandboxes/" + h.id + "/", "/sandboxes/" + h.id + "//x",
		"/sandboxes/%2e/AGENT_SERVER/", "/sandboxes/../AGENT_SERVER/", "/sandboxes/" + h.id + "%2FAGENT_SERVER/",
		"/sandboxes/" + h.id + "/AGENT%5FSERVER/",
		"/sandboxes/" + h.id + "/AGENT_SERVER%2F", "/sandboxes/" + h.id + "%00/AGENT_SERVER/",
		"/sandboxes/" + strings.Repeat("a", 5000) + "/AGENT_SERVER/",
		"/sandboxes/" + h.id + "/../" + h.id + "/AGENT_SERVER/", "/sandboxes/" + h.id + "/127.0.0.1:80/",
		"/sandboxes/" + h.id + "/@evil.org/"} {
		answer := h.raw(
			"GET " + path + " HTTP/1.1\r\nHost: x\r\nX-Session-API-Key: " + h.key + "\r\nConnection: close\r\n\r\n",
		)
		if !strings.HasPrefix(answer, "HTTP/1.1 401 ") {
			t.Errorf("%.80s: %.80q", path, answer)
		}
	}
	for path, want := range map[string]string{"/sandboxes": "404", "//sandboxes/" + h.id + "/AGENT_SERVER/": "404",
		"/%73andboxes/" + h.id + "/AGENT_SERVER/":    "404",
		"/x/../sandboxes/" + h.id + "/AGENT_SERVER/": "404", "/api/v1/sandboxes/" + h.id + "/AGENT_SERVER/": "404"} {
		answer := h.raw(
			"GET " + path + " HTTP/1.1\r\nHost: x\r\nX-Session-API-Key: " + h.key + "\r\nConnection: close\r\n\r\n",
		)
		if !strings.HasPrefix(answer, "HTTP/1.1 "+want) {
			t.Errorf("%s: %.80q", path, answer)
		}
	}
	if n := behind.count(); n != 0 {
		t.Errorf("%d requests arrived", n)
	}
}

func TestProxy_Smuggling(t *testing.T) {
	h, behind := newProxyHarness(t)
	start := "POST " + proxy.Path + h.id + "/AGENT_SERVER/one HTTP/1.1\r\nHost: x\r\nX-Session-API-Key: " + h.key + "\r\n"
	inner := "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
	for name, text := range map[string]string{
		"two lengths": start + "Content-Length: 0\r\nContent-Length: " + itoa(len(inner)) + "\r\n\r\n" + inner,
		"two hosts":   start + "Host: y\r\nContent-Length: 0\r\n\r\n",
		"length and chunks": start + "Content-Length: " + itoa(5+len(inner)) + "\r\nTransfer-Encoding: " +
			"chunked\r\nConnection: close\r\n\r\n0\r\n\r\n" + inner,
		"chunks, badly":       start + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + inner,
		"two encodings":       start + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + inner,
		"space before colon":  start + "Content-Length : 5\r\n\r\nhello",
		"bare line feed":      start + "Connection: close\r\nX: a\nContent-Length: 5\r\n\r\nhello",
		"folded header":       start + "X: a\r\n b\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
		"connection eats key": start + "Connection: close, X-Session-API-Key\r\nContent-Length: 0\r\n\r\n",
		"upgrade to h2c": start + "Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: " +
			"AAMAAABkAARAAAAAAAIAAAAA\r\nContent-Length: 0\r\n\r\n",
		"absolute form": strings.Replace(start, "POST ", "POST http://evil.org",
			1) + "Content-Length: 0\r\nConnection: close\r\n\r\n",
		"connect": "CONNECT " + proxy.Path + h.id + "/AGENT_SERVER/ HTTP/1.1\r\nHost: " +
			"x\r\nConnection: close\r\n\r\n",
		"trace":                 strings.Replace(start, "POST", "TRACE", 1) + "Connection: close\r\n\r\n",
		"carriage return":       strings.Replace(start, "one", "one\rX", 1) + "Content-Length: 0\r\n\r\n",
		"header with a newline": start + "X: a\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			_ = h.raw(text)
			for _, one := range behind.list {
				if strings.Contains(one.uri, "smuggled") || one.host == "y" || one.header.Get(proxy.HeaderKey) != h.key ||
					!strings.HasPrefix(one.uri, "/one") || one.method != "POST" {
					t.Errorf("arrived: %+v", one)
				}
			}
		})
	}
}

func TestProxy_StreamsEventsAtOnce(t *testing.T) {
	h, behind := newProxyHarness(t, func(c *Config) {
		c.RequestTimeout, c.WriteTimeout, c.ReadTimeout = 10*time.Millisecond, 20*time.Millisecond, 20*time.Millisecond
	})
	next := make(chan string)
	behind.serve(func(_ string, w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Content-Type", "text/event-stream")
		for text := range next {
			_, _ = io.WriteString(w, text)
			_ = http.NewResponseController(w).Flush()
		}
		return true
	})
	// A real http.Server's deadlines must not end a stream.
	stop := h.run()
	defer stop()
	r, _ := http.NewRequest("GET", h.at("AGENT_SERVER", "/events"), nil)
	r.Header.Set(proxy.HeaderKey, h.key)
	res, err := client().Do(sendFirst(r, next))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewReader(res.Body)
	for i := range 3 {
		if i > 0 {
			quiet := time.NewTimer(30 * time.Millisecond) // longer than all deadlines of the server
			<-quiet.C
			next <- "data: x\n"
		}
		if line, err := lines.ReadString('\n'); err != nil || line != "data: x\n" {
			t.Fatalf("%q, %v", line, err)
		}
	}
	until(t, "the gauge", func() bool {
		return strings.Contains(h.metricsText(), `bivouac_proxy_streams_open{port="AGENT_SERVER"} 1`)
	})
	close(next)
	if rest, err := io.ReadAll(lines); err != nil || len(rest) != 0 {
		t.Errorf("%q, %v", rest, err)
	}
	until(t, "the gauge", func() bool {
		return strings.Contains(h.metricsText(), `bivouac_proxy_streams_open{port="AGENT_SERVER"} 0`)
	})
}

// sendFirst sends the first event as soon as the request arrives.
func sendFirst(r *http.Request, next chan<- string) *http.Request {
	go func() { next <- "data: x\n" }()
	return r
}

func (h *proxyHarness) metricsText() string {
	return string(h.do("", "GET", "/metrics", "").body)
}

func TestProxy_AnswersAreCleansed(t *testing.T) {
	h, behind := newProxyHarness(t)
	behind.serve(func(_ string, w http.ResponseWriter, r *http.Request) bool {
		for _, name := range []string{
			"Set-Cookie",
			"Strict-Transport-Security",
			"Clear-Site-Data",
			"Service-Worker-Allowed",
			"Alt-Svc",
			response.HeaderRequestID,
			"X-Own",
		} {
			w.Header().Set(name, "theirs")
		}
		w.Header().Set("Cache-Control", "max-age=5")
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("Vary", "Accept")
		w.Header().Set("Location", r.URL.Query().Get("to"))
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusFound)
		return true
	})
	prefix := proxy.Path + h.id + "/WORKER_1"
	for to, want := range map[string]string{"/login?x=1": prefix + "/login?x=1", "relative": "relative",
		"https://example.org/x": "https://example.org/x",
		"//example.org/x":       "//example.org/x", prefix + "/x": prefix + "/x",
		"http://127.0.0.1:" + itoa(h.ports["WORKER_1"]) + "/x": prefix + "/x",
		"mailto:x": "mailto:x", "/a%2Fb": prefix + "/a%2Fb"} {
		got := h.ask("POST", h.at("WORKER_1", "/?to="+strings.ReplaceAll(to, "%", "%25")), "", proxy.HeaderKey, h.key,
			"Origin", "http://localhost:3000").want(t, 302)
		if at := got.header.Get("Location"); at != want {
			t.Errorf("Location %s became %s, want %s", to, at, want)
		}
		for name, want := range map[string]string{"Set-Cookie": "", "Strict-Transport-Security": "", "Clear-Site-Data": "",
			"Service-Worker-Allowed": "", "Alt-Svc": "", "X-Own": "theirs",
			"Cache-Control": "max-age=5", "Pragma": "", "Access-Control-Allow-Origin": "http://localhost:3000",
			"Vary": "Origin, Accept", "X-Content-Type-Options": "nosniff"} {
			if have := strings.Join(got.header.Values(name), ", "); have != want {
				t.Errorf("%s: %q, want %q", name, have, want)
			}
		}
		if got.header.Get(response.HeaderRequestID) == "theirs" {
			t.Error("the request's id is the sandbox's")
		}
	}
}

func TestProxy_Preflight(t *testing.T) {
	h, behind := newProxyHarness(t)
	for _, id := range []string{h.id, "nosuchsandbox"} {
		got := h.ask("OPTIONS", h.front.URL+proxy.Path+id+"/AGENT_SERVER/api/x", "", "Origin", "http://localhost:3000",
			"Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "x-session-api-key").want(t, 204)
		if got.header.Get("Access-Control-Allow-Origin") != "http://localhost:3000" ||
			got.header.Get("Access-Control-Allow-Headers") == "" {
			t.Errorf("%v", got.header)
		}
	}
	if behind.count() != 0 {
		t.Error("a preflight arrived")
	}
}

func TestProxy_SandboxThatDoesNotAnswer(t *testing.T) {
	h, behind := newProxyHarness(t, func(c *Config) { c.Proxy.HeaderTimeout = 50 * time.Millisecond })
	hold := make(chan struct{})
	behind.serve(func(string, http.ResponseWriter, *http.Request) bool { <-hold; return true })
	defer close(hold)
	h.ask("GET", h.at("AGENT_SERVER", "/"), "", proxy.HeaderKey, h.key).want(t, 504)
	h.ports = map[string]int{fsm.PortAgentServer: 1, proxy.PortWorker1: 1}
	h.place()
	h.ask("GET", h.at("AGENT_SERVER", "/"), "", proxy.HeaderKey, h.key).want(t, 502).is(t,
		`{"detail":"The sandbox does not answer."}`)
	h.ask("GET", h.at("WORKER_2", "/"), "", proxy.HeaderKey, h.key).want(t, 404)
	h.secrets.set(func(s *fakeSecrets) { s.err = errStoreAway })
	h.ask("GET", h.at("AGENT_SERVER", "/"), "", proxy.HeaderKey, h.alice).want(t, 503)
}

func TestProxy_LargeBodiesPass(t *testing.T) {
	h, behind := newProxyHarness(t, func(c *Config) { c.MaxBodyBytes = 1 << 10 })
	body := strings.Repeat("x", 3<<20)
	h.ask("POST", h.at("AGENT_SERVER", "/upload"), body, proxy.HeaderKey, h.key).want(t, 200)
	if got := behind.last().body; got != body {
		t.Errorf("%d bytes arrived", len(got))
	}
	// The client has the response before the proxy counts it.
	until(t, "the metrics tell of the upload", func() bool {
		text := h.metricsText()
		return strings.Contains(text, `bivouac_proxy_bytes_total{direction="in",port="AGENT_SERVER"} 3.145728e+06`) &&
			strings.Contains(text, `bivouac_proxy_requests_total{port="AGENT_SERVER",status="2xx"} 1`)
	})
}

func TestProxy_NoKeyInTheLog(t *testing.T) {
	h, behind := newProxyHarness(t)
	behind.serve(echoes)
	h.ask("GET", h.passOf("VSCODE", "/"), "").want(t, 200)
	h.ask("GET", h.at("WORKER_1", "/?tkn="+h.key), "").want(t, 401)
	h.ask("GET", h.at("AGENT_SERVER", "/x"), "", proxy.HeaderKey, h.alice).want(t, 200)
	conn, _, err := h.dial(h.at("AGENT_SERVER", "/sockets/events/1?session_api_key="+h.key))
	if err != nil {
		t.Fatal(err)
	}
	say(t, conn, "x")
	h.ports = map[string]int{fsm.PortAgentServer: 1}
	h.place()
	ended(t, conn)
	if _, res, err := h.dial(h.at("AGENT_SERVER", "/sockets/events/1?session_api_key="+h.key)); err == nil ||
		res.StatusCode != 502 {
		t.Errorf("%v %v", res, err)
	}
	h.front.Close()
	for what, secret := range map[string]string{"the sandbox's key": h.key, "an API key": h.alice, "a query": "tkn"} {
		if strings.Contains(h.logs.String(), secret) {
			t.Errorf("%s is in the log", what)
		}
	}
	if !strings.Contains(h.logs.String(), `"route":"GET /sandboxes/"`) ||
		!strings.Contains(h.logs.String(), `"sandbox":"`+h.id+`"`) {
		t.Errorf("log: %s", h.logs.String())
	}
}

func TestProxy_Activity(t *testing.T) {
	touched := &touches{}
	h, behind := newProxyHarness(t, func(c *Config) { c.Proxy.Activity = touched })
	behind.serve(echoes)
	h.ask("GET", h.at("AGENT_SERVER", "/"), "").want(t, 401)
	if touched.count() != 0 {
		t.Error("a stranger is no activity")
	}
	h.ask("GET", h.at("AGENT_SERVER", "/"), "", proxy.HeaderKey, h.key).want(t, 200)
	if touched.count() != 1 || touched.list[0] != h.id {
		t.Errorf("%v", touched.list)
	}
}

func TestProxy_TellsOfMessages(t *testing.T) {
	told := &touches{}
	h, behind := newProxyHarness(t, func(c *Config) { c.Proxy.Activity = told })
	behind.serve(echoes)
	conv := h.conversation("alice", h.id)
	elsewhere := h.conversation("alice", h.createSandbox(h.alice))
	post := func(path string) {
		h.ask("POST", h.at("AGENT_SERVER", "/api/conversations/"+path), "{}", proxy.HeaderKey, h.key).want(t, 200)
	}
	post(decode.Dashed(conv) + "/events")
	say(t, h.mustDial("AGENT_SERVER", "/sockets/events/"+conv, proxy.HeaderKey, h.key), "x")
	for _, path := range []string{conv + "/pause", elsewhere + "/events", newHexID() + "/events", "x/events"} {
		post(path)
	}
	h.ask("GET", h.at("AGENT_SERVER", "/api/conversations/"+conv+"/events"), "", proxy.HeaderKey, h.key).want(t, 200)
	h.ask("POST", h.at("WORKER_1", "/api/conversations/"+conv+"/events"), "", proxy.HeaderKey, h.key).want(t, 200)
	want := []string{h.id + " " + conv, h.id + " " + conv}
	// The echo may come before the proxy tells of the message.
	until(t, "both messages are told of", func() bool { return len(told.conversations()) >= len(want) })
	if got := told.conversations(); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// touches records an Activity's calls.
type touches struct {
	mu   sync.Mutex
	list []string
	// talked are the conversations that got messages, as "sandbox conversation".
	talked []string
}

func (a *touches) Talked(sandbox, conversation string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.talked = append(a.talked, sandbox+" "+conversation)
}

func (a *touches) conversations() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.talked)
}

func (a *touches) Touched(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list = append(a.list, id)
}

func (a *touches) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.list)
}
