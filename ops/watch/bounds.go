package watch

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// bound says from which values on a panel shows trouble: warn in orange, bad in red, 0 for none.
// below turns it round: the values under them.
type bound struct {
	warn, bad float64
	below     bool
}

// some is a rate that is not zero.
const some = 0.0001

const (
	hour = 3600.0
	day  = 24 * hour
)

// bounds are those of the panels that can be bad, by "page: title". What has none, such as a count of
// sandboxes, is neither good nor bad by itself. Where an alert reads the same series, red is its.
func bounds() map[string]bound {
	ends, wish, errors := bound{14 * day, 7 * day, true}, bound{warn: 300, bad: 900}, bound{warn: some}
	reachable, room, backups := bound{bad: 1, below: true}, bound{.2, .1, true}, bound{warn: 2 * hour, bad: 3 * hour}
	served, raft, calls := bound{warn: 1, bad: 5}, bound{warn: .25, bad: 1}, bound{warn: 1, bad: 5}
	return map[string]bound{
		"oncall: Nodes up":                           {3, 2, true},
		"oncall: Nodes ready":                        {3, 2, true},
		"oncall: Leader known":                       reachable,
		"oncall: Backup interval":                    {bad: 1, below: true},
		"oncall: Hold":                               {bad: 1},
		"oncall: Vault reachable (least)":            reachable,
		"oncall: Nomad reachable (least)":            reachable,
		"oncall: Logged in to Vault (least)":         reachable,
		"oncall: Newest backup":                      backups,
		"oncall: First certificate ends in":          ends,
		"oncall: First secret id ends in":            ends,
		"oncall: Least room on a disk":               room,
		"oncall: Oldest wish not yet true":           wish,
		"oncall: Orphans":                            {warn: 1},
		"oncall: Bad requests, 5 minutes and 1 hour": {warn: .001, bad: .0144},
		"oncall: Bad requests, 6 hours and 3 days":   {warn: .001, bad: .006},
		"oncall: Server errors by route":             {bad: some},
		"oncall: Sandboxes that failed, by reason":   errors,
		"oncall: Errors of Vault and Nomad":          errors,
		"oncall: Limits hit":                         errors,
		"oncall: Failed steps":                       errors,
		"oncall: Backups that failed":                {bad: some},

		"cluster: Ready and draining":                            reachable,
		"cluster: Time of a write":                               raft,
		"cluster: Time of a linearizable read":                   raft,
		"cluster: Write to the log, p99":                         {warn: .05, bad: .25},
		"cluster: Commit and apply, p99":                         raft,
		"cluster: Heartbeat, p99":                                {warn: .1, bad: .5},
		"cluster: Time since the leader was heard":               {warn: 1, bad: 5},
		"cluster: Entries that members lack":                     {warn: 1000, bad: 5000},
		"cluster: Changes of the leader, elections, leases lost": {warn: 1},
		"cluster: Raft messages refused":                         {bad: some},
		"cluster: Room":                                          room,
		"cluster: Backups":                                       backups,
		"cluster: Reachable":                                     reachable,
		"cluster: Time of operations on Vault, p99":              calls,
		"cluster: Time of calls of Nomad, p99":                   calls,

		"api: Time by route, p50":                 {warn: .5, bad: 1},
		"api: Time by route, p99":                 served,
		"api: Failed requests without a log line": errors,
		"api: Refused and dropped connections":    errors,
		"api: Limits hit":                         errors,

		"sandboxes: Failures":                      errors,
		"sandboxes: Idle or not is unknown":        {warn: 1},
		"sandboxes: Time until a stage, p50":       {warn: 10, bad: 60},
		"sandboxes: Time until a stage, p99":       {warn: 30, bad: 120},
		"sandboxes: Oldest wish not yet true":      wish,
		"sandboxes: Time of a pass, p99":           calls,
		"sandboxes: Orphans":                       {warn: 1},
		"sandboxes: What a lost client would cost": {warn: hour, bad: day},
		"sandboxes: Sandboxes without a copy":      {warn: 1},

		"conversations: Start tasks in ERROR":           {warn: 1},
		"conversations: Time by route, p99":             served,
		"conversations: Answered by the gateway itself": errors,
		"conversations: Time to the first byte, p50":    {warn: 5, bad: 30},
		"conversations: Time to the end, p99":           {warn: 60, bad: 300},
	}
}

// step is one of Grafana's thresholds. The first has no value: what is below all others.
type step struct {
	Color string   `json:"color"`
	Value *float64 `json:"value"`
}

// steps orders a bound's colours.
func (b bound) steps() []step {
	at := func(color string, v float64) step { return step{Color: color, Value: &v} }
	list := []step{{Color: "green"}}
	switch {
	case b.below && b.bad == 0:
		return []step{{Color: "orange"}, at("green", b.warn)}
	case b.below && b.warn == 0:
		return []step{{Color: "red"}, at("green", b.bad)}
	case b.below:
		return []step{{Color: "red"}, at("orange", b.bad), at("green", b.warn)}
	}
	if b.warn != 0 {
		list = append(list, at("orange", b.warn))
	}
	if b.bad != 0 {
		list = append(list, at("red", b.bad))
	}
	return list
}

// metricNames returns the names of the series that an expression reads, without the parts of a
// histogram.
func metricNames(expr string) (names []string) {
	for _, name := range regexp.MustCompile(`[a-z_]*:?\bbivouac_[a-z0-9_]+(:[a-z0-9_]+)?|\bup\b`).FindAllString(expr, -1) {
		for _, part := range []string{"_bucket", "_sum", "_count"} {
			name = strings.TrimSuffix(name, part)
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// alertsOf returns the alerts that read a series of the panel.
func alertsOf(p Panel) (names []string) {
	shown := metricNames(p.exprs())
	for _, a := range Alerts(1) {
		if slices.ContainsFunc(metricNames(a.Expr), func(name string) bool { return slices.Contains(shown, name) }) {
			names = append(names, a.Name)
		}
	}
	return names
}

func (p Panel) exprs() string {
	var all []string
	for _, q := range p.Queries {
		all = append(all, q.Expr)
	}
	return strings.Join(all, "\n")
}

// describe says what the panel's metrics are, in the words of METRICS.md, and what a bound means.
func (p Panel) describe(help map[string]string, b bound, bounded bool) string {
	var lines []string
	for _, name := range metricNames(p.exprs()) {
		text := help[name]
		switch {
		case name == "up":
			text = "1 for each node that Prometheus could scrape."
		case strings.Contains(name, "slo_errors"):
			text = "The share of requests that failed or took over a second. The objective leaves 0.1 %."
		case strings.Contains(name, ":"):
			text = help[strings.Split(name, ":")[1]]
		}
		if text != "" && !slices.Contains(lines, text) {
			lines = append(lines, text)
		}
	}
	if len(lines) == 0 {
		lines = []string{"Of the process: see the Go client library of Prometheus."}
	}
	word := "from"
	if b.below {
		word = "below"
	}
	switch {
	case !bounded:
		lines = append(lines, "No value of it is bad by itself.")
	case b.bad == 0:
		lines = append(lines, fmt.Sprintf("Look at it %s %g on.", word, b.warn))
	default:
		lines = append(lines, fmt.Sprintf("Bad %s %g on.", word, b.bad))
	}
	return strings.Join(lines, "\n\n")
}
