package main

import (
	"net/url"

	"github.com/spf13/cobra"
)

func (p *program) monitorCommand() *cobra.Command {
	var api apiFlags
	var level, node string
	cmd := &cobra.Command{
		Use:   "monitor",
		Short: "Follow the log of a node",
		Long: `Follow the log of a node from now on, at a level of one's own: the node's own log
and its level stay as they are. Lines that this program does not read in time are
dropped, and counted in a line. It ends with Ctrl-C, or when the node stops.`,
		Example: `  bivouac monitor
  bivouac monitor --log-level debug --node n2
  bivouac monitor --log-level warn --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := oneOf("debug", "info", "warn", "error")(level); err != nil {
				return usagef("--log-level: %w", err)
			}
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			return p.printLog(cmd.Context(), c, operatorPath+"log?"+logQuery(node, level, api.asJSON), "")
		},
	}
	api.register(cmd)
	cmd.Flags().StringVar(&level, "log-level", "info", "the lowest level: debug, info, warn or error")
	cmd.Flags().StringVar(&node, "node", "", "the node whose log it is (default: the one that answers)")
	cmd.Flags().BoolVar(&api.asJSON, "json", false, "print lines as JSON")
	return cmd
}

func logQuery(node, level string, asJSON bool) string {
	query := url.Values{"level": {level}}
	if node != "" {
		query.Set("node", node)
	}
	if asJSON {
		query.Set("format", "json")
	}
	return query.Encode()
}
