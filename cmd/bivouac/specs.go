package main

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/wire"
)

func (p *program) specsCommand() *cobra.Command {
	return groupCommand("specs", "Load, list and delete sandbox specs, and set their warm pools",
		p.specsApplyCommand(), p.specsListCommand(), p.specsDeleteCommand(), p.specsPoolCommand())
}

func (p *program) specsApplyCommand() *cobra.Command {
	var api apiFlags
	var replace bool
	cmd := &cobra.Command{
		Use:   "apply FILE",
		Short: "Load sandbox specs from an HCL file into the cluster",
		Long: `Load sandbox specs from an HCL file into the cluster. A spec with the id of a
stored one replaces it; new ones go last. With --replace the file's specs are
all there is, in the file's order; the first is the default. Sandboxes that
exist keep the spec they were made from.

"agents" are programs of the sandboxes that speak the Agent Client Protocol.
Users choose one by its id. opencode, codex, claude-code, gemini-cli and
qwen-code need no command; another one has command, args, env, env_from_secret
(variables filled from the user's secrets), session_mode and model. With
"allow_agent_command = true" users may run a command line of their own.`,
		Example: `  bivouac specs apply specs.hcl
  bivouac specs apply --replace specs.hcl

  spec "agent" {
    driver      = "docker"
    image       = "registry.example.org/agent-server:1.44.0"
    args        = ["--port", "${port.agent_server}"]
    working_dir = "/workspace/project"
    cpu         = 1000
    memory      = 2048
    agents      = [{ id = "opencode" }, { id = "mine", command = "my-agent", args = ["acp"] }]
    port "AGENT_SERVER" { container = 8000 }
    volume { path = "/workspace" }
  }`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			specs, err := loadSpecs(args[0])
			if err != nil {
				return err
			}
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			in := map[string]any{"specs": specs, "replace": replace}
			if err := p.waiting(cmd, c, http.MethodPost, "/api/v1/operator/specs", in, nil); err != nil {
				return err
			}
			for _, s := range specs {
				fmt.Fprintf(p.stdout, "spec %q is applied\n", s.ID)
			}
			return nil
		},
	}
	api.register(cmd)
	cmd.Flags().BoolVar(&replace, "replace", false, "remove every spec that is not in the file")
	return cmd
}

func (p *program) specsListCommand() *cobra.Command {
	var api apiFlags
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the sandbox specs; the first is the default",
		Example: "  bivouac specs list",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			var page wire.Page[wire.Spec]
			if err := p.waiting(cmd, c, http.MethodGet, "/api/v1/operator/specs", nil, &page); err != nil {
				return err
			}
			if api.asJSON {
				return printJSON(p.stdout, page.Items)
			}
			return printSpecs(p.stdout, page.Items)
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	return cmd
}

func printSpecs(w io.Writer, specs []wire.Spec) error {
	rows := make([][]string, len(specs))
	for i, s := range specs {
		s.Spec = cmp.Or(s.Spec, &fsm.Spec{}) // an item without a member of a spec
		t := s.Template
		what := cmp.Or(t.Image, t.Command)
		ports := make([]string, 0, len(t.Ports))
		for name := range t.Ports {
			ports = append(ports, name)
		}
		slices.Sort(ports)
		rows[i] = []string{s.ID, string(t.Driver), string(t.Isolated()), what, strconv.Itoa(t.CPU), strconv.Itoa(t.Memory),
			strings.Join(ports, ","),
			strconv.Itoa(s.Pool), strconv.Itoa(s.Members.Ready)}
	}
	return printTable(w,
		[]string{"ID", "DRIVER", "ISOLATION", "RUNS", "CPU (MHz)", "MEMORY (MiB)", "PORTS", "POOL", "WARM"}, rows)
}

func (p *program) specsPoolCommand() *cobra.Command {
	var api apiFlags
	cmd := &cobra.Command{
		Use:   "pool ID SIZE",
		Short: "Keep sandboxes of a spec started without an owner",
		Long: `Set how many sandboxes of a spec are kept started and healthy without an owner,
key or secrets. A start takes one of them instead of waiting for a new one, and
another is started in its place; 0 keeps none. "bivouac specs list" shows the
size (POOL) and how many are ready (WARM).`,
		Example: "  bivouac specs pool agent 5",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			size, err := strconv.Atoi(args[1])
			if err != nil || size < 0 || size > maxPool {
				return usagef("%q is not the size of a pool: 0 to %d", args[1], maxPool)
			}
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			in := map[string]any{"size": size}
			if err := p.waiting(cmd, c, http.MethodPost, "/api/v1/operator/specs/"+url.PathEscape(args[0])+"/pool", in,
				nil); err != nil {
				return err
			}
			_, err = fmt.Fprintf(p.stdout, "the pool of spec %q has the size %d\n", args[0], size)
			return err
		},
	}
	api.register(cmd)
	return cmd
}

func (p *program) specsDeleteCommand() *cobra.Command {
	var api apiFlags
	cmd := &cobra.Command{
		Use:     "delete ID",
		Short:   "Delete a sandbox spec; its sandboxes stay",
		Example: "  bivouac specs delete agent",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			if err := p.waiting(cmd, c, http.MethodDelete, "/api/v1/operator/specs/"+url.PathEscape(args[0]), nil,
				nil); err != nil {
				return err
			}
			_, err = fmt.Fprintf(p.stdout, "spec %q is deleted\n", args[0])
			return err
		},
	}
	api.register(cmd)
	return cmd
}
