package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/client"
)

// ownConversation returns a conversation of the caller, and the client that asked for it.
func (p *program) ownConversation(
	cmd *cobra.Command, api *apiFlags, id string,
) (c *client.Client, one ownConversation, err error) {
	if c, err = p.client(api); err != nil {
		return nil, one, err
	}
	var list []*ownConversation
	path := ownConversationsPath + "?" + url.Values{"ids": {id}}.Encode()
	if err := p.waiting(cmd, c, http.MethodGet, path, nil, &list); err != nil {
		return nil, one, err
	}
	if len(list) != 1 || list[0] == nil {
		return nil, one, errNoConversation(id)
	}
	return c, *list[0], nil
}

func errNoConversation(id string) error {
	return fmt.Errorf("you have no conversation %q (bivouac conversations list)", id)
}

func (p *program) conversationsAttachCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "attach CONVERSATION",
		Short: "Show what was said and done in your conversation, and follow it",
		Long: `Show what was said and done in your conversation. While it runs, follow it to the end
of its run. Where its sandbox is gone, show the stored events.
` + exitCodesOfRun,
		Example: `  bivouac conversations attach 6f0c4e3b9a7d4c1e8f2b5a6d7c8e9f01
  bivouac conversations attach --json 6f0c4e3b9a7d4c1e8f2b5a6d7c8e9f01`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: p.completeConversation(&f.api),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return err
			}
			c, err := p.client(&f.api)
			if err != nil {
				return err
			}
			return p.newFollower(c, f).attach(cmd.Context(), args[0])
		},
	}
	f.register(cmd)
	return cmd
}

func (p *program) conversationsSendCommand() *cobra.Command {
	var f runFlags
	var detach bool
	cmd := &cobra.Command{
		Use:   "send CONVERSATION TEXT",
		Short: "Send a message to your conversation, and follow what comes of it",
		Long: `Send a message to your conversation, and follow what comes of it. A paused sandbox is
resumed.
` + exitCodesOfRun,
		Example: `  bivouac conversations send 6f0c4e3b9a7d4c1e8f2b5a6d7c8e9f01 "And now the documents"
  bivouac conversations send --detach 6f0c4e3b9a7d4c1e8f2b5a6d7c8e9f01 "Go on"`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: p.completeConversation(&f.api),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return err
			}
			if strings.TrimSpace(args[1]) == "" {
				return usagef("the message is empty")
			}
			c, err := p.client(&f.api)
			if err != nil {
				return err
			}
			return p.newFollower(c, f).send(cmd.Context(), args[0], args[1], detach)
		},
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&detach, "detach", false, "do not follow it")
	return cmd
}

// find looks a conversation up.
func (f *runFollower) find(id string) error {
	var list []*ownConversation
	if err := f.call(http.MethodGet, ownConversationsPath+"?"+url.Values{"ids": {id}}.Encode(), nil, &list); err != nil {
		return err
	}
	if len(list) != 1 || list[0] == nil {
		return errNoConversation(id)
	}
	f.conversation, f.sandbox = list[0].ID, list[0].SandboxID
	f.gone = list[0].SandboxStatus == string(fsm.SandboxMissing)
	return nil
}

// attach shows a conversation from its beginning.
func (f *runFollower) attach(ctx context.Context, id string) (err error) {
	defer f.begin(ctx)(&err)
	if err := f.find(id); err != nil {
		return err
	}
	if f.gone {
		stored := storedEvents{p: f.p, conversation: f.conversation, asJSON: f.flags.api.asJSON,
			get: func(path string, out any) error { return f.call(http.MethodGet, path, nil, out) }}
		return stored.show()
	}
	return f.follow(mark{})
}

// send sends a message and follows what comes of it.
func (f *runFollower) send(ctx context.Context, id, text string, detach bool) (err error) {
	defer f.begin(ctx)(&err)
	if err := f.find(id); err != nil {
		return err
	}
	path := ownConversationsPath + "/" + url.PathEscape(f.conversation) + "/send-message"
	if err := f.call(http.MethodPost, path, textMessage(text), nil, "Idempotency-Key", rand.Text()); err != nil {
		return err
	}
	if detach {
		return f.p.done(&f.flags.api, map[string]string{"conversation": f.conversation},
			"sent; follow it with: bivouac conversations attach %s", f.conversation)
	}
	var from mark
	err = f.repeat(func() (err error) {
		from, err = f.newestEvent(f.ctx, url.Values{"kind": {event.KindMessage}, "source": {event.SourceUser}})
		return err
	})
	if err != nil {
		return err
	}
	f.waits = true
	return f.follow(from)
}

// conversationActCommand is a command that asks the agent server for one thing.
func (p *program) conversationActCommand(name, short, path, done string) *cobra.Command {
	var api apiFlags
	cmd := &cobra.Command{
		Use:               name + " CONVERSATION",
		Short:             short,
		Long:              short + ".",
		Example:           "  bivouac conversations " + name + " 6f0c4e3b9a7d4c1e8f2b5a6d7c8e9f01",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: p.completeConversation(&api),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, one, err := p.ownConversation(cmd, &api, args[0])
			if err != nil {
				return err
			}
			at := agentPath(one.SandboxID, "/api/conversations/"+url.PathEscape(one.ID)+path)
			err = p.waiting(cmd, c, http.MethodPost, at, nil, nil)
			var refused *client.Error
			if errors.As(err, &refused) && refused.Status == http.StatusConflict && one.status() == statusRunning {
				err = nil // it runs already
			}
			if err != nil {
				return err
			}
			return p.done(&api, map[string]string{"conversation": one.ID}, "conversation %s %s", one.ID, done)
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	return cmd
}
