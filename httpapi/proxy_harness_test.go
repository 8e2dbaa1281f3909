package httpapi

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/proxy"
)

// proxyHarness is a Server on a real port with a sandbox of alice's, whose ports are test servers.
type proxyHarness struct {
	*harness
	front *httptest.Server
	// id and key are the sandbox's.
	id, key string
	ports   map[string]int
}

// seen is a request that a sandbox's port received.
type seen struct {
	port   string
	method string
	uri    string
	host   string
	header http.Header
	body   string
}

// sandboxPorts serves all ports of a sandbox and records the requests.
type sandboxPorts struct {
	mu   sync.Mutex
	list []seen
	// handle, if set, serves the request or leaves it to the default, which responds "<port>".
	handle func(port string, w http.ResponseWriter, r *http.Request) bool
}

func (s *sandboxPorts) server(t *testing.T, port string) int {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		handle := s.handle
		s.mu.Unlock()
		one := seen{port: port, method: r.Method, uri: r.RequestURI, host: r.Host, header: r.Header.Clone()}
		if !asksForUpgrade(r) && r.URL.Path != "/slow" {
			b, _ := io.ReadAll(r.Body)
			one.body = string(b)
		}
		s.mu.Lock()
		s.list = append(s.list, one)
		s.mu.Unlock()
		if handle == nil || !handle(port, w, r) {
			_, _ = io.WriteString(w, port)
		}
	}))
	t.Cleanup(srv.Close)
	return portOf(t, srv.URL)
}

func (s *sandboxPorts) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.list)
}

func (s *sandboxPorts) all() []seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]seen(nil), s.list...)
}

// last returns the latest request, the zero value if there was none.
func (s *sandboxPorts) last() seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.list) == 0 {
		return seen{}
	}
	return s.list[len(s.list)-1]
}

func (s *sandboxPorts) serve(f func(port string, w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handle = f
}

func portOf(t *testing.T, raw string) int {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func newProxyHarness(t *testing.T, change ...func(*Config)) (*proxyHarness, *sandboxPorts) {
	t.Helper()
	change = append([]func(*Config){func(c *Config) {
		c.Proxy.StartWait, c.Proxy.AuthTimeout = 5*time.Second, 5*time.Second
	}}, change...)
	h := &proxyHarness{harness: newHarness(t, change...), ports: map[string]int{}}
	h.apply("", &fsm.SpecApplyBody{Replace: true, Specs: []fsm.Spec{{ID: "all", Template: fsm.Template{
		Driver: fsm.DriverRawExec, Isolation: fsm.IsolationNone, Command: "/usr/bin/sandbox-agent", CPU: 1, Memory: 1,
		Ports: map[string]int{
			fsm.PortAgentServer: 0,
			proxy.PortVSCode:    8001,
			proxy.PortWorker1:   8011,
			proxy.PortWorker2:   8012,
		},
	}}}})
	behind := &sandboxPorts{}
	for _, name := range []string{fsm.PortAgentServer, proxy.PortVSCode, proxy.PortWorker1, proxy.PortWorker2} {
		h.ports[name] = behind.server(t, name)
	}
	h.id = h.createSandbox(h.alice)
	h.key = h.secrets.last(fsm.SandboxKeyPath(h.id))["key"]
	h.place()
	h.front = httptest.NewServer(h.handler)
	t.Cleanup(h.front.Close)
	return h, behind
}

// place makes the sandbox RUNNING at the test servers.
func (h *proxyHarness) place() {
	h.t.Helper()
	h.observe(h.id, fsm.SandboxStatus{State: fsm.SandboxRunning, Placement: &fsm.Placement{
		AllocID: "a1", NodeID: "m1", Address: "127.0.0.1", Workspace: "/w", Ports: h.ports,
	}})
}

// pause asks for a pause and makes the sandbox PAUSED.
func (h *proxyHarness) pause() {
	h.t.Helper()
	h.apply("alice", &fsm.SandboxPauseBody{ID: h.id})
	h.observe(h.id, fsm.SandboxStatus{State: fsm.SandboxPaused})
}

func (h *proxyHarness) row() *fsm.Sandbox {
	v, _ := h.cluster.View(context.Background(), cluster.Stale)
	return v.SandboxAny(h.id)
}

// at returns the URL of a path below a port's prefix.
func (h *proxyHarness) at(port, rest string) string {
	return h.front.URL + proxy.Path + h.id + "/" + port + rest
}

// client neither follows redirects nor keeps connections.
func client() *http.Client {
	return &http.Client{
		Timeout: 20 * time.Second, Transport: &http.Transport{
			DisableKeepAlives: true,
			TLSClientConfig:   &tls.Config{MinVersion: tls.VersionTLS12},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// ask sends a request. headers are pairs; "Host" sets the host.
func (h *proxyHarness) ask(method, to, body string, headers ...string) reply {
	h.t.Helper()
	r, err := http.NewRequest(method, to, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
		r.Header.Add(headers[i], headers[i+1])
	}
	res, err := client().Do(r)
	if err != nil {
		h.t.Fatalf("%s %s: %v", method, to, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		h.t.Fatalf("%s %s: %v", method, to, err)
	}
	return reply{status: res.StatusCode, header: res.Header, body: b}
}

// raw sends bytes and returns what arrives until the connection ends.
func (h *proxyHarness) raw(text string) string {
	h.t.Helper()
	conn, err := net.Dial("tcp", h.front.Listener.Addr().String())
	if err != nil {
		h.t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(conn, text); err != nil {
		h.t.Fatal(err)
	}
	b, _ := io.ReadAll(conn)
	return string(b)
}

// until waits for a condition.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-deadline:
			t.Fatalf("waited too long: %s", what)
		case <-tick.C:
		}
	}
}

// dial opens a WebSocket.
func (h *proxyHarness) dial(to string, headers ...string) (*websocket.Conn, *http.Response, error) {
	h.t.Helper()
	header := http.Header{}
	for i := 0; i < len(headers); i += 2 {
		header.Set(headers[i], headers[i+1])
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, res, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(to, "http"), &websocket.DialOptions{HTTPHeader: header})
	if conn != nil {
		h.t.Cleanup(func() { _ = conn.CloseNow() })
	}
	return conn, res, err
}

// say sends a text and returns the next message.
func say(t *testing.T, conn *websocket.Conn, text string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := conn.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
		t.Fatal(err)
	}
	_, b, err := conn.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// ended returns the other side's close code.
func ended(t *testing.T, conn *websocket.Conn) websocket.StatusCode {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for {
		if _, _, err := conn.Read(ctx); err != nil {
			if ctx.Err() != nil {
				t.Fatal("the WebSocket did not end")
			}
			return websocket.CloseStatus(err)
		}
	}
}

// echoes echoes WebSocket messages; "bye" closes with 4004.
func echoes(_ string, w http.ResponseWriter, r *http.Request) bool {
	if !asksForUpgrade(r) {
		return false
	}
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return true
	}
	defer func() { _ = conn.CloseNow() }()
	for {
		kind, b, err := conn.Read(r.Context())
		if err != nil {
			return true
		}
		if string(b) == "bye" {
			_ = conn.Close(4004, "no such conversation")
			return true
		}
		if conn.Write(r.Context(), kind, append([]byte("echo "), b...)) != nil {
			return true
		}
	}
}

// run serves with the Server's own http.Server instead of httptest's. stop drains it.
func (h *proxyHarness) run() (stop func()) {
	h.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.server.Run(ctx, l) }()
	h.front.URL = "http://" + l.Addr().String()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			h.t.Errorf("Run: %v", err)
		}
	})
}

func asksForUpgrade(r *http.Request) bool { return r.Header.Get("Upgrade") != "" }
