package main

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/fsm"
)

const installationPath = "/api/v1/operator/installation"

// installationInfo is the installation's configuration in the API.
type installationInfo struct {
	Policy  userPolicy `json:"policy"`
	Limits  userLimits `json:"limits"`
	PerUser userLimits `json:"per_user"`
	OnLimit string     `json:"on_limit"`
}

// installationOf converts a configuration for the API.
func installationOf(i fsm.Installation) installationInfo {
	text := func(d time.Duration) *string {
		switch {
		case d == 0:
			return nil
		case d < 0:
			return new("never")
		}
		return new(d.String())
	}
	onLimit := i.OnLimit
	if onLimit == "" {
		onLimit = fsm.OnLimitRefuse
	}
	return installationInfo{
		Policy: userPolicy{text(i.Policy.IdleTimeout), text(i.Policy.MaxRunning), text(i.Policy.DeletePausedAfter)},
		Limits: limitsInfo(i.Overall), PerUser: limitsInfo(i.PerUser), OnLimit: string(onLimit),
	}
}

func limitsInfo(l fsm.Limits) userLimits {
	return userLimits{Running: l.Running, Total: l.Total, StartsPerMinute: l.StartsPerMinute, CPU: l.CPU, Memory: l.Memory, StateBytes: l.StateBytes}
}

// differences lists the fields in which a node's file differs from the configuration in force,
// with both values.
func differences(inForce, file installationInfo) []string {
	var list []string
	one := func(name, has, wants string) {
		if has != wants {
			list = append(list, fmt.Sprintf("%s: in force %s, in the file %s", name, has, wants))
		}
	}
	text := func(s *string) string {
		if s == nil {
			return "never"
		}
		return *s
	}
	one("policy.idle_timeout", text(inForce.Policy.IdleTimeout), text(file.Policy.IdleTimeout))
	one("policy.max_running", text(inForce.Policy.MaxRunning), text(file.Policy.MaxRunning))
	one("policy.delete_paused_after", text(inForce.Policy.DeletePausedAfter), text(file.Policy.DeletePausedAfter))
	for _, l := range []struct {
		name       string
		has, wants userLimits
	}{{"limits.installation", inForce.Limits, file.Limits}, {"limits.user", inForce.PerUser, file.PerUser}} {
		one(l.name+".running_sandboxes", strconv.Itoa(l.has.Running), strconv.Itoa(l.wants.Running))
		one(l.name+".total_sandboxes", strconv.Itoa(l.has.Total), strconv.Itoa(l.wants.Total))
		one(l.name+".starts_per_minute", strconv.Itoa(l.has.StartsPerMinute), strconv.Itoa(l.wants.StartsPerMinute))
		one(l.name+".cpu", strconv.Itoa(l.has.CPU), strconv.Itoa(l.wants.CPU))
		one(l.name+".memory", strconv.Itoa(l.has.Memory), strconv.Itoa(l.wants.Memory))
		one(l.name+".state_bytes", strconv.Itoa(l.has.StateBytes), strconv.Itoa(l.wants.StateBytes))
	}
	one("limits.on_limit", inForce.OnLimit, file.OnLimit)
	return list
}

func (p *program) operatorConfigureCommand() *cobra.Command {
	var api apiFlags
	var configFile string
	var yes bool
	cmd := &cobra.Command{
		Use:   "configure --config FILE",
		Short: "Put the policies and limits of a file in force",
		Long: `Put the policies and limits of a node's configuration file in force for the
whole cluster, after showing what changes. The first leader takes those of its
own file; from then on only this command changes them. A node whose file differs
says so in its log and in "bivouac operator status".`,
		Example: "  bivouac operator configure --config /etc/bivouac/node.hcl",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(configFile)
			if err != nil {
				return err
			}
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			var inForce installationInfo
			if err := p.waiting(cmd, c, http.MethodGet, installationPath, nil, &inForce); err != nil {
				return err
			}
			wanted := installationOf(cfg.installation())
			changes := differences(inForce, wanted)
			if len(changes) == 0 {
				return p.done(&api, inForce, "the policies and limits of the file are in force; nothing was done")
			}
			fmt.Fprintf(p.stderr, "%s\n", strings.Join(changes, "\n"))
			if err := p.confirm(yes, "Put those of the file in force?"); err != nil {
				return err
			}
			if err := p.waiting(cmd, c, http.MethodPut, installationPath, wanted, &inForce); err != nil {
				return err
			}
			return p.done(&api, inForce, "the policies and limits of the file are in force")
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	cmd.Flags().StringVar(&configFile, "config", "", "a node's configuration file")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	mustRequire(cmd, "config")
	return cmd
}
