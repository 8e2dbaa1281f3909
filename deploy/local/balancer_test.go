package local_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local"
)

// certificate makes a self-signed certificate for 127.0.0.1 and returns it with a PEM file of it and
// its key.
func certificate(t *testing.T) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})...)
	file := filepath.Join(t.TempDir(), "both.pem")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, file
}

// answer is what a balancer answers.
type answer struct {
	status      int
	kind, text  string
	major       int
	fromTheNode bool
}

func ask(t *testing.T, client *http.Client, url string) answer {
	t.Helper()
	res, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{
		res.StatusCode,
		res.Header.Get("Content-Type"),
		string(text),
		res.ProtoMajor,
		res.Header.Get("X-Node") != "",
	}
}

// json reports whether the balancer itself answered with the status, in the form of the API's errors.
func (a answer) json(status int) bool {
	var body struct{ Detail string }
	return !a.fromTheNode && a.status == status && a.kind == "application/json" &&
		json.Unmarshal([]byte(a.text), &body) == nil && body.Detail != ""
}

// echo answers with the address and scheme of the client that the balancer tells of.
func echo(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Node", "yes")
	fmt.Fprint(w, r.Header.Get("X-Forwarded-For")+" "+r.Header.Get("X-Forwarded-Proto"))
}

// TestHAProxy_TLSOnBothSides: HTTP/2 to the balancer, and TLS to the nodes, of which one has a
// certificate of another authority. Without a node the balancer's answer is JSON.
func TestHAProxy_TLSOnBothSides(t *testing.T) {
	t.Parallel()
	if local.HAProxyInstalled() == "" {
		mandatory(t, "haproxy", "haproxy is not installed")
	}
	good, file := certificate(t)
	bad, _ := certificate(t)
	var nodes []string
	var first *httptest.Server
	for i, c := range []tls.Certificate{good, bad} {
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if i == 1 {
				t.Errorf("%s reached a node with another authority's certificate", r.URL)
			}
			echo(w, r)
		}))
		srv.TLS = &tls.Config{Certificates: []tls.Certificate{c}, MinVersion: tls.VersionTLS12}
		srv.StartTLS()
		t.Cleanup(srv.Close)
		if i == 0 {
			first = srv
		}
		nodes = append(nodes, strings.TrimPrefix(srv.URL, "https://"))
	}
	h, err := local.StartHAProxy(t.Context(),
		local.HAProxyOptions{Dir: t.TempDir(), Nodes: nodes, Certificate: file, Authority: file})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	roots := x509.NewCertPool()
	pemFile, _ := os.ReadFile(file)
	roots.AppendCertsFromPEM(pemFile)
	client := &http.Client{
		Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots}},
	}
	for _, path := range []string{"/x", "/alive", "/sandboxes/1/WORKER_1/", "/api/v1/operator/keys"} {
		eventually(t, path+" arrives over HTTP/2", func() error {
			if got := ask(t, client, h.TLSAddress+path); got.text != "127.0.0.1 https" || got.major != 2 {
				return errorf("%+v", got)
			}
			return nil
		})
	}
	first.Close()
	for _, path := range []string{"/x", "/alive", "/sandboxes/1/WORKER_1/"} {
		eventually(t, path+" has no node", func() error {
			if got := ask(t, client, h.TLSAddress+path); !got.json(http.StatusServiceUnavailable) {
				return errorf("%+v", got)
			}
			return nil
		})
	}
}

// nginx starts nginx with the installed file, on a free port. log is its access log.
func nginx(t *testing.T, nodes []string) (address, log string) {
	t.Helper()
	binary, err := exec.LookPath("nginx")
	if err != nil {
		binary = "/usr/sbin/nginx"
	}
	if _, err := os.Stat(binary); err != nil {
		mandatory(t, "nginx", "nginx is not installed")
	}
	port, err := local.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../nginx/nginx.conf")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var out []string
	for line := range strings.Lines(string(text)) {
		switch trimmed := strings.TrimSpace(line); {
		case strings.HasPrefix(trimmed, "listen "):
			line = fmt.Sprintf("listen 127.0.0.1:%d;\n", port)
		case strings.HasPrefix(trimmed, "server 10.0.0."):
			line = ""
			if len(nodes) > 0 {
				line, nodes = "server "+nodes[0]+" max_fails=1 fail_timeout=2s;\n", nodes[1:]
			}
		}
		out = append(out, strings.ReplaceAll(line, "/var/log/nginx", dir))
	}
	config := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(config, []byte(strings.Join(out, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, binary, "-p", dir, "-c", config, "-g",
		"daemon off; pid "+filepath.Join(dir, "pid")+";")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); _ = cmd.Wait() })
	address = fmt.Sprintf("127.0.0.1:%d", port)
	eventually(t, "nginx listens", func() error {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
	return "http://" + address, filepath.Join(dir, "bivouac.log")
}

// loggingBalancers starts HAProxy and nginx with the shipped files in front of a server. It returns
// the log of each by its address.
func loggingBalancers(t *testing.T, srv *httptest.Server) map[string]string {
	t.Helper()
	nodes := []string{strings.TrimPrefix(srv.URL, "http://")}
	h, err := local.StartHAProxy(t.Context(), local.HAProxyOptions{Dir: t.TempDir(), Nodes: nodes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	base, log := nginx(t, nodes)
	return map[string]string{h.Address: h.Log, base: log}
}

// TestBalancers_LogNoCredentialOfAnAddress: the shipped files log a page's path without the pass in
// it, and no query.
func TestBalancers_LogNoCredentialOfAnAddress(t *testing.T) {
	t.Parallel()
	if local.HAProxyInstalled() == "" {
		mandatory(t, "haproxy", "haproxy is not installed")
	}
	srv := httptest.NewServer(http.HandlerFunc(echo))
	t.Cleanup(srv.Close)
	for balancer, log := range loggingBalancers(t, srv) {
		eventually(t, log+" has the request", func() error {
			res, err := http.Get(balancer + "/sandboxes/s1/WORKER_1/.bivouac/canary-pass/a/page?session_api_key=canary-key")
			if err != nil {
				return err
			}
			_ = res.Body.Close()
			raw, err := os.ReadFile(log)
			if err == nil && !strings.Contains(string(raw), "/sandboxes/s1/WORKER_1/.bivouac/-/a/page ") {
				err = errorf("it has %q", raw)
			}
			if strings.Contains(string(raw), "canary") {
				t.Fatalf("a credential is in %s: %s", log, raw)
			}
			return err
		})
	}
}

// TestBalancers_FilesOfEitherPage: during an upgrade each node has files of its own page alone, and a
// browser gets those of both through either balancer. What no node has is the nodes' 404.
func TestBalancers_FilesOfEitherPage(t *testing.T) {
	t.Parallel()
	if local.HAProxyInstalled() == "" {
		mandatory(t, "haproxy", "haproxy is not installed")
	}
	files := []string{"/assets/index-before.js", "/locales/after.json"}
	var nodes []string
	for _, file := range files {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Node", "yes")
			if r.URL.Path != file && r.URL.Path != "/ready" {
				w.WriteHeader(http.StatusNotFound)
			}
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
	base, _ := nginx(t, nodes)
	for balancer, address := range map[string]string{"haproxy": h.Address, "nginx": base} {
		for _, file := range files {
			for range 2 { // whosever turn it is
				if got := ask(t, http.DefaultClient, address+file); got.status != http.StatusOK {
					t.Errorf("%s: %s is %d", balancer, file, got.status)
				}
			}
		}
		if got := ask(t, http.DefaultClient, address+"/assets/other.js"); got.status != 404 || !got.fromTheNode {
			t.Errorf("%s: a file that no node has: %+v", balancer, got)
		}
	}
}

// TestNginx_ShippedFile: requests go to both nodes, or to the one that is left; what is private is
// shut; without a node the answer is JSON.
func TestNginx_ShippedFile(t *testing.T) {
	t.Parallel()
	var servers []*httptest.Server
	var nodes []string
	for range 2 {
		srv := httptest.NewServer(http.HandlerFunc(echo))
		t.Cleanup(srv.Close)
		servers, nodes = append(servers, srv), append(nodes, strings.TrimPrefix(srv.URL, "http://"))
	}
	base, _ := nginx(t, nodes)
	served := func() {
		t.Helper()
		for range 10 {
			for _, path := range []string{"/x", "/sandboxes/1/WORKER_1/", "/api/v1/operator/keys"} {
				if got := ask(t, http.DefaultClient, base+path); got.text != "127.0.0.1 http" {
					t.Errorf("%s: %+v", path, got)
				}
			}
		}
	}
	served()
	for _, path := range []string{"/metrics", "/server_info", "/openapi.json", "/docs", "/%6detrics", "//metrics"} {
		if got := ask(t, http.DefaultClient, base+path); !got.json(http.StatusNotFound) {
			t.Errorf("%s: %+v", path, got)
		}
	}
	servers[0].Close()
	served()
	servers[1].Close()
	if got := ask(t, http.DefaultClient, base+"/x"); !got.json(http.StatusServiceUnavailable) {
		t.Errorf("without a node: %+v", got)
	}
}

// TestBalancers_GiveARequestItsID: the client's id where nodes would take it, else a new one, in the
// balancer's log and at the node.
func TestBalancers_GiveARequestItsID(t *testing.T) {
	t.Parallel()
	if local.HAProxyInstalled() == "" {
		mandatory(t, "haproxy", "haproxy is not installed")
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, strings.Join(r.Header.Values("X-Request-Id"), ","))
	}))
	t.Cleanup(srv.Close)
	for balancer, log := range loggingBalancers(t, srv) {
		for _, sent := range []string{"", "mine-1.x_Y", "no good", strings.Repeat("a", 129)} {
			got := ""
			eventually(t, balancer+" answers", func() error {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, balancer+"/api/v1/sandboxes/search", nil)
				if err != nil {
					return err
				}
				if sent != "" {
					req.Header.Set("X-Request-Id", sent)
				}
				res, err := http.DefaultClient.Do(req)
				if err != nil {
					return err
				}
				defer res.Body.Close()
				body, err := io.ReadAll(res.Body)
				if err == nil && res.StatusCode != http.StatusOK {
					err = errorf("status %d", res.StatusCode)
				}
				got = string(body)
				return err
			})
			kept := sent == "mine-1.x_Y"
			if kept != (got == sent) || len(got) < 10 || strings.ContainsAny(got, ", ") || len(got) > 128 {
				t.Errorf("%s: %q became %q", balancer, sent, got)
			}
			eventually(t, log+" has the id", func() error {
				raw, err := os.ReadFile(log)
				if err == nil && !strings.Contains(string(raw), got) {
					err = errorf("no %s in it", got)
				}
				return err
			})
		}
	}
}
