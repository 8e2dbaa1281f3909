package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/httpapi/client"
)

// keyInfo is an API key in the operator API. Key is set only in the response that issued it.
type keyInfo struct {
	ID          int        `json:"id"`
	User        string     `json:"user"`
	Name        string     `json:"name"`
	Operator    bool       `json:"operator"`
	CreatedAt   time.Time  `json:"created_at"`
	RevokedAt   *time.Time `json:"revoked_at"`
	SuspendedAt *time.Time `json:"suspended_at"`
	Key         string     `json:"key,omitempty"`
}

func (p *program) keysCommand() *cobra.Command {
	return groupCommand("keys", "Issue, list, revoke and enable API keys",
		p.keysBootstrapCommand(), p.keysCreateCommand(), p.keysListCommand(), p.keysRevokeCommand(), p.keysEnableCommand())
}

func (p *program) keysCreateCommand() *cobra.Command {
	var api apiFlags
	var user, name string
	var operator bool
	cmd := &cobra.Command{
		Use:   "create --user USER --name NAME",
		Short: "Issue an API key; it is printed once",
		Example: `  export BIVOUAC_API_KEY=$(cat operator.key)
  bivouac keys create --user alice --name laptop
  bivouac keys create --user ops --name rotation --operator`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			var made keyInfo
			in := map[string]any{"user": user, "name": name, "operator": operator}
			if err := p.waiting(cmd, c, http.MethodPost, "/api/v1/operator/keys", in, &made); err != nil {
				return err
			}
			if api.asJSON {
				err = printJSON(p.stdout, made)
			} else {
				_, err = fmt.Fprintln(p.stdout, made.Key)
			}
			if err != nil {
				return fmt.Errorf("key %d was issued and could not be printed; revoke it with \"bivouac keys revoke %d\": %w", made.ID, made.ID, err)
			}
			return nil
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	cmd.Flags().StringVar(&user, "user", "", "the user the key belongs to")
	cmd.Flags().StringVar(&name, "name", "", "what the key is for")
	cmd.Flags().BoolVar(&operator, "operator", false, "let the key manage keys and specs")
	mustRequire(cmd, "user", "name")
	return cmd
}

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
			var page struct {
				Items []keyInfo `json:"items"`
			}
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

func printKeys(w io.Writer, keys []keyInfo) error {
	rows := make([][]string, len(keys))
	for i, k := range keys {
		revoked := ""
		if k.RevokedAt != nil {
			revoked = formatTime(*k.RevokedAt)
		}
		suspended := ""
		if k.SuspendedAt != nil {
			suspended = formatTime(*k.SuspendedAt)
		}
		rows[i] = []string{strconv.Itoa(k.ID), k.User, k.Name, yesNo(k.Operator), formatTime(k.CreatedAt), revoked, suspended}
	}
	return printTable(w, []string{"ID", "USER", "NAME", "OPERATOR", "CREATED", "REVOKED", "SUSPENDED"}, rows)
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

func (p *program) keysEnableCommand() *cobra.Command {
	var api apiFlags
	cmd := &cobra.Command{
		Use:   "enable ID",
		Short: "Enable an API key that a restore has suspended",
		Long: `Enable an API key that "bivouac operator snapshot restore --keys suspend" has
suspended: it was in the backup, and you know that it was not revoked since.`,
		Example: "  bivouac keys enable 3",
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
			if err := p.waiting(cmd, c, http.MethodPost, "/api/v1/operator/keys/"+strconv.Itoa(id)+"/enable", nil, nil); err != nil {
				return err
			}
			_, err = fmt.Fprintf(p.stdout, "key %d is enabled\n", id)
			return err
		},
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
