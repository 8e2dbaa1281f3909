package main

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/cluster/recovery"
)

func (p *program) adoptCommand() *cobra.Command {
	var configFile, devDir string
	var yes, asJSON bool
	cmd := &cobra.Command{
		Use:   "adopt-disk",
		Short: "Take a copied data directory for this node's own",
		Long: `Take a copied data directory for this node's own. A node notes which files it made,
and does not start on copies of them: a copy may be older than what the node has
promised since. Use this only where the copy is the node's newest state, for example
after its files were moved to another disk while it was stopped.

The node must be stopped, and the directory it ran on before must never be started
again. A copy that is older than what the other members know is still refused.`,
		Example: "  bivouac operator adopt-disk --config /etc/bivouac/node.hcl\n  bivouac operator adopt-disk --dev .bivouac",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			found, err := adoptable(configFile, devDir)
			if err != nil {
				return err
			}
			if err := ownedByCaller(found.dir); err != nil {
				return err
			}
			release, err := lockDir(found.dir)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, release()) }()
			if err := p.confirm(yes, "Is %s the newest state, and is the directory it came from never started again?",
				found.dir); err != nil {
				return err
			}
			err = withProgress(cmd.Context(), p.stderr, "verifying "+found.dir, func(context.Context) error {
				for _, dir := range found.nodes {
					if err := recovery.Adopt(dir, newLogger(p.stderr, "text", logLevel("warn"))); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
			return p.done(&apiFlags{asJSON: asJSON}, map[string]any{"adopted": found.nodes},
				"%s is adopted; start the program on it", found.dir)
		},
	}
	cmd.Flags().StringVar(&configFile, "config", "", "the configuration of the node, which is stopped")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().StringVar(&devDir, "dev", "", "the data directory of \"bivouac dev\", instead of --config")
	return cmd
}

// copies are the data directories to adopt.
type copies struct {
	dir   string
	nodes []string
}

// adoptable finds the data directories to adopt: one node's, or those of `bivouac dev`.
func adoptable(configFile, devDir string) (copies, error) {
	switch {
	case (configFile == "") == (devDir == ""):
		return copies{}, usagef("give --config, or --dev for the directory of \"bivouac dev\"")
	case configFile != "":
		cfg, err := loadConfig(configFile)
		if err != nil {
			return copies{}, err
		}
		return copies{cfg.DataDir, []string{cfg.DataDir}}, nil
	}
	dir, err := filepath.Abs(devDir)
	if err != nil {
		return copies{}, usagef("--dev: %w", err)
	}
	nodes, err := filepath.Glob(filepath.Join(dir, "n[1-9]"))
	if err != nil || len(nodes) == 0 {
		return copies{}, usagef("--dev: %s is no data directory of \"bivouac dev\"", dir)
	}
	return copies{dir, nodes}, nil
}
