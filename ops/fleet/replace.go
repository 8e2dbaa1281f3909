package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/cluster"
)

// Replacement says what a node's next process is, where that differs from the
// one before. "" keeps what was.
type Replacement struct {
	// Member is the name it has in the cluster. A new one gets a certificate.
	Member string
	// HTTP and Peer are its addresses, Data its data directory.
	HTTP, Peer, Data string
	// Expect is the number of nodes that form a cluster, 0 for what it was.
	Expect int
}

// Member is the node's name in the cluster: Name, unless Replace gave another.
func (n *Node) Member() string {
	if n.member != "" {
		return n.member
	}
	return n.Name
}

// Replace makes the next process of a node that does not run another one, by its
// configuration.
func (n *Node) Replace(r Replacement) error {
	raw, err := os.ReadFile(n.config)
	if err != nil {
		return err
	}
	text := string(raw)
	if r.Member != "" && r.Member != n.Member() {
		if err := n.certify(r.Member); err != nil {
			return err
		}
		text = strings.NewReplacer(
			fmt.Sprintf("node_name        = %q", n.Member()), fmt.Sprintf("node_name        = %q", r.Member),
			fmt.Sprintf("%q", "../tls/"+n.Member()+".pem"), fmt.Sprintf("%q", "../tls/"+r.Member+".pem"),
			fmt.Sprintf("%q", "../tls/"+n.Member()+"-key.pem"), fmt.Sprintf("%q", "../tls/"+r.Member+"-key.pem"),
		).Replace(text)
		n.member = r.Member
		n.TLS = memberTLS(filepath.Dir(n.TLS.CAFile), r.Member)
	}
	if r.HTTP != "" {
		text = setIn(text, "http", r.HTTP)
		n.Base = "http://" + r.HTTP
	}
	if r.Peer != "" {
		text = setIn(text, "peer", r.Peer)
		n.Peer = r.Peer
	}
	if r.Data != "" {
		text = regexp.MustCompile(`(?m)^data_dir( *)= .*$`).ReplaceAllString(text, fmt.Sprintf("data_dir${1}= %q", r.Data))
		n.Data = r.Data
	}
	if r.Expect > 0 {
		text = regexp.MustCompile(`(?m)^bootstrap_expect .*$`).ReplaceAllString(text, fmt.Sprintf("bootstrap_expect = %d", r.Expect))
	}
	return os.WriteFile(n.config, []byte(text), 0o600)
}

// TellPeers writes into every node's configuration where the nodes are now, for
// the next start.
func (f *Fleet) TellPeers() error {
	var peers []string
	for _, n := range f.Nodes {
		peers = append(peers, n.Peer)
	}
	line := fmt.Sprintf(`retry_join       = ["%s"]`, strings.Join(peers, `", "`))
	for _, n := range f.Nodes {
		raw, err := os.ReadFile(n.config)
		if err != nil {
			return err
		}
		text := regexp.MustCompile(`(?m)^retry_join .*$`).ReplaceAllLiteralString(string(raw), line)
		if err := errors.Join(os.WriteFile(n.config+".new", []byte(text), 0o600), os.Rename(n.config+".new", n.config)); err != nil {
			return err
		}
	}
	return nil
}

// setIn sets the address in a block of a configuration.
func setIn(text, block, address string) string {
	at := regexp.MustCompile(`(?m)^` + block + ` \{\n  address( *)= .*$`)
	return at.ReplaceAllString(text, fmt.Sprintf("%s {\n  address${1}= %q", block, address))
}

// memberTLS names the files of a member's certificate.
func memberTLS(dir, member string) cluster.TLSConfig {
	return cluster.TLSConfig{
		CAFile: filepath.Join(dir, "ca.pem"), CertFile: filepath.Join(dir, member+".pem"), KeyFile: filepath.Join(dir, member+"-key.pem"),
	}
}

// certify issues a certificate for another name, at the node's host.
func (n *Node) certify(member string) error {
	dir := filepath.Dir(n.TLS.CAFile)
	if _, err := os.Stat(filepath.Join(dir, member+".pem")); err == nil {
		return nil
	}
	host, _, _ := strings.Cut(strings.TrimPrefix(n.Base, "http://"), ":")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := n.fleet.Command(ctx, "tls", "issue", "--dir", dir, "--node", member, "--host", host)
	return err
}

// Clone makes a second node that claims to be this one: the same name and
// certificate, other addresses, a copy of the configuration. Its data directory
// is the caller's to fill.
func (n *Node) Clone(http, peer, data string) (*Node, error) {
	raw, err := os.ReadFile(n.config)
	if err != nil {
		return nil, err
	}
	twin := *n
	twin.Env, twin.cmd, twin.ended = append([]string(nil), n.Env...), nil, nil
	twin.config = filepath.Join(filepath.Dir(n.config), "clone.hcl")
	twin.Log = filepath.Join(filepath.Dir(n.config), "clone.log")
	if err := os.WriteFile(twin.config, raw, 0o600); err != nil {
		return nil, err
	}
	return &twin, twin.Replace(Replacement{HTTP: http, Peer: peer, Data: data})
}

// Command carries out one of the program's commands and gives what it printed.
func (f *Fleet) Command(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, f.Bivouac, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("bivouac %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// FreeAddress gives an address of the loopback interface that nobody has.
func FreeAddress(t testing.TB) string {
	t.Helper()
	return freeAddress(t)
}

// Config is the path of the node's configuration.
func (n *Node) Config() string { return n.config }

// CopyData copies the data directory of a node that does not run, holes and
// times as they are.
func (n *Node) CopyData(to string) error { return CopyTree(n.Data, to) }

// CopyTree copies a directory to a place where there is none, or replaces what
// is there.
func CopyTree(from, to string) error {
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	if out, err := exec.Command("cp", "-a", "--sparse=always", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("copying %s: %w: %s", from, err, out)
	}
	return nil
}

// EmptyData leaves the node an empty data directory, as a new disk is.
func (n *Node) EmptyData() error {
	return errors.Join(os.RemoveAll(n.Data), os.MkdirAll(n.Data, 0o700))
}
