package main

import (
	"cmp"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/httpapi/wire"
)

// usagePath is the operators' route to what models were used for.
const usagePath = operatorPath + "usage"

func (p *program) operatorUsageCommand() *cobra.Command {
	var api apiFlags
	var by, user string
	var limit int
	cmd := &cobra.Command{
		Use:   "usage",
		Short: "Show what models were used for: tokens, costs, errors and time",
		Long: `Show what models were used for through the model gateway, by user, model or
conversation, the most expensive first. Costs are in US dollars, by the prices at
the time (llm { prices }). The last seconds of each node are missing. What deleted
conversations used stays with their users. If a model is not reached or costs too
much, see "bivouac runbook models".`,
		Example: `  bivouac operator usage
  bivouac operator usage --by model --user ada
  bivouac operator usage --by conversation --limit 20 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case !slices.Contains([]string{"user", "model", "conversation"}, by):
				return usagef("--by: %q must be user, model or conversation", by)
			case limit < 0:
				return usagef("--limit: must not be negative")
			}
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			list, err := listAllBy[wire.ModelUsage](cmd, p, c, usagePath, url.Values{"by": {by}, "user": {user}})
			if err != nil {
				return err
			}
			slices.SortStableFunc(list, func(a, b wire.ModelUsage) int {
				return cmp.Or(cmp.Compare(b.Cost, a.Cost), cmp.Compare(b.InputTokens+b.OutputTokens, a.InputTokens+a.OutputTokens))
			})
			if limit > 0 && len(list) > limit {
				list = list[:limit]
			}
			if api.asJSON {
				return printJSON(p.stdout, list)
			}
			return printUsage(p.stdout, by, list)
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	cmd.Flags().StringVar(&by, "by", "user", "user, model or conversation")
	cmd.Flags().StringVar(&user, "user", "", "what this user used alone")
	cmd.Flags().IntVar(&limit, "limit", 0, "show the most expensive alone; 0 shows all")
	return cmd
}

func printUsage(w io.Writer, by string, list []wire.ModelUsage) error {
	heads := map[string][]string{
		"user":         {"USER"},
		"model":        {"MODEL"},
		"conversation": {"CONVERSATION", "USER", "MODEL"},
	}[by]
	heads = append(heads, "REQUESTS", "ERRORS", "INPUT", "CACHED", "OUTPUT", "MEAN TIME", "COST")
	if by == "user" {
		heads = append(heads, "TODAY")
	}
	rows := make([][]string, len(list))
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	for i, u := range list {
		switch by {
		case "user":
			rows[i] = []string{deref(u.UserID)}
		case "model":
			rows[i] = []string{deref(u.Model)}
		default:
			rows[i] = []string{deref(u.ConversationID), deref(u.UserID), deref(u.Model)}
		}
		rows[i] = append(rows[i], number(u.Requests), number(u.Errors), number(u.InputTokens), number(u.CachedTokens),
			number(u.OutputTokens),
			fmt.Sprintf("%.1fs", u.MeanSeconds), fmt.Sprintf("$%.2f", u.Cost))
		if u.CostToday != nil {
			rows[i] = append(rows[i], fmt.Sprintf("$%.2f", *u.CostToday))
		}
	}
	return printTable(w, heads, rows)
}
