package fsm

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Installation is the configuration that all nodes share. It comes from the first leader's file,
// until an operator changes it.
type Installation struct {
	Policy Policy `json:"policy,omitzero"`
	// PerUser applies to each user without limits of their own, Overall to all users together.
	PerUser Limits  `json:"per_user,omitzero"`
	Overall Limits  `json:"overall,omitzero"`
	OnLimit OnLimit `json:"on_limit,omitempty"`
	// Git and CORS are kept from VersionConfig on. Below it each node has those of its own file.
	Git  Git  `json:"git,omitzero"`
	CORS CORS `json:"cors,omitzero"`
	// LLM is kept from VersionModels on. Below it sandboxes get the keys.
	LLM LLM `json:"llm,omitzero"`
}

// Git says how tokens of git providers are verified.
type Git struct {
	// Unverified stores tokens without asking the provider.
	Unverified bool `json:"unverified,omitempty"`
	// AllowedHosts are providers ("host" or "host:port") that may be asked although their address is
	// private.
	AllowedHosts []string `json:"allowed_hosts,omitempty"`
}

// CORS lists the web origins that may call the API; none means any port of this machine.
type CORS struct {
	Origins []string `json:"origins,omitempty"`
}

// Bounds of the lists in an Installation.
const (
	maxListed     = 256
	maxListedText = 512
)

// Equal reports whether two configurations are the same. An empty list is none.
func (i Installation) Equal(o Installation) bool { return reflect.DeepEqual(i.plain(), o.plain()) }

// empty reports whether nothing is configured, as in a state that never had a configuration.
func (i Installation) empty() bool { return reflect.ValueOf(i.plain()).IsZero() }

// plain returns i with nil for empty lists.
func (i Installation) plain() Installation {
	i.Git.AllowedHosts = append([]string(nil), i.Git.AllowedHosts...)
	i.CORS.Origins = append([]string(nil), i.CORS.Origins...)
	i.LLM = i.LLM.plain()
	return i
}

// Difference is a setting in which two configurations differ. Name is as in a node's file, the
// values as one writes them there.
type Difference struct{ Name, Has, Wants string }

// Differences lists the settings of wants that differ from i's, in the order of the file.
func (i Installation) Differences(wants Installation) []Difference {
	var list []Difference
	others := wants.values()
	for n, has := range i.values() {
		if has.Has != others[n].Has {
			list = append(list, Difference{has.Name, has.Has, others[n].Has})
		}
	}
	return list
}

// values lists all settings with their values in Has.
func (i Installation) values() []Difference {
	list := []Difference{
		{Name: "policy.idle_timeout", Has: policyText(i.Policy.IdleTimeout)},
		{Name: "policy.max_running", Has: policyText(i.Policy.MaxRunning)},
		{Name: "policy.delete_paused_after", Has: policyText(i.Policy.DeletePausedAfter)},
	}
	for _, of := range []struct {
		name string
		l    Limits
	}{{"limits.user.", i.PerUser}, {"limits.installation.", i.Overall}} {
		for _, one := range []struct {
			name  string
			value int
		}{
			{LimitRunning, of.l.Running}, {LimitTotal, of.l.Total}, {LimitStarts, of.l.StartsPerMinute},
			{LimitCPU, of.l.CPU}, {LimitMemory, of.l.Memory}, {LimitState, of.l.StateBytes},
			{LimitEvents, of.l.EventBytes},
		} {
			list = append(list, Difference{Name: of.name + one.name, Has: fmt.Sprint(one.value)})
		}
	}
	onLimit := cmp.Or(i.OnLimit, OnLimitRefuse)
	list = append(list,
		Difference{Name: "limits.on_limit", Has: string(onLimit)},
		Difference{Name: "git.verify_tokens", Has: fmt.Sprint(!i.Git.Unverified)},
		Difference{Name: "git.allowed_hosts", Has: listText(i.Git.AllowedHosts)},
		Difference{Name: "cors.origins", Has: listText(i.CORS.Origins)},
	)
	return append(list, i.LLM.values()...)
}

// policyText is a policy's time as in a file.
func policyText(d time.Duration) string {
	if d <= 0 {
		return "never"
	}
	return d.String()
}

func listText(list []string) string { return fmt.Sprintf("[%s]", strings.Join(list, ", ")) }

// Stricter lists the settings of wants that pause or delete more sandboxes than i's.
func (i Installation) Stricter(wants Installation) []Difference {
	stricter := map[string]bool{
		"limits.on_limit": wants.OnLimit == OnLimitPauseOldest,
	}
	for name, pair := range map[string][2]time.Duration{
		"policy.idle_timeout":        {i.Policy.IdleTimeout, wants.Policy.IdleTimeout},
		"policy.max_running":         {i.Policy.MaxRunning, wants.Policy.MaxRunning},
		"policy.delete_paused_after": {i.Policy.DeletePausedAfter, wants.Policy.DeletePausedAfter},
	} {
		stricter[name] = pair[1] > 0 && (pair[0] <= 0 || pair[1] < pair[0])
	}
	return slices.DeleteFunc(i.Differences(wants), func(d Difference) bool { return !stricter[d.Name] })
}

// shared checks the lists of a configuration.
func (r *rules) shared(i Installation) {
	r.check(len(i.Git.AllowedHosts) <= maxListed && len(i.CORS.Origins) <= maxListed,
		"the installation: a list has at most %d members", maxListed)
	for _, host := range i.Git.AllowedHosts {
		err := CheckHost(host)
		r.check(err == nil, "the installation's allowed_hosts: %v", err)
	}
	for _, origin := range i.CORS.Origins {
		err := CheckOrigin(origin)
		r.check(err == nil, "the installation's origins: %v", err)
	}
	r.models(i.LLM)
}

// CheckHost returns an error if s is no host name or "host:port".
func CheckHost(s string) error {
	if s == "" || len(s) > maxListedText || strings.ContainsAny(s, "/@?# \t\r\n") {
		return fmt.Errorf("%q must be a host name or \"host:port\"", clip(s))
	}
	return nil
}

// CheckOrigin returns an error if s is no web origin.
func CheckOrigin(s string) error {
	scheme, host, found := strings.Cut(s, "://")
	letters := strings.Trim(strings.ToLower(scheme), "abcdefghijklmnopqrstuvwxyz0123456789+.-") == ""
	if !found || scheme == "" || !letters || CheckHost(host) != nil || len(s) > maxListedText {
		return fmt.Errorf("%q must be an origin such as \"https://app.example.org\"", clip(s))
	}
	return nil
}

// Installation returns the current configuration. Its lists must not be changed.
func (v *View) Installation() Installation { return v.meta.Installation }

// ConfigIndex is the index at which the configuration last changed. It is 0 until a leader or an
// operator has set all of it, which needs VersionConfig.
func (v *View) ConfigIndex() uint64 { return v.meta.ConfigIndex }

// Configured reports whether policies and limits were ever set. The first leader sets them from its
// file; after that only an operator changes them.
func (v *View) Configured() bool { return v.meta.configured() }

func (m *meta) configured() bool { return m.Configured || !m.Installation.empty() }
