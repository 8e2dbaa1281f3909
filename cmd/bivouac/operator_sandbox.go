package main

import (
	"net/http"
	"net/url"

	"github.com/spf13/cobra"
)

// acceptWorkspaceCommand is `bivouac operator accept-workspace`.
func (p *program) acceptWorkspaceCommand() *cobra.Command {
	var api apiFlags
	var yes bool
	cmd := &cobra.Command{
		Use:   "accept-workspace SANDBOX",
		Short: "Accept the workspace of a sandbox that is in ERROR for it",
		Long: `Accept the workspace of a sandbox that is in ERROR because its marker is missing,
damaged or another sandbox's. Look at the workspace first: whoever owns the sandbox
gets what lies there. The next resume marks the workspace anew. A workspace whose
volume is gone can't be accepted. See "bivouac runbook workspace".`,
		Example: `  bivouac operator accept-workspace 5pYq0XbLr2kTc8Vn
  bivouac operator accept-workspace 5pYq0XbLr2kTc8Vn --yes`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			if err := p.confirm(yes, "Give sandbox %s the workspace that it has now?", args[0]); err != nil {
				return err
			}
			path := "/api/v1/operator/sandboxes/" + url.PathEscape(args[0]) + "/accept-workspace"
			if err := p.waiting(cmd, c, http.MethodPost, path, nil, nil); err != nil {
				return err
			}
			return p.done(&api, map[string]string{"sandbox": args[0]},
				"the workspace of sandbox %s is accepted; resume the sandbox", args[0])
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}
