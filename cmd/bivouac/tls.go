package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/scheduler/durable"
)

const day = 24 * time.Hour

// tlsDir is a folder with a cluster's CA and its nodes' certificates:
// ca.pem, ca-key.pem, <node>.pem, <node>-key.pem.
type tlsDir string

func (d tlsDir) file(name string) string { return filepath.Join(string(d), name) }
func (d tlsDir) ca() string              { return d.file("ca.pem") }
func (d tlsDir) caKey() string           { return d.file("ca-key.pem") }

// node returns the paths of a node's files.
func (d tlsDir) node(name string) peernet.TLSFiles {
	return peernet.TLSFiles{CAFile: d.ca(), CertFile: d.file(name + ".pem"), KeyFile: d.file(name + "-key.pem")}
}

// init makes the CA. It fails if there is one.
func (d tlsDir) init(now time.Time, lifetime time.Duration) error {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return fmt.Errorf("making the CA: %s", oneLine(err))
	}
	for _, name := range []string{d.ca(), d.caKey()} {
		if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("making the CA: %s is there already", name)
		}
	}
	ca, err := peernet.NewCA(now, lifetime)
	if err != nil {
		return fmt.Errorf("making the CA: %w", err)
	}
	// The certificate is written last: if it exists, so does the key.
	if err := durable.Replace(d.caKey(), ca.Key, 0o600); err != nil {
		return err
	}
	return durable.Replace(d.ca(), ca.Certificate, 0o644)
}

// issue makes a node's certificate and replaces an existing one.
func (d tlsDir) issue(node string, hosts []string, now time.Time, lifetime time.Duration) (peernet.TLSFiles, error) {
	files := d.node(node)
	certificate, err := os.ReadFile(d.ca())
	if err != nil {
		return files, fmt.Errorf("reading the CA (made by %q): %s", "bivouac tls init", oneLine(err))
	}
	key, err := os.ReadFile(d.caKey())
	if err != nil {
		return files, fmt.Errorf("reading the CA's key: %s", oneLine(err))
	}
	pair, err := peernet.Issue(peernet.PEM{Certificate: certificate, Key: key}, node, hosts, now, lifetime)
	if err != nil {
		return files, fmt.Errorf("issuing the certificate with %s and %s: %w", d.ca(), d.caKey(), err)
	}
	return files, peernet.WritePair(files, pair, durable.Replace)
}

func (p *program) tlsCommand() *cobra.Command {
	return groupCommand("tls", "Make the cluster's CA and its nodes' certificates",
		p.tlsInitCommand(), p.tlsIssueCommand(), p.tlsRenewCommand(), p.tlsShowCommand())
}

func (p *program) tlsInitCommand() *cobra.Command {
	var dir string
	var days int
	cmd := &cobra.Command{
		Use:   "init --dir DIR",
		Short: "Make a cluster CA",
		Long: `Make a cluster CA: ca.pem goes to every node, ca-key.pem stays with you.
Whoever has the key can let a node into the cluster.`,
		Example: "  bivouac tls init --dir tls",
		RunE: func(*cobra.Command, []string) error {
			if err := checkDays(days); err != nil {
				return err
			}
			d := tlsDir(dir)
			if err := d.init(time.Now(), time.Duration(days)*day); err != nil {
				return err
			}
			_, err := fmt.Fprintf(p.stdout, "%s  the CA, for every node\n%s  its key; keep it off the nodes\n", d.ca(),
				d.caKey())
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "the folder to make it in")
	cmd.Flags().IntVar(&days, "days", int(peernet.DefaultCALifetime/day), "how long it is good for")
	mustRequire(cmd, "dir")
	return cmd
}

func (p *program) tlsIssueCommand() *cobra.Command {
	var dir, node string
	var hosts []string
	var days int
	cmd := &cobra.Command{
		Use:   "issue --dir DIR --node NAME [--host HOST]...",
		Short: "Issue a node's certificate",
		Long: `Issue the certificate of one node, signed by the CA in the folder. The name must
be the node_name of the node's configuration. Running nodes read a new
certificate without a restart. It is good for 30 days: see "bivouac tls renew", and
peer { ca_key_file } and peer { vault_pki {} } for nodes that renew it themselves.`,
		Example: `  bivouac tls issue --dir tls --node n1
  bivouac tls issue --dir tls --node n1 --host api.example.org --host 10.1.0.11`,
		RunE: func(*cobra.Command, []string) error {
			if err := isNodeName(node); err != nil {
				return usagef("--node: %w", err)
			}
			if err := checkDays(days); err != nil {
				return err
			}
			files, err := tlsDir(dir).issue(node, hosts, time.Now(), time.Duration(days)*day)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(p.stdout, "%s\n%s\n", files.CertFile, files.KeyFile)
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "the folder with the CA")
	cmd.Flags().StringVar(&node, "node", "", "the node's name")
	cmd.Flags().StringArrayVar(&hosts, "host", nil, "a further name or address to put in; may be repeated")
	cmd.Flags().IntVar(&days, "days", int(peernet.DefaultNodeLifetime/day), "how long it is good for")
	mustRequire(cmd, "dir", "node")
	return cmd
}

func checkDays(days int) error {
	if days < 1 || days > 36500 {
		return usagef("--days must be between 1 and 36500")
	}
	return nil
}
