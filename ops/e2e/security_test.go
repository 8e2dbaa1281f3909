package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/httpapi"
	"bivouac.dev/bivouac/ops/e2e/apifuzz"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
	"bivouac.dev/bivouac/ops/e2e/testcluster/nodeconfig"
)

// TestSecurity_StolenSandboxKey: a sandbox's key gives access to that sandbox only, on every
// route and in every place where a key can be sent.
func TestSecurity_StolenSandboxKey(t *testing.T) {
	dev, _, info := startedDev(t)
	var nodes []string
	for _, n := range info.Nodes {
		nodes = append(nodes, n.HTTP)
	}
	world, err := apifuzz.Plant(nodes, info.APIKey)
	if err != nil {
		t.Fatalf("%v\n%s", err, dev.output())
	}
	failures, requests, err := world.Stolen(httpapi.Description())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d requests with a stolen key", requests)
	for _, f := range failures {
		t.Error(f)
	}
	if requests < 200 {
		t.Errorf("only %d requests", requests)
	}
	dev.interrupt(t)
}

// papers are valid and invalid certificates for one cluster.
type papers struct {
	t     *testing.T
	ca    peernet.PEM
	roots *x509.CertPool
}

func papersOf(t *testing.T, f *testcluster.Cluster) papers {
	t.Helper()
	read := func(name string) []byte {
		raw, err := os.ReadFile(filepath.Join(f.Dir, "tls", name))
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	p := papers{t: t, ca: peernet.PEM{Certificate: read("ca.pem"), Key: read("ca-key.pem")}, roots: x509.NewCertPool()}
	p.roots.AppendCertsFromPEM(p.ca.Certificate)
	return p
}

// issued returns a node's certificate of a CA, valid for a day from begin.
func (p papers) issued(ca peernet.PEM, begin time.Time) tls.Certificate {
	p.t.Helper()
	pem, err := peernet.Issue(ca, "n2", []string{"127.0.0.1"}, begin, 24*time.Hour)
	if err != nil {
		p.t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(pem.Certificate, pem.Key)
	if err != nil {
		p.t.Fatal(err)
	}
	return pair
}

// TestSecurity_PeerPort: the peer port of a running cluster rejects every connection that is
// not a node's and logs the reason, and the cluster is not affected.
func TestSecurity_PeerPort(t *testing.T) {
	f := testcluster.Start(t, testcluster.Options{Bare: true})
	p, now := papersOf(t, f), time.Now()
	strangers, err := peernet.NewCA(now, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	name, err := tls.X509KeyPair(p.ca.Certificate, p.ca.Key) // of the CA, but not a node's
	if err != nil {
		t.Fatal(err)
	}
	ours := p.issued(p.ca, now.Add(-time.Hour))
	node := f.Nodes[0]
	with := func(c ...tls.Certificate) *tls.Config {
		config := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}
		if len(c) > 0 { // sent even if the server asks for other CAs
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c[0], nil }
		}
		return config
	}
	other := with(ours)
	other.NextProtos = []string{"http/1.1"}
	old := with(ours)
	old.MaxVersion = tls.VersionTLS12
	for what, c := range map[string]struct {
		config *tls.Config // nil for a connection without TLS
		says   string
	}{
		"another CA":       {with(p.issued(strangers, now.Add(-time.Hour))), "unknown authority"},
		"expired":          {with(p.issued(p.ca, now.Add(-48*time.Hour))), "expired"},
		"not yet valid":    {with(p.issued(p.ca, now.Add(24*time.Hour))), "not yet valid"},
		"another name":     {with(name), "certificate"},
		"no certificate":   {with(), "didn't provide a certificate"},
		"another protocol": {other, "speaks only its own protocols"},
		"old TLS":          {old, "unsupported versions"},
		"no TLS":           {nil, "does not look like a TLS handshake"},
	} {
		before := len(readLog(t, node))
		if err := knock(node.Peer, c.config); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: let in: %v", what, err)
		}
		testcluster.Eventually(t, what+" is in the log", func() error {
			for line := range strings.Lines(readLog(t, node)[before:]) {
				if strings.Contains(line, "peer connection refused") && strings.Contains(line, c.says) {
					return nil
				}
			}
			return fmt.Errorf("no line says %q in:\n%s", c.says, readLog(t, node)[before:])
		})
	}
	// The valid certificate is accepted: otherwise this test would prove nothing.
	if err := knock(node.Peer, with(ours)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a node was refused: %v", err)
	}
	for _, n := range f.Nodes {
		n.Ready(t)
	}
	// The cluster accepts writes as before.
	f.Nodes[2].Sure(t, http.MethodPost, "/api/settings", map[string]any{"language": "en"}, nil)
}

// knock connects and returns the reason of the rejection. os.ErrDeadlineExceeded means that the
// server kept the connection open.
func knock(address string, config *tls.Config) error {
	conn, err := net.DialTimeout("tcp", address, 10*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if config != nil {
		conn = tls.Client(conn, config)
	}
	_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
	if config == nil {
		if _, err := io.WriteString(conn, "POST /v1/apply HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"); err != nil {
			return err
		}
	}
	// The HTTP/2 side sends first and then waits for us.
	for chunk := make([]byte, 1024); ; {
		n, err := conn.Read(chunk)
		if err != nil {
			return err
		}
		if config == nil && n > 0 && chunk[0] == 0x15 {
			return errors.New("a TLS alert")
		}
	}
}

func readLog(t *testing.T, n *testcluster.Node) string {
	t.Helper()
	raw, err := os.ReadFile(n.Log)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// TestSecurity_APIPort: an HTTPS API accepts clients that trust its CA and use its name, and no
// plain HTTP. Clients reject an expired certificate. Failed connections do not affect the node.
func TestSecurity_APIPort(t *testing.T) {
	f := testcluster.Start(t, testcluster.Options{Bare: true, LogLevel: "debug"})
	p, now, node := papersOf(t, f), time.Now(), f.Nodes[2]
	certificate := filepath.Join(f.Dir, "tls", "api")
	install := func(begin time.Time) {
		t.Helper()
		pem, err := peernet.Issue(p.ca, "api", []string{"127.0.0.1", "bivouac.example"}, begin, 24*time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		for name, raw := range map[string][]byte{certificate + "-key.pem": pem.Key, certificate + ".pem": pem.Certificate} {
			if err := os.WriteFile(name, raw, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	install(now.Add(-time.Hour))
	node.Kill()
	if err := node.Configure(func(c *nodeconfig.Config) { c.Certificate = certificate }); err != nil {
		t.Fatal(err)
	}
	node.Start(t)
	address := strings.TrimPrefix(node.Base, "http://")
	ask := func(config *tls.Config) error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
		c := testcluster.Client{Base: "https://" + address, HTTP: &http.Client{Transport: transport}}
		a, err := c.Send(ctx, http.MethodGet, "/ready", nil)
		if err != nil {
			return err
		}
		return a.Decode(nil)
	}
	good := &tls.Config{RootCAs: p.roots}
	testcluster.Eventually(t, "the node serves over TLS", func() error {
		if !node.Alive() {
			t.Fatalf("the node ended:\n%s", local.Tail(node.Log, 5))
		}
		return ask(good)
	})
	strangers, err := peernet.NewCA(now, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	others := x509.NewCertPool()
	others.AppendCertsFromPEM(strangers.Certificate)
	for what, c := range map[string]struct {
		config     *tls.Config
		says, logs string
	}{
		"another CA":   {&tls.Config{RootCAs: others}, "unknown authority", "bad certificate"},
		"another name": {&tls.Config{RootCAs: p.roots, ServerName: "evil.example"}, "valid for", "bad certificate"},
		"old TLS": {
			&tls.Config{RootCAs: p.roots, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11},
			"protocol version",
			"unsupported versions",
		},
	} {
		before := len(readLog(t, node))
		if err := ask(c.config); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", what, err)
		}
		logged(t, node, before, what, "TLS handshake error", c.logs)
	}
	before := len(readLog(t, node))
	if answer := plainly(t, address); !strings.HasPrefix(answer, "HTTP/1.0 400 Bad Request") ||
		!strings.Contains(answer, "HTTPS") {
		t.Errorf("a plain request: %q", answer)
	}
	logged(t, node, before, "a plain request", "TLS handshake error", "HTTP request")
	install(now.Add(-48 * time.Hour))
	testcluster.Eventually(t, "the expired certificate is refused", func() error {
		switch err := ask(good); {
		case err == nil:
			return errors.New("it is taken")
		case !strings.Contains(err.Error(), "expired"):
			return err
		}
		return nil
	})
	install(now.Add(-time.Hour))
	testcluster.Eventually(t, "the renewed certificate is taken, without a restart", func() error { return ask(good) })
	if !node.Alive() {
		t.Error("the node ended")
	}
}

// plainly sends a request without TLS and returns the response.
func plainly(t *testing.T, address string) string {
	t.Helper()
	conn, err := net.DialTimeout("tcp", address, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	fmt.Fprintf(conn, "GET /ready HTTP/1.1\r\nHost: %s\r\n\r\n", address)
	answer, _ := io.ReadAll(bufio.NewReader(conn))
	return string(answer)
}

func logged(t *testing.T, n *testcluster.Node, from int, what string, words ...string) {
	t.Helper()
	testcluster.Eventually(t, what+" is in the log", func() error {
		for line := range strings.Lines(readLog(t, n)[from:]) {
			all := true
			for _, w := range words {
				all = all && strings.Contains(line, w)
			}
			if all {
				return nil
			}
		}
		return fmt.Errorf("no line with %q in:\n%s", words, readLog(t, n)[from:])
	})
}
