package main

import (
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/wire"
)

const orphansPath = "/api/v1/operator/orphans"

func (p *program) orphansCommand() *cobra.Command {
	return groupCommand("orphans", "See, restore and delete jobs and workspaces that no sandbox owns",
		p.orphansListCommand(), p.orphansRestoreCommand(), p.orphansDeleteCommand())
}

func (p *program) orphansListCommand() *cobra.Command {
	var api apiFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the jobs and workspaces that no sandbox owns",
		Long: `List the jobs and workspaces in Nomad that no sandbox owns, why each is there and
when the leader removes it. With KIND lost it is what a lost client still has of a sandbox
that came back from its copy; COPY is the size of that copy, and OWNER "-" a user who was
deleted. See "bivouac runbook orphans" and "client-lost".`,
		Example: "  bivouac operator orphans list",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			var page wire.Page[wire.Orphan]
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
					goes = formatTime(o.RemovableAt.Time)
				}
				if o.Delete {
					goes = "now: an operator deleted it"
				}
				owner, where, size := "-", "-", "-"
				if o.Owner != nil {
					owner = *o.Owner
				}
				if o.Client != nil && o.Volume != nil && o.Bytes != nil {
					where, size = *o.Volume+" on "+*o.Client, sizeText(*o.Bytes)
				}
				rows[i] = []string{o.Kind, o.Sandbox, o.Reason, formatTime(o.Since.Time), goes, owner, size, where}
			}
			return printTable(p.stdout,
				[]string{"KIND", "SANDBOX", "REASON", "SINCE", "REMOVED AFTER", "OWNER", "COPY", "VOLUME"}, rows)
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
				return usagef("an orphan is a %s, a %s or %s, not %s", fsm.OrphanJob, fsm.OrphanWorkspace, fsm.OrphanLost,
					strconv.Quote(args[0]))
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
			return p.done(&api, map[string]string{"kind": args[0], "sandbox": args[1]}, "the leader deletes the %s of %s %s",
				args[0], of, args[1])
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func (p *program) orphansRestoreCommand() *cobra.Command {
	var api apiFlags
	cmd := &cobra.Command{
		Use:   "restore VOLUME",
		Short: "Make a sandbox of what a lost client still has",
		Long: `Make a sandbox of what a lost client still has, for the user whose sandbox it was. The
Nomad client must be back. The new sandbox gets a copy of the volume and starts; the
volume stays as it is until it is deleted. See "bivouac runbook client-lost".`,
		Example: "  bivouac operator orphans restore 1b2c3d4e-0000-4000-8000-000000000000",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			var made struct {
				Sandbox string `json:"sandbox"`
				Owner   string `json:"owner"`
			}
			path := orphansPath + "/" + fsm.OrphanLost + "/" + url.PathEscape(args[0]) + "/restore"
			if err := p.waiting(cmd, c, http.MethodPost, path, nil, &made); err != nil {
				return err
			}
			return p.done(&api, made,
				"the sandbox %s of %s is made of the volume %s; see: bivouac sandboxes show %s", made.Sandbox, made.Owner, args[0],
				made.Sandbox)
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	return cmd
}
