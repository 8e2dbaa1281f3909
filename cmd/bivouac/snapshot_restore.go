package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm/snapshotfile"
	"bivouac.dev/bivouac/httpapi/client"
	"bivouac.dev/bivouac/httpapi/wire"
)

// restoreOptions are the arguments of `operator snapshot restore`.
type restoreOptions struct {
	file, keys         string
	yes, force, asJSON bool
}

func (p *program) snapshotRestoreCommand() *cobra.Command {
	var api apiFlags
	var o restoreOptions
	cmd := &cobra.Command{
		Use:   "restore FILE --keys keep|suspend",
		Short: "Replace the whole state of a new or recovered cluster by a saved one",
		Long: `Replace the whole state of a cluster of one member, new or recovered, by that of a
file; the others join it afterwards with empty data directories.
"bivouac runbook restore" has the whole procedure.

The file is verified and loaded on trial first. A new cluster is given its first
key by "bivouac keys bootstrap"; that key, as any that is used to restore, stays
valid. API keys that were revoked since the file was saved come back with it, so
--keys must be said: "suspend" suspends all of them until "bivouac keys enable ID",
"keep" takes them as they are.

The cluster holds afterwards: it starts and stops no sandbox by itself until
"bivouac operator hold release". Indexes go on far above all that were known.
Idempotency-Keys in the file have an unknown outcome, and members of warm pools
are dropped. A cluster that has sandboxes, conversations or settings of its own is
refused without --force.

A "bivouac dev" cluster has several members in one process and is refused: "bivouac
dev --restore FILE" begins a new one with a saved state.`,
		Example: `  bivouac operator snapshot restore bivouac.snap --keys suspend
  bivouac operator snapshot restore bivouac.snap --keys keep --yes --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			o.file, o.asJSON = args[0], api.asJSON
			return p.restoreSnapshot(cmd.Context(), c, o)
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	cmd.Flags().StringVar(&o.keys, "keys", "", `what becomes of the API keys in the file: "keep" or "suspend"`)
	cmd.Flags().BoolVar(&o.force, "force", false, "restore although the cluster has a state that is lost by it")
	cmd.Flags().BoolVar(&o.yes, "yes", false, "do not ask")
	mustRequire(cmd, "keys")
	return cmd
}

// restoreSnapshot verifies the file locally, asks for confirmation, and uploads it.
func (p *program) restoreSnapshot(ctx context.Context, c *client.Client, o restoreOptions) error {
	if err := oneOf("keep", "suspend")(o.keys); err != nil {
		return usagef("--keys: %w", err)
	}
	if o.asJSON && !o.yes {
		return usagef("--json needs --yes: there is no question in JSON")
	}
	f, err := os.Open(o.file)
	if err != nil {
		return usagef("%s", oneLine(err))
	}
	defer f.Close()
	m, _, err := snapshotfile.Load(f)
	if err != nil {
		return fmt.Errorf("%s: %w; nothing was done", o.file, err)
	}
	if !o.asJSON {
		fmt.Fprintf(p.stdout, "%s holds cluster %s at index %d, saved %s (%s ago)\n", o.file, m.ClusterID, m.Index,
			formatTime(m.Created), time.Since(m.Created).Round(time.Second))
	}
	if err := p.confirm(o.yes, "Replace the whole state of the cluster at %s by it? What the cluster has now is lost.",
		c.Address); err != nil {
		return err
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return fmt.Errorf("reading %s: %w", o.file, err)
	}
	query := url.Values{"keys": {o.keys}}
	if o.force {
		query.Set("force", "true")
	}
	var done wire.RestoreReport
	err = withProgress(ctx, p.stderr, "restoring", func(ctx context.Context) error {
		return c.Upload(ctx, "/api/v1/operator/restore?"+query.Encode(), f, size, &done)
	})
	if err != nil {
		return fmt.Errorf("restoring: %w", err)
	}
	if o.asJSON {
		return printJSON(p.stdout, done)
	}
	return printRestored(p.stdout, o, done)
}

// printDifferences prints how the state differs from Nomad and the secret store.
func printDifferences(w io.Writer, d *wire.Differences) error {
	if d == nil {
		return nil
	}
	var b strings.Builder
	for _, part := range []struct {
		what string
		list []string
	}{
		{"jobs run that the file does not know", d.Unknown},
		{"sandboxes ought to run and have no job", d.Missing},
		{"secrets that the file refers to are missing", d.Secrets},
		{"secrets are newer in the store than in the file", d.Newer},
	} {
		if len(part.list) > 0 {
			fmt.Fprintf(&b, "%d %s: %s\n", len(part.list), part.what, strings.Join(part.list[:min(len(part.list), 10)], ", "))
		}
	}
	for _, problem := range d.Problems {
		fmt.Fprintf(&b, "not compared: %s\n", problem)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func printRestored(w io.Writer, o restoreOptions, r wire.RestoreReport) error {
	keys := "the API keys of the file are valid"
	if o.keys == "suspend" {
		keys = fmt.Sprintf("%d API keys are suspended (\"bivouac keys list\", \"bivouac keys enable ID\")", r.Suspended)
	}
	if err := printDifferences(w, r.Differences); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, `restored cluster %s: %d sandboxes, as of index %d; it goes on at index %d in history %s
%s; the key that you used is valid
%d warm pool members were dropped, %d Idempotency-Keys have an unknown outcome

Start the other nodes now, with empty data directories.
The cluster holds: "bivouac operator hold status" says what differs from Nomad and Vault, "hold release" ends it.
`, r.Manifest.ClusterID, r.Sandboxes, r.From, r.Index, r.History.ID, keys, r.Members, r.Unknown)
	if err == nil && r.LostCount > 0 {
		err = printLostEvents(w, r.RestoredEvents)
	}
	return err
}

// printLostEvents lists what neither the file nor the node's disk has.
func printLostEvents(w io.Writer, e cluster.RestoredEvents) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%d conversations lack events, which neither the file nor this disk has; they go on without them:\n",
		e.LostCount)
	for _, lost := range e.Lost {
		fmt.Fprintf(&b, "  %s of %s: %d of %d events are left\n", lost.ConversationID, lost.UserID, lost.Left, lost.Number)
	}
	if more := e.LostCount - len(e.Lost); more > 0 {
		fmt.Fprintf(&b, "  and %d more\n", more)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
