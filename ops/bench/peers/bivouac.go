package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"bivouac.dev/bivouac/ops/bench/peers/load"
	"bivouac.dev/bivouac/ops/e2e/testcluster/nodeconfig"
)

// bivouac is three `bivouac server` processes. Their Nomad and Vault addresses don't respond:
// no row here needs them.
type bivouac struct {
	http *httpLoad
	base []string
	key  string
	// peers are the nodes' peer addresses.
	peers []string
	keys  []string // one per user

	program, config string
	nodes           []*process
}

// newBivouac writes the cluster's files; more is HCL added to each node's.
func newBivouac(name, dir, program, more string) (*system, error) {
	addresses, err := freeAddresses(6)
	if err != nil {
		return nil, err
	}
	home := filepath.Join(dir, name)
	if err := os.MkdirAll(home, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(home, "secret-id"), []byte("none"), 0o600); err != nil {
		return nil, err
	}
	if _, err := output(program, "tls", "init", "--dir", filepath.Join(home, "tls")); err != nil {
		return nil, err
	}
	b := &bivouac{http: newHTTPLoad(), peers: addresses[3:]}
	s := newSystem(name, dir, program, 3, func(_ int, at string) []string {
		return []string{"server", "--config", filepath.Join(at, "node.hcl")}
	})
	s.driver, b.nodes = b, s.nodes
	for i, n := range s.nodes {
		node := fmt.Sprintf("n%d", i)
		if _, err := output(program, "tls", "issue", "--dir", filepath.Join(home, "tls"), "--node", node, "--host",
			"127.0.0.1"); err != nil {
			return nil, err
		}
		if err := os.MkdirAll(n.Dir, 0o700); err != nil {
			return nil, err
		}
		config := nodeconfig.Config{
			Name: node, Data: filepath.Join(n.Dir, "data"), HTTP: addresses[i], Peer: addresses[3+i], Peers: addresses[3:],
			TLS: filepath.Join(home, "tls"), SecretID: filepath.Join(home, "secret-id"), More: more,
			Earlier: true, // -base and the guard measure earlier programs, too
		}
		if err := os.WriteFile(filepath.Join(n.Dir, "node.hcl"), []byte(config.HCL()), 0o600); err != nil {
			return nil, err
		}
		b.base = append(b.base, "http://"+addresses[i])
	}
	b.program, b.config = program, filepath.Join(s.nodes[0].Dir, "node.hcl")
	return s, nil
}

// leader implements driver. The first call issues the operator's key, which waits for a leader.
func (b *bivouac) leader(ctx context.Context) (int, error) {
	if b.key == "" {
		key, err := output(b.program, "keys", "bootstrap", "--config", b.config)
		if err != nil {
			return 0, err
		}
		b.key = key
	}
	leader := ""
	for i, base := range b.base {
		var status struct {
			Leader string
			Ready  bool
		}
		if err := b.http.call(ctx, http.MethodGet, base+"/api/v1/operator/status", nil, &status, "X-Session-API-Key",
			b.key); err != nil {
			if !b.nodes[i].Alive() {
				continue
			}
			return 0, err
		}
		if !status.Ready || status.Leader == "" || leader != "" && leader != status.Leader {
			return 0, fmt.Errorf("%s believes in leader %q, ready %t", base, status.Leader, status.Ready)
		}
		leader = status.Leader
	}
	var at int
	_, err := fmt.Sscanf(leader, "n%d", &at)
	return at, err
}

// term implements termed.
func (b *bivouac) term(ctx context.Context) (uint64, error) {
	var status struct{ Term uint64 }
	err := b.http.call(ctx, http.MethodGet, b.base[0]+"/api/v1/operator/status", nil, &status, "X-Session-API-Key", b.key)
	return status.Term, err
}

// prepare implements driver: it creates a key and settings for each user.
func (b *bivouac) prepare(ctx context.Context) error {
	b.keys = make([]string, users)
	var group errgroup.Group
	group.SetLimit(16)
	for u := range users {
		group.Go(func() error {
			var made struct{ Key string }
			in := fmt.Appendf(nil, `{"user":"user-%d","name":"bench"}`, u)
			if err := b.http.call(ctx, http.MethodPost, b.base[0]+"/api/v1/operator/keys", in, &made, "X-Session-API-Key",
				b.key); err != nil {
				return err
			}
			b.keys[u] = made.Key
			return b.http.call(ctx, http.MethodPost, b.base[0]+"/api/settings", document(u, 0), nil, "X-Session-API-Key",
				made.Key)
		})
	}
	return group.Wait()
}

// work implements driver.
func (b *bivouac) work(kind string, node int) load.Do {
	at, err := url.Parse(b.base[node] + "/api/settings")
	if err != nil {
		return nil
	}
	header := make([]http.Header, users)
	for u := range header {
		header[u] = headers("X-Session-API-Key", b.keys[u])
	}
	if kind == workWrite {
		return func(ctx context.Context, client, n int) error {
			u := client % users
			return b.http.send(request(ctx, http.MethodPost, at, document(u, n), header[u]))
		}
	}
	if kind == workStale {
		at.RawQuery = "stale"
	}
	return func(ctx context.Context, client, _ int) error {
		return b.http.send(request(ctx, http.MethodGet, at, nil, header[client%users]))
	}
}

func (b *bivouac) close() { b.http.close() }

// output runs one of the program's commands.
func output(program string, args ...string) (string, error) {
	cmd := exec.Command(program, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", filepath.Base(program), strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}
