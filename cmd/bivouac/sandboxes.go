package main

import (
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/httpapi/wire"
)

// sandboxesPath is the operators' route to the sandboxes of all users.
const sandboxesPath = "/api/v1/operator/sandboxes"

func (p *program) sandboxesCommand() *cobra.Command {
	return groupCommand("sandboxes",
		"List, show, use, pause, resume and delete sandboxes: your own, or with an operator's key any user's",
		p.sandboxesListCommand(), p.sandboxesShowCommand(), p.sandboxesLogsCommand(), p.sandboxesExecCommand(),
		p.sandboxesCopyCommand(), p.sandboxesOpenCommand(),
		p.sandboxActCommand("pause", "Pause a sandbox", http.MethodPost, "/pause", "pauses"),
		p.sandboxActCommand("resume", "Resume a sandbox, within its user's limits", http.MethodPost, "/resume",
			"resumes"),
		p.sandboxActCommand("rotate-key", "Replace the key of a sandbox; a running one starts again",
			http.MethodPost, "/rotate-key", "gets another key"),
		p.sandboxActCommand("delete", "Delete a sandbox and its workspace", http.MethodDelete, "", "is deleted"),
		p.sandboxesShareCommand(), p.sandboxesSharesCommand(), p.sandboxesUnshareCommand())
}

func (p *program) sandboxesListCommand() *cobra.Command {
	var api apiFlags
	var all bool
	var user string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List your sandboxes; with an operator's key those of all users, or of one",
		Long: `List your sandboxes, newest first; with an operator's key those of all users by id,
or of one user. The nodes log each such call with the id of the key.`,
		Example: `  bivouac sandboxes list
  bivouac sandboxes list --all
  bivouac sandboxes list --user ada --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if all && user != "" {
				return usagef("give --all or --user NAME")
			}
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			if !all && user == "" {
				return p.listOwnSandboxes(cmd, c, &api)
			}
			list, err := listAll[wire.OwnedSandbox](cmd, p, c, sandboxesPath, user)
			if err != nil {
				return err
			}
			if api.asJSON {
				return printJSON(p.stdout, list)
			}
			rows := make([][]string, len(list))
			for i, s := range list {
				rows[i] = []string{s.ID, s.UserID, s.SpecID, string(s.Status), string(s.Isolation), formatTime(s.CreatedAt.Time)}
			}
			return printTable(p.stdout, []string{"ID", "USER", "SPEC", "STATUS", "ISOLATION", "CREATED"}, rows)
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "the sandboxes of all users")
	cmd.Flags().StringVar(&user, "user", "", "the sandboxes of this user")
	return cmd
}

// sandboxActCommand is a command that does one thing to a sandbox of any user.
func (p *program) sandboxActCommand(name, short, method, suffix, done string) *cobra.Command {
	var api apiFlags
	var yes bool
	cmd := &cobra.Command{
		Use:   name + " SANDBOX",
		Short: short,
		Long: short + `: your own, or with an operator's key any user's. The nodes log an
operator's call with the id of the key.`,
		Example:           "  bivouac sandboxes " + name + " 5pYq0XbLr2kTc8Vn",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: p.completeSandbox(&api),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			if method == http.MethodDelete {
				if err := p.confirm(yes, "Delete sandbox %s and its workspace?", args[0]); err != nil {
					return err
				}
			}
			if err := p.ofEither(cmd, c, method, "/"+url.PathEscape(args[0])+suffix, nil); err != nil {
				return err
			}
			return p.done(&api, map[string]string{"sandbox": args[0]}, "sandbox %s %s", args[0], done)
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	if method == http.MethodDelete {
		cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	}
	return cmd
}
