package main

import (
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/httpapi/wire"
)

// conversationsPath is the operators' route to the conversations of all users.
const conversationsPath = "/api/v1/operator/app-conversations"

func (p *program) conversationsCommand() *cobra.Command {
	return groupCommand("conversations", "List, show and delete any user's conversations",
		p.conversationsListCommand(), p.conversationsShowCommand(), p.conversationsDeleteCommand())
}

func (p *program) conversationsListCommand() *cobra.Command {
	var api apiFlags
	var all bool
	var user string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the conversations of all users, or of one",
		Long: `List the conversations of all users by user and id, or of one user, newest first,
without what was said in them.` + logged,
		Example: `  bivouac conversations list --all
  bivouac conversations list --user ada --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if all == (user != "") {
				return usagef("give --all or --user NAME")
			}
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			list, err := listAll[wire.OwnedConversation](cmd, p, c, conversationsPath, user)
			switch {
			case err != nil:
				return err
			case api.asJSON:
				return printJSON(p.stdout, list)
			}
			rows := make([][]string, len(list))
			for i, one := range list {
				rows[i] = []string{
					one.ID,
					one.UserID,
					one.SandboxID,
					formatTime(one.CreatedAt.Time),
					formatTime(one.UpdatedAt.Time),
					deref(one.Title),
				}
			}
			return printTable(p.stdout, []string{"ID", "USER", "SANDBOX", "CREATED", "UPDATED", "TITLE"}, rows)
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "the conversations of all users")
	cmd.Flags().StringVar(&user, "user", "", "the conversations of this user")
	return cmd
}

// conversationPath names one conversation. Its id is unique for its user only.
func conversationPath(id, user string) string {
	return conversationsPath + "/" + url.PathEscape(id) + "?" + url.Values{"user": {user}}.Encode()
}

func (p *program) conversationsShowCommand() *cobra.Command {
	var api apiFlags
	var user string
	cmd := &cobra.Command{
		Use:     "show CONVERSATION --user NAME",
		Short:   "Show a user's conversation, without what was said in it",
		Long:    "Show a user's conversation, without what was said in it." + logged,
		Example: "  bivouac conversations show 6f0c4e3b9a7d4c1e8f2b5a6d7c8e9f01 --user ada",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			var one wire.OwnedConversation
			if err := p.waiting(cmd, c, http.MethodGet, conversationPath(args[0], user), nil, &one); err != nil {
				return err
			}
			if api.asJSON {
				return printJSON(p.stdout, one)
			}
			return printFacts(p.stdout, [][2]string{
				{"id", one.ID}, {"user", one.UserID}, {"sandbox", one.SandboxID}, {"title", deref(one.Title)},
				{"created", formatTime(one.CreatedAt.Time)}, {"updated", formatTime(one.UpdatedAt.Time)},
			})
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	cmd.Flags().StringVar(&user, "user", "", "whose conversation it is")
	mustRequire(cmd, "user")
	return cmd
}

func (p *program) conversationsDeleteCommand() *cobra.Command {
	var api apiFlags
	var user string
	var yes bool
	cmd := &cobra.Command{
		Use:   "delete CONVERSATION --user NAME",
		Short: "Delete a user's conversation, and its sandbox if no other uses it",
		Long: `Delete a user's conversation, as the user would. Its sandbox is deleted with the
workspace if no other conversation uses it.` + logged,
		Example: "  bivouac conversations delete 6f0c4e3b9a7d4c1e8f2b5a6d7c8e9f01 --user ada",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			if err := p.confirm(yes, "Delete the conversation %s of %s, and its sandbox if no other uses it?", args[0],
				user); err != nil {
				return err
			}
			if err := p.waiting(cmd, c, http.MethodDelete, conversationPath(args[0], user), nil, nil); err != nil {
				return err
			}
			return p.done(&api, map[string]string{"conversation": args[0]}, "conversation %s is deleted", args[0])
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	cmd.Flags().StringVar(&user, "user", "", "whose conversation it is")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	mustRequire(cmd, "user")
	return cmd
}
