package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/client"
	"bivouac.dev/bivouac/httpapi/session"
)

// devOptions are the flags of `bivouac dev`.
type devOptions struct {
	dataDir  string
	httpPort int
	nodes    int
	logLevel string
	// logFormat is "text", which "" means too, or "json".
	logFormat string
	// allowHosts are names in a request's Host beside those of the loopback.
	allowHosts []string
	// corsOrigins are the web origins that may call the API, in place of those of the loopback.
	corsOrigins []string
	// restore is a saved state to start from, "" for none. keys says what happens to the API
	// keys in it.
	restore, keys string
}

// readyTimeout bounds how long `bivouac dev` waits for its nodes. Three nodes are ready within
// a second; replaying a large log takes longer.
const readyTimeout = 2 * time.Minute

func (p *program) devCommand() *cobra.Command {
	var o devOptions
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a whole cluster on this machine, with nothing to install",
		Long: `Run a whole cluster in one process: real sockets, real disks, sandboxes as local
processes, secrets in a sealed file. It prints an API key and writes it, with
the nodes' URLs, to dev.json in the data directory once all nodes are ready.
Ctrl-C stops everything, sandboxes too; started again on the same directory, all
state is there.

With --restore it begins with a state that "bivouac operator snapshot save" saved.
The nodes' own directories (n1, n2, ...) must not be there; secrets, workspaces and
the API key of the data directory stay. The cluster then holds until
"bivouac operator hold release".

It is for one person on one machine: sandboxes are not isolated from it.`,
		Example: `  bivouac dev
  bivouac dev --data-dir /tmp/b --http-port 9000 --nodes 5
  bivouac dev --restore bivouac.snap --keys suspend`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return p.runDev(cmd.Context(), o)
		},
	}
	cmd.Flags().StringVar(&o.dataDir, "data-dir", ".bivouac", "where everything is kept")
	cmd.Flags().IntVar(&o.httpPort, "http-port", 8440,
		"the first node's port; the others follow at +10, +20, ...; 0 takes free ones")
	cmd.Flags().IntVar(&o.nodes, "nodes", 3, "how many nodes: 1, 3, 5, 7 or 9")
	cmd.Flags().StringSliceVar(&o.allowHosts, "allow-host", nil,
		"a name, beside localhost, by which browsers and programs may call the nodes")
	cmd.Flags().StringSliceVar(&o.corsOrigins, "cors-origin", nil,
		"a web origin whose pages may call the API, in place of all on localhost; the cluster keeps it")
	cmd.Flags().StringVar(&o.restore, "restore", "", "begin with the state of this file of \"operator snapshot save\"")
	cmd.Flags().StringVar(&o.keys, "keys", "",
		"what becomes of the API keys in the file of --restore: \"keep\" or \"suspend\"")
	cmd.Flags().StringVar(&o.logLevel, "log-level", "info", "what goes to the log file: debug, info, warn or error")
	cmd.Flags().StringVar(&o.logFormat, "log-format", "text", "how lines of the log file are written: text or json")
	return cmd
}

// check rejects invalid flags.
func (o devOptions) check() error {
	if o.nodes < 1 || o.nodes > 9 || o.nodes%2 == 0 {
		return usagef("--nodes must be an odd number between 1 and 9, got %d", o.nodes)
	}
	if highest := 65535 - (o.nodes-1)*httpPortStep; o.httpPort < 0 || o.httpPort > highest {
		return usagef("--http-port must be between 0 and %d, got %d", highest, o.httpPort)
	}
	if o.dataDir == "" {
		return usagef("--data-dir must not be empty")
	}
	for _, host := range o.allowHosts {
		if err := fsm.CheckHost(host); err != nil || strings.Contains(host, ":") {
			return usagef("--allow-host: %q must be a host name without a port", host)
		}
	}
	for _, origin := range o.corsOrigins {
		if err := fsm.CheckOrigin(origin); err != nil {
			return usagef("--cors-origin: %w", err)
		}
	}
	if err := oneOf("debug", "info", "warn", "error")(o.logLevel); err != nil {
		return usagef("--log-level: %w", err)
	}
	if err := oneOf("", "text", "json")(o.logFormat); err != nil {
		return usagef("--log-format: %w", err)
	}
	return o.checkRestore()
}

// runDev runs the cluster until ctx ends.
func (p *program) runDev(ctx context.Context, o devOptions) error {
	c, err := openDev(o)
	if err != nil {
		return err
	}
	failed := make(chan error, len(c.nodes))
	err = withProgress(ctx, p.stderr, "starting the nodes", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, readyTimeout)
		defer cancel()
		return c.begin(ctx, failed, o)
	})
	if err == nil {
		c.greet(p.stdout, c.signInLink(ctx))
		select {
		case <-ctx.Done():
		case err = <-failed:
		}
	} else if ctx.Err() != nil {
		err = nil // asked to stop while starting
	}
	fmt.Fprintln(p.stderr, "stopping ...")
	stopped := withProgress(context.WithoutCancel(ctx), p.stderr, "stopping",
		func(context.Context) error { return c.stop() })
	if err == nil {
		err = stopped
	}
	if err != nil {
		return fmt.Errorf("%w (logs are in %s)", err, c.layout.logs())
	}
	return nil
}

// linkTimeout bounds how long the greeting waits for its link.
const linkTimeout = 10 * time.Second

// signInLink returns an address that signs a browser in. Without a code in it the page asks for the
// key.
func (c *devCluster) signInLink(ctx context.Context) string {
	node := c.info().Nodes[0].HTTP
	ctx, cancel := context.WithTimeout(ctx, linkTimeout)
	defer cancel()
	link, err := newSignInLink(ctx, &client.Client{Address: node, Key: c.key.Value, HTTP: &http.Client{}})
	if err != nil {
		c.log.Warn("there is no link to sign in with", "error", err)
		return node + session.Path
	}
	return link.URL
}

// greet prints how to use the cluster. link signs a browser in.
func (c *devCluster) greet(w io.Writer, link string) {
	info := c.info()
	var b strings.Builder
	fmt.Fprintf(&b, "Bivouac runs with %d nodes; everything is in %s\n\n", len(info.Nodes), c.layout.dir)
	b.WriteString("Sign a browser in, once and within ten minutes (\"bivouac ui\" prints another link):\n\n")
	fmt.Fprintf(&b, "  %s\n\n", link)
	for _, n := range info.Nodes {
		fmt.Fprintf(&b, "  %-8s %s\n", n.Name, n.HTTP)
	}
	fmt.Fprintf(&b, "  %-8s %s\n\n", "API key", info.APIKey)
	b.WriteString("Sandboxes are processes of this machine: isolation = \"none\".\n\n")
	fmt.Fprintf(&b, "Try it:\n\n  curl -X POST -H 'X-Session-API-Key: %s' %s/api/v1/sandboxes\n\n", info.APIKey,
		info.Nodes[0].HTTP)
	fmt.Fprintf(&b, "Ctrl-C stops everything, sandboxes too. Logs are in %s\n", c.layout.logs())
	_, _ = io.WriteString(w, b.String()) // nobody reads a closed terminal
}
