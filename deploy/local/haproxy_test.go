package local_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"bivouac.dev/bivouac/deploy/local"
)

// mandatory turns a skip into a failure if the environment requires the program (.ci/run does).
func mandatory(t *testing.T, program, why string) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv("BIVOUAC_TEST_REQUIRE"), ","), program) {
		t.Fatal(why + ", and BIVOUAC_TEST_REQUIRE names it")
	}
	t.Skip(why)
}

func TestHAProxy_LeavesOutANodeThatIsNotReady(t *testing.T) {
	t.Parallel()
	if local.HAProxyInstalled() == "" {
		mandatory(t, "haproxy", "haproxy is not installed")
	}
	var ready [2]atomic.Bool
	var nodes []string
	for i := range ready {
		ready[i].Store(true)
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/ready" && !ready[i].Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			_, _ = io.WriteString(w, string(rune('a'+i))+" "+strings.Join(r.Header.Values("X-Forwarded-For"), ";"))
		}))
		t.Cleanup(srv.Close)
		nodes = append(nodes, strings.TrimPrefix(srv.URL, "http://"))
	}
	h, err := local.StartHAProxy(t.Context(), local.HAProxyOptions{Dir: t.TempDir(), Nodes: nodes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	answers := func() map[string]int {
		got := map[string]int{}
		for range 10 {
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, h.Address+"/x", nil)
			req.Header.Set("X-Forwarded-For", "6.6.6.6")
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			got[string(body)]++
		}
		return got
	}
	eventually(t, "both nodes in turn, with the client's own address", func() error {
		if got := answers(); got["a 127.0.0.1"] != 5 || got["b 127.0.0.1"] != 5 {
			return errorf("answers %v", got)
		}
		return nil
	})
	for _, path := range []string{"/metrics", "/server_info", "/openapi.json", "/docs", "/%6detrics"} {
		resp, err := http.Get(h.Address + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if kind := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusNotFound || kind != "application/json" {
			t.Errorf("%s is answered: %d, %s", path, resp.StatusCode, kind)
		}
	}
	ready[0].Store(false)
	eventually(t, "only the ready node", func() error {
		if got := answers(); got["b 127.0.0.1"] != 10 {
			return errorf("answers %v", got)
		}
		return nil
	})
}

// TestHAProxy_ShippedFileIsObserved: as shipped it logs a request and has a socket for operators, also
// in a folder whose path is too long for a socket.
func TestHAProxy_ShippedFileIsObserved(t *testing.T) {
	t.Parallel()
	if local.HAProxyInstalled() == "" {
		mandatory(t, "haproxy", "haproxy is not installed")
	}
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	h, err := local.StartHAProxy(t.Context(), local.HAProxyOptions{Dir: dir, Nodes: []string{"127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	resp, err := http.Get(h.Address + "/api/v1/sandboxes")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	eventually(t, "the request's line", func() error {
		text, err := os.ReadFile(h.Log)
		if err == nil && !strings.Contains(string(text), "GET /api/v1/sandboxes HTTP/1.1") {
			err = errorf("the log is %q", text)
		}
		return err
	})
	short, err := os.MkdirTemp("", "ha")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(short)
	if err := os.Symlink(dir, filepath.Join(short, "d")); err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("unix", filepath.Join(short, "d", "admin.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("show servers state\n")); err != nil {
		t.Fatal(err)
	}
	if answer, err := io.ReadAll(conn); err != nil || !strings.Contains(string(answer), "write 1 node-1") &&
		!strings.Contains(string(answer), " node-1 ") {
		t.Errorf("%v: %q", err, answer)
	}
}

// TestHAProxy_ShippedFileIsValid: as it stands, with its example addresses.
func TestHAProxy_ShippedFileIsValid(t *testing.T) {
	t.Parallel()
	if local.HAProxyInstalled() == "" {
		mandatory(t, "haproxy", "haproxy is not installed")
	}
	out, err := exec.Command(local.HAProxyInstalled(), "-c", "-f", "../haproxy/haproxy.cfg").CombinedOutput()
	if err != nil || strings.Contains(string(out), "WARNING") {
		t.Errorf("haproxy -c: %v\n%s", err, out)
	}
}

func TestBuildImage_PullsNothing(t *testing.T) {
	t.Parallel()
	if !local.DockerReachable(t.Context()) {
		mandatory(t, "docker", "no docker daemon is reachable")
	}
	bin := filepath.Join(t.TempDir(), "sandbox-agent")
	if err := os.WriteFile(bin, []byte("not run"), 0o755); err != nil {
		t.Fatal(err)
	}
	const tag = "bivouac/image-test:1"
	if err := local.BuildImage(t.Context(), bin, tag); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time it is not there
		if err := local.RemoveImage(tag); err != nil {
			t.Error(err)
		}
	}
}
