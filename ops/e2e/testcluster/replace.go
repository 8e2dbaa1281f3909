package testcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/ops/e2e/testcluster/nodeconfig"
)

// Member returns the node's member name: Name, unless Configure set another.
func (n *Node) Member() string { return n.config.Name }

// Configure changes the configuration for the node's next start. A new name gets a new
// certificate.
func (n *Node) Configure(change func(*nodeconfig.Config)) error {
	change(&n.config)
	c := n.config
	if err := n.certify(c.Name); err != nil {
		return err
	}
	// Other goroutines read these: they are written only when they change.
	tls := MemberTLS(c.TLS, c.Name)
	for field, value := range map[*string]string{
		&n.Base: "http://" + c.HTTP, &n.Peer: c.Peer, &n.Data: c.Data, &n.TLS.CAFile: tls.CAFile,
		&n.TLS.CertFile: tls.CertFile, &n.TLS.KeyFile: tls.KeyFile,
	} {
		if *field != value {
			*field = value
		}
	}
	return errors.Join(os.WriteFile(n.file+".new", []byte(c.HCL()), 0o600), os.Rename(n.file+".new", n.file))
}

// TellPeers writes all nodes' current addresses into every node's configuration for the next
// start.
func (f *Cluster) TellPeers() error {
	var peers []string
	for _, n := range f.Nodes {
		peers = append(peers, n.Peer)
	}
	var errs []error
	for _, n := range f.Nodes {
		errs = append(errs, n.Configure(func(c *nodeconfig.Config) { c.Peers = peers }))
	}
	return errors.Join(errs...)
}

// MemberTLS names the files of a member's certificate.
func MemberTLS(dir, member string) peernet.TLSFiles {
	return peernet.TLSFiles{
		CAFile: filepath.Join(dir, "ca.pem"), CertFile: filepath.Join(dir, member+".pem"), KeyFile: filepath.Join(dir,
			member+"-key.pem"),
	}
}

// certify issues a certificate for the node's host, unless the name has one.
func (n *Node) certify(member string) error {
	dir := n.config.TLS
	if _, err := os.Stat(filepath.Join(dir, member+".pem")); err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := n.cluster.Command(ctx, "tls", "issue", "--dir", dir, "--node", member, "--host", n.host)
	return err
}

// Clone makes a second node with this node's name and certificate: other addresses and a copy
// of the configuration. The caller fills its data directory.
func (n *Node) Clone(http, peer, data string) (*Node, error) {
	twin := *n
	twin.Env, twin.proc = append([]string(nil), n.Env...), nil
	twin.file = filepath.Join(filepath.Dir(n.file), "clone.hcl")
	twin.Log = filepath.Join(filepath.Dir(n.file), "clone.log")
	return &twin, twin.Configure(func(c *nodeconfig.Config) { c.HTTP, c.Peer, c.Data = http, peer, data })
}

// Operate runs one of the program's commands against the node with the operator's key.
func (n *Node) Operate(t testing.TB, args ...string) string {
	t.Helper()
	return n.cluster.Run(t, append(args, "--address", n.Base, "--api-key-file", n.cluster.KeyFile)...)
}

// Command runs one of the program's commands and returns its output.
func (f *Cluster) Command(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, f.Bivouac, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("bivouac %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// FreeAddress returns an unused address of the loopback interface.
func FreeAddress(t testing.TB) string {
	t.Helper()
	return freeAddress(t)
}

// File returns the path of the node's configuration.
func (n *Node) File() string { return n.file }

// CopyData copies the data directory of a stopped node, with holes and times.
func (n *Node) CopyData(to string) error { return CopyTree(n.Data, to) }

// CopyTree copies a directory and replaces an existing target.
func CopyTree(from, to string) error {
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	if out, err := exec.Command("cp", "-a", "--sparse=always", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("copying %s: %w: %s", from, err, out)
	}
	return nil
}

// EmptyData empties the node's data directory, like a new disk.
func (n *Node) EmptyData() error {
	return errors.Join(os.RemoveAll(n.Data), os.MkdirAll(n.Data, 0o700))
}
