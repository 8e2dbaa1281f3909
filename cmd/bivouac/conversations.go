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
	return groupCommand("conversations", "List, show, follow, continue, pause and delete conversations",
		p.conversationsListCommand(), p.conversationsShowCommand(), p.conversationsAttachCommand(),
		p.conversationsEventsCommand(), p.conversationsSendCommand(),
		p.conversationActCommand("pause", "Pause a conversation after its present step", "/pause", "pauses"),
		p.conversationActCommand("resume", "Let a conversation go on; a paused sandbox is resumed", "/run?wake=true",
			"goes on"),
		p.conversationsDeleteCommand())
}

// ownConversation is the part of a user's conversation that the commands show.
type ownConversation struct {
	ID              string    `json:"id"`
	SandboxID       string    `json:"sandbox_id"`
	SandboxStatus   string    `json:"sandbox_status"`
	ExecutionStatus *string   `json:"execution_status"`
	Repository      *string   `json:"selected_repository"`
	Model           *string   `json:"llm_model"`
	Title           *string   `json:"title"`
	CreatedAt       wire.Time `json:"created_at"`
	UpdatedAt       wire.Time `json:"updated_at"`
}

// status is what the conversation does, or else its sandbox.
func (c ownConversation) status() string {
	if c.ExecutionStatus != nil {
		return *c.ExecutionStatus
	}
	return c.SandboxStatus
}

func (p *program) conversationsListCommand() *cobra.Command {
	var api apiFlags
	var all bool
	var user string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List your conversations; with an operator's key those of all users, or of one",
		Long: `List your conversations, newest first; with an operator's key those of all users by
user and id, or of one user, without what was said in them.` + logged,
		Example: `  bivouac conversations list
  bivouac conversations list --all
  bivouac conversations list --user ada --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if all && user != "" {
				return usagef("give --all or --user NAME")
			}
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			if !all && user == "" {
				query := url.Values{"limit": {"100"}, "include_sub_conversations": {"true"}}
				list, err := listAllBy[ownConversation](cmd, p, c, ownConversationsPath+"/search", query)
				if err != nil {
					return err
				}
				return p.printOwnConversations(&api, list)
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

func (p *program) printOwnConversations(api *apiFlags, list []ownConversation) error {
	if api.asJSON {
		return printJSON(p.stdout, list)
	}
	rows := make([][]string, len(list))
	for i, one := range list {
		rows[i] = []string{one.ID, one.status(), one.SandboxID, formatTime(one.UpdatedAt.Time), deref(one.Title)}
	}
	return printTable(p.stdout, []string{"ID", "STATUS", "SANDBOX", "UPDATED", "TITLE"}, rows)
}

// conversationPath names one conversation, the caller's own without a user. Its id is unique for its
// user only.
func conversationPath(id, user string) string {
	if user == "" {
		return ownConversationsPath + "/" + url.PathEscape(id)
	}
	return conversationsPath + "/" + url.PathEscape(id) + "?" + url.Values{"user": {user}}.Encode()
}

func (p *program) conversationsShowCommand() *cobra.Command {
	var api apiFlags
	var user string
	cmd := &cobra.Command{
		Use:   "show CONVERSATION",
		Short: "Show your conversation, or a user's, without what was said in it",
		Long:  "Show your conversation, or with --user a user's, without what was said in it." + logged,
		Example: `  bivouac conversations show 6f0c4e3b9a7d4c1e8f2b5a6d7c8e9f01
  bivouac conversations show 6f0c4e3b9a7d4c1e8f2b5a6d7c8e9f01 --user ada`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: p.completeConversation(&api),
		RunE: func(cmd *cobra.Command, args []string) error {
			if user == "" {
				_, one, err := p.ownConversation(cmd, &api, args[0])
				if err != nil {
					return err
				}
				return p.printOwnConversation(&api, one)
			}
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
	cmd.Flags().StringVar(&user, "user", "", "whose conversation it is (default: yours)")
	return cmd
}

func (p *program) printOwnConversation(api *apiFlags, one ownConversation) error {
	if api.asJSON {
		return printJSON(p.stdout, one)
	}
	return printFacts(p.stdout, [][2]string{
		{"id", one.ID}, {"status", deref(one.ExecutionStatus)}, {"sandbox", one.SandboxID},
		{"sandbox status", one.SandboxStatus}, {"title", deref(one.Title)}, {"repository", deref(one.Repository)},
		{"model", deref(one.Model)}, {"created", formatTime(one.CreatedAt.Time)},
		{"updated", formatTime(one.UpdatedAt.Time)},
	})
}

func (p *program) conversationsDeleteCommand() *cobra.Command {
	var api apiFlags
	var user string
	var yes bool
	cmd := &cobra.Command{
		Use:   "delete CONVERSATION",
		Short: "Delete your conversation, or a user's, and its sandbox if no other uses it",
		Long: `Delete your conversation, or with --user a user's, as the user would. Its sandbox is
deleted with the workspace if no other conversation uses it.` + logged,
		Example: `  bivouac conversations delete 6f0c4e3b9a7d4c1e8f2b5a6d7c8e9f01
  bivouac conversations delete 6f0c4e3b9a7d4c1e8f2b5a6d7c8e9f01 --user ada`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: p.completeConversation(&api),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			whose := user
			if user == "" {
				whose = "yours"
			}
			if err := p.confirm(yes, "Delete the conversation %s of %s, and its sandbox if no other uses it?", args[0],
				whose); err != nil {
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
	cmd.Flags().StringVar(&user, "user", "", "whose conversation it is (default: yours)")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}
