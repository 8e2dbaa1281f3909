package httpapi

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/proxy"
)

const eventSocket = "/sockets/events/6f0c4e3b9a7d4c1e8f2b5a6d7c8e9f01"

// dialWithoutKey opens an event socket without a key and sends one.
func (h *proxyHarness) dialWithoutKey(key string) *websocket.Conn {
	h.t.Helper()
	conn, _, err := h.dial(h.at("AGENT_SERVER", eventSocket))
	if err != nil {
		h.t.Fatal(err)
	}
	_ = conn.Write(context.Background(), websocket.MessageText, []byte(`{"type":"auth","session_api_key":"`+key+`"}`))
	return conn
}

func TestProxy_Socket_BothWays(t *testing.T) {
	h, behind := newProxyHarness(t)
	behind.serve(echoes)
	for name, open := range map[string]func() *websocket.Conn{
		"key in the header": func() *websocket.Conn {
			return h.mustDial("AGENT_SERVER", eventSocket, proxy.HeaderKey,
				h.key)
		},
		"owner's bearer": func() *websocket.Conn {
			return h.mustDial("AGENT_SERVER", eventSocket, "Authorization", "Bearer "+h.alice)
		},
		"key in the query": func() *websocket.Conn {
			return h.mustDial("AGENT_SERVER", eventSocket+"?resend_mode=all&session_api_key="+h.key)
		},
		"key in the first frame":         func() *websocket.Conn { return h.dialWithoutKey(h.key) },
		"owner's key in the first frame": func() *websocket.Conn { return h.dialWithoutKey(h.alice) },
		"worker": func() *websocket.Conn {
			return h.mustDial("WORKER_1", "/any", proxy.HeaderKey,
				h.key)
		},
	} {
		t.Run(name, func(t *testing.T) {
			conn := open()
			for _, text := range []string{"one", "", strings.Repeat("x", 20_000)} {
				if got := say(t, conn, text); got != "echo "+text {
					t.Fatalf("%.40q came back as %.40q", text, got)
				}
			}
			got := behind.last()
			if got.port == fsm.PortAgentServer && (got.header.Get(proxy.HeaderKey) != h.key ||
				strings.Contains(got.uri, h.key) || got.header.Get("Authorization") != "") {
				t.Errorf("the agent server got %+v", got)
			}
			if got.port == proxy.PortWorker1 && got.header.Get(proxy.HeaderKey) != "" {
				t.Errorf("a worker got the key")
			}
			_ = conn.Write(context.Background(), websocket.MessageText, []byte("bye"))
			if code := ended(t, conn); code != 4004 {
				t.Errorf("close code %d", code)
			}
		})
	}
	until(t, "no session is left", func() bool { return h.server.proxy.Load().Sessions == 0 })
}

func (h *proxyHarness) mustDial(port, rest string, headers ...string) *websocket.Conn {
	h.t.Helper()
	conn, _, err := h.dial(h.at(port, rest), headers...)
	if err != nil {
		h.t.Fatal(err)
	}
	return conn
}

func TestProxy_Socket_ClientsCloseIsHandedOn(t *testing.T) {
	h, behind := newProxyHarness(t)
	code := make(chan websocket.StatusCode, 1)
	behind.serve(func(_ string, w http.ResponseWriter, r *http.Request) bool {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return true
		}
		_, _, err = conn.Read(r.Context())
		code <- websocket.CloseStatus(err)
		return true
	})
	conn := h.dialWithoutKey(h.key)
	until(t, "it is connected", func() bool { return behind.count() == 1 })
	if err := conn.Close(4321, "enough"); err != nil {
		t.Error(err)
	}
	if got := <-code; got != 4321 {
		t.Errorf("close code %d", got)
	}
}

func TestProxy_Socket_NobodyIsLetInWithoutAKey(t *testing.T) {
	h, behind := newProxyHarness(t, func(c *Config) { c.Proxy.AuthTimeout = 300 * time.Millisecond })
	behind.serve(echoes)
	for name, frame := range map[string]string{
		"wrong key":      `{"type":"auth","session_api_key":"x"}`,
		"another user's": `{"type":"auth","session_api_key":"` + h.bob + `"}`,
		"no auth frame":  `{"role":"user","content":[]}`, "another type": `{"type":"x","session_api_key":"` + h.key + `"}`,
		"no JSON":   "x",
		"too large": `{"type":"auth","session_api_key":"` + strings.Repeat("x", 100_000) + `"}`, "nothing": "",
	} {
		for _, id := range []string{h.id, "nosuchsandbox"} {
			conn, _, err := h.dial(h.front.URL + proxy.Path + id + "/AGENT_SERVER" + eventSocket)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if frame != "" {
				_ = conn.Write(context.Background(), websocket.MessageText, []byte(frame))
			}
			code := ended(t, conn)
			if ok := code == proxy.CloseUnauthorized || name == "too large" && code == websocket.StatusMessageTooBig; !ok {
				t.Errorf("%s: close code %d", name, code)
			}
		}
	}
	for _, c := range []struct{ port, rest string }{
		{"WORKER_1", "/sockets/x"},
		{"VSCODE", "/sockets/x"},
		{"AGENT_SERVER", "/api/x"},
		{"AGENT_SERVER", "/x/sockets/y"},
		{"99", "/sockets/x"},
	} {
		if _, res, err := h.dial(h.at(c.port, c.rest)); err == nil || res.StatusCode != 401 {
			t.Errorf("%s%s: %v", c.port, c.rest, res)
		}
	}
	for name, conn := range map[string]*websocket.Conn{
		"in the header": h.mustDial("AGENT_SERVER", eventSocket, proxy.HeaderKey, "wrong"),
		"in the query":  h.mustDial("AGENT_SERVER", eventSocket+"?session_api_key=wrong"),
	} {
		if code := ended(t, conn); code != proxy.CloseUnauthorized {
			t.Errorf("a wrong key %s: close code %d", name, code)
		}
	}
	if behind.count() != 0 {
		t.Errorf("%d requests arrived", behind.count())
	}
	until(t, "nobody waits", func() bool { return h.server.proxy.Load().Unauthenticated == 0 })
}

// Clients that send no key keep nobody's first frame out: the oldest of them gives way.
func TestProxy_Socket_KeylessClientsGiveWay(t *testing.T) {
	const total, each = 8, 3
	h, behind := newProxyHarness(t, func(c *Config) {
		c.Proxy.MaxUnauthenticated, c.Proxy.MaxUnauthenticatedPerAddress = total, each
		c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	})
	behind.serve(echoes)
	authenticated := h.dialWithoutKey(h.key)
	say(t, authenticated, "x")
	silent := func(address string) *websocket.Conn {
		t.Helper()
		conn, res, err := h.dial(h.at("AGENT_SERVER", eventSocket), "X-Forwarded-For", address)
		if err != nil {
			t.Fatalf("a client without a key is refused: %v %v", res, err)
		}
		return conn
	}
	other := silent("10.0.0.2")
	crowd := make([]*websocket.Conn, 2*each)
	for i := range crowd {
		crowd[i] = silent("10.0.0.1")
	}
	until(t, "one address has its share", func() bool { return h.server.proxy.Load().Unauthenticated == each+1 })
	// All addresses together have the total.
	for i := range 2 * total {
		silent(fmt.Sprintf("10.0.1.%d", i))
	}
	until(t, "the room is full", func() bool { return h.server.proxy.Load().Unauthenticated == total })
	for name, conn := range map[string]*websocket.Conn{
		"of the address's oldest": crowd[0],
		"of the oldest of all":    other,
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		if _, _, err := conn.Read(ctx); err == nil || ctx.Err() != nil {
			t.Errorf("the connection %s is open: %v", name, err)
		}
		cancel()
	}
	say(t, h.dialWithoutKey(h.key), "x")
	say(t, authenticated, "x")
}

func TestProxy_UpgradeRefused(t *testing.T) {
	h, behind := newProxyHarness(t)
	behind.serve(func(_ string, w http.ResponseWriter, r *http.Request) bool {
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, "no such conversation")
		return true
	})
	for port, rest := range map[string]string{"AGENT_SERVER": eventSocket, "WORKER_1": "/ws"} {
		_, res, err := h.dial(h.at(port, rest), proxy.HeaderKey, h.key)
		if err == nil || res.StatusCode != 404 {
			t.Errorf("%s: %v %v", port, res, err)
		}
	}
	if code := ended(t, h.dialWithoutKey(h.key)); code != proxy.CloseUnknown {
		t.Errorf("close code %d", code)
	}
	until(t, "no session is left", func() bool { return h.server.proxy.Load().Sessions == 0 })
}

// openAll opens one stream of each kind and reports when each has ended.
func (h *proxyHarness) openAll(behind *sandboxPorts) (ends []func()) {
	h.t.Helper()
	ends = h.openStreams(behind)
	worker := h.openWorker()
	return append(ends, func() { h.t.Helper(); ended(h.t, worker) })
}

// openWorker opens a connection whose protocol the proxy does not know.
func (h *proxyHarness) openWorker() *websocket.Conn {
	h.t.Helper()
	worker := h.mustDial("WORKER_1", "/", proxy.HeaderKey, h.key)
	say(h.t, worker, "x")
	return worker
}

// openStreams opens event sockets and an event stream. An event socket must end with a close frame,
// an event stream with EOF.
func (h *proxyHarness) openStreams(behind *sandboxPorts) (ends []func()) {
	h.t.Helper()
	behind.serve(func(port string, w http.ResponseWriter, r *http.Request) bool {
		if asksForUpgrade(r) {
			return echoes(port, w, r)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: x\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return true
	})
	for _, conn := range []*websocket.Conn{
		h.mustDial("AGENT_SERVER", eventSocket, proxy.HeaderKey, h.key),
		h.dialWithoutKey(h.key),
	} {
		say(h.t, conn, "x")
		ends = append(ends, func() {
			h.t.Helper()
			if code := ended(h.t, conn); code != websocket.StatusServiceRestart {
				h.t.Errorf("an event socket ended with %d", code)
			}
		})
	}
	r, _ := http.NewRequest("GET", h.at("AGENT_SERVER", "/events"), nil)
	r.Header.Set(proxy.HeaderKey, h.key)
	res, err := client().Do(r)
	if err != nil {
		h.t.Fatal(err)
	}
	if _, err := io.ReadFull(res.Body, make([]byte, 9)); err != nil {
		h.t.Fatal(err)
	}
	return append(ends, func() {
		h.t.Helper()
		defer res.Body.Close()
		if rest, err := io.ReadAll(res.Body); err != nil || len(rest) != 0 {
			h.t.Errorf("an event stream ended with %q, %v", rest, err)
		}
	})
}

func TestProxy_StreamsAreCut(t *testing.T) {
	for name, cut := range map[string]func(h *proxyHarness){
		"pause":  func(h *proxyHarness) { h.apply("alice", &fsm.SandboxPauseBody{ID: h.id}) },
		"delete": func(h *proxyHarness) { h.apply("alice", &fsm.SandboxDeleteBody{ID: h.id}) },
		"another placement": func(h *proxyHarness) {
			h.observe(h.id,
				fsm.SandboxStatus{
					State:     fsm.SandboxRunning,
					Placement: &fsm.Placement{AllocID: "a2", Address: "127.0.0.1", Ports: h.ports},
				})
		},
		"no placement": func(h *proxyHarness) { h.observe(h.id, fsm.SandboxStatus{State: fsm.SandboxError}) },
	} {
		t.Run(name, func(t *testing.T) {
			h, behind := newProxyHarness(t)
			ends := h.openAll(behind)
			other := h.createSandbox(h.alice)
			h.observe(other, running())
			cut(h)
			for _, end := range ends {
				end()
			}
			until(t, "no session is left", func() bool { return h.server.proxy.Load().Sessions == 0 })
			if n := h.server.proxy.Load().Sandboxes; n != 0 {
				t.Errorf("%d sandboxes are still watched", n)
			}
		})
	}
}

func TestProxy_StreamsOutliveWhatDoesNotConcernThem(t *testing.T) {
	h, behind := newProxyHarness(t)
	behind.serve(echoes)
	conn := h.mustDial("AGENT_SERVER", eventSocket, proxy.HeaderKey, h.key)
	row := h.row()
	h.observe(h.id, fsm.SandboxStatus{State: fsm.SandboxError, Detail: "health", Placement: row.Status.Placement})
	h.place()
	other := h.createSandbox(h.alice)
	h.observe(other, running())
	h.apply("alice", &fsm.SandboxDeleteBody{ID: other})
	if got := say(t, conn, "x"); got != "echo x" {
		t.Error(got)
	}
}

func TestProxy_DrainEndsStreamsAndFinishesRequests(t *testing.T) {
	h, behind := newProxyHarness(t, func(c *Config) { c.DrainTimeout = 3 * time.Second })
	stop := h.run()
	ends, worker := h.openStreams(behind), h.openWorker()
	waiting, _, err := h.dial(h.at("AGENT_SERVER", eventSocket)) // has not sent a key
	if err != nil {
		t.Fatal(err)
	}
	hold, arrived := make(chan struct{}), make(chan struct{})
	behind.serve(func(_ string, w http.ResponseWriter, _ *http.Request) bool {
		close(arrived)
		<-hold
		return false
	})
	answer := make(chan reply, 1)
	go func() { answer <- h.ask("GET", h.at("AGENT_SERVER", "/slow"), "", proxy.HeaderKey, h.key) }()
	<-arrived
	done := make(chan struct{})
	go func() { stop(); close(done) }()
	for _, end := range ends {
		end()
	}
	if code := ended(t, waiting); code != websocket.StatusServiceRestart {
		t.Errorf("an event socket without a key ended with %d", code)
	}
	if got := say(t, worker, "on"); got != "echo on" {
		t.Errorf("the other upgraded connection says %q", got)
	}
	close(hold)
	if got := <-answer; got.status != 200 {
		t.Errorf("the request in progress got %d", got.status)
	}
	<-done
	ended(t, worker)
	if n := h.metricValue("bivouac_proxy_connections_cut_total"); n != 1 {
		t.Errorf("%v connections were cut", n)
	}
	if n := h.server.proxy.Load().Sessions; n != 0 {
		t.Errorf("%d sessions are left", n)
	}
}

func TestProxy_ManyOpenAndCutAtOnce(t *testing.T) {
	h, behind := newProxyHarness(t)
	behind.serve(echoes)
	var group sync.WaitGroup
	for i := range 16 {
		group.Go(func() {
			to := h.at([]string{"AGENT_SERVER", "WORKER_1"}[i%2], eventSocket)
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			conn, _, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(to, "http"),
				&websocket.DialOptions{HTTPHeader: http.Header{proxy.HeaderKey: {h.key}}})
			if err != nil {
				return // the pause came first
			}
			defer func() { _ = conn.CloseNow() }()
			for conn.Write(ctx, websocket.MessageText, []byte("x")) == nil {
				if _, _, err := conn.Read(ctx); err != nil {
					break
				}
			}
			if ctx.Err() != nil {
				t.Error("a stream was not cut")
			}
		})
	}
	until(t, "one is open", func() bool { return h.server.proxy.Load().Sessions > 0 })
	h.apply("alice", &fsm.SandboxPauseBody{ID: h.id})
	group.Wait()
	until(t, "no session is left", func() bool { return h.server.proxy.Load().Sessions == 0 })
}

func TestProxy_TooManyVisits(t *testing.T) {
	h, behind := newProxyHarness(t, func(c *Config) { c.Proxy.MaxSessions = 1 })
	behind.serve(echoes)
	conn := h.mustDial("WORKER_1", "/ws", proxy.HeaderKey, h.key)
	h.ask("GET", h.at("AGENT_SERVER", "/"), "", proxy.HeaderKey, h.key).want(t, 503)
	_ = conn.CloseNow()
	until(t, "no session is left", func() bool { return h.server.proxy.Load().Sessions == 0 })
	behind.serve(nil)
	h.ask("GET", h.at("AGENT_SERVER", "/"), "", proxy.HeaderKey, h.key).want(t, 200)
}

func TestProxy_UpgradeByRawBytes(t *testing.T) {
	h, behind := newProxyHarness(t)
	behind.serve(func(_ string, w http.ResponseWriter, r *http.Request) bool {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return true
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: own\r\n\r\n")
		line, _ := rw.ReadString('\n')
		_, _ = io.WriteString(conn, "got "+line)
		return true
	})
	conn, err := net.Dial("tcp", h.front.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	_, _ = io.WriteString(conn,
		"GET "+proxy.Path+h.id+"/WORKER_1/ HTTP/"+
			"1.1\r\nHost: x\r\nX-Session-API-Key: "+h.key+"\r\nConnection: Upgrade\r\nUpgrade: own\r\n\r\n")
	r := bufio.NewReader(conn)
	if line, _ := r.ReadString('\n'); !strings.HasPrefix(line, "HTTP/1.1 101 ") {
		t.Fatalf("%q", line)
	}
	_, _ = io.WriteString(conn, "hello\n")
	b, _ := io.ReadAll(r)
	if !strings.HasSuffix(string(b), "got hello\n") {
		t.Errorf("%q", b)
	}
}
