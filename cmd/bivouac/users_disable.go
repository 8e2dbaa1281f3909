package main

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/httpapi/wire"
)

func (p *program) usersDisableCommand() *cobra.Command {
	return p.usersChangeCommand("disable", &cobra.Command{
		Short: "Lock a user out and pause the user's sandboxes",
		Long: `Lock a user out. The user's API keys, the keys of the user's sandboxes and the
browser's cookies stop working on every node, open streams end, open starts fail
and running sandboxes are paused. Nothing is deleted, and "bivouac users enable"
takes it back. The runbook is "bivouac runbook leaver".`,
		Example: "  bivouac users disable alice",
	})
}

func (p *program) usersEnableCommand() *cobra.Command {
	return p.usersChangeCommand("enable", &cobra.Command{
		Short: "Let a disabled user in again",
		Long: `Let a user in again that "bivouac users disable" has locked out. The user's keys
work again; the sandboxes stay paused until they are resumed.`,
		Example: "  bivouac users enable alice",
	})
}

// usersChangeCommand completes a command that posts to a user's route of the same name.
func (p *program) usersChangeCommand(verb string, cmd *cobra.Command) *cobra.Command {
	var api apiFlags
	cmd.Use, cmd.Args = verb+" NAME", cobra.ExactArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := p.client(&api)
		if err != nil {
			return err
		}
		var u wire.User
		if err := p.waiting(cmd, c, http.MethodPost, usersPath+"/"+url.PathEscape(args[0])+"/"+verb, nil, &u); err != nil {
			return err
		}
		if api.asJSON {
			return printJSON(p.stdout, u)
		}
		return printUsers(p.stdout, []wire.User{u})
	}
	api.register(cmd)
	api.registerJSON(cmd)
	return cmd
}

func (p *program) usersDeleteCommand() *cobra.Command {
	var api apiFlags
	var purge, yes bool
	cmd := &cobra.Command{
		Use:   "delete NAME --purge",
		Short: "Delete a user with everything that is the user's",
		Long: `Delete a user with everything that is the user's, for good: API keys, settings,
git providers and secrets, conversations, and sandboxes with their workspaces. Jobs
and workspaces go within minutes. The command may be repeated. "bivouac users
disable" locks a user out and deletes nothing.`,
		Example: "  bivouac users delete --purge alice\n  bivouac users delete --purge alice --yes",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !purge {
				return usagef("--purge is required: everything of the user is deleted for good")
			}
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			users, err := p.users(cmd, c)
			if err != nil {
				return err
			}
			i := slices.IndexFunc(users, func(u wire.User) bool { return u.ID == args[0] })
			if i < 0 {
				_, err = fmt.Fprintf(p.stdout, "there is no user %s\n", args[0])
				return err
			}
			if err := p.confirm(yes, "Delete the user %q with %d sandboxes, their workspaces, "+
				"all conversations and secrets for good?",
				args[0], users[i].Usage.Total); err != nil {
				return err
			}
			err = p.waiting(cmd, c, http.MethodDelete, usersPath+"/"+url.PathEscape(args[0]), nil, nil)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(p.stdout, "the user %s is deleted\n", args[0])
			return err
		},
	}
	api.register(cmd)
	cmd.Flags().BoolVar(&purge, "purge", false, "delete everything of the user")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}
