package fleet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/cluster"
)

// BareOptions say what a bare fleet is made of.
type BareOptions struct {
	// Tags are build tags of bivouac, comma-separated.
	Tags string
	// Raft is HCL inside every node's raft block. "" gives snapshots soon.
	Raft string
	// Config is HCL appended to every node's configuration.
	Config string
	// DataDir gives a node's data directory; nil means a folder of its own. It
	// is called once for each node, before it is started.
	DataDir func(name string) string
}

// StartBare starts three nodes whose Vault is away and whose Nomad has nothing:
// what needs neither works, and nothing has to be installed. They end with the
// test.
func StartBare(t testing.TB, o BareOptions) *Fleet {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "bivouac-bare-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	f := &Fleet{Dir: dir, DrillDir: filepath.Join(dir, "drill"), KeyFile: filepath.Join(dir, "key"), Bivouac: filepath.Join(dir, "bin", "bivouac")}
	must(t, os.Mkdir(f.DrillDir, 0o700))
	must(t, f.buildOne(ctx, Options{Tags: o.Tags}, "bivouac", f.Bivouac))
	f.startBare(t, o)
	return f
}

const bareConfig = `
node_name        = "NODE"
data_dir         = "DATA"
bootstrap_expect = 3
retry_join       = [PEERS]
http {
  address = "HTTP"
}
peer {
  address   = "PEER"
  ca_file   = "../tls/ca.pem"
  cert_file = "../tls/NODE.pem"
  key_file  = "../tls/NODE-key.pem"
}
raft {
RAFT
}
nomad {
  address = "NOMAD"
}
vault {
  address        = "AWAY"
  role_id        = "none"
  secret_id_file = "../secret-id"
}
git {
  verify_tokens = false
}
`

const bareRaft = `  snapshot_threshold = 64
  snapshot_interval  = "2s"
  trailing_logs      = 64`

func (f *Fleet) startBare(t testing.TB, o BareOptions) {
	t.Helper()
	if o.Raft == "" {
		o.Raft = bareRaft
	}
	if o.DataDir == nil {
		o.DataDir = func(name string) string { return filepath.Join(f.Dir, name, "data") }
	}
	if !strings.Contains(o.Config, "log {") {
		o.Config += "log {\n  level  = \"info\"\n  format = \"json\"\n}\n"
	}
	must(t, os.WriteFile(filepath.Join(f.Dir, "secret-id"), []byte("none"), 0o600))
	tls := filepath.Join(f.Dir, "tls")
	f.Run(t, "tls", "init", "--dir", tls)
	var addresses, peers []string
	for range 3 {
		addresses, peers = append(addresses, freeAddress(t)), append(peers, freeAddress(t))
	}
	away, nomad := "http://"+freeAddress(t), emptyNomad(t)
	for i, name := range []string{"n1", "n2", "n3"} {
		f.Run(t, "tls", "issue", "--dir", tls, "--node", name, "--host", "127.0.0.1")
		dir := filepath.Join(f.Dir, name)
		n := &Node{
			fleet: f, Name: name, Client: Client{Base: "http://" + addresses[i]}, config: filepath.Join(dir, "node.hcl"),
			Log: filepath.Join(dir, "log"), Peer: peers[i], Data: o.DataDir(name),
			TLS: memberTLS(tls, name),
		}
		must(t, os.MkdirAll(dir, 0o700))
		text := strings.NewReplacer(
			"NODE", name, "DATA", n.Data, "PEERS", `"`+strings.Join(peers, `", "`)+`"`, "HTTP", addresses[i], "PEER", peers[i],
			"AWAY", away, "NOMAD", nomad, "RAFT", o.Raft,
		).Replace(bareConfig) + o.Config
		must(t, os.WriteFile(n.config, []byte(text), 0o600))
		f.Nodes = append(f.Nodes, n)
		n.Start(t)
		t.Cleanup(n.Kill)
	}
	for _, n := range f.Nodes {
		n.Ready(t)
	}
	key := f.Run(t, "keys", "bootstrap", "--config", f.Nodes[0].config)
	must(t, os.WriteFile(f.KeyFile, []byte(key+"\n"), 0o600))
	for _, n := range f.Nodes {
		n.Key = key
	}
}

// PeerClient speaks to the node's peer port, with its own certificate, until
// the test ends.
func (n *Node) PeerClient(t testing.TB) *cluster.PeerClient {
	t.Helper()
	c, err := cluster.NewPeerClient(n.TLS, n.Peer)
	must(t, err)
	t.Cleanup(c.Close)
	return c
}

// SameState waits until all living nodes are at one index and fails the test
// unless their states have one checksum there. Nobody may write meanwhile.
func (f *Fleet) SameState(t testing.TB) (index uint64, sum string) {
	t.Helper()
	clients := map[string]*cluster.PeerClient{}
	for _, n := range f.Nodes {
		if n.Alive() {
			c, err := cluster.NewPeerClient(n.TLS, n.Peer)
			must(t, err)
			defer c.Close()
			clients[n.Name] = c
		}
	}
	Eventually(t, "all nodes are at one index", func() error {
		sums := map[string]string{}
		index = 0
		for name, c := range clients {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			at, s, err := c.Checksum(ctx)
			cancel()
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if index != 0 && at != index {
				return fmt.Errorf("%s is at index %d, another at %d", name, at, index)
			}
			index, sum, sums[name] = at, s, s
		}
		for name, s := range sums {
			if s != sum {
				t.Fatalf("at index %d the states differ: %s has %s, another %s (%v)", index, name, s, sum, sums)
			}
		}
		return nil
	})
	return index, sum
}
