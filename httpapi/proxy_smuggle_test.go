package httpapi

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/httpapi/response"
)

// siege is a proxy with a sandbox of alice's and one of bob's, and one or more addresses.
type siege struct {
	*proxyHarness
	alices, bobs *sandboxPorts
	bobsID       string
	bobsKey      string
	// ways are the attacked addresses: the node, and HAProxy in front of it.
	ways map[string]string
	next atomic.Int64
}

func newSiege(t *testing.T) *siege {
	t.Helper()
	h, alices := newProxyHarness(t, func(c *Config) { c.Proxy.Domain = fuzzDomain })
	s := &siege{proxyHarness: h, alices: alices, bobs: &sandboxPorts{}, bobsID: h.createSandbox(h.bob)}
	s.bobsKey = h.secrets.last(fsm.SandboxKeyPath(s.bobsID))["key"]
	ports := map[string]int{}
	for name := range h.ports {
		ports[name] = s.bobs.server(t, "bob's "+name)
	}
	h.observe(s.bobsID,
		fsm.SandboxStatus{
			State:     fsm.SandboxRunning,
			Placement: &fsm.Placement{AllocID: "b1", NodeID: "m1", Address: "127.0.0.1", Workspace: "/w", Ports: ports},
		})
	node := h.front.Listener.Addr().String()
	s.ways = map[string]string{"the node": node}
	if local.HAProxyInstalled() == "" {
		if slices.Contains(strings.Split(os.Getenv("BIVOUAC_TEST_REQUIRE"), ","), "haproxy") {
			t.Fatal("haproxy is not installed, and BIVOUAC_TEST_REQUIRE names it")
		}
		t.Log("haproxy is not installed: only the node itself is attacked")
		return s
	}
	// A node without a leader is not ready for streams.
	h.cluster.set(func(c *fakeCluster) { c.contact = time.Now().Add(time.Hour) })
	proxy, err := local.StartHAProxy(t.Context(), local.HAProxyOptions{Dir: t.TempDir(), Nodes: []string{node}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proxy.Close(); err != nil {
			t.Error(err)
		}
	})
	s.ways["HAProxy"] = strings.TrimPrefix(proxy.Address, "http://")
	until(t, "HAProxy takes the node for ready", func() bool {
		res, err := http.Get(proxy.Address + "/health")
		if err != nil {
			return false
		}
		defer res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
	return s
}

// quietTime without data means that a response is complete. It is no timing assertion: later data
// is found in the logs.
const quietTime = 500 * time.Millisecond

// send writes raw bytes and returns everything that arrives.
func (s *siege) send(address, text string) string {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, text); err != nil {
		return "" // a closed connection is a valid response
	}
	var all []byte
	chunk := make([]byte, 32<<10)
	for {
		_ = conn.SetReadDeadline(time.Now().Add(quietTime))
		n, err := conn.Read(chunk)
		if all = append(all, chunk[:n]...); err != nil {
			return string(all)
		}
	}
}

// attack sends a text with {box}, {bobs}, {key} and {inner} filled in. {inner} is a whole request
// with the operator's key and a mark, like another client's next request. It returns the mark.
func (s *siege) attack(address, text string) (mark, answer string) {
	mark = fmt.Sprintf("smuggled-%d", s.next.Add(1))
	inner := "GET /api/v1/operator/status " +
		"HTTP/1.1\r\nHost: x\r\nX-Request-Id: " + mark + "\r\nX-Session-API-Key: " + s.root + "\r\n\r\n"
	text = strings.NewReplacer("{box}", s.id, "{bobs}", s.bobsID, "{key}", s.key, "{inner}", inner, "{innerlen}",
		itoa(len(inner)), "{innerhex}", fmt.Sprintf("%x", len(inner))).Replace(text)
	return mark, s.send(address, text)
}

// victim is another client whose requests must get their normal responses. A desynchronised
// connection to the node would show here.
func (s *siege) victim(address string) error {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	r := bufio.NewReader(conn)
	for i := range 3 {
		id := fmt.Sprintf("victim-%d", s.next.Add(1))
		fmt.Fprintf(conn,
			"GET /sandboxes/%s/WORKER_1/mine-%d HTTP/1.1\r\nHost: x\r\nX-Request-Id: %s\r\nX-Session-API-Key: %s\r\n\r\n",
			s.bobsID, i, id, s.bobsKey)
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(res.Body)
		if err != nil {
			return err
		}
		if res.StatusCode != 200 || string(body) != "bob's WORKER_1" || res.Header.Get(response.HeaderRequestID) != id {
			return fmt.Errorf("got %d %q for %s, as %s", res.StatusCode, body, id, res.Header.Get(response.HeaderRequestID))
		}
	}
	return nil
}

// smuggled are requests whose end two parsers may see in different places.
func smuggled() map[string]string {
	const to = "POST /sandboxes/{box}/WORKER_1/outer HTTP/1.1\r\nHost: x\r\nX-Session-API-Key: {key}\r\n"
	return map[string]string{
		"CL.TE": to + "Content-Length: {innerlen}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{inner}",
		"TE.CL": to + "Transfer-Encoding: chunked\r\nContent-Length: " +
			"4\r\n\r\n{innerhex}\r\n{inner}\r\n0\r\n\r\n",
		"TE.TE, another": to + "Content-Length: {innerlen}\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: " +
			"identity\r\n\r\n0\r\n\r\n{inner}",
		"TE.TE, space before colon": to + "Content-Length: 4\r\nTransfer-Encoding : " +
			"chunked\r\n\r\n{innerhex}\r\n{inner}\r\n0\r\n\r\n",
		"TE.TE, tab": to + "Content-Length: " +
			"4\r\nTransfer-Encoding:\tchunked\r\n\r\n{innerhex}\r\n{inner}\r\n0\r\n\r\n",
		"TE.TE, vertical tab": to + "Content-Length: " +
			"4\r\nTransfer-Encoding:\x0bchunked\r\n\r\n{innerhex}\r\n{inner}\r\n0\r\n\r\n",
		"TE.TE, list": to + "Content-Length: 4\r\nTransfer-Encoding: gzip, " +
			"chunked\r\n\r\n{innerhex}\r\n{inner}\r\n0\r\n\r\n",
		"TE.TE, xchunked": to + "Content-Length: {innerlen}\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{inner}",
		"TE.TE, quoted":   to + "Content-Length: {innerlen}\r\nTransfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n{inner}",
		"TE.TE, folded":   to + "Content-Length: {innerlen}\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n{inner}",
		"TE in HTTP/1.0": strings.Replace(to, "HTTP/1.1", "HTTP/1.0",
			1) + "Content-Length: {innerlen}\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n0\r\n\r\n{inner}",
		"CL.CL":                     to + "Content-Length: 0\r\nContent-Length: {innerlen}\r\n\r\n{inner}",
		"CL.CL, list":               to + "Content-Length: 0, {innerlen}\r\n\r\n{inner}",
		"CL with a plus":            to + "Content-Length: +0\r\n\r\n{inner}",
		"CL negative":               to + "Content-Length: -1\r\n\r\n{inner}",
		"CL in hex":                 to + "Content-Length: 0x10\r\n\r\n{inner}",
		"CL too large to count":     to + "Content-Length: 18446744073709551616\r\n\r\n{inner}",
		"CL with a space inside":    to + "Content-Length: 0 0\r\n\r\n{inner}",
		"GET with a body":           strings.Replace(to, "POST", "GET", 1) + "Content-Length: {innerlen}\r\n\r\n{inner}",
		"chunk size with a sign":    to + "Transfer-Encoding: chunked\r\n\r\n+0\r\n\r\n{inner}",
		"chunk size with a prefix":  to + "Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n{inner}",
		"chunk size that overflows": to + "Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n{inner}",
		"chunk ended by LF":         to + "Transfer-Encoding: chunked\r\n\r\n1;\nxx\r\n0\r\n\r\n{inner}",
		"chunk without its CRLF":    to + "Transfer-Encoding: chunked\r\n\r\n1\r\naX0\r\n\r\n{inner}",
		"obs-fold hides a length":   to + "X-Fold: a\r\n Content-Length: 0\r\nContent-Length: {innerlen}\r\n\r\n{inner}",
		"bare LF ends the header": "POST /sandboxes/{box}/WORKER_1/outer HTTP/1.1\nHost: x\nX-Session-API-Key: " +
			"{key}\nContent-Length: {innerlen}\n\n{inner}",
		"bare CR in a value": to + "X-A: a\rContent-Length: 0\r\nContent-Length: {innerlen}\r\n\r\n{inner}",
		"NUL in a value":     to + "X-A: a\x00b\r\nContent-Length: {innerlen}\r\n\r\n{inner}",
		"NUL in a name":      to + "Content-\x00Length: {innerlen}\r\n\r\n{inner}",
		"CRLF in the path": "GET /sandboxes/{box}/WORKER_1/a%0d%0a%0d%0a{inner} HTTP/1.1\r\nHost: " +
			"x\r\nX-Session-API-Key: {key}\r\n\r\n",
		"a space in the path": "GET /sandboxes/{box}/WORKER_1/a HTTP/1.1 HTTP/1.1\r\nHost: x\r\nX-Session-API-Key: " +
			"{key}\r\nContent-Length: {innerlen}\r\n\r\n{inner}",
		"a line before the request":   "\r\n\r\n" + to + "Content-Length: {innerlen}\r\n\r\n{inner}",
		"a header before the request": " x: y\r\n" + to + "Content-Length: {innerlen}\r\n\r\n{inner}",
		"Connection names the length": to + "Connection: Content-Length\r\nContent-Length: {innerlen}\r\n\r\n{inner}",
		"Connection names the key": to + "Connection: X-Session-API-Key, Host\r\nContent-Length: " +
			"{innerlen}\r\n\r\n{inner}",
		"Expect":                   to + "Expect: 100-continue\r\nContent-Length: {innerlen}\r\n\r\n{inner}",
		"Expect of something else": to + "Expect: 100-continue, x\r\nContent-Length: {innerlen}\r\n\r\n{inner}",
		"upgrade that is none": to + "Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: " +
			"{innerlen}\r\n\r\n{inner}",
		"WebSocket of another version": strings.Replace(to, "POST", "GET",
			1) + "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 99\r\nSec-WebSocket-Key: " +
			"x\r\nContent-Length: {innerlen}\r\n\r\n{inner}",
		"h2c upgrade at the sandbox": to + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: " +
			"AAMAAABkAARAAAAAAAIAAAAA\r\nContent-Length: {innerlen}\r\n\r\n{inner}",
		"two hosts": to + "Host: worker-1-{bobs}." + fuzzDomain + "\r\nContent-Length: " +
			"{innerlen}\r\n\r\n{inner}",
		"a name with a space": to + "X Content-Length: 0\r\nContent-Length: {innerlen}\r\n\r\n{inner}",
		"an underscore for a dash": to + "Content_Length: 0\r\nTransfer_Encoding: chunked\r\nContent-Length: " +
			"{innerlen}\r\n\r\n{inner}",
	}
}

// TestSiege_Smuggling: whatever the framing, a request inside another one's body is never executed,
// other clients' responses stay in order, and the other sandbox receives nothing, directly or
// through HAProxy.
func TestSiege_Smuggling(t *testing.T) {
	s := newSiege(t)
	// This proves that the test would detect it.
	if mark, answer := s.attack(s.ways["the node"], "{inner}"); !strings.Contains(s.logs.String(), mark) ||
		!strings.HasPrefix(answer, "HTTP/1.1 200") {
		t.Fatalf("the operator's own request was not noticed: %s", answer)
	}
	texts := smuggled()
	for _, way := range decode.SortedKeys(s.ways) {
		var attacks, victims sync.WaitGroup
		over := make(chan struct{})
		victims.Go(func() {
			for {
				if err := s.victim(s.ways[way]); err != nil {
					t.Errorf("through %s: another client: %v", way, err)
					return
				}
				select {
				case <-over:
					return
				case <-time.After(5 * time.Millisecond):
				}
			}
		})
		for _, name := range decode.SortedKeys(texts) {
			attacks.Go(func() {
				mark, answer := s.attack(s.ways[way], texts[name])
				if strings.Contains(s.logs.String(), mark) || strings.Contains(answer, `"leader"`) {
					t.Errorf("%s through %s: the request inside was carried out: %q", name, way, answer)
				}
			})
		}
		attacks.Wait()
		close(over)
		victims.Wait()
	}
	for _, one := range s.alices.all() {
		if strings.HasPrefix(one.uri, "/api/v1/operator") {
			t.Errorf("alice's sandbox got what was inside a request: %+v", one)
		}
	}
	for _, one := range s.bobs.all() {
		if !strings.HasPrefix(one.uri, "/mine-") {
			t.Errorf("bob's sandbox got %+v", one)
		}
	}
}

// tricks are ways to write a target that may be parsed as another one. They use the key of alice's
// sandbox.
func tricks() []string {
	return []string{
		"/sandboxes/{bobs}/WORKER_1/", "/sandboxes/{box}/../{bobs}/WORKER_1/",
		"/sandboxes/{box}/WORKER_1/../../{bobs}/WORKER_1/", "/sandboxes/{box}/WORKER_1/%2e%2e/%2e%2e/{bobs}/WORKER_1/",
		"/sandboxes/{box}/WORKER_1/..%2f..%2f{bobs}%2fWORKER_1%2f", "/sandboxes/{box}%2f..%2f{bobs}/WORKER_1/",
		"/sandboxes/{box}/%2e%2e/{bobs}/WORKER_1/", "/sandboxes/./{bobs}/WORKER_1/",
		"//sandboxes/{bobs}/WORKER_1/", "/sandboxes//{bobs}/WORKER_1/", "/sandboxes/{bobs}//WORKER_1/",
		"/sandboxes/{bobs};x={box}/WORKER_1/", "/sandboxes/{box};/../{bobs}/WORKER_1/",
		`/sandboxes\{bobs}\WORKER_1\`, `/sandboxes/{box}\..\{bobs}/WORKER_1/`, "/sandboxes/{bobs}%00{box}/WORKER_1/",
		"/sandboxes/{box}%00/../{bobs}/WORKER_1/", "/SANDBOXES/{bobs}/WORKER_1/",
		"/%73andboxes/{bobs}/WORKER_1/", "/api/v1/../../sandboxes/{bobs}/WORKER_1/",
		"/sandboxes/{box}/@127.0.0.1:{bobsport}/", "/sandboxes/{box}/127.0.0.1:{bobsport}/", "/sandboxes/{box}/{bobsport}/",
		"/sandboxes/{box}/WORKER_1@{bobs}/", "/sandboxes/{box}/WORKER_1//127.0.0.1:{bobsport}/",
		"/sandboxes/{box}/WORKER_1/http://127.0.0.1:{bobsport}/", "http://x/sandboxes/{bobs}/WORKER_1/",
		"http://127.0.0.1:{bobsport}/", "http://worker-1-{bobs}." + fuzzDomain + "/",
		"http://x:y@z/sandboxes/{bobs}/WORKER_1/", "*", "/sandboxes/{box}/WORKER_1?/../../{bobs}/WORKER_1/",
		"/sandboxes/{box}/WORKER_1#/../../{bobs}/WORKER_1/", "/api/v1/operator/keys",
		"/sandboxes/{box}/../../api/v1/operator/keys", "/sandboxes/{box}/WORKER_1/..%2f..%2f..%2fapi/v1/operator/keys",
		"/api/v1/sandboxes/../operator/keys", "/api/v1/operator/keys/", "/api/v1//operator/keys", "/api/v1/operator%2fkeys",
		"/api/v1/operator/./keys", "/api/v1/operator/keys;x", "/api/v1/sandboxes/{bobs}/settings/secrets",
		"/api/v1/sandboxes/{box}/../{bobs}/settings/secrets", "/api/v1/sandboxes/{box}%2f..%2f{bobs}/settings/secrets",
		"/api/v1/sandboxes/{box}/settings/secrets/../../../{bobs}/settings/secrets",
	}
}

// TestSiege_PathTricks: the key of alice's sandbox gives access only to that sandbox, however the
// target is written and whatever other host the request names.
func TestSiege_PathTricks(t *testing.T) {
	t.Parallel()
	s := newSiege(t)
	row, err := s.cluster.View(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	fill := strings.NewReplacer("{box}", s.id, "{bobs}", s.bobsID, "{bobsport}",
		itoa(row.SandboxAny(s.bobsID).Status.Placement.Ports[proxy.PortWorker1]))
	hosts := []string{
		"x",
		"worker-1-{bobs}." + fuzzDomain,
		"worker-1-{box}." + fuzzDomain,
		"worker-1-{bobs}." + fuzzDomain + ".",
		"worker-1-{box}." + fuzzDomain + "@worker-1-{bobs}." + fuzzDomain,
		"worker-1-{bobs}." + fuzzDomain + ":80",
	}
	for _, way := range decode.SortedKeys(s.ways) {
		for _, target := range tricks() {
			for _, host := range hosts {
				for _, method := range []string{"GET", "POST", "CONNECT"} {
					before, seen := s.bobs.count(), len(s.logs.String())
					text := fill.Replace(
						method + " " + target + " HTTP/1.1\r\nHost: " + host + "\r\nX-Session-API-Key: " + s.key +
							"\r\nX-Forwarded-Host: worker-1-{bobs}." + fuzzDomain +
							"\r\nX-Original-URL: /api/v1/operator/keys\r\nX-Rewrite-URL: /sandboxes/{bobs}/WORKER_1/\r\nContent-Length: " +
							"0\r\nConnection: close\r\n\r\n",
					)
					answer := s.send(s.ways[way], text)
					if s.bobs.count() != before {
						t.Errorf("%s, %q: bob's sandbox got %+v", way, text, s.bobs.last())
					}
					if log := s.logs.String()[seen:]; servedOperator(log) || strings.Contains(answer, "bvk_") ||
						strings.Contains(answer, `"secrets":[`) {
						t.Errorf("%s, %q: %q\n%s", way, text, answer, log)
					}
				}
			}
		}
	}
}

// servedOperator reports whether a log line says that an operator route was served. The log also
// has HAProxy's health checks.
func servedOperator(log string) bool {
	for line := range strings.Lines(log) {
		if strings.Contains(line, "operator") && strings.Contains(line, `"status":200`) {
			return true
		}
	}
	return false
}

// TestAPI_SpeaksNoH2C: without TLS the API is HTTP/1.1 only, so that no request can hide in a
// connection that a proxy considers upgraded.
func TestAPI_SpeaksNoH2C(t *testing.T) {
	s := newSiege(t)
	for way, address := range s.ways {
		for _, text := range []string{
			"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
			"GET /ready HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: " +
				"AAMAAABkAARAAAAAAAIAAAAA\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
		} {
			answer := s.send(address, text)
			if strings.Contains(answer, "101 Switching") || answer != "" && !strings.HasPrefix(answer, "HTTP/1.1 ") {
				t.Errorf("%s speaks HTTP/2 without TLS: %q", way, answer)
			}
		}
	}
}
