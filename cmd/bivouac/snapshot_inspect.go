package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"sync/atomic"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/cluster/backup"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/fsm/snapshotfile"
)

func (p *program) snapshotInspectCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "inspect FILE",
		Short: "Verify a snapshot file and show what it holds",
		Long: `Verify every checksum of a snapshot file ("-" for stdin), load its state on trial,
and show what it holds: whose state it is, at which index, and rows and bytes by
table. Nothing is written and no node is asked.

Exit codes: 0 the file is whole and can be restored by this program, 1 it can't
be, 2 wrong usage.`,
		Example: `  bivouac operator snapshot inspect bivouac.snap
  bivouac operator snapshot inspect --json bivouac.snap`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var saved backup.Saved
			err := withProgress(cmd.Context(), p.stderr, "reading "+args[0], func(ctx context.Context) (err error) {
				saved, err = p.loadSnapshot(ctx, args[0])
				return err
			})
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return usagef("%s", oneLine(err))
			case err != nil:
				return fmt.Errorf("%s: %s", args[0], oneLine(err))
			}
			report := newSnapshotReport(saved)
			if asJSON {
				return printJSON(p.stdout, report)
			}
			return printSnapshot(p.stdout, report)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// loadSnapshot verifies a file and loads it into a temporary store.
func (p *program) loadSnapshot(ctx context.Context, file string) (backup.Saved, error) {
	if file != standardStream {
		return backup.ReadFile(ctx, file)
	}
	in := &metered{r: p.stdin, n: new(atomic.Int64)}
	m, trial, err := snapshotfile.Load(in)
	return backup.Saved{Path: file, Size: in.n.Load(), Manifest: m, Trial: trial}, err
}

// snapshotReport is the output of `operator snapshot inspect --json` and `save --json`.
type snapshotReport struct {
	File     string                `json:"file"`
	Size     int64                 `json:"size"`
	Manifest snapshotfile.Manifest `json:"manifest"`
	Tables   []fsm.TableSize       `json:"tables"`
	// SecretReferences is the number of secret versions that the state refers to.
	SecretReferences int `json:"secret_references"`
}

func newSnapshotReport(s backup.Saved) snapshotReport {
	r := snapshotReport{File: s.Path, Size: s.Size, Manifest: s.Manifest, Tables: s.Trial.Tables}
	for range s.Trial.View.SecretRefs() {
		r.SecretReferences++
	}
	return r
}

func printSnapshot(w io.Writer, r snapshotReport) error {
	m := r.Manifest
	why := m.Reason
	if m.Stale {
		why += ", stale: the leader was not asked"
	}
	facts := [][]string{
		{"file", fmt.Sprintf("%s, %s; every checksum is right and the state can be loaded", r.File, formatSize(r.Size))},
		{
			"created",
			fmt.Sprintf("%s by node %s, bivouac %s (%s)", formatTime(m.Created), orDash(m.Node), orDash(m.Version), why),
		},
		{"cluster", orDash(m.ClusterID)},
		{"index", fmt.Sprintf("%d, term %d", m.Index, m.Term)},
		{
			"versions",
			fmt.Sprintf("file format %d, state format %d, protocol version %d", m.Format, m.StateFormat, m.ProtocolVersion),
		},
		{"secrets", fmt.Sprintf("%d versions are referred to; the values are not in the file", r.SecretReferences)},
	}
	if m.History != nil {
		facts = append(facts[:3],
			append([][]string{{"history", fmt.Sprintf("%s, epoch %d", m.History.ID, m.History.Epoch)}}, facts[3:]...)...)
	}
	for _, f := range facts {
		if _, err := fmt.Fprintf(w, "%-9s %s\n", f[0], f[1]); err != nil {
			return err
		}
	}
	fmt.Fprintln(w)
	var total fsm.TableSize
	rows := make([][]string, 0, len(r.Tables)+1)
	for _, t := range r.Tables {
		rows = append(rows, []string{t.Table, strconv.Itoa(t.Rows), strconv.FormatInt(t.Bytes, 10)})
		total.Rows, total.Bytes = total.Rows+t.Rows, total.Bytes+t.Bytes
	}
	rows = append(rows, []string{"(all)", strconv.Itoa(total.Rows), strconv.FormatInt(total.Bytes, 10)})
	return printTable(w, []string{"TABLE", "ROWS", "BYTES"}, rows)
}
