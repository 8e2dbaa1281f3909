package watch

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Scale divides all times of the rules. It is 1 in production.
type Scale int

// window formats a duration for PromQL.
func (s Scale) window(d time.Duration) string {
	d /= time.Duration(s)
	switch {
	case d > 0 && d%(24*time.Hour) == 0:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	case d > 0 && d%time.Hour == 0:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d > 0 && d%time.Minute == 0:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d%time.Second == 0:
		return fmt.Sprintf("%ds", d/time.Second)
	}
	return fmt.Sprintf("%dms", d.Milliseconds())
}

// seconds formats a duration as a number of seconds.
func (s Scale) seconds(d time.Duration) string {
	return strconv.FormatFloat((d / time.Duration(s)).Seconds(), 'f', -1, 64)
}

// Recording is a recording rule.
type Recording struct{ Name, Expr string }

// The severities of alerts: a page wakes somebody, a ticket waits for the morning.
const (
	Page   = "page"
	Ticket = "ticket"
)

// Alert is an alerting rule. `bivouac runbook NAME` prints its runbook.
type Alert struct {
	Name, Expr string
	// For is how long Expr must hold, before the scale.
	For      time.Duration
	Severity string
	// Summary says what is wrong, in one line, and Description what it means.
	Summary, Description string
}

// job selects the nodes among what Prometheus scrapes. The label cluster, of the scrape's
// configuration, keeps clusters apart; where there is none, all nodes are one cluster.
const job = `job="bivouac"`

// errorBudget is what the objective of 99.9 % of good requests leaves.
const errorBudget = 0.001

// burnWindows are the windows of the burn rates.
func burnWindows() []time.Duration {
	const day = 24 * time.Hour
	return []time.Duration{5 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 6 * time.Hour, day, 3 * day}
}

// errorRatio names the recorded ratio of bad requests over a window; names don't change with the
// scale.
func errorRatio(window time.Duration) string {
	return "cluster:bivouac_slo_errors:ratio_rate" + Scale(1).window(window)
}

// Recordings returns the recording rules.
func Recordings(s Scale) []Recording {
	var list []Recording
	for _, w := range burnWindows() {
		in := s.window(w)
		list = append(list, Recording{errorRatio(w), fmt.Sprintf(
			`1 - sum by (cluster) (rate(bivouac_slo_good_requests_total{%[1]s}[%[2]s])) / (sum by (cluster) `+
				`(rate(bivouac_slo_requests_total{%[1]s}[%[2]s])) > 0)`, job, in)})
	}
	five := s.window(5 * time.Minute)
	return append(list,
		Recording{"cluster_route:bivouac_http_request_duration_seconds:p99_5m", fmt.Sprintf(
			`histogram_quantile(0.99, sum by (cluster, route, le) (rate(bivouac_http_request_duration_seconds_bucket{%s}[%s])))`,
			job, five)},
		Recording{"cluster:bivouac_raft_propose_duration_seconds:p99_5m", fmt.Sprintf(
			`histogram_quantile(0.99, sum by (cluster, `+
				`le) (rate(bivouac_raft_propose_duration_seconds_bucket{%s,outcome="ok"}[%s])))`, job, five)},
		Recording{"cluster_instance:bivouac_raft_log_write_duration_seconds:p99_5m", fmt.Sprintf(
			`histogram_quantile(0.99, sum by (cluster, instance, `+
				`le) (rate(bivouac_raft_log_write_duration_seconds_bucket{%s}[%s])))`, job, five)},
		Recording{"cluster_state:bivouac_sandboxes:max", fmt.Sprintf(`max by (cluster, state) (bivouac_sandboxes{%s})`, job)},
	)
}

// burn is the condition that the budget burns at a rate over a long and a short window.
func burn(rate float64, long, short time.Duration) string {
	limit := strconv.FormatFloat(rate*errorBudget, 'g', 6, 64)
	return fmt.Sprintf("(%s > %s and %s > %s)", errorRatio(long), limit, errorRatio(short), limit)
}

// Rules renders the rules as a file of Prometheus.
func Rules(s Scale) []byte {
	var b strings.Builder
	b.WriteString("# Written by go run ./ops/watch/generate. Scrape the nodes as job \"bivouac\", every 15 s.\ngroups:\n")
	interval := s.window(30 * time.Second)
	if s > 1 {
		interval = "1s"
	}
	fmt.Fprintf(&b, "  - name: bivouac-recordings\n    interval: %s\n    rules:\n", interval)
	for _, r := range Recordings(s) {
		fmt.Fprintf(&b, "      - record: %s\n        expr: %s\n", r.Name, quote(r.Expr))
	}
	fmt.Fprintf(&b, "  - name: bivouac-alerts\n    interval: %s\n    rules:\n", interval)
	for _, a := range Alerts(s) {
		fmt.Fprintf(&b, "      - alert: %s\n        expr: %s\n        for: %s\n", a.Name, quote(a.Expr), s.window(a.For))
		fmt.Fprintf(&b, "        labels:\n          severity: %s\n        annotations:\n", a.Severity)
		fmt.Fprintf(&b, "          summary: %s\n          description: %s\n          runbook: %s\n",
			quote(a.Summary), quote(a.Description), quote("bivouac runbook "+a.Name))
	}
	return []byte(b.String())
}

// quote writes a text as a YAML string.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }
