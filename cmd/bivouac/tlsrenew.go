package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/scheduler/durable"
)

// nodes lists the nodes with a pair in the folder.
func (d tlsDir) nodes() ([]string, error) {
	keys, err := filepath.Glob(d.file("*-key.pem"))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, key := range keys {
		name := strings.TrimSuffix(filepath.Base(key), "-key.pem")
		if _, err := os.Stat(d.node(name).CertFile); err == nil && key != d.caKey() {
			names = append(names, name)
		}
	}
	return names, nil
}

// renew issues a node's next certificate, for the same names, with another key. Without force it
// leaves one that is not due.
func (d tlsDir) renew(
	ctx context.Context,
	node string,
	force bool,
	now time.Time,
	lifetime time.Duration,
) (*x509.Certificate, bool, error) {
	files := d.node(node)
	former, err := peernet.ReadPair(files.CertFile, files.KeyFile)
	if err != nil {
		return nil, false, err
	}
	if !force && now.Before(peernet.RenewAt(former.Leaf)) {
		return former.Leaf, false, nil
	}
	pair, err := peernet.CAIssuer(d.ca(), d.caKey(), lifetime)(ctx, former.Leaf)
	if err != nil {
		return nil, false, err
	}
	if err := peernet.WritePair(files, pair, durable.Replace); err != nil {
		return nil, false, err
	}
	next, err := peernet.ReadPair(files.CertFile, files.KeyFile)
	if err != nil {
		return nil, false, err
	}
	return next.Leaf, true, nil
}

func (p *program) tlsRenewCommand() *cobra.Command {
	var dir string
	var nodes []string
	var days int
	var all bool
	cmd := &cobra.Command{
		Use:   "renew --dir DIR [--node NAME]...",
		Short: "Renew the nodes' certificates",
		Long: `Renew the certificates in the folder, signed by the CA in it, for the names that
they have: those with less than a third of their life left, or --all of them, or
those of the named nodes. Copy both files of each to its node: a running node reads
them without a restart. Run it by a timer where nodes don't renew themselves.`,
		Example: `  bivouac tls renew --dir tls
  bivouac tls renew --dir tls --node n1`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkDays(days); err != nil {
				return err
			}
			d, force := tlsDir(dir), all || len(nodes) > 0
			if len(nodes) == 0 {
				var err error
				if nodes, err = d.nodes(); err != nil {
					return err
				}
				if len(nodes) == 0 {
					return fmt.Errorf("%s has no node's certificate; make one with %q", dir, "bivouac tls issue")
				}
			}
			for _, node := range nodes {
				leaf, renewed, err := d.renew(cmd.Context(), node, force, time.Now(), time.Duration(days)*day)
				if err != nil {
					return fmt.Errorf("renewing the certificate of node %s: %w", node, err)
				}
				what := "not due"
				if renewed {
					what = "renewed"
				}
				if _, err := fmt.Fprintf(p.stdout, "%s  %s, until %s\n", d.node(node).CertFile, what,
					untilText(leaf.NotAfter, time.Now())); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "the folder with the CA")
	cmd.Flags().StringArrayVar(&nodes, "node", nil, "only this node; may be repeated")
	cmd.Flags().IntVar(&days, "days", int(peernet.DefaultNodeLifetime/day), "how long the next ones are good for")
	cmd.Flags().BoolVar(&all, "all", false, "also those that are not due")
	mustRequire(cmd, "dir")
	return cmd
}

func (p *program) tlsShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show FILE...",
		Short: "Show what certificates are for, and until when",
		Long: "Show each certificate in the files: its name, its hosts, the days left and its\nfingerprint, " +
			"as `bivouac operator remove --fingerprint` takes it.",
		Example: "  bivouac tls show tls/ca.pem tls/n1.pem",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, files []string) error {
			var rows [][]string
			for _, file := range files {
				found, err := peernet.ReadCertificates(file)
				if err != nil {
					return err
				}
				for _, c := range found {
					hosts := slices.Concat(c.DNSNames, peernet.Hosts(&x509.Certificate{IPAddresses: c.IPAddresses}))
					rows = append(rows, []string{file, c.Subject.CommonName, strings.Join(hosts, ","), formatTime(c.NotAfter),
						strconv.Itoa(daysLeft(c.NotAfter, time.Now())), peernet.Fingerprint(c)})
				}
			}
			return printTable(p.stdout, []string{"FILE", "NAME", "HOSTS", "UNTIL", "DAYS LEFT", "SHA-256"}, rows)
		},
	}
}

// daysLeft counts whole days, negative ones after the end.
func daysLeft(end, now time.Time) int {
	left := end.Sub(now)
	if left < 0 {
		return int(left/day) - 1
	}
	return int(left / day)
}

// untilText is a certificate's end with the days left.
func untilText(end, now time.Time) string {
	switch n := daysLeft(end, now); n {
	case 0:
		return formatTime(end) + " (less than a day left)"
	case 1:
		return formatTime(end) + " (1 day left)"
	default:
		return fmt.Sprintf("%s (%d days left)", formatTime(end), n)
	}
}
