package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/httpapi/wire"
)

// serverNode is one `bivouac server` process.
type serverNode struct {
	name, config, dir string
	// owner is the test at whose end the process is killed. A subtest may have started it.
	owner   testing.TB
	process *child
	// env is added to the environment of the process.
	env []string
	caller
}

// serverCluster is three processes with mutual TLS on the loopback interface.
type serverCluster struct {
	dir, keyFile string
	nodes        []*serverNode
	options      serverOptions
	// peers are the peer addresses of the first nodes.
	peers []string
}

// serverOptions are parts of the nodes' configurations.
type serverOptions struct {
	nomad, vault, roleID, secretID string
	https                          bool
	// more is appended to each node's configuration.
	more string
}

const serverConfig = `
node_name        = %q
data_dir         = "data"
bootstrap_expect = 3
retry_join       = [%s]

http {
  drain_delay = "0s"
  address = %q
%s}
peer {
  address   = %q
  ca_file   = "../tls/ca.pem"
  cert_file = "../tls/%[1]s.pem"
  key_file  = "../tls/%[1]s-key.pem"
}
raft {
  # Snapshots soon, so that the tests see them.
  snapshot_interval  = "1s"
  snapshot_threshold = 32
  trailing_logs      = 16
}
nomad {
  address = %[6]q
}
vault {
  address        = %[7]q
  role_id        = %[8]q
  secret_id_file = "../secret-id"
}
git {
  verify_tokens = false # nobody outside is asked
}
log {
  level  = "debug"
  format = "json"
}
`

// newServers writes the files of three nodes, with the program's own commands where possible,
// and starts nothing.
func newServers(t testing.TB, o serverOptions) *serverCluster {
	t.Helper()
	s := &serverCluster{dir: t.TempDir()}
	tls := filepath.Join(s.dir, "tls")
	mustRun(t, nil, "tls", "init", "--dir", tls)
	if err := os.WriteFile(filepath.Join(s.dir, "secret-id"), []byte(cmp.Or(o.secretID, "none")), 0o600); err != nil {
		t.Fatal(err)
	}
	s.options = o
	for range 3 {
		s.peers = append(s.peers, freeAddress(t))
	}
	for i, name := range []string{"n1", "n2", "n3"} {
		s.add(t, name, s.peers[i])
	}
	return s
}

// add writes the files of one more node.
func (s *serverCluster) add(t testing.TB, name, peer string) *serverNode {
	t.Helper()
	o := s.options
	mustRun(t, nil, "tls", "issue", "--dir", filepath.Join(s.dir, "tls"), "--node", name, "--host", "127.0.0.1")
	scheme, https := "http", ""
	if o.https {
		scheme, https = "https", fmt.Sprintf(
			"  tls {\n    cert_file = \"../tls/%s.pem\"\n    key_file  = \"../tls/%[1]s-key.pem\"\n  }\n",
			name,
		)
	}
	address := freeAddress(t)
	n := &serverNode{name: name, owner: t, dir: filepath.Join(s.dir, name), caller: caller{base: scheme + "://" + address}}
	n.config = filepath.Join(n.dir, "node.hcl")
	text := fmt.Sprintf(serverConfig, name, `"`+strings.Join(s.peers, `", "`)+`"`, address, https, peer,
		o.nomad, o.vault, cmp.Or(o.roleID, "none"))
	if err := errors.Join(os.MkdirAll(n.dir, 0o700), os.WriteFile(n.config, []byte(text+o.more), 0o600)); err != nil {
		t.Fatal(err)
	}
	if len(s.nodes) > 0 {
		n.key = s.nodes[0].key
	}
	s.nodes = append(s.nodes, n)
	return n
}

func freeAddress(t testing.TB) string {
	t.Helper()
	port, err := local.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", port)
}

// mustRun runs a command that must succeed and returns its output.
func mustRun(t testing.TB, env map[string]string, args ...string) string {
	t.Helper()
	code, stdout, stderr := runCommand(t, env, args...)
	if code != exitOK {
		t.Fatalf("bivouac %s: exit %d: %s", strings.Join(args, " "), code, stderr)
	}
	return strings.TrimSpace(stdout)
}

// start starts a node's process.
func (n *serverNode) start() {
	n.process = startChildWith(n.owner, n.dir, n.env, "server", "--config", n.config)
}

// ready waits until the node can serve.
func (n *serverNode) ready(t testing.TB) {
	t.Helper()
	eventually(t, n.name+" is ready", func() error {
		n.process.mustRun(t)
		a, err := n.try(http.MethodGet, "/ready", nil)
		if err == nil && a.status != http.StatusOK {
			err = errors.New(a.String())
		}
		return err
	})
}

// terminate stops the node as an operator does.
func (n *serverNode) terminate(t testing.TB) {
	t.Helper()
	if err := n.process.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := n.process.wait(t); code != exitOK {
		t.Errorf("%s: exit %d after SIGTERM: %s", n.name, code, n.process.stderr.String())
	}
}

// up starts all nodes in the given order and issues the first key unless there is one.
func (s *serverCluster) up(t testing.TB, order ...int) {
	t.Helper()
	for _, i := range order {
		s.nodes[i].start()
	}
	for _, n := range s.nodes {
		n.ready(t)
	}
	if s.keyFile == "" {
		key := mustRun(t, nil, "keys", "bootstrap", "--config", s.nodes[1].config)
		s.keyFile = filepath.Join(s.dir, "operator-key")
		if err := os.WriteFile(s.keyFile, []byte(key+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, n := range s.nodes {
			n.key = key
		}
	}
}

// all returns a caller for each node.
func (s *serverCluster) all() []caller {
	var out []caller
	for _, n := range s.nodes {
		out = append(out, n.caller)
	}
	return out
}

// leader waits for a leader on which all running nodes agree and returns its position.
func (s *serverCluster) leader(t testing.TB) (leader int) {
	t.Helper()
	eventually(t, "a node leads", func() error {
		for _, n := range s.nodes {
			select {
			case <-n.process.ended:
				continue
			default:
			}
			a, err := n.try(http.MethodGet, "/api/v1/operator/status", nil)
			if err != nil {
				return err
			}
			var status cluster.Status
			if err := decode(a, &status); err != nil {
				return err
			}
			leader = slices.IndexFunc(s.nodes, func(o *serverNode) bool { return o.name == status.Leader })
			if leader < 0 {
				return fmt.Errorf("%s knows no leader", n.name)
			}
			select {
			case <-s.nodes[leader].process.ended:
				return fmt.Errorf("%s still believes in %s", n.name, status.Leader)
			default:
			}
		}
		return nil
	})
	return leader
}

// TestServer_WithoutNomadAndVault runs a cluster whose Nomad and Vault are unreachable.
// Requests that need neither succeed; those that need a secret get a clear 503.
func TestServer_WithoutNomadAndVault(t *testing.T) {
	t.Parallel()
	s := newServers(t, serverOptions{nomad: "http://" + freeAddress(t), vault: "http://" + freeAddress(t)})
	s.up(t, 2, 0, 1)
	nodes := s.all()

	before := nodes[0].do(t, http.StatusOK, http.MethodPost, "/api/settings", map[string]any{"language": "en"})
	if string(before.body) != "{}" && strings.TrimSpace(string(before.body)) != "{}" {
		t.Errorf("POST /api/settings answered %s", before)
	}
	for _, n := range nodes {
		for path, body := range map[string]any{
			"/api/settings": map[string]any{"language": "fr", "llm_api_key": "canary"},
			"/api/add-git-providers": map[string]any{
				"provider_tokens": map[string]any{"github": map[string]any{"token": "canary"}},
			},
			"/api/v1/app-conversations": map[string]any{"secrets": map[string]any{"A": "canary"}},
		} {
			a := n.do(t, http.StatusServiceUnavailable, http.MethodPost, path, body)
			if a.header.Get("Retry-After") == "" || strings.Contains(string(a.body), "canary") {
				t.Errorf("POST %s on %s: %s, Retry-After %q", path, n.base, a, a.header.Get("Retry-After"))
			}
		}
		var got struct {
			Language string `json:"language"`
			KeySet   bool   `json:"llm_api_key_set"`
		}
		n.do(t, http.StatusOK, http.MethodGet, "/api/settings", nil).json(t, &got)
		if got.Language != "en" || got.KeySet {
			t.Errorf("%s: something was half stored: %+v", n.base, got)
		}
	}
	operatorCommands(t, s)

	// A second bootstrap is rejected.
	code, stdout, stderr := runCommand(t, nil, "keys", "bootstrap", "--config", s.nodes[0].config)
	if code != exitFailed || stdout != "" || !strings.Contains(stderr, "has an operator's key that may be used") {
		t.Errorf("a second bootstrap: exit %d, %q, %q", code, stdout, stderr)
	}

	// After a graceful stop and a start in another order, all data is there.
	for _, n := range s.nodes {
		n.terminate(t)
	}
	s.up(t, 1, 2, 0)
	for _, n := range s.all() {
		a := n.do(t, http.StatusOK, http.MethodGet, "/api/settings", nil)
		if !strings.Contains(string(a.body), `"language":"en"`) {
			t.Errorf("%s after the restart: %s", n.base, a)
		}
	}
	lost := s.leader(t)
	s.nodes[lost].process.kill()
	other := s.nodes[(lost+1)%3]
	eventually(t, "a write without the killed leader", func() error {
		a, err := other.try(http.MethodPost, "/api/settings", map[string]any{"language": "de"})
		if err == nil && a.status != http.StatusOK {
			err = errors.New(a.String())
		}
		return err
	})
	s.nodes[lost].start()
	s.nodes[lost].ready(t)
	a := s.nodes[lost].do(t, http.StatusOK, http.MethodGet, "/api/settings", nil)
	if !strings.Contains(string(a.body), `"language":"de"`) {
		t.Errorf("the node that came back shows %s", a)
	}

	// A permanently lost node is removed through another one.
	gone := s.nodes[s.leader(t)]
	gone.process.kill()
	left := s.nodes[0]
	if left == gone {
		left = s.nodes[1]
	}
	eventually(t, gone.name+" is removed", func() error {
		code, _, stderr := runCommand(t, nil, "operator", "remove", gone.name, "--yes", "--config", left.config)
		if code == exitOK {
			t.Fatal("a node's certificate removed a member, without an operator's key")
		}
		if !strings.Contains(stderr, "needs an operator's key") {
			return errors.New(stderr)
		}
		code, _, stderr = runCommand(t, nil, "operator", "remove", gone.name, "--yes", "--config", left.config,
			"--api-key-file", s.keyFile)
		if code != exitOK {
			return errors.New(stderr)
		}
		return nil
	})
	if table := mustRun(t, nil, "operator", "status", "--address", left.base, "--api-key-file",
		s.keyFile); strings.Contains(table, "\n"+gone.name+" ") {
		t.Errorf("%s is still a member:\n%s", gone.name, table)
	}
	code, _, stderr = runCommand(t, nil, "operator", "remove", gone.name, "--yes", "--config", left.config,
		"--api-key-file", s.keyFile)
	if code != exitFailed || !strings.Contains(stderr, "no node") {
		t.Errorf("removing it again: exit %d: %s", code, stderr)
	}
}

// operatorCommands runs the operator's commands against a cluster.
func operatorCommands(t *testing.T, s *serverCluster) {
	t.Helper()
	flags := []string{"--address", s.nodes[0].base, "--api-key-file", s.keyFile}
	run := func(args ...string) string { return mustRun(t, nil, append(args, flags...)...) }
	refused := func(want string, env map[string]string, args ...string) {
		t.Helper()
		code, _, stderr := runCommand(t, env, args...)
		if code != exitFailed || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%v: exit %d, want one line with %q:\n%s", args, code, want, stderr)
		}
	}

	alice := run("keys", "create", "--user", "alice", "--name", "laptop")
	if !strings.HasPrefix(alice, "bvk_") || strings.Contains(alice, "\n") {
		t.Errorf("keys create printed %q", alice)
	}
	var keys []wire.CreatedAPIKey
	if err := json.Unmarshal([]byte(run("keys", "list", "--json")), &keys); err != nil || len(keys) != 2 ||
		keys[1].User != "alice" || keys[1].Key != "" {
		t.Errorf("keys list --json: %+v, %v", keys, err)
	}
	if table := run("keys", "list"); !strings.Contains(table, "alice") || !strings.HasPrefix(table, "ID  USER") ||
		strings.Contains(table, alice) {
		t.Errorf("keys list:\n%s", table)
	}
	env := map[string]string{"BIVOUAC_ADDR": s.nodes[2].base, "BIVOUAC_API_KEY": alice}
	eventually(t, "alice's key is known everywhere", func() error {
		a, err := caller{base: s.nodes[2].base, key: alice}.try(http.MethodGet, "/api/v1/sandboxes/search", nil)
		if err == nil && a.status != http.StatusOK {
			err = errors.New(a.String())
		}
		return err
	})
	refused("not an operator's", env, "keys", "list")
	refused("not an operator's", env, "specs", "apply", "testdata/specs/good.hcl")
	run("keys", "revoke", "2")
	refused("does not know this API key", map[string]string{"BIVOUAC_ADDR": s.nodes[0].base, "BIVOUAC_API_KEY": alice},
		"operator", "status")
	refused("answered 404", nil, append([]string{"keys", "revoke", "99"}, flags...)...)
	refused("connect: connection refused", map[string]string{"BIVOUAC_API_KEY": alice}, "keys", "list", "--address",
		"http://"+freeAddress(t))

	run("specs", "apply", "testdata/specs/good.hcl")
	if table := run("sandboxes", "list", "--all"); !strings.Contains(table, "ISOLATION") {
		t.Errorf("sandboxes list:\n%s", table)
	}
	if table := run("specs", "list"); !strings.Contains(table, "plain") ||
		strings.Index(table, "ghcr.io") > strings.Index(table, "plain") {
		t.Errorf("specs list:\n%s", table)
	}
	for _, n := range s.all() {
		a := n.do(t, http.StatusOK, http.MethodGet, "/api/v1/sandbox-specs/search", nil)
		if strings.Count(string(a.body), `"id":`) != 2 {
			t.Errorf("%s lists %s", n.base, a)
		}
	}
	run("specs", "delete", "ghcr.io/example/agent-server:1.44.0")
	refused("Sandbox Spec not found", nil, append([]string{"specs", "delete", "none"}, flags...)...)
	if list := run("specs", "list", "--json"); strings.Contains(list, "ghcr.io") || !strings.Contains(list, `"plain"`) {
		t.Errorf("specs list --json: %s", list)
	}

	run("specs", "pool", "plain", "0")
	refused("Sandbox Spec not found", nil, append([]string{"specs", "pool", "none", "1"}, flags...)...)
	run("users", "set", "alice", "--idle-timeout", "2h", "--running-sandboxes", "5")
	var users []wire.User
	run("users", "set", "alice", "--total-sandboxes", "9", "--max-running", "never")
	if err := json.Unmarshal([]byte(run("users", "list", "--json")), &users); err != nil || len(users) < 2 ||
		users[1].ID != "alice" ||
		users[1].Limits == nil || *users[1].Limits != (wire.Limits{Running: 5, Total: 9}) ||
		*users[1].Policy.IdleTimeout != "2h0m0s" {
		t.Errorf("users list --json: %+v, %v", users, err)
	}
	if table := run("users", "list"); !strings.Contains(table, "idle_timeout=2h0m0s,max_running=never") ||
		!strings.Contains(table, "running=5,total=9") {
		t.Errorf("users list:\n%s", table)
	}
	if table := run("users", "set", "alice", "--default-policy",
		"--default-limits"); strings.Contains(table, "running=5") || strings.Contains(table, "never") {
		t.Errorf("users set --default-…:\n%s", table)
	}
	refused("there is no user", nil, append([]string{"users", "set", "nobody", "--cpu", "5"}, flags...)...)

	var status wire.Status
	if err := json.Unmarshal([]byte(run("operator", "status", "--json")), &status); err != nil ||
		len(status.Servers) != 3 || !status.Ready {
		t.Errorf("operator status --json: %+v, %v", status, err)
	}
	if table := run("operator", "status"); strings.Count(table, "\n") < 4 || !strings.Contains(table, "n3") {
		t.Errorf("operator status:\n%s", table)
	}
}

func TestServer_ServesHTTPSWithACertificateThatMayChange(t *testing.T) {
	t.Parallel()
	s := newServers(t, serverOptions{nomad: "http://" + freeAddress(t), vault: "http://" + freeAddress(t), https: true})
	n := s.nodes[0]
	ca := filepath.Join(s.dir, "tls", "ca.pem")
	n.start()
	transport, err := clientTransport(ca, false)
	if err != nil {
		t.Fatal(err)
	}
	transport.DisableKeepAlives = true
	client := &http.Client{Transport: transport, Timeout: patience}
	serial := func() (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.base+"/alive", nil)
		if err != nil {
			return "", err
		}
		resp, err := client.Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		return resp.TLS.PeerCertificates[0].SerialNumber.String(), nil
	}
	var first string
	eventually(t, "HTTPS answers", func() (err error) {
		n.process.mustRun(t)
		first, err = serial()
		return err
	})
	if err := cutHalf(filepath.Join(filepath.Dir(ca), "n1.pem")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the damaged file is in the log, and the old certificate served", func() error {
		if now, err := serial(); err != nil || now != first {
			return fmt.Errorf("%s is served, %w", now, err)
		}
		n.process.awaitLog(t, "keeping the old HTTP certificate")
		return nil
	})
	mustRun(t, nil, "tls", "issue", "--dir", filepath.Dir(ca), "--node", "n1", "--host", "127.0.0.1")
	eventually(t, "the new certificate is served", func() error {
		now, err := serial()
		if err == nil && now == first {
			err = errors.New("the old one is")
		}
		return err
	})
	// Without a second node there is no leader: it is alive but not ready, and says why.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, n.base+"/ready", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("/ready without a cluster answered %d", resp.StatusCode)
	}
	n.terminate(t)
}
