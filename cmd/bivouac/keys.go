package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/httpapi/client"
	"bivouac.dev/bivouac/httpapi/wire"
)

func (p *program) keysCommand() *cobra.Command {
	return groupCommand("keys", "Issue, list, disable, enable and revoke API keys",
		p.keysBootstrapCommand(), p.keysCreateCommand(), p.keysListCommand(), p.keysRevokeCommand(), p.keysDisableCommand(),
		p.keysEnableCommand())
}

func (p *program) keysCreateCommand() *cobra.Command {
	var api apiFlags
	var user, name, expires string
	var operator bool
	cmd := &cobra.Command{
		Use:   "create --user USER --name NAME",
		Short: "Issue an API key; it is printed once",
		Example: `  export BIVOUAC_API_KEY=$(cat operator.key)
  bivouac keys create --user alice --name laptop
  bivouac keys create --user alice --name conference --expires 72h
  bivouac keys create --user ops --name rotation --operator --expires 2027-06-30T00:00:00Z`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			until, err := parseExpiry(expires, time.Now())
			if err != nil {
				return err
			}
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			var made wire.CreatedAPIKey
			in := map[string]any{"user": user, "name": name, "operator": operator}
			if !until.IsZero() {
				in["expires_at"] = until.UTC().Format(time.RFC3339)
			}
			if err := p.waiting(cmd, c, http.MethodPost, "/api/v1/operator/keys", in, &made); err != nil {
				return err
			}
			if api.asJSON {
				err = printJSON(p.stdout, made)
			} else {
				_, err = fmt.Fprintln(p.stdout, made.Key)
			}
			if err != nil {
				return fmt.Errorf("key %d was issued and could not be printed; revoke it with \"bivouac keys revoke %d\": %w",
					made.ID, made.ID, err)
			}
			return nil
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	cmd.Flags().StringVar(&user, "user", "", "the user the key belongs to")
	cmd.Flags().StringVar(&name, "name", "", "what the key is for")
	cmd.Flags().BoolVar(&operator, "operator", false, "let the key manage keys and specs")
	cmd.Flags().StringVar(&expires, "expires", "",
		`when the key ends: a duration ("72h", "30d") or a time ("2027-06-30T00:00:00Z")`)
	mustRequire(cmd, "user", "name")
	return cmd
}

// parseExpiry returns the time that --expires means, the zero time for "".
func parseExpiry(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		if !at.After(now) {
			return time.Time{}, usagef("--expires: %s is in the past", text)
		}
		return at, nil
	}
	d, err := time.ParseDuration(text)
	if days, found := strings.CutSuffix(text, "d"); found {
		var n int
		n, err = strconv.Atoi(days)
		d = time.Duration(min(n, maxExpiryDays)) * 24 * time.Hour
	}
	if err != nil || d < time.Second {
		return time.Time{}, usagef("--expires: %q is neither a duration such as 72h or 30d nor a time "+
			"such as 2027-06-30T00:00:00Z", text)
	}
	return now.Add(d), nil
}

// maxExpiryDays keeps a number of days within time.Duration.
const maxExpiryDays = 100 * 365

func (p *program) keysListCommand() *cobra.Command {
	var api apiFlags
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the issued API keys, without their values",
		Example: "  bivouac keys list --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			var page wire.Page[wire.APIKey]
			if err := p.waiting(cmd, c, http.MethodGet, "/api/v1/operator/keys", nil, &page); err != nil {
				return err
			}
			if api.asJSON {
				return printJSON(p.stdout, page.Items)
			}
			return printKeys(p.stdout, page.Items)
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	return cmd
}

func printKeys(w io.Writer, keys []wire.APIKey) error {
	rows := make([][]string, len(keys))
	for i, k := range keys {
		scope := cmp.Or(k.Scope, "all")
		rows[i] = []string{strconv.Itoa(k.ID), k.User, k.Name, k.Role, scope, formatTime(k.CreatedAt.Time),
			formatSet(k.ExpiresAt), formatSet(k.LastUsedAt), yesNo(k.Disabled), formatSet(k.RevokedAt), formatSet(k.SuspendedAt)}
	}
	return printTable(w,
		[]string{
			"ID",
			"USER",
			"NAME",
			"ROLE",
			"SCOPE",
			"CREATED",
			"EXPIRES",
			"LAST-USED",
			"DISABLED",
			"REVOKED",
			"SUSPENDED",
		}, rows)
}

// formatSet is formatTime for a time that may be unset.
func formatSet(t *wire.Time) string {
	if t == nil {
		return ""
	}
	return formatTime(t.Time)
}

func (p *program) keysRevokeCommand() *cobra.Command {
	var api apiFlags
	cmd := &cobra.Command{
		Use:     "revoke ID",
		Short:   "Revoke an API key for good",
		Example: "  bivouac keys revoke 3",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := strconv.Atoi(args[0])
			if err != nil || id < 1 {
				return usagef("%q is not the id of a key; see %q", args[0], "bivouac keys list")
			}
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			if err := p.waiting(cmd, c, http.MethodDelete, "/api/v1/operator/keys/"+strconv.Itoa(id), nil, nil); err != nil {
				return err
			}
			_, err = fmt.Fprintf(p.stdout, "key %d is revoked\n", id)
			return err
		},
	}
	api.register(cmd)
	return cmd
}

func (p *program) keysDisableCommand() *cobra.Command {
	return p.keysChangeCommand("disable", &cobra.Command{
		Short: "Make an API key unusable until it is enabled",
		Long: `Make an API key unusable until "bivouac keys enable" enables it. A user without
any usable key is locked out of the sandboxes too.`,
		Example: "  bivouac keys disable 3",
	})
}

func (p *program) keysEnableCommand() *cobra.Command {
	return p.keysChangeCommand("enable", &cobra.Command{
		Short: "Enable an API key that is disabled or that a restore has suspended",
		Long: `Enable an API key that "bivouac keys disable" has disabled, or that "bivouac
operator snapshot restore --keys suspend" has suspended: it was in the backup,
and you know that it was not revoked since.`,
		Example: "  bivouac keys enable 3",
	})
}

// keysChangeCommand completes a command that posts to a key's route of the same name.
func (p *program) keysChangeCommand(verb string, cmd *cobra.Command) *cobra.Command {
	var api apiFlags
	cmd.Use, cmd.Args = verb+" ID", cobra.ExactArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := strconv.Atoi(args[0])
		if err != nil || id < 1 {
			return usagef("%q is not the id of a key; see %q", args[0], "bivouac keys list")
		}
		c, err := p.client(&api)
		if err != nil {
			return err
		}
		if err := p.waiting(cmd, c, http.MethodPost, "/api/v1/operator/keys/"+strconv.Itoa(id)+"/"+verb, nil,
			nil); err != nil {
			return err
		}
		_, err = fmt.Fprintf(p.stdout, "key %d is %sd\n", id, verb)
		return err
	}
	api.register(cmd)
	return cmd
}

// waiting calls the node and prints a message if that takes long.
func (p *program) waiting(cmd *cobra.Command, c *client.Client, method, path string, in, out any) error {
	return withProgress(cmd.Context(), p.stderr, "waiting for "+c.Address, func(ctx context.Context) error {
		return c.Call(ctx, method, path, in, out)
	})
}

// mustRequire marks flags as required. It panics on an unknown name, which is a bug.
func mustRequire(cmd *cobra.Command, names ...string) {
	for _, name := range names {
		if cmd.Flags().Lookup(name) == nil {
			panic("no flag " + name)
		}
	}
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		for _, name := range names {
			if !cmd.Flags().Changed(name) {
				return usagef("--%s is required (see %q)", name, cmd.CommandPath()+" --help")
			}
		}
		return run(cmd, args)
	}
}
