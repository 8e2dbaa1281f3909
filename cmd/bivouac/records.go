package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/httpapi/apikey"
)

// recordsCommand shows and clears what the members know of each other's disks. It asks a node on this
// machine over the peer port, because no leader may be there.
func (p *program) recordsCommand() *cobra.Command {
	var api apiFlags
	var configFile, forget string
	var yes bool
	cmd := &cobra.Command{
		Use:   "records",
		Short: "Show or clear what members know of each other's disks",
		Long: `Show what the node on this machine knows of the members' disks: how often each
was started, and up to which log entry it has acknowledged. A member refuses to be
joined by a disk that has less.

With --clear all members that answer forget it for one node, so that its disk starts
again. Do that only if the disk is the newest one (bivouac runbook disk, case G).`,
		Example: "  bivouac operator records --config /etc/bivouac/node.hcl\n  bivouac operator records --config " +
			"/etc/bivouac/node.hcl --clear n2",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(configFile)
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			if forget != "" {
				if err := p.confirm(yes, "Have all members forget what they know of the disk of %q?", forget); err != nil {
					return err
				}
				value, err := p.apiKey(&api)
				if err != nil {
					return err
				}
				if key, err := apikey.Parse(value); err == nil {
					ctx = cluster.AsOperator(ctx, cluster.Operator{Lookup: key.Lookup, Key: key.Value})
				}
			}
			return p.records(ctx, cfg, forget)
		},
	}
	api.register(cmd)
	cmd.Flags().StringVar(&configFile, "config", "", "the configuration of a node on this machine")
	cmd.Flags().StringVar(&forget, "clear", "", "the node whose records all members forget")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func (p *program) records(ctx context.Context, cfg Config, forget string) error {
	client, err := peerClient(cfg)
	if err != nil {
		return err
	}
	defer client.Close()
	records, asked, err := client.Records(ctx, forget)
	if err != nil {
		return err
	}
	if forget != "" {
		others := cmp.Or(strings.Join(asked, ", "), "no other member answers")
		if _, err := fmt.Fprintf(p.stdout, "cleared here, and on: %s\n\n", others); err != nil {
			return err
		}
	}
	slices.SortFunc(records, func(a, b cluster.MemberRecord) int { return cmp.Compare(a.ID, b.ID) })
	rows := make([][]string, len(records))
	for i, r := range records {
		rows[i] = []string{r.ID, fmt.Sprint(r.Starts), fmt.Sprint(r.Acked), r.Address}
	}
	return printTable(p.stdout, []string{"MEMBER", "STARTS", "ACKNOWLEDGED", "PEER ADDRESS"}, rows)
}
