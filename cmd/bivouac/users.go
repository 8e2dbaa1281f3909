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

	"bivouac.dev/bivouac/httpapi/client"
	"bivouac.dev/bivouac/httpapi/wire"
)

const usersPath = "/api/v1/operator/users"

func (p *program) usersCommand() *cobra.Command {
	return groupCommand("users", "List, set, disable, enable and delete users", p.usersListCommand(), p.usersSetCommand(),
		p.usersDisableCommand(), p.usersEnableCommand(), p.usersDeleteCommand())
}

func (p *program) usersListCommand() *cobra.Command {
	var api apiFlags
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the users with what is set for them and what they use",
		Example: "  bivouac users list --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			users, err := p.users(cmd, c)
			switch {
			case err != nil:
				return err
			case api.asJSON:
				return printJSON(p.stdout, users)
			}
			return printUsers(p.stdout, users)
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	return cmd
}

func (p *program) users(cmd *cobra.Command, c *client.Client) ([]wire.User, error) {
	var page wire.Page[wire.User]
	err := p.waiting(cmd, c, http.MethodGet, usersPath, nil, &page)
	return page.Items, err
}

func printUsers(w io.Writer, users []wire.User) error {
	rows := make([][]string, len(users))
	for i, u := range users {
		rows[i] = []string{
			u.ID, strconv.Itoa(u.Usage.Running), strconv.Itoa(u.Usage.Total),
			strconv.Itoa(u.Usage.State), describePolicy(u.Policy), describeLimits(u.Limits), formatTime(u.CreatedAt.Time),
			formatSet(u.DisabledAt),
		}
	}
	return printTable(w,
		[]string{"USER", "RUNNING", "SANDBOXES", "STATE BYTES", "POLICY", "LIMITS", "CREATED", "DISABLED"}, rows)
}

// describePolicy formats a policy's set members as one word of a table.
func describePolicy(p *wire.Policy) string {
	if p == nil {
		return ""
	}
	var set []string
	for _, one := range []struct {
		name  string
		value *string
	}{{"idle_timeout", p.IdleTimeout}, {"max_running", p.MaxRunning}, {"delete_paused_after", p.DeletePausedAfter}} {
		if one.value != nil {
			set = append(set, one.name+"="+*one.value)
		}
	}
	return strings.Join(set, ",")
}

// describeLimits formats the set limits as one word of a table.
func describeLimits(l *wire.Limits) string {
	if l == nil {
		return ""
	}
	set := []string{}
	for _, one := range []struct {
		name  string
		value int
	}{
		{"running", l.Running}, {"total", l.Total}, {"starts", l.StartsPerMinute}, {"cpu", l.CPU}, {"memory", l.Memory},
		{"state_bytes", l.StateBytes}, {"event_bytes", l.EventBytes},
	} {
		if one.value != 0 {
			set = append(set, one.name+"="+strconv.Itoa(one.value))
		}
	}
	if len(set) == 0 {
		return "none"
	}
	return strings.Join(set, ",")
}

// userFlags are the flags of `bivouac users set`.
type userFlags struct {
	idle, maxRunning, deletePaused string
	limits                         wire.Limits
	noPolicy, noLimits             bool
}

func (f *userFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.idle, "idle-timeout", "",
		`pause a sandbox that was not used for so long; a duration, "never" or "default"`)
	flags.StringVar(&f.maxRunning, "max-running", "", "pause a sandbox that has been running for so long; likewise")
	flags.StringVar(&f.deletePaused, "delete-paused-after", "",
		"delete a sandbox that has been paused for so long; likewise")
	flags.IntVar(&f.limits.Running, "running-sandboxes", 0, "most sandboxes that run; 0 is no limit")
	flags.IntVar(&f.limits.Total, "total-sandboxes", 0, "most sandboxes; 0 is no limit")
	flags.IntVar(&f.limits.StartsPerMinute, "starts-per-minute", 0, "most starts in a minute; 0 is no limit")
	flags.IntVar(&f.limits.CPU, "cpu", 0, "most MHz of what runs; 0 is no limit")
	flags.IntVar(&f.limits.Memory, "memory", 0, "most MiB of what runs; 0 is no limit")
	flags.IntVar(&f.limits.StateBytes, "state-bytes", 0, "most bytes in the state; 0 is the default of 64 MiB")
	flags.IntVar(&f.limits.EventBytes, "event-bytes", 0, "most bytes of stored events; 0 is the default of 10 GiB")
	flags.BoolVar(&f.noPolicy, "default-policy", false, "set no policy for the user any more")
	flags.BoolVar(&f.noLimits, "default-limits", false, "set no limits for the user any more")
}

// over applies the flags to a user's settings. A user's own limits replace the installation's
// as a whole.
func (f *userFlags) over(cmd *cobra.Command, u *wire.User) error {
	if f.noPolicy {
		u.Policy = nil
	}
	if f.noLimits {
		u.Limits = nil
	}
	for _, one := range []struct {
		flag, value string
		member      func(*wire.Policy) **string
	}{
		{"idle-timeout", f.idle, func(p *wire.Policy) **string { return &p.IdleTimeout }},
		{"max-running", f.maxRunning, func(p *wire.Policy) **string { return &p.MaxRunning }},
		{"delete-paused-after", f.deletePaused, func(p *wire.Policy) **string { return &p.DeletePausedAfter }},
	} {
		if !cmd.Flags().Changed(one.flag) {
			continue
		}
		if u.Policy == nil {
			u.Policy = &wire.Policy{}
		}
		to := one.member(u.Policy)
		if *to = nil; one.value == "default" {
			continue
		}
		if _, err := parsePolicyTime(one.value); err != nil {
			return usagef("--%s: %w", one.flag, err)
		}
		*to = new(one.value)
	}
	if u.Policy != nil && *u.Policy == (wire.Policy{}) {
		u.Policy = nil
	}
	for _, one := range []struct {
		flag   string
		value  int
		member func(*wire.Limits) *int
	}{
		{"running-sandboxes", f.limits.Running, func(l *wire.Limits) *int { return &l.Running }},
		{"total-sandboxes", f.limits.Total, func(l *wire.Limits) *int { return &l.Total }},
		{"starts-per-minute", f.limits.StartsPerMinute, func(l *wire.Limits) *int { return &l.StartsPerMinute }},
		{"cpu", f.limits.CPU, func(l *wire.Limits) *int { return &l.CPU }},
		{"memory", f.limits.Memory, func(l *wire.Limits) *int { return &l.Memory }},
		{"state-bytes", f.limits.StateBytes, func(l *wire.Limits) *int { return &l.StateBytes }},
		{"event-bytes", f.limits.EventBytes, func(l *wire.Limits) *int { return &l.EventBytes }},
	} {
		if !cmd.Flags().Changed(one.flag) {
			continue
		}
		if one.value < 0 {
			return usagef("--%s: must not be negative", one.flag)
		}
		if u.Limits == nil {
			u.Limits = &wire.Limits{}
		}
		*one.member(u.Limits) = one.value
	}
	return nil
}

func (p *program) usersSetCommand() *cobra.Command {
	var api apiFlags
	var f userFlags
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Set a user's own policy and limits",
		Long: `Set a user's own policy and limits; what no flag names stays. Each member of
the policy that is set goes before the specs' and the installation's. Limits of
the user's own take the place of the installation's limits of a user as a whole:
those that are 0 are no limits.`,
		Example: `  bivouac users set alice --running-sandboxes 5 --starts-per-minute 10
  bivouac users set alice --idle-timeout 2h --max-running never
  bivouac users set alice --default-limits --default-policy`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.over(cmd, &wire.User{}); err != nil {
				return err
			}
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			users, err := p.users(cmd, c)
			if err != nil {
				return err
			}
			i := slices.IndexFunc(users, func(u wire.User) bool { return u.ID == args[0] })
			if i < 0 {
				return fmt.Errorf("there is no user %q; see %q", args[0], "bivouac users list")
			}
			u := users[i]
			if err := f.over(cmd, &u); err != nil {
				return err
			}
			in := map[string]any{"policy": u.Policy, "limits": u.Limits}
			if err := p.waiting(cmd, c, http.MethodPut, usersPath+"/"+url.PathEscape(u.ID), in, &u); err != nil {
				return err
			}
			if api.asJSON {
				return printJSON(p.stdout, u)
			}
			return printUsers(p.stdout, []wire.User{u})
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	f.register(cmd)
	return cmd
}
