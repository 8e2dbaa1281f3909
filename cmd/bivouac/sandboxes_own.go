package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/httpapi/client"
	"bivouac.dev/bivouac/httpapi/wire"
)

// ownSandbox is the part of an own sandbox that the commands show. It has no key.
type ownSandbox struct {
	ID           string       `json:"id"`
	SpecID       string       `json:"sandbox_spec_id"`
	Status       string       `json:"status"`
	StatusDetail *string      `json:"status_detail"`
	CreatedAt    wire.Time    `json:"created_at"`
	URLs         []exposedURL `json:"-"`
}

// exposedURL is how a port of a sandbox is reached. Its fragment may open the page once.
type exposedURL struct {
	Name string `json:"name"`
	URL  string `json:"url"`
	Port int    `json:"port"`
}

// UnmarshalJSON keeps the URLs, which nothing prints with the rest.
func (s *ownSandbox) UnmarshalJSON(text []byte) error {
	type plain ownSandbox
	var in struct {
		plain
		URLs []exposedURL `json:"exposed_urls"`
	}
	err := json.Unmarshal(text, &in)
	*s = ownSandbox(in.plain)
	s.URLs = in.URLs
	return err
}

func (p *program) listOwnSandboxes(cmd *cobra.Command, c *client.Client, api *apiFlags) error {
	list, err := listAllBy[ownSandbox](cmd, p, c, ownSandboxesPath+"/search", url.Values{"limit": {"100"}})
	if err != nil {
		return err
	}
	if api.asJSON {
		return printJSON(p.stdout, list)
	}
	rows := make([][]string, len(list))
	for i, s := range list {
		rows[i] = []string{s.ID, s.SpecID, s.Status, formatTime(s.CreatedAt.Time)}
	}
	return printTable(p.stdout, []string{"ID", "SPEC", "STATUS", "CREATED"}, rows)
}

// ownSandbox returns a sandbox of the caller.
func (p *program) ownSandbox(cmd *cobra.Command, c *client.Client, id string) (ownSandbox, error) {
	var list []*ownSandbox
	path := ownSandboxesPath + "?" + url.Values{"id": {id}}.Encode()
	if err := p.waiting(cmd, c, http.MethodGet, path, nil, &list); err != nil {
		return ownSandbox{}, err
	}
	if len(list) != 1 || list[0] == nil {
		return ownSandbox{}, fmt.Errorf("you have no sandbox %q (bivouac sandboxes list)", id)
	}
	return *list[0], nil
}

func (p *program) showOwnSandbox(cmd *cobra.Command, c *client.Client, api *apiFlags, id string) error {
	s, err := p.ownSandbox(cmd, c, id)
	if err != nil {
		return err
	}
	if api.asJSON {
		return printJSON(p.stdout, s)
	}
	return printFacts(p.stdout, [][2]string{
		{"id", s.ID}, {"spec", s.SpecID}, {"status", s.Status}, {"detail", deref(s.StatusDetail)},
		{"created", formatTime(s.CreatedAt.Time)},
	})
}

// isNoOperator reports whether a node refused because the key is a user's.
func isNoOperator(err error) bool {
	var refused *client.Error
	return errors.As(err, &refused) && refused.Status == http.StatusForbidden
}

func (p *program) sandboxesOpenCommand() *cobra.Command {
	var api apiFlags
	cmd := &cobra.Command{
		Use:   "open SANDBOX [PORT]",
		Short: "Print an address that opens the page of a port of your sandbox",
		Long: `Print an address that opens the page of a port of your sandbox in a browser, by default
VSCODE's, once and within some minutes. No browser is started with it: every user of
the machine can read the arguments of programs.`,
		Example: `  bivouac sandboxes open 5pYq0XbLr2kTc8Vn
  bivouac sandboxes open 5pYq0XbLr2kTc8Vn WORKER_1`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: p.completeSandbox(&api),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			s, err := p.ownSandbox(cmd, c, args[0])
			if err != nil {
				return err
			}
			port := "VSCODE"
			if len(args) == 2 {
				port = args[1]
			}
			for _, one := range s.URLs {
				if one.Name == port {
					return p.done(&api, one, "%s", printable(one.URL))
				}
			}
			return fmt.Errorf("the sandbox is %s and has no page of %s now", s.Status, port)
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	return cmd
}

// completing bounds the completion of an id.
const completing = 3 * time.Second

// completion completes the first argument with what list returns.
func (p *program) completion(
	api *apiFlags, list func(context.Context, *client.Client) ([]cobra.Completion, error),
) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		c, err := p.client(api)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completing)
		defer cancel()
		found, err := list(ctx, c)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

func (p *program) completeConversation(api *apiFlags) cobra.CompletionFunc {
	return p.completion(api, func(ctx context.Context, c *client.Client) (found []cobra.Completion, err error) {
		var page wire.Page[ownConversation]
		err = c.Call(ctx, http.MethodGet, ownConversationsPath+"/search?limit=100", nil, &page)
		for _, one := range page.Items {
			found = append(found, cobra.CompletionWithDesc(one.ID, printable(deref(one.Title))))
		}
		return found, err
	})
}

func (p *program) completeSandbox(api *apiFlags) cobra.CompletionFunc {
	return p.completion(api, func(ctx context.Context, c *client.Client) (found []cobra.Completion, err error) {
		var page wire.Page[ownSandbox]
		err = c.Call(ctx, http.MethodGet, ownSandboxesPath+"/search?limit=100", nil, &page)
		for _, one := range page.Items {
			found = append(found, cobra.CompletionWithDesc(one.ID, one.Status+" "+printable(one.SpecID)))
		}
		return found, err
	})
}

// printLog copies a log until it ends; who is no operator gets that of own, "" for none. An
// interrupt is an ordinary end of one that is followed.
func (p *program) printLog(ctx context.Context, c *client.Client, path, own string) error {
	log, err := c.Follow(ctx, path)
	if own != "" && isNoOperator(err) {
		log, err = c.Follow(ctx, own)
	}
	if err != nil {
		return err
	}
	defer log.Close()
	if _, err := io.Copy(p.stdout, printableLog(log, p.stdout)); err != nil && !errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("reading the log from %s: %w", c.Address, err)
	}
	return nil
}
