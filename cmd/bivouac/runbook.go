package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/ops/runbooks"
)

func (p *program) runbookCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "runbook [NAME|ALERT]",
		Short: "Print a runbook: what to do when something is wrong",
		Long: `Print a runbook in Markdown, by its name or by the name of an alert. Without a name,
list the runbooks. They are part of the program, and need neither a cluster nor a network.`,
		Example: `  bivouac runbook
  bivouac runbook disk | less
  bivouac runbook BivouacVaultUnavailable`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeRunbook,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return p.listRunbooks(asJSON)
			}
			return p.printRunbook(args[0], asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// allRunbooks lists the runbooks, those of alerts last.
func allRunbooks() ([]runbooks.Runbook, error) {
	list, err := runbooks.List()
	if err != nil {
		return nil, err
	}
	alerts, err := runbooks.Alerts()
	return append(list, alerts...), err
}

// completeRunbook completes the name of a runbook, with its title beside it.
func completeRunbook(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	list, err := allRunbooks()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names := make([]cobra.Completion, len(list))
	for i, r := range list {
		names[i] = cobra.CompletionWithDesc(r.Name, r.Title)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (p *program) listRunbooks(asJSON bool) error {
	list, err := allRunbooks()
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(p.stdout, list)
	}
	rows := make([][]string, len(list))
	for i, r := range list {
		rows[i] = []string{r.Name, r.Title}
	}
	return printTable(p.stdout, []string{"NAME", "ABOUT"}, rows)
}

func (p *program) printRunbook(name string, asJSON bool) error {
	page, err := runbooks.Read(strings.TrimSuffix(name, ".md"))
	var unknown *runbooks.UnknownError
	if errors.As(err, &unknown) {
		return usagef("%w", err)
	}
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(p.stdout, page)
	}
	_, err = fmt.Fprint(p.stdout, page.Text)
	return err
}
