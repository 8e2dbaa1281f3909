package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/scheduler/durable"
)

// checkedNode is a configuration whose every file is in one folder.
type checkedNode struct {
	t   *testing.T
	dir string
}

const checkedConfig = `
node_name        = "n1"
data_dir         = "data"
bootstrap_expect = 1
http {
  address = "127.0.0.1:8440"
  tls {
    cert_file = "api.pem"
    key_file  = "api-key.pem"
  }
}
peer {
  address   = "127.0.0.1:8441"
  ca_file   = "ca.pem"
  cert_file = "n1.pem"
  key_file  = "n1-key.pem"
}
nomad {
  address    = "https://nomad.example.org:4646"
  token_file = "nomad-token"
  ca_file    = "ca.pem"
  docker_network = "bivouac"
}
vault {
  address        = "https://vault.example.org:8200"
  role_id        = "bivouac"
  secret_id_file = "secret-id"
  ca_file        = "ca.pem"
}
limits {
  rate_per_second = 100
  user {
    running_sandboxes = 10
  }
  installation {
    running_sandboxes = 100
  }
}
`

func newCheckedNode(t *testing.T) *checkedNode {
	t.Helper()
	n := &checkedNode{t: t, dir: t.TempDir()}
	d := tlsDir(n.dir)
	if err := d.init(time.Now(), 400*day); err != nil {
		t.Fatal(err)
	}
	n.issue("n1", 300*day)
	n.issue("api", 300*day)
	n.write("nomad-token", "a-token\n", 0o600)
	n.write("secret-id", "a-secret\n", 0o640)
	n.write("node.hcl", checkedConfig, 0o644)
	return n
}

// trust sets trusted_proxies.
func (n *checkedNode) trust(list string) {
	n.t.Helper()
	n.edit("rate_per_second = 100", "rate_per_second = 100\n  trusted_proxies = ["+list+"]")
}

// issue writes a pair that is twenty days old and lives until left from now.
func (n *checkedNode) issue(name string, left time.Duration) {
	n.t.Helper()
	const age = 20 * day
	if _, err := tlsDir(n.dir).issue(name, nil, time.Now().Add(-age), age+left); err != nil {
		n.t.Fatal(err)
	}
}

func (n *checkedNode) path(name string) string { return filepath.Join(n.dir, name) }

func (n *checkedNode) write(name, text string, mode os.FileMode) {
	n.t.Helper()
	if err := os.WriteFile(n.path(name), []byte(text), mode); err != nil {
		n.t.Fatal(err)
	}
	n.chmod(name, mode)
}

func (n *checkedNode) chmod(name string, mode os.FileMode) {
	n.t.Helper()
	if err := os.Chmod(n.path(name), mode); err != nil {
		n.t.Fatal(err)
	}
}

func openDataDir(n *checkedNode) {
	n.t.Helper()
	if err := os.Mkdir(n.path("data"), 0o700); err != nil {
		n.t.Fatal(err)
	}
	n.chmod("data", 0o755)
}

// edit replaces text of the configuration.
func (n *checkedNode) edit(from, to string) {
	n.t.Helper()
	if !strings.Contains(checkedConfig, from) {
		n.t.Fatalf("the configuration has no %q", from)
	}
	n.write("node.hcl", strings.ReplaceAll(checkedConfig, from, to), 0o644)
}

func TestCheck_FailsAndWarnings(t *testing.T) {
	for _, test := range []struct {
		name string
		do   func(*checkedNode)
		// want begins the lines that are not ok.
		want []string
	}{
		{"good", func(*checkedNode) {}, nil},
		{"backups", func(n *checkedNode) { n.edit(ownKey, ownKey+"}\nbackup {\n  dir = \"backups\"\n") }, nil},
		{"backups_in_data_dir", func(n *checkedNode) {
			n.edit(ownKey, ownKey+"}\nbackup {\n  dir = \"data/backups\"\n")
			if err := os.MkdirAll(n.path("data"), 0o700); err != nil {
				n.t.Fatal(err)
			}
		}, []string{"warn  backup.dir: "}},
		{"backups_without_a_place", func(n *checkedNode) {
			n.edit(ownKey, ownKey+"}\nbackup {\n  dir = \"missing/backups\"\n")
		}, []string{"warn  backup.dir: "}},
		{"open_peer_key", func(n *checkedNode) { n.chmod("n1-key.pem", 0o666) }, []string{"fail  peer.key_file: "}},
		{"open_http_key", func(n *checkedNode) { n.chmod("api-key.pem", 0o604) }, []string{"fail  http.tls.key_file: "}},
		{"open_secret_id", func(n *checkedNode) { n.chmod("secret-id", 0o644) }, []string{"fail  vault.secret_id_file: "}},
		{"open_token", func(n *checkedNode) { n.chmod("nomad-token", 0o622) }, []string{"fail  nomad.token_file: "}},
		{"writable_config", func(n *checkedNode) { n.chmod("node.hcl", 0o666) }, []string{"fail  config: "}},
		{"writable_ca", func(n *checkedNode) { n.chmod("ca.pem", 0o646) },
			[]string{"fail  peer.ca_file: ", "fail  nomad.ca_file: ", "fail  vault.ca_file: "}},
		{"missing_key", func(n *checkedNode) { os.Remove(n.path("n1-key.pem")) }, []string{"fail  peer.key_file: "}},
		{
			"missing_secret_id",
			func(n *checkedNode) { os.Remove(n.path("secret-id")) },
			[]string{"fail  vault.secret_id_file: "},
		},
		{
			"blank_secret_id",
			func(n *checkedNode) { n.write("secret-id", "\n", 0o600) },
			[]string{"fail  vault.secret_id_file: "},
		},
		{"damaged_certificate", func(n *checkedNode) { n.write("api.pem", "-----BEGIN CERTIFICATE-----\n", 0o644) },
			[]string{"fail  http.tls.cert_file: "}},
		{"damaged_ca", func(n *checkedNode) { n.write("ca.pem", "no PEM\n", 0o644) },
			[]string{"fail  peer.ca_file: ", "fail  nomad.ca_file: ", "fail  vault.ca_file: "}},
		{"expired_certificate", func(n *checkedNode) { n.issue("n1", -day) }, []string{"warn  peer.cert_file: "}},
		{"old_certificate", func(n *checkedNode) { n.issue("api", 9*day) }, []string{"warn  http.tls.cert_file: "}},
		{"renewing", func(n *checkedNode) { n.edit(ownKey, ownKey+"  ca_key_file = \"ca-key.pem\"\n") }, nil},
		{"open_ca_key", func(n *checkedNode) {
			n.edit(ownKey, ownKey+"  ca_key_file = \"ca-key.pem\"\n")
			n.chmod("ca-key.pem", 0o644)
		}, []string{"fail  peer.ca_key_file: "}},
		{"another_ca_key", func(n *checkedNode) { n.edit(ownKey, ownKey+"  ca_key_file = \"n1-key.pem\"\n") },
			[]string{"warn  peer.ca_key_file: the certificate can't be renewed: "}},
		{
			"another_node",
			func(n *checkedNode) { n.edit(`node_name        = "n1"`, `node_name = "n2"`) },
			[]string{"fail  peer.cert_file: "},
		},
		{"foreign_ca", foreignCA, []string{"fail  peer.cert_file: "}},
		{"data_dir_is_a_file", func(n *checkedNode) { n.write("data", "x", 0o600) }, []string{"fail  data_dir: "}},
		{"open_data_dir", openDataDir, []string{"warn  data_dir: "}},
		{"boltdb", func(n *checkedNode) {
			n.edit("peer {", "raft {\n  log_store = \"boltdb\"\n}\npeer {")
		}, []string{"warn  raft.log_store: without effect: "}},
		{"wal", func(n *checkedNode) { n.edit("peer {", "raft {\n  log_store = \"wal\"\n}\npeer {") }, nil},
		{"plain_http", func(n *checkedNode) {
			n.edit("127.0.0.1:8440\"\n  tls {\n    cert_file = \"api.pem\"\n    key_file  = \"api-key.pem\"\n  }", ":8440\"")
		}, []string{"warn  http.address: plain HTTP on :8440: "}},
		{"plain_vault", func(n *checkedNode) { n.edit("https://vault", "http://vault") }, []string{"warn  vault.address: "}},
		{"plain_nomad", func(n *checkedNode) { n.edit("https://nomad", "http://nomad") }, []string{"warn  nomad.address: "}},
		{
			"docker_bridge",
			func(n *checkedNode) { n.edit(`docker_network = "bivouac"`, "") },
			[]string{"warn  nomad.docker_network: "},
		},
		{"plain_on_loopback", func(n *checkedNode) { n.edit("https://vault.example.org", "http://127.0.0.1") }, nil},
		{
			"everybody_is_a_proxy",
			func(n *checkedNode) { n.trust(`"0.0.0.0/0"`) },
			[]string{"fail  limits.trusted_proxies: 0.0.0.0/0 "},
		},
		{"half_of_everybody", func(n *checkedNode) { n.trust(`"10.1.2.3", "128.0.0.0/1", "::/0"`) },
			[]string{"fail  limits.trusted_proxies: 128.0.0.0/1 ", "fail  limits.trusted_proxies: ::/0 "}},
		{"private_proxies", func(n *checkedNode) { n.trust(`"10.0.0.0/8", "192.168.1.4", "fd00:1::/48"`) }, nil},
		{
			"no_limits",
			func(n *checkedNode) { n.edit("rate_per_second = 100", "rate_per_second = 0") },
			[]string{"warn  limits: "},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newCheckedNode(t)
			test.do(n)
			code, stdout, stderr := runCommand(t, nil, "server", "--check", "--config", n.path("node.hcl"))
			var bad []string
			wantCode := exitOK
			for line := range strings.Lines(stdout) {
				if !strings.HasPrefix(line, "ok    ") {
					bad = append(bad, line)
				}
			}
			if len(bad) != len(test.want) {
				t.Fatalf("exit %d, the lines that are not ok, want %q:\n%s%s", code, test.want, strings.Join(bad, ""), stderr)
			}
			for i, want := range test.want {
				if !strings.HasPrefix(bad[i], want) {
					t.Errorf("line %q does not begin with %q", bad[i], want)
				}
				if strings.HasPrefix(want, "fail") {
					wantCode = exitFailed
				}
			}
			if code != wantCode || stderr != "" {
				t.Errorf("exit %d, want %d: %s", code, wantCode, stderr)
			}
		})
	}
}

// ownKey is the line of checkedConfig with the node's key.
const ownKey = "  key_file  = \"n1-key.pem\"\n"

// foreignCA puts another cluster's CA in the place of the node's.
func foreignCA(n *checkedNode) {
	other, err := peernet.NewCA(time.Now(), 300*day)
	if err != nil {
		n.t.Fatal(err)
	}
	if err := durable.Replace(n.path("ca.pem"), other.Certificate, 0o644); err != nil {
		n.t.Fatal(err)
	}
}

func TestCheck_JSON(t *testing.T) {
	n := newCheckedNode(t)
	n.chmod("n1-key.pem", 0o644)
	code, stdout, _ := runCommand(t, nil, "server", "--check", "--json", "--config", n.path("node.hcl"))
	var got struct {
		Result string
		Checks []finding
	}
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatal(err)
	}
	if code != exitFailed || got.Result != checkFail || len(got.Checks) < 10 {
		t.Errorf("exit %d: %s", code, stdout)
	}
}

// TestCheck_EveryStartLogsWhatIsNotOK starts a node whose HTTP port is taken: it tells before it
// stops.
func TestCheck_EveryStartLogsWhatIsNotOK(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	n := newCheckedNode(t)
	text := strings.Replace(checkedConfig, "127.0.0.1:8440", taken.Addr().String(), 1)
	n.write("node.hcl", strings.Replace(text, "https://vault", "http://vault", 1), 0o644)
	n.chmod("secret-id", 0o666)
	code, _, stderr := runCommand(t, nil, "server", "--config", n.path("node.hcl"))
	if code != exitFailed || !strings.Contains(stderr, fmt.Sprintf("listening on %s", taken.Addr())) {
		t.Fatalf("exit %d:\n%s", code, stderr)
	}
	for _, want := range []string{
		`level=WARN msg="configuration check" node=n1 subject=vault.address`,
		`level=ERROR msg="configuration check failed" node=n1 subject=vault.secret_id_file`,
	} {
		if strings.Count(stderr, want) != 1 {
			t.Errorf("not one line %s:\n%s", want, stderr)
		}
	}
}

// The file that operators copy names limits.
func TestCheck_TheAnnotatedFileHasLimits(t *testing.T) {
	const path = "../../deploy/config/node.hcl"
	c, err := loadConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range inspect(c, path, time.Now()) {
		if f.Subject == "limits" && f.Result != checkOK {
			t.Error(f.Detail)
		}
	}
}
