package httpapi

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/httpapi/limits"
)

// unfinished are requests without a good key whose body does not arrive, one of each kind of route.
var unfinished = []string{
	"POST /api/settings HTTP/1.1\r\nHost: x\r\n",
	"POST /api/settings HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer nonsense\r\n",
	"POST /api/v1/webhooks/conversations HTTP/1.1\r\nHost: x\r\n",
	"POST /sandboxes/none/AGENT_SERVER/api/conversations HTTP/1.1\r\nHost: x\r\n",
	"POST /llm/v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer nonsense\r\n",
	"POST /llm/token HTTP/1.1\r\nHost: x\r\n",
	"POST /nothing HTTP/1.1\r\nHost: x\r\n",
	"GET /ready HTTP/1.1\r\nHost: x\r\n",
}

// hang sends a request whose body does not arrive.
func hang(t *testing.T, c net.Conn, head string) {
	t.Helper()
	if _, err := io.WriteString(c, head+"Content-Length: 100\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
}

func TestServer_UnfinishedBodiesWithoutAKeyGiveWay(t *testing.T) {
	const total, each = 12, 6
	for i, head := range unfinished {
		t.Run(fmt.Sprint(i, " ", strings.TrimSpace(strings.Split(head, "HTTP")[0])), func(t *testing.T) {
			t.Parallel()
			h := newHarness(t, func(c *Config) { c.MaxConnections, c.MaxConnectionsPerAddress = total, each })
			address, _ := served(t, h)
			kept := h.busy("127.0.0.9", address)
			for n := range 2*total + 2*(limits.HealthPlaces+1) {
				hang(t, dialFrom(t, fmt.Sprintf("127.0.1.%d", 1+n%6), address), head)
			}
			for _, from := range []string{"127.0.1.1", "127.0.0.2"} {
				for _, request := range []string{settingsRequest(h.alice) + "{}", aliveRequest} {
					if status, body, err := exchangeOver(dialFrom(t, from, address), request); status != http.StatusOK || err != nil {
						t.Errorf("from %s: %d %q, %v", from, status, body, err)
					}
				}
			}
			if status, body, err := exchangeOver(kept, "{}"); status != http.StatusOK || err != nil {
				t.Errorf("a request with a key that was in progress: %d %q, %v", status, body, err)
			}
		})
	}
}

// The read timeout is a minute here: only the refusal ends the wait for the body.
func TestServer_ARefusedRequestHasASecondToFinish(t *testing.T) {
	h := newHarness(t)
	address, _ := served(t, h)
	for i, head := range unfinished[:7] {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			c := dial(t, address)
			hang(t, c, head)
			reply, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatalf("%s: no answer: %v", head, err)
			}
			if _, err := io.Copy(io.Discard, reply.Body); reply.StatusCode < 400 || err != nil {
				t.Errorf("%s: %d, %v", head, reply.StatusCode, err)
			}
			if n, err := c.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the connection stays open: %d, %v", n, err)
			}
		})
	}
}

func TestServer_HealthConnectionsHaveASecondForTheirRequest(t *testing.T) {
	h := newHarness(t, func(c *Config) {
		c.MaxConnections, c.ReadHeaderTimeout, c.IdleTimeout = 1, time.Minute, time.Minute
	})
	address, _ := served(t, h)
	h.busy("127.0.0.1", address)
	for name, begin := range map[string]string{"nothing": "", "half a header": "GET /ready HTTP/1.1\r\nHost: x\r\n"} {
		c := dial(t, address)
		if _, err := io.WriteString(c, begin); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the connection stays open: %d, %v", name, n, err)
		}
	}
	c := dial(t, address)
	if status, _, err := exchangeOver(c, aliveRequest); status != http.StatusOK || err != nil {
		t.Errorf("health: %d, %v", status, err)
	}
	if n, err := c.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after a request the connection stays open: %d, %v", n, err)
	}
}

// HAProxy's address is one for all its clients.
func TestServer_UnfinishedBodiesGiveWayBehindHAProxy(t *testing.T) {
	if local.HAProxyInstalled() == "" {
		if slices.Contains(strings.Split(os.Getenv("BIVOUAC_TEST_REQUIRE"), ","), "haproxy") {
			t.Fatal("haproxy is not installed, and BIVOUAC_TEST_REQUIRE names it")
		}
		t.Skip("haproxy is not installed")
	}
	const total = 24
	h := newHarness(t, func(c *Config) {
		c.MaxConnections = total
		c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	})
	h.cluster.set(func(c *fakeCluster) { c.contact = time.Now().Add(time.Hour) })
	node, _ := served(t, h)
	proxy, err := local.StartHAProxy(t.Context(), local.HAProxyOptions{Dir: t.TempDir(), Nodes: []string{node}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proxy.Close(); err != nil {
			t.Error(err)
		}
	})
	address := strings.TrimPrefix(proxy.Address, "http://")
	asks := func() (status int, body string, err error) {
		return exchangeOver(dialFrom(t, "127.0.0.2", address), settingsRequest(h.alice)+"{}")
	}
	until(t, "HAProxy takes the node for ready", func() bool { status, _, _ := asks(); return status == http.StatusOK })
	for n := range 2*total + 2*limits.HealthPlaces {
		hang(t, dialFrom(t, fmt.Sprintf("127.0.1.%d", 1+n%6), address), unfinished[n%len(unfinished)])
	}
	until(t, "the node's places are taken", func() bool { return h.server.conns.Room.Open() >= total })
	for range 4 {
		if status, body, err := asks(); status != http.StatusOK || err != nil {
			t.Errorf("a user: %d %q, %v", status, body, err)
		}
	}
	for range 2 {
		if status, body, err := exchangeOver(dial(t, node),
			"GET /ready?mode=write HTTP/1.1\r\nHost: x\r\n\r\n"); status != http.StatusOK || err != nil {
			t.Errorf("/ready: %d %q, %v", status, body, err)
		}
	}
}
