package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/client"
	"bivouac.dev/bivouac/httpapi/wire"
)

const configPath = "/api/v1/operator/config"

func (p *program) configCommand() *cobra.Command {
	return groupCommand("config", "Show, compare and set the cluster's configuration",
		p.configGetCommand(), p.configSetCommand(), p.configDiffCommand())
}

func (p *program) configGetCommand() *cobra.Command {
	var api apiFlags
	cmd := &cobra.Command{
		Use:   "get",
		Short: "Print the cluster's configuration as a file for \"config set\"",
		Example: `  bivouac config get > cluster.hcl
  bivouac config get --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			var now wire.Config
			if err := p.waiting(cmd, c, http.MethodGet, configPath, nil, &now); err != nil {
				return err
			}
			if api.asJSON {
				return printJSON(p.stdout, now)
			}
			_, err = io.WriteString(p.stdout, configHCL(now))
			return err
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	return cmd
}

// clusterFile reads the argument FILE, "-" for stdin.
func (p *program) clusterFile(path string) (fsm.Installation, error) {
	var body hcl.Body
	if path == "-" {
		src, err := io.ReadAll(p.stdin)
		if err != nil {
			return fsm.Installation{}, fmt.Errorf("reading stdin: %w", err)
		}
		f, diags := hclsyntax.ParseConfig(src, "stdin", hcl.InitialPos)
		if diags.HasErrors() {
			return fsm.Installation{}, diagsError(diags)
		}
		body = f.Body
	} else {
		var err error
		if body, err = parseHCLFile(path); err != nil {
			return fsm.Installation{}, err
		}
	}
	return decodeClusterFile(body)
}

// compared is the configuration in force beside a file's.
type compared struct {
	now     wire.Config
	has     fsm.Installation
	wants   fsm.Installation
	changes []fsm.Difference
}

func (p *program) compareConfig(cmd *cobra.Command, c *client.Client, file string) (compared, error) {
	wants, err := p.clusterFile(file)
	if err != nil {
		return compared{}, err
	}
	is := compared{wants: wants}
	if err := p.waiting(cmd, c, http.MethodGet, configPath, nil, &is.now); err != nil {
		return compared{}, err
	}
	if is.has, err = is.now.Installation(); err != nil {
		return compared{}, err
	}
	is.changes = is.has.Differences(wants)
	return is, nil
}

func (p *program) configDiffCommand() *cobra.Command {
	var api apiFlags
	cmd := &cobra.Command{
		Use:   "diff FILE",
		Short: "Print what \"config set FILE\" would change",
		Long: "Print what \"config set FILE\" would change, a line for each setting. " +
			"FILE is - for stdin.\nThe exit code is 1 if something would change.",
		Example: "  bivouac config diff cluster.hcl",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			is, err := p.compareConfig(cmd, c, args[0])
			if err != nil {
				return err
			}
			for _, d := range is.changes {
				if _, err := fmt.Fprintln(p.stdout, differenceText(d)); err != nil {
					return err
				}
			}
			if len(is.changes) > 0 {
				return exitStatus(exitFailed)
			}
			return nil
		},
	}
	api.register(cmd)
	return cmd
}

func (p *program) configSetCommand() *cobra.Command {
	var api apiFlags
	var yes bool
	var checkIndex uint64
	cmd := &cobra.Command{
		Use:   "set FILE",
		Short: "Replace the cluster's configuration",
		Long: `Replace the cluster's configuration by that of a file, or of stdin (-). The file has
the blocks policy, limits (user, installation, on_limit), git, cors and llm of a
node's file, and no others. What is absent gets its default. What changes is printed.

A policy that pauses or deletes sandboxes sooner is asked about first, and so is
turning the model gateway off, which hands users' model keys to their sandboxes. With
--check-index nothing is done unless the configuration still has that index, which
"config get" prints. Without it that of the moment of the comparison is checked.`,
		Example: `  bivouac config set cluster.hcl
  bivouac config set --check-index 1207 - < cluster.hcl`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			is, err := p.compareConfig(cmd, c, args[0])
			if err != nil {
				return err
			}
			index := is.now.Index
			if cmd.Flags().Changed("check-index") && checkIndex != index {
				return fmt.Errorf(
					"nothing was done: the configuration's index is %d, not %d: somebody has changed it; "+
						"read it again (bivouac config get)",
					index,
					checkIndex,
				)
			}
			if len(is.changes) == 0 {
				return p.done(&api, is.now, "the configuration of the file is in force; nothing was done")
			}
			if err := p.confirmConfig(is, yes); err != nil {
				return err
			}
			wants, path := wire.ConfigOf(is.wants), configPath
			if index > 0 {
				path = fmt.Sprintf("%s?cas=%d", configPath, index)
			} else if !changes(is.changes, "git", "cors") { // an older cluster keeps them in the nodes' files
				wants.Git, wants.CORS = nil, nil
			}
			if is.now.LLM == nil && !changes(is.changes, blockLLM) { // an older one has none
				wants.LLM = nil
			}
			var now wire.Config
			if err := p.waiting(cmd, c, http.MethodPut, path, wants, &now); err != nil {
				return err
			}
			return p.done(&api, now, "the configuration of the file is in force; its index is %d", now.Index)
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.Flags().Uint64Var(&checkIndex, "check-index", 0, "do nothing unless the configuration has this index")
	return cmd
}

// changes reports whether a change is in one of the blocks.
func changes(list []fsm.Difference, blocks ...string) bool {
	return slices.ContainsFunc(list, func(d fsm.Difference) bool { return slices.Contains(blocks, blockOf(d.Name)) })
}

// confirmConfig prints the changes and asks about those that pause or delete sandboxes.
func (p *program) confirmConfig(is compared, yes bool) error {
	lines := make([]string, len(is.changes))
	for n, d := range is.changes {
		lines[n] = differenceText(d)
	}
	if _, err := fmt.Fprintln(p.stderr, strings.Join(lines, "\n")); err != nil {
		return errors.Join(errors.New("nothing was done"), err)
	}
	if is.wants.LLM.Direct && !is.has.LLM.Direct {
		if err := p.confirm(yes,
			"llm.gateway: users' model keys will be handed to their sandboxes, "+
				"whose agents and shells can read them. Put it in force?"); err != nil {
			return err
		}
	}
	stricter := is.has.Stricter(is.wants)
	if len(stricter) == 0 {
		return nil
	}
	names := make([]string, len(stricter))
	for n, d := range stricter {
		names[n] = d.Name
	}
	return p.confirm(yes, "%s: sandboxes will be paused or deleted sooner. Put it in force?", strings.Join(names, ", "))
}
