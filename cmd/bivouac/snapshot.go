package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/cluster/backup"
	"bivouac.dev/bivouac/fsm/snapshotfile"
	"bivouac.dev/bivouac/httpapi/client"
)

// standardStream as a file name means stdin or stdout.
const standardStream = "-"

func (p *program) snapshotCommand() *cobra.Command {
	return groupCommand("snapshot", "Save, inspect, list and restore files of the whole state",
		p.snapshotSaveCommand(), p.snapshotInspectCommand(), p.snapshotListCommand(), p.snapshotRestoreCommand())
}

func (p *program) snapshotSaveCommand() *cobra.Command {
	var api apiFlags
	var o saveOptions
	cmd := &cobra.Command{
		Use:   "save FILE",
		Short: "Save the whole state to a file",
		Long: `Save the whole state at one log index to a file, "-" for stdout. Any node can be
asked; the state has every write that was acknowledged before. The file has mode
0600, holds references to secrets and no values, and is verified and loaded on
trial before it gets its name. To lose nothing, keep Vault's and Nomad's data and
the nodes' files too ("bivouac runbook backup").`,
		Example: `  bivouac operator snapshot save bivouac.snap
  bivouac operator snapshot save - | ssh backup 'cat > bivouac.snap'
  bivouac operator snapshot save --stale bivouac.snap    # the cluster has no leader`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			o.file, o.asJSON = args[0], api.asJSON
			return p.saveSnapshot(cmd.Context(), c, o)
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	cmd.Flags().BoolVar(&o.force, "force", false, "replace the file if there is one")
	cmd.Flags().BoolVar(&o.stale, "stale", false,
		"take what the node has, without asking the leader: newer writes may be missing")
	return cmd
}

// saveOptions are the arguments of `operator snapshot save`.
type saveOptions struct {
	file                 string
	force, stale, asJSON bool
}

// saveSnapshot downloads a snapshot and stores it.
func (p *program) saveSnapshot(ctx context.Context, c *client.Client, o saveOptions) error {
	if err := p.canSave(o); err != nil {
		return err
	}
	path := "/api/v1/operator/snapshot"
	if o.stale {
		path += "?stale"
	}
	progress := &transfer{}
	var saved backup.Saved
	err := progress.show(ctx, p.stderr, func(ctx context.Context) error {
		body, size, err := c.Download(ctx, path)
		if err != nil {
			return err
		}
		defer body.Close()
		progress.size.Store(size)
		saved, err = p.keepSnapshot(ctx, o, &metered{r: body, n: &progress.done})
		return err
	})
	switch {
	case ctx.Err() != nil:
		return errors.New("saving the snapshot: interrupted; no file was written")
	case errors.Is(err, fs.ErrExist):
		return errExists(o.file)
	case err != nil:
		return fmt.Errorf("saving the snapshot: %w", err)
	}
	out := p.stdout
	if o.file == standardStream {
		out = p.stderr
	}
	if o.asJSON {
		return printJSON(out, newSnapshotReport(saved))
	}
	m := saved.Manifest
	_, err = fmt.Fprintf(out, "saved %s: cluster %s at index %d, term %d, protocol version %d; %s, "+
		"verified and loaded on trial\n",
		o.file, m.ClusterID, m.Index, m.Term, m.ProtocolVersion, formatSize(saved.Size))
	if e := m.Events; err == nil && e != nil {
		_, err = fmt.Fprintf(out, "%d events of %d conversations, %s\n", e.Number, e.Conversations, sizeText(int64(e.Bytes)))
		if e.Missing > 0 && err == nil {
			_, err = fmt.Fprintf(out, "the node lacks %s of events, and so does the file: ask another node\n",
				sizeText(int64(e.Missing)))
		}
	}
	return err
}

// canSave checks, before the request, that the snapshot can be stored.
func (p *program) canSave(o saveOptions) error {
	if o.file == standardStream {
		if f, ok := p.stdout.(*os.File); ok {
			if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
				return usagef("stdout is a terminal: write to a file, or through a pipe")
			}
		}
		return nil
	}
	info, err := os.Stat(o.file)
	switch {
	case err == nil && info.IsDir():
		return usagef("%s is a directory: name a file", o.file)
	case err == nil && !o.force:
		return errExists(o.file)
	}
	if _, err := os.Stat(filepath.Dir(o.file)); err != nil {
		return usagef("%s", oneLine(err))
	}
	return nil
}

func errExists(file string) error {
	return usagef("%s is there already: choose another name, or give --force", file)
}

// keepSnapshot verifies what it reads and writes it to the file or to stdout.
func (p *program) keepSnapshot(ctx context.Context, o saveOptions, from io.Reader) (backup.Saved, error) {
	if o.file != standardStream {
		return backup.WriteFile(ctx, o.file, o.force, func(w io.Writer) error {
			_, err := io.Copy(w, from)
			return err
		})
	}
	out := &metered{r: io.TeeReader(from, p.stdout), n: new(atomic.Int64)}
	m, trial, err := snapshotfile.Load(out)
	return backup.Saved{Path: o.file, Size: out.n.Load(), Manifest: m, Trial: trial}, err
}

// metered counts the bytes read through it.
type metered struct {
	r io.Reader
	n *atomic.Int64
}

// Read implements io.Reader.
func (m *metered) Read(b []byte) (int, error) {
	n, err := m.r.Read(b)
	m.n.Add(int64(n))
	return n, err
}

// transfer is the progress of a download. size is at most 0 while it is unknown.
type transfer struct{ done, size atomic.Int64 }

// show runs fn. While fn takes longer than progressDelay, it prints the progress.
func (t *transfer) show(ctx context.Context, w io.Writer, fn func(context.Context) error) error {
	done := make(chan error, 1)
	go func() { done <- fn(ctx) }()
	tick := time.NewTicker(progressDelay)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-tick.C:
			switch got, size := t.done.Load(), t.size.Load(); {
			case size <= 0:
				fmt.Fprintln(w, "waiting for the node to read its state ...")
			case got < size:
				fmt.Fprintf(w, "received %s of %s ...\n", formatSize(got), formatSize(size))
			default:
				fmt.Fprintln(w, "verifying ...")
			}
		}
	}
}

// formatSize formats a number of bytes for people.
func formatSize(n int64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d bytes", n)
	}
	value, unit := float64(n)/(1<<10), "KiB"
	for _, larger := range []string{"MiB", "GiB", "TiB"} {
		if value < 1024 {
			break
		}
		value, unit = value/1024, larger
	}
	return fmt.Sprintf("%.1f %s", value, unit)
}
