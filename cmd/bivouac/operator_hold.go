package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/httpapi/client"
	"bivouac.dev/bivouac/httpapi/wire"
)

const holdPath = "/api/v1/operator/hold"

func (p *program) holdCommand() *cobra.Command {
	return groupCommand("hold", "See and end a hold, under which the leader does nothing of its own accord",
		p.holdStatusCommand(), p.holdReleaseCommand())
}

func (p *program) holdStatusCommand() *cobra.Command {
	var api apiFlags
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show whether the cluster holds, why, and what a release would bring about",
		Example: `  bivouac operator hold status
  bivouac operator hold status --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, report, err := p.holdReport(cmd, &api)
			switch {
			case err != nil:
				return err
			case api.asJSON:
				return printJSON(p.stdout, report)
			}
			return printHold(p.stdout, report)
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	return cmd
}

func (p *program) holdReport(cmd *cobra.Command, api *apiFlags) (*client.Client, wire.HoldReport, error) {
	var report wire.HoldReport
	c, err := p.client(api)
	if err != nil {
		return nil, report, err
	}
	return c, report, p.waiting(cmd, c, http.MethodGet, holdPath, nil, &report)
}

func (p *program) holdReleaseCommand() *cobra.Command {
	var api apiFlags
	var yes bool
	cmd := &cobra.Command{
		Use:   "release",
		Short: "End the hold, after showing what goes then",
		Long: `End the hold. What was found is shown first, with what the leader does of its own
accord afterwards: which jobs it stops, starts and removes, and when which
workspaces go. A new history begins, and what was found of this cluster becomes
part of it: without a sandbox it is an orphan then, and is removed. See
"bivouac runbook hold".`,
		Example: `  bivouac operator hold release
  bivouac operator hold release --yes`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, report, err := p.holdReport(cmd, &api)
			if err != nil {
				return err
			}
			if report.Hold == nil {
				return p.done(&api, report, "the cluster does not hold; nothing was done")
			}
			if err := printHold(p.stderr, report); err != nil {
				return err
			}
			if err := p.confirm(yes, "Release the hold?"); err != nil {
				return err
			}
			in := map[string]any{"index": report.Hold.Index}
			if err := p.waiting(cmd, c, http.MethodPost, holdPath+"/release", in, nil); err != nil {
				return err
			}
			var after wire.HoldReport
			if err := p.waiting(cmd, c, http.MethodGet, holdPath, nil, &after); err != nil {
				return err
			}
			return p.done(&api, after, "the hold is released")
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// printHold prints the findings and the effects of a release.
func printHold(w io.Writer, r wire.HoldReport) error {
	var b strings.Builder
	if r.Hold == nil {
		b.WriteString("the cluster does not hold\n")
	} else {
		fmt.Fprintf(&b, "the cluster holds since %s (index %d): the leader does nothing of its own accord\n\nfound:\n",
			formatTime(r.Hold.Since.Time), r.Hold.Index)
		for _, f := range r.Hold.Findings {
			fmt.Fprintf(&b, "  %s: %s\n", f.Kind, f.Detail)
		}
		if r.Hold.More > 0 {
			fmt.Fprintf(&b, "  and %d more\n", r.Hold.More)
		}
	}
	for _, k := range r.Removals {
		if k.BrakedAt != nil && k.Limit != nil {
			fmt.Fprintf(&b, "the limit of %d removals in an hour held back kind %s at %s\n", *k.Limit, k.Kind,
				formatTime(k.BrakedAt.Time))
		}
	}
	if a := r.AfterRelease; a != nil {
		b.WriteString("\nafter a release the leader\n")
		none := true
		for _, one := range []struct {
			what string
			ids  []string
		}{
			{"removes the jobs of", a.RemoveJobs}, {"starts", a.Start}, {"stops", a.Stop}, {"goes on deleting", a.Delete},
		} {
			if len(one.ids) > 0 {
				none = false
				fmt.Fprintf(&b, "  %s: %s\n", one.what, strings.Join(one.ids, " "))
			}
		}
		for _, ws := range a.RemoveWorkspaces {
			none = false
			fmt.Fprintf(&b, "  removes the workspace of %s after %s\n", ws.Sandbox, formatTime(ws.RemovableAt.Time))
		}
		if none {
			b.WriteString("  removes, starts and stops nothing that it knows of\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
