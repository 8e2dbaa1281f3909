package main

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/httpapi/wire"
)

const protocolPath = operatorPath + "protocol"

func (p *program) protocolCommand() *cobra.Command {
	cmd := p.protocolShowCommand("protocol")
	cmd.AddCommand(p.protocolShowCommand("show"), p.protocolSetCommand())
	return cmd
}

func (p *program) protocolShowCommand(use string) *cobra.Command {
	var api apiFlags
	path := "protocol"
	if use != path {
		path += " " + use
	}
	cmd := &cobra.Command{
		Use:   use,
		Short: "Show the cluster's protocol version, and what each node knows",
		Long: `Show the protocol version that the cluster uses, and the newest that the program of
each node knows. A new cluster takes the newest. After an upgrade the version stays
until "bivouac operator protocol set" raises it, and until then every node can go
back to the former program. See "bivouac runbook upgrade".`,
		Example: "  bivouac operator " + path + "\n  bivouac operator " + path + " --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			var info wire.Protocol
			if err := p.waiting(cmd, c, http.MethodGet, protocolPath, nil, &info); err != nil {
				return err
			}
			if api.asJSON {
				return printJSON(p.stdout, info)
			}
			return printProtocol(p.stdout, info)
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	return cmd
}

func printProtocol(w io.Writer, info wire.Protocol) error {
	rows := make([][]string, len(info.Nodes))
	for i, n := range info.Nodes {
		known := "does not answer"
		if n.KnownVersion != nil {
			known = strconv.Itoa(*n.KnownVersion)
		}
		rows[i] = []string{n.Name, known}
	}
	if _, err := fmt.Fprintf(w, "the cluster uses protocol version %d\n\n", info.Version); err != nil {
		return err
	}
	if err := printTable(w, []string{"NODE", "KNOWS UP TO"}, rows); err != nil {
		return err
	}
	for _, v := range info.Brings {
		if _, err := fmt.Fprintf(w, "\nversion %d brings: %s\n", v.Version,
			cmp.Or(v.Brings, "see CHANGELOG.md")); err != nil {
			return err
		}
	}
	next := ""
	switch {
	case info.Newest == nil:
	case *info.Newest > info.Version:
		next = fmt.Sprintf(
			"every node knows version %d: \"bivouac operator protocol set %d\" puts it in force, and ends the way back",
			*info.Newest,
			*info.Newest,
		)
	case len(info.Brings) > 0:
		next = "not every node knows a newer version: upgrade the others first"
	}
	if next == "" {
		return nil
	}
	_, err := fmt.Fprintf(w, "\n%s\n", next)
	return err
}

func (p *program) protocolSetCommand() *cobra.Command {
	var api apiFlags
	var yes bool
	cmd := &cobra.Command{
		Use:   "set VERSION",
		Short: "Raise the cluster's protocol version, for good",
		Long: `Raise the protocol version of the cluster, which the new functions of an upgrade wait
for. It can't be undone: from then on no node starts with a program that does not
know the version. It is refused while a node does not know it or does not answer.
See "bivouac runbook upgrade".`,
		Example: "  bivouac operator protocol set 7\n  bivouac operator protocol set 7 --yes",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			version, err := strconv.Atoi(args[0])
			if err != nil || version < 1 {
				return usagef("%q is not a protocol version", args[0])
			}
			if err := p.confirm(yes,
				"Raise the cluster's protocol version to %d for good? No node can go back to an older program afterwards.",
				version); err != nil {
				return err
			}
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			var info wire.Protocol
			if err := p.waiting(cmd, c, http.MethodPut, protocolPath, map[string]any{"version": version}, &info); err != nil {
				return err
			}
			return p.done(&api, info, "the cluster uses protocol version %d", info.Version)
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}
