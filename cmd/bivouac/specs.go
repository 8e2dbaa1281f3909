package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/fsm"
)

func (p *program) specsCommand() *cobra.Command {
	return groupCommand("specs", "Load, list and delete sandbox specs",
		p.specsApplyCommand(), p.specsListCommand(), p.specsDeleteCommand())
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
exist keep the spec they were made from.`,
		Example: `  bivouac specs apply specs.hcl
  bivouac specs apply --replace specs.hcl

  spec "agent" {
    driver      = "docker"
    image       = "registry.example.org/agent-server:1.44.0"
    args        = ["--port", "${port.agent_server}"]
    working_dir = "/workspace/project"
    cpu         = 1000
    memory      = 2048
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
			var page struct {
				Items []fsm.Spec `json:"items"`
			}
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

func printSpecs(w io.Writer, specs []fsm.Spec) error {
	rows := make([][]string, len(specs))
	for i, s := range specs {
		t := s.Template
		what := t.Image
		if what == "" {
			what = t.Command
		}
		ports := make([]string, 0, len(t.Ports))
		for name := range t.Ports {
			ports = append(ports, name)
		}
		slices.Sort(ports)
		rows[i] = []string{s.ID, string(t.Driver), what, strconv.Itoa(t.CPU), strconv.Itoa(t.Memory), strings.Join(ports, ",")}
	}
	return printTable(w, []string{"ID", "DRIVER", "RUNS", "CPU (MHz)", "MEMORY (MiB)", "PORTS"}, rows)
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
			if err := p.waiting(cmd, c, http.MethodDelete, "/api/v1/operator/specs/"+url.PathEscape(args[0]), nil, nil); err != nil {
				return err
			}
			_, err = fmt.Fprintf(p.stdout, "spec %q is deleted\n", args[0])
			return err
		},
	}
	api.register(cmd)
	return cmd
}
