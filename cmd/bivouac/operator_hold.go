package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/client"
)

const holdPath = "/api/v1/operator/hold"

// holdInfo is the hold in the API's responses.
type holdInfo struct {
	Index    uint64        `json:"index"`
	Since    time.Time     `json:"since"`
	Findings []fsm.Finding `json:"findings"`
	More     int           `json:"more"`
}

// removalInfo counts the removals of one kind in the last hour.
type removalInfo struct {
	Kind     string     `json:"kind"`
	Removed  int        `json:"removed"`
	BrakedAt *time.Time `json:"braked_at"`
	Limit    *int       `json:"limit"`
}

// holdReport is the response of GET /api/v1/operator/hold.
type holdReport struct {
	Hold         *holdInfo     `json:"hold"`
	Removals     []removalInfo `json:"removals"`
	AfterRelease *struct {
		Adopt            []fsm.Adopted `json:"adopt"`
		RemoveJobs       []string      `json:"remove_jobs"`
		RemoveWorkspaces []struct {
			Sandbox     string    `json:"sandbox"`
			RemovableAt time.Time `json:"removable_at"`
		} `json:"remove_workspaces"`
		Start  []string `json:"start"`
		Stop   []string `json:"stop"`
		Delete []string `json:"delete"`
	} `json:"after_release"`
}

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

func (p *program) holdReport(cmd *cobra.Command, api *apiFlags) (*client.Client, holdReport, error) {
	var report holdReport
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
			var after holdReport
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
func printHold(w io.Writer, r holdReport) error {
	var b strings.Builder
	if r.Hold == nil {
		b.WriteString("the cluster does not hold\n")
	} else {
		fmt.Fprintf(&b, "the cluster holds since %s (index %d): the leader does nothing of its own accord\n\nfound:\n", formatTime(r.Hold.Since), r.Hold.Index)
		for _, f := range r.Hold.Findings {
			fmt.Fprintf(&b, "  %s: %s\n", f.Kind, f.Detail)
		}
		if r.Hold.More > 0 {
			fmt.Fprintf(&b, "  and %d more\n", r.Hold.More)
		}
	}
	for _, k := range r.Removals {
		if k.BrakedAt != nil && k.Limit != nil {
			fmt.Fprintf(&b, "the limit of %d removals in an hour held back kind %s at %s\n", *k.Limit, k.Kind, formatTime(*k.BrakedAt))
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
			fmt.Fprintf(&b, "  removes the workspace of %s after %s\n", ws.Sandbox, formatTime(ws.RemovableAt))
		}
		if none {
			b.WriteString("  removes, starts and stops nothing that it knows of\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

const orphansPath = "/api/v1/operator/orphans"

// orphanInfo is an orphan in the API's responses.
type orphanInfo struct {
	Kind        string     `json:"kind"`
	Sandbox     string     `json:"sandbox"`
	Reason      string     `json:"reason"`
	Birth       *string    `json:"birth"`
	Since       time.Time  `json:"since"`
	Owner       *string    `json:"owner"`
	Client      *string    `json:"client"`
	Volume      *string    `json:"volume"`
	Bytes       *int64     `json:"bytes"`
	RemovableAt *time.Time `json:"removable_at"`
	Delete      bool       `json:"delete"`
}

func (p *program) orphansCommand() *cobra.Command {
	return groupCommand("orphans", "See and delete jobs and workspaces that no sandbox owns",
		p.orphansListCommand(), p.orphansDeleteCommand())
}

func (p *program) orphansListCommand() *cobra.Command {
	var api apiFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the jobs and workspaces that no sandbox owns",
		Long: `List the jobs and workspaces in Nomad that no sandbox owns, why each is there and
when the leader removes it. With KIND lost it is what a lost client still has of a sandbox
that came back from its copy. See "bivouac runbook orphans" and "client-lost".`,
		Example: "  bivouac operator orphans list",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			var page struct {
				Items []orphanInfo `json:"items"`
			}
			if err := p.waiting(cmd, c, http.MethodGet, orphansPath, nil, &page); err != nil {
				return err
			}
			if api.asJSON {
				return printJSON(p.stdout, page.Items)
			}
			rows := make([][]string, len(page.Items))
			for i, o := range page.Items {
				goes := "never by itself"
				if o.RemovableAt != nil {
					goes = formatTime(*o.RemovableAt)
				}
				if o.Delete {
					goes = "now: an operator deleted it"
				}
				owner, where, size := "-", "-", "-"
				if o.Owner != nil && o.Client != nil && o.Volume != nil && o.Bytes != nil {
					owner, where, size = *o.Owner, *o.Volume+" on "+*o.Client, sizeText(*o.Bytes)
				}
				rows[i] = []string{o.Kind, o.Sandbox, o.Reason, formatTime(o.Since), goes, owner, size, where}
			}
			return printTable(p.stdout, []string{"KIND", "SANDBOX", "REASON", "SINCE", "REMOVED AFTER", "OWNER", "COPY", "VOLUME"}, rows)
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	return cmd
}

func (p *program) orphansDeleteCommand() *cobra.Command {
	var api apiFlags
	var yes bool
	cmd := &cobra.Command{
		Use:   "delete job|workspace SANDBOX | delete lost VOLUME",
		Short: "Delete an orphan at once and for good",
		Example: `  bivouac operator orphans delete workspace 5pYq0XbLr2kTc8Vn
  bivouac operator orphans delete job 5pYq0XbLr2kTc8Vn --yes
  bivouac operator orphans delete lost 1b2c3d4e-0000-4000-8000-000000000000`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			of := "sandbox"
			switch args[0] {
			case fsm.OrphanJob, fsm.OrphanWorkspace:
			case fsm.OrphanLost:
				of = "volume"
			default:
				return usagef("an orphan is a %s, a %s or %s, not %s", fsm.OrphanJob, fsm.OrphanWorkspace, fsm.OrphanLost, strconv.Quote(args[0]))
			}
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			if err := p.confirm(yes, "Delete the %s of %s %s for good?", args[0], of, args[1]); err != nil {
				return err
			}
			path := orphansPath + "/" + args[0] + "/" + url.PathEscape(args[1])
			if err := p.waiting(cmd, c, http.MethodDelete, path, nil, nil); err != nil {
				return err
			}
			return p.done(&api, map[string]string{"kind": args[0], "sandbox": args[1]}, "the leader deletes the %s of %s %s", args[0], of, args[1])
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}
