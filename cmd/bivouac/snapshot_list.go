package main

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/cluster/backup"
)

func (p *program) snapshotListCommand() *cobra.Command {
	var api apiFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the backups in a node's directory",
		Long: `List the backups that leaders made by themselves (backup { dir } in the node's
file) and that are in the directory of the node that is asked, newest first, and
say what the cluster has recorded of the newest one and of the last failure. Where
every node has a directory of its own, ask each.`,
		Example: `  bivouac operator snapshot list
  bivouac operator snapshot list --address https://n2.example.org:8440 --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			var report backup.Report
			if err := p.waiting(cmd, c, http.MethodGet, "/api/v1/operator/backups", nil, &report); err != nil {
				return err
			}
			if api.asJSON {
				return printJSON(p.stdout, report)
			}
			return printBackups(p.stdout, report, time.Now())
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	return cmd
}

func printBackups(w io.Writer, r backup.Report, now time.Time) error {
	newest := "the cluster has recorded no backup"
	if n := r.Newest; n.File != "" {
		newest = fmt.Sprintf("newest: %s, made by %s %s ago, index %d", n.File, n.Node, now.Sub(n.Time).Round(time.Second),
			n.Index)
	}
	interval := time.Duration(r.Interval * float64(time.Second))
	fmt.Fprintf(w, "%s; one every %s, %d are kept\n", newest, interval, r.Retain)
	if n := r.Newest; n.Failure != "" {
		fmt.Fprintf(w, "the last try failed, on %s at %s: %s\n", n.FailedNode, formatTime(n.FailedTime), n.Failure)
	}
	fmt.Fprintf(w, "in %s on %s:\n\n", r.Directory, r.Node)
	rows := make([][]string, len(r.Files))
	for i, f := range r.Files {
		state := "not read yet"
		switch {
		case f.Problem != "":
			state = "no good: " + f.Problem
		case f.Verified:
			state = "verified"
		}
		rows[i] = []string{
			f.File,
			formatTime(f.Manifest.Created),
			strconv.FormatUint(f.Manifest.Index, 10),
			formatSize(f.Size),
			state,
		}
	}
	return printTable(w, []string{"FILE", "CREATED", "INDEX", "SIZE", "STATE"}, rows)
}
