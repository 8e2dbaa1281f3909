package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/client"
	"bivouac.dev/bivouac/httpapi/wire"
	"bivouac.dev/bivouac/scheduler/archive"
	copystore "bivouac.dev/bivouac/scheduler/copies"
	"bivouac.dev/bivouac/secrets"
)

func (p *program) copiesCommand() *cobra.Command {
	return groupCommand("copies", "Check the copies of workspaces", p.copiesVerifyCommand())
}

// verified is what was found of one copy. Problem is "" for one that can be restored.
type verified struct {
	wire.Copy
	Problem string `json:"problem"`
}

func (p *program) copiesVerifyCommand() *cobra.Command {
	var api apiFlags
	var configFile string
	cmd := &cobra.Command{
		Use:   "verify --config FILE [SANDBOX]...",
		Short: "Read all copies of workspaces, and say which can't be restored",
		Long: `Read the newest copy of each workspace, or of the sandboxes that are named, as a
restore does: every byte is fetched, decrypted and compared with its checksum. Run it on
a node's machine as the node's user: it takes the store, its credentials and Vault from
the node's file, and the list of copies from the node. It changes nothing. The exit code
is 1 if a copy can't be restored. See "bivouac runbook copies".`,
		Example: `  bivouac operator copies verify --config /etc/bivouac/node.hcl
  bivouac operator copies verify --config /etc/bivouac/node.hcl 5pYq0XbLr2kTc8Vn --json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := loadConfig(configFile)
			if err != nil {
				return err
			}
			if cfg.Workspaces.Backup == "" {
				return usagef("%s has no workspaces { backup }: no workspace is copied", configFile)
			}
			if api.address == "" && p.getenv("BIVOUAC_ADDR") == "" {
				api.address = ownAddress(cfg.HTTP)
			}
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			list, err := p.listCopies(cmd, c, args)
			if err != nil {
				return err
			}
			vault, err := secrets.NewVault(cfg.vaultConfig(slog.New(slog.DiscardHandler), prometheus.NewRegistry()))
			if err != nil {
				return err
			}
			ctx, cancel := context.WithCancel(cmd.Context())
			session := make(chan struct{})
			go func() { defer close(session); _ = vault.Run(ctx) }()
			defer func() { cancel(); <-session }()
			store, err := copystore.Open(ctx, cfg.Workspaces.Backup, copyKeys{secrets: bareSecrets{vault}})
			if err != nil {
				return err
			}
			defer func() { _ = store.Close() }()
			return p.verifyCopies(ctx, store, list, api.asJSON)
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	cmd.Flags().StringVar(&configFile, "config", "", "the configuration of the node on this machine")
	mustRequire(cmd, "config")
	return cmd
}

// listCopies lists the copies of the named sandboxes, of all for none.
func (p *program) listCopies(cmd *cobra.Command, c *client.Client, names []string) ([]wire.Copy, error) {
	var page wire.Page[wire.Copy]
	if err := p.waiting(cmd, c, http.MethodGet, "/api/v1/operator/copies", nil, &page); err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return page.Items, nil
	}
	all := map[string]wire.Copy{}
	for _, one := range page.Items {
		all[one.Sandbox] = one
	}
	var list []wire.Copy
	for _, name := range names {
		one, ok := all[name]
		if !ok {
			return nil, fmt.Errorf("there is no sandbox %s, or no copy of its workspace", name)
		}
		list = append(list, one)
	}
	return list, nil
}

// verifyCopies reads the copies. A store or a Vault that can't be read ends it: that says nothing of a
// copy.
func (p *program) verifyCopies(ctx context.Context, store *copystore.Store, list []wire.Copy, asJSON bool) error {
	if len(list) > 0 {
		if err := store.Ready(ctx, list[0].Cluster); err != nil {
			return err
		}
	}
	found := make([]verified, len(list))
	rows := make([][]string, len(list))
	damaged := 0
	for i, one := range list {
		what := fmt.Sprintf("reading the copy of %s, %s (%d of %d)", one.Sandbox, sizeText(one.Bytes), i+1, len(list))
		err := withProgress(ctx, p.stderr, what, func(ctx context.Context) error {
			return store.Load(ctx, one.Cluster, one.Sandbox, fsm.Copy{ID: one.ID, Sum: one.Sum}, io.Discard)
		})
		found[i] = verified{Copy: one}
		result := "ok"
		if errors.Is(err, archive.ErrDamaged) {
			damaged++
			result = strings.TrimPrefix(err.Error(), archive.ErrDamaged.Error()+": ")
			found[i].Problem = result
		} else if err != nil {
			return fmt.Errorf("%d of %d copies are read: %w", i, len(list), err)
		}
		rows[i] = []string{one.Sandbox, one.Owner, formatTime(one.At.Time), sizeText(one.Bytes), result}
	}
	var err error
	if asJSON {
		err = printJSON(p.stdout, found)
	} else {
		err = printTable(p.stdout, []string{"SANDBOX", "OWNER", "COPIED", "SIZE", "RESULT"}, rows)
	}
	if err == nil && damaged > 0 {
		err = fmt.Errorf("%d of %d copies can't be restored (bivouac runbook copies)", damaged, len(list))
	}
	return err
}

// bareSecrets reads Vault without a node's state.
type bareSecrets struct{ vault *secrets.Vault }

// Newest implements keyEntries.
func (b bareSecrets) Newest(ctx context.Context, path string) (int, error) {
	newest, err := b.vault.Newest(ctx, path)
	return newest, secretError(err)
}

// Read implements keyEntries.
func (b bareSecrets) Read(ctx context.Context, ref fsm.SecretRef) (map[string]string, error) {
	data, err := b.vault.Read(ctx, ref.Path, ref.Version, time.Time{})
	return data, secretError(err)
}

// Write implements keyEntries: it reads alone.
func (bareSecrets) Write(context.Context, string, map[string]string) (fsm.SecretRef, error) {
	return fsm.SecretRef{}, errors.New("a verification writes nothing")
}
