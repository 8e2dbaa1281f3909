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
)

// doorHarness is a Server on a real port, with one of alice's sandboxes whose
// ports are servers of the test's.
type doorHarness struct {
	*harness
	front *httptest.Server
	// id and key are the sandbox's.
	id, key string
	ports   map[string]int
}

// seen is what a sandbox's port got.
type seen struct {
	port   string
	method string
	uri    string
	host   string
	header http.Header
	body   string
}

// sandboxPorts answers on all ports of a sandbox and remembers what came.
type sandboxPorts struct {
	mu   sync.Mutex
	list []seen
	// handle answers when set; it may leave the answer to the default, "<port>".
	handle func(port string, w http.ResponseWriter, r *http.Request) bool
}

func (s *sandboxPorts) server(t *testing.T, port string) int {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		handle := s.handle
		s.mu.Unlock()
		one := seen{port: port, method: r.Method, uri: r.RequestURI, host: r.Host, header: r.Header.Clone()}
		if !isUpgrade(r) && r.URL.Path != "/slow" {
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

// last gives the newest request; the zero value when there was none.
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

func newDoorHarness(t *testing.T, change ...func(*Config)) (*doorHarness, *sandboxPorts) {
	t.Helper()
	change = append([]func(*Config){func(c *Config) {
		c.Door.StartWait, c.Door.AuthTimeout = 5*time.Second, 5*time.Second
	}}, change...)
	h := &doorHarness{harness: newHarness(t, change...), ports: map[string]int{}}
	h.apply("", &fsm.SpecApplyBody{Replace: true, Specs: []fsm.Spec{{ID: "all", Template: fsm.Template{
		Driver: fsm.DriverRawExec, Command: "/usr/bin/sandbox-agent", CPU: 1, Memory: 1,
		Ports: map[string]int{fsm.PortAgentServer: 0, portVSCode: 8001, portWorker1: 8011, portWorker2: 8012},
	}}}})
	behind := &sandboxPorts{}
	for _, name := range []string{fsm.PortAgentServer, portVSCode, portWorker1, portWorker2} {
		h.ports[name] = behind.server(t, name)
	}
	h.id = h.createSandbox(h.alice)
	h.key = h.secrets.last(sandboxPath(h.id))["key"]
	h.place()
	h.front = httptest.NewServer(h.handler)
	t.Cleanup(h.front.Close)
	return h, behind
}

// place makes the sandbox RUNNING where the test's servers are.
func (h *doorHarness) place() {
	h.t.Helper()
	h.observe(h.id, fsm.SandboxStatus{State: fsm.SandboxRunning, Placement: &fsm.Placement{
		AllocID: "a1", NodeID: "m1", Address: "127.0.0.1", Workspace: "/w", Ports: h.ports,
	}})
}

// pause asks for a pause, and finishes it.
func (h *doorHarness) pause() {
	h.t.Helper()
	h.apply("alice", &fsm.SandboxPauseBody{ID: h.id})
	h.observe(h.id, fsm.SandboxStatus{State: fsm.SandboxPaused})
}

func (h *doorHarness) row() *fsm.Sandbox {
	v, _ := h.cluster.View(context.Background(), cluster.Stale)
	return v.SandboxAny(h.id)
}

// at is the URL of a path behind a port's prefix.
func (h *doorHarness) at(port, rest string) string {
	return h.front.URL + pathDoor + h.id + "/" + port + rest
}

// client follows no redirects and keeps no connection.
func client() *http.Client {
	return &http.Client{
		Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// ask makes a request; headers come in pairs, "Host" sets the host.
func (h *doorHarness) ask(method, to, body string, headers ...string) response {
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
	return response{status: res.StatusCode, header: res.Header, body: b}
}

// raw writes bytes and gives what comes back until the connection ends.
func (h *doorHarness) raw(text string) string {
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
func (h *doorHarness) dial(to string, headers ...string) (*websocket.Conn, *http.Response, error) {
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

// say sends a text and gives the next one.
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

// ended gives the close code the other side ends with.
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

// echoes answers WebSockets with what they say; "bye" closes with 4004.
func echoes(_ string, w http.ResponseWriter, r *http.Request) bool {
	if !isUpgrade(r) {
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

// run serves with the Server's own http.Server instead of the test's; stop
// drains it.
func (h *doorHarness) run() (stop func()) {
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
