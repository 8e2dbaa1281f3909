package main

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/httpapi/client"
	"bivouac.dev/bivouac/httpapi/wire"
)

// ownSandboxesPath is the owner's route to a sandbox.
const ownSandboxesPath = "/api/v1/sandboxes"

func (p *program) sandboxesShareCommand() *cobra.Command {
	var api apiFlags
	var lasts time.Duration
	cmd := &cobra.Command{
		Use:   "share SANDBOX PORT",
		Short: "Share a port of your own sandbox until a time",
		Long: `Share a port of your own sandbox until a time. The key is a user's. The link is
printed once and stored nowhere. It opens the page of that port and nothing else,
and a new key of the sandbox ends it.`,
		Example:           "  bivouac sandboxes share 5pYq0XbLr2kTc8Vn WORKER_1 --for 2h",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: p.completeSandbox(&api),
		RunE: func(cmd *cobra.Command, args []string) error {
			if lasts <= 0 {
				return usagef("--for must be positive, is %s", lasts)
			}
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			var share wire.CreatedShare
			in := map[string]time.Time{"expires_at": time.Now().Add(lasts).UTC()}
			path := ownSandboxesPath + "/" + url.PathEscape(args[0]) + "/ports/" + url.PathEscape(args[1]) + "/share"
			if err := p.waiting(cmd, c, http.MethodPost, path, in, &share); err != nil {
				return err
			}
			return p.done(&api, share, "%s\nuntil %s, share %s", share.URL, formatTime(share.ExpiresAt.Time), share.ID)
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	cmd.Flags().DurationVar(&lasts, "for", 24*time.Hour, "how long, 720h at most")
	return cmd
}

func (p *program) sandboxesSharesCommand() *cobra.Command {
	var api apiFlags
	cmd := &cobra.Command{
		Use:   "shares SANDBOX",
		Short: "List the shares in force of a sandbox",
		Long: `List the shares in force of a sandbox: with an operator's key of any user's, with
a user's key of an own one. The links are stored nowhere and not shown.`,
		Example: "  bivouac sandboxes shares 5pYq0XbLr2kTc8Vn",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			var page wire.Page[wire.Share]
			if err := p.ofEither(cmd, c, http.MethodGet, "/"+url.PathEscape(args[0])+"/shares", &page); err != nil {
				return err
			}
			if api.asJSON {
				return printJSON(p.stdout, page.Items)
			}
			rows := make([][]string, len(page.Items))
			for i, s := range page.Items {
				created := ""
				if s.CreatedAt != nil {
					created = formatTime(s.CreatedAt.Time)
				}
				rows[i] = []string{s.ID, s.Port, created, formatTime(s.ExpiresAt.Time)}
			}
			return printTable(p.stdout, []string{"ID", "PORT", "CREATED", "EXPIRES"}, rows)
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	return cmd
}

func (p *program) sandboxesUnshareCommand() *cobra.Command {
	var api apiFlags
	var id string
	cmd := &cobra.Command{
		Use:   "unshare SANDBOX PORT",
		Short: "Revoke the shares of a sandbox's port, or one of them",
		Long: `Revoke the shares of a sandbox's port, or one of them: with an operator's key of
any user's sandbox, with a user's key of an own one. Pages and streams that they
opened end.`,
		Example: `  bivouac sandboxes unshare 5pYq0XbLr2kTc8Vn WORKER_1
  bivouac sandboxes unshare 5pYq0XbLr2kTc8Vn WORKER_1 --id 0pG2sYb8MzQ4Lr1T`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: p.completeSandbox(&api),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			path := "/" + url.PathEscape(args[0]) + "/ports/" + url.PathEscape(args[1]) + "/share?" + url.Values{
				"id": {id},
			}.Encode()
			if err := p.ofEither(cmd, c, http.MethodDelete, path, nil); err != nil {
				return err
			}
			return p.done(&api, map[string]string{"sandbox": args[0], "port": args[1], "share": id},
				"sandbox %s shares %s no more", args[0], args[1])
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	cmd.Flags().StringVar(&id, "id", "", "the id of one share (default: all of the port)")
	return cmd
}

// ofEither calls the operators' route of a sandbox and, where the key is a user's, the owner's.
func (p *program) ofEither(cmd *cobra.Command, c *client.Client, method, path string, out any) error {
	return withProgress(cmd.Context(), p.stderr, "waiting for "+c.Address, func(ctx context.Context) error {
		err := c.Call(ctx, method, sandboxesPath+path, nil, out)
		if isNoOperator(err) {
			return c.Call(ctx, method, ownSandboxesPath+path, nil, out)
		}
		return err
	})
}
