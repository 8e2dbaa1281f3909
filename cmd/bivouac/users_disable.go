package main

import (
	"net/http"
	"net/url"

	"github.com/spf13/cobra"
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
		var u userInfo
		if err := p.waiting(cmd, c, http.MethodPost, usersPath+"/"+url.PathEscape(args[0])+"/"+verb, nil, &u); err != nil {
			return err
		}
		if api.asJSON {
			return printJSON(p.stdout, u)
		}
		return printUsers(p.stdout, []userInfo{u})
	}
	api.register(cmd)
	api.registerJSON(cmd)
	return cmd
}
