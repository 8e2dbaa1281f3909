package watch

import (
	"fmt"
	"slices"
	"strings"
)

// Dashboards returns the pages. What is read from the replicated store is the same on every node,
// so its panels take the max.
func Dashboards() []Dashboard {
	return []Dashboard{oncallPage(), clusterPage(), apiPage(), sandboxPage(), conversationPage()}
}

// PanelQuery is one query of a panel, ready for Prometheus.
type PanelQuery struct{ Where, Expr string }

// PanelQueries returns the queries of all panels. interval stands for $__rate_interval, cluster for
// the chosen one.
func PanelQueries(interval, cluster string) (list []PanelQuery) {
	for _, d := range Dashboards() {
		for _, row := range d.Rows {
			for _, p := range row.Panels {
				for i, q := range p.Queries {
					list = append(list, PanelQuery{
						Where: fmt.Sprintf("%s: %s (%c)", d.Name, p.Title, 'A'+i),
						Expr: strings.NewReplacer("$__rate_interval", interval, "$cluster", cluster, "$node", ".*").
							Replace(selected(q.Expr)),
					})
				}
			}
		}
	}
	return list
}

func oncallPage() Dashboard {
	return Dashboard{Name: "oncall", Title: "on call", Rows: []Row{
		{"Now", []Panel{
			number("Nodes up", count, Query{`sum(up{job="bivouac"})`, ""}),
			number("Nodes ready", count, Query{`sum(bivouac_raft_ready)`, ""}),
			number("Leader known", flag, Query{`max(bivouac_raft_leader_known)`, ""}),
			number("Hold", flag, Query{`max(bivouac_hold)`, ""}),
			number("Backup interval", seconds, Query{`max(bivouac_backup_interval_seconds)`, ""}),
			number("Vault reachable (least)", flag, Query{`min(bivouac_secret_store_reachable)`, ""}),
			number("Nomad reachable (least)", flag, Query{`min(bivouac_nomad_reachable)`, ""}),
			number("Logged in to Vault (least)", flag, Query{`min(bivouac_secret_store_session)`, ""}),
			number("Newest backup", seconds, Query{`min(bivouac_backup_age_seconds)`, ""}),
			number("First certificate ends in", seconds,
				Query{`min(bivouac_certificate_expiry_timestamp_seconds) - time()`, ""}),
			number("First secret id ends in", seconds,
				Query{`min(bivouac_secret_store_secret_id_expiry_timestamp_seconds) - time()`, ""}),
			number("Least room on a disk", ratio, Query{`min(bivouac_disk_free_bytes / bivouac_disk_size_bytes)`, ""}),
			number("Oldest wish not yet true", seconds, Query{`max(bivouac_sandboxes_unconverged_oldest_seconds)`, ""}),
			number("Orphans", count, Query{`sum(max by (kind, reason) (bivouac_orphans))`, ""}),
		}},
		{"Objective: 99.9 % of requests are good", []Panel{
			graph("Bad requests, 5 minutes and 1 hour", ratio,
				Query{`cluster:bivouac_slo_errors:ratio_rate5m`, "5m"}, Query{`cluster:bivouac_slo_errors:ratio_rate1h`, "1h"}),
			graph("Bad requests, 6 hours and 3 days", ratio,
				Query{`cluster:bivouac_slo_errors:ratio_rate6h`, "6h"}, Query{`cluster:bivouac_slo_errors:ratio_rate3d`, "3d"}),
			graph("Requests that count", perSec,
				Query{`sum(rate(bivouac_slo_requests_total[$__rate_interval]))`, "all"},
				Query{`sum(rate(bivouac_slo_good_requests_total[$__rate_interval]))`, "good"},
				Query{`sum(rate(bivouac_slo_client_errors_total[$__rate_interval]))`, "client errors, apart"}),
		}},
		{"What goes wrong", []Panel{
			graph("Server errors by route", perSec,
				Query{rate("route", `bivouac_http_requests_total{class="5xx"}`), "{{route}}"}),
			graph("Sandboxes that failed, by reason", count,
				Query{rate("reason", `bivouac_sandbox_failures_total`), "{{reason}}"}),
			graph("Errors of Vault and Nomad", count,
				Query{rate("kind", `bivouac_secret_store_errors_total`), "Vault: {{kind}}"},
				Query{rate("kind", `bivouac_nomad_errors_total`), "Nomad: {{kind}}"}),
			graph("Limits hit", count, Query{rate("limit", `bivouac_limits_hit_total`), "{{limit}}"}),
			graph("Failed steps", count, Query{rate("step", `bivouac_scheduler_steps_total{outcome="failed"}`), "{{step}}"}),
			graph("Backups that failed", count, Query{rate("instance", `bivouac_backup_failures_total`), "{{instance}}"}),
		}},
	}}
}

func clusterPage() Dashboard {
	return Dashboard{Name: "cluster", Title: "cluster", Rows: slices.Concat([]Row{
		{"Nodes", []Panel{
			graph("State", flag, Query{`bivouac_raft_state == 1`, "{{instance}} {{state}}"}),
			graph("Ready and draining", flag, Query{`bivouac_raft_ready`, "{{instance}} ready"},
				Query{`bivouac_draining`, "{{instance}} draining"}),
			graph("Term", count, Query{`bivouac_raft_term`, "{{instance}}"}),
			graph("Programs", count, Query{`count by (version, revision) (bivouac_build_info)`, "{{version}} {{revision}}"}),
			graph("Protocol version", count, Query{`max by (instance, of) (bivouac_protocol_version)`, "{{instance}} {{of}}"}),
			graph("Certificates end", date,
				Query{`bivouac_certificate_expiry_timestamp_seconds * 1000`, "{{instance}} {{name}}"}),
			graph("CPU", count, Query{`rate(process_cpu_seconds_total{job="bivouac"}[$__rate_interval])`, "{{instance}}"}),
			graph("Memory", size, Query{`process_resident_memory_bytes{job="bivouac"}`, "{{instance}}"}),
			graph("Goroutines", count, Query{`go_goroutines{job="bivouac"}`, "{{instance}}"}),
		}},
		{"Raft", []Panel{
			graph("Writes by outcome", perSec,
				Query{rate("outcome", `bivouac_raft_propose_duration_seconds_count`), "{{outcome}}"}),
			graph("Time of a write", seconds,
				Query{quantile(.5, "", `bivouac_raft_propose_duration_seconds_bucket`), "p50"},
				Query{quantile(.99, "", `bivouac_raft_propose_duration_seconds_bucket`), "p99"}),
			graph("Time of a linearizable read", seconds,
				Query{quantile(.5, "", `bivouac_raft_read_duration_seconds_bucket`), "p50"},
				Query{quantile(.99, "", `bivouac_raft_read_duration_seconds_bucket`), "p99"}),
			graph("Write to the log, p99", seconds,
				Query{quantile(.99, "instance", `bivouac_raft_log_write_duration_seconds_bucket`), "{{instance}}"}),
			graph("Commit and apply, p99", seconds,
				Query{quantile(.99, "", `bivouac_raft_commit_duration_seconds_bucket`), "commit"},
				Query{quantile(.99, "instance", `bivouac_raft_apply_duration_seconds_bucket`), "apply {{instance}}"}),
			graph("Heartbeat, p99", seconds,
				Query{quantile(.99, "", `bivouac_raft_heartbeat_duration_seconds_bucket`), "heartbeat"}),
			graph("Time since the leader was heard", seconds, Query{`bivouac_raft_last_contact_seconds`, "{{instance}}"}),
			graph("Entries that members lack", count, Query{`bivouac_raft_peer_lag_entries`, "{{peer}}"}),
			graph("Events that nodes lack", size, Query{`bivouac_events_missing_bytes`, "{{instance}}"}),
			graph("Events fetched, and refused for want of room", count,
				Query{`increase(bivouac_events_fetched_bytes_total[$__rate_interval])`, "{{instance}} bytes"},
				Query{`increase(bivouac_events_refused_total[$__rate_interval])`, "{{instance}} refused"}),
			graph("Changes of the leader, elections, leases lost", count,
				Query{`increase(bivouac_raft_leader_changes_total[$__rate_interval])`, "{{instance}} changes"},
				Query{`increase(bivouac_raft_elections_total[$__rate_interval])`, "{{instance}} elections"},
				Query{`increase(bivouac_raft_leader_lease_timeouts_total[$__rate_interval])`, "{{instance}} leases lost"},
				Query{`increase(bivouac_raft_leadership_lost_total[$__rate_interval])`, "{{instance}} lost: {{reason}}"}),
			graph("Raft messages refused", count,
				Query{`increase(bivouac_raft_refused_messages_total[$__rate_interval])`, "{{instance}} {{reason}}"}),
			graph("Commands sent to the leader", perSec, Query{rate("result", `bivouac_raft_forwarded_total`), "{{result}}"}),
			graph("Index", count, Query{`bivouac_raft_commit_index`, "{{instance}} commit"},
				Query{`bivouac_raft_applied_index`, "{{instance}} applied"}),
			graph("Members", count, Query{`max by (voter) (bivouac_raft_members)`, "voter: {{voter}}"}),
		}},
	}, storageRows())}
}

// storageRows are what a node keeps, and the stores that it needs.
func storageRows() []Row {
	return []Row{
		{"Disk", []Panel{
			graph("Room", ratio, Query{`bivouac_disk_free_bytes / bivouac_disk_size_bytes`, "{{instance}} {{dir}}"}),
			graph("Log and snapshot", size, Query{`bivouac_raft_log_bytes`, "{{instance}} log"},
				Query{`bivouac_raft_snapshot_bytes`, "{{instance}} snapshot"}),
			graph("Age of the log and of the snapshot", seconds,
				Query{`time() - (bivouac_raft_log_oldest_timestamp_seconds > 0)`, "{{instance}} log"},
				Query{`time() - (bivouac_raft_snapshot_timestamp_seconds > 0)`, "{{instance}} snapshot"}),
			graph("State against its limit", size, Query{`max(bivouac_state_bytes)`, "state"},
				Query{`max(bivouac_state_limit_bytes)`, "limit"}, Query{`max(bivouac_state_largest_user_bytes)`, "largest user"}),
			graph("Rows", count, Query{`max by (table) (bivouac_store_rows)`, "{{table}}"}),
			graph("Backups", seconds, Query{`min(bivouac_backup_age_seconds)`, "age of the newest"}),
		}},
		{"Vault and Nomad", []Panel{
			graph("Reachable", flag, Query{`bivouac_secret_store_reachable`, "{{instance}} Vault"},
				Query{`bivouac_nomad_reachable`, "{{instance}} Nomad"}),
			graph("Time of operations on Vault, p99", seconds,
				Query{quantile(.99, "operation", `bivouac_secret_store_duration_seconds_bucket`), "{{operation}}"}),
			graph("Time of calls of Nomad, p99", seconds,
				Query{quantile(.99, "call", `bivouac_nomad_call_duration_seconds_bucket`), "{{call}}"}),
		}},
	}
}

func apiPage() Dashboard {
	return Dashboard{Name: "api", Title: "API", Rows: []Row{
		{"Requests", []Panel{
			graph("By class", perSec, Query{rate("class", `bivouac_http_requests_total`), "{{class}}"}),
			graph("By route", perSec, Query{rate("route, method", `bivouac_http_requests_total`), "{{method}} {{route}}"}),
			graph("By node", perSec, Query{rate("instance", `bivouac_http_requests_total`), "{{instance}}"}),
			graph("Time by route, p50", seconds,
				Query{quantile(.5, "route", `bivouac_http_request_duration_seconds_bucket`), "{{route}}"}),
			graph("Time by route, p99", seconds,
				Query{`cluster_route:bivouac_http_request_duration_seconds:p99_5m`, "{{route}}"}),
			graph("In progress", count, Query{`bivouac_http_requests_in_flight`, "{{instance}}"}),
			graph("Client errors by route", perSec,
				Query{rate("route", `bivouac_http_requests_total{class="4xx"}`), "{{route}}"}),
			graph("Reads by consistency", perSec,
				Query{rate("consistency, outcome", `bivouac_reads_total`), "{{consistency}} {{outcome}}"}),
			graph("Failed requests without a log line", perSec,
				Query{rate("instance", `bivouac_http_requests_not_logged_total`), "{{instance}}"}),
		}},
		{"Connections and limits", []Panel{
			graph("Open connections", count, Query{`bivouac_http_connections`, "{{instance}}"}),
			graph("Refused and dropped connections", perSec,
				Query{rate("instance", `bivouac_http_connections_refused_total`), "{{instance}} refused"},
				Query{rate("instance", `bivouac_http_connections_dropped_total`), "{{instance}} dropped"}),
			graph("Limits hit", perSec, Query{rate("limit", `bivouac_limits_hit_total`), "{{limit}}"}),
		}},
		{"Sandbox proxy", []Panel{
			graph("Requests by port and class", perSec,
				Query{rate("port, status", `bivouac_proxy_requests_total`), "{{port}} {{status}}"}),
			graph("Open streams", count, Query{`sum by (port) (bivouac_proxy_streams_open)`, "{{port}}"}),
			graph("Bytes", "Bps", Query{rate("port, direction", `bivouac_proxy_bytes_total`), "{{port}} {{direction}}"}),
			graph("Wake-ups", count, Query{rate("outcome", `bivouac_proxy_wakes_total`), "{{outcome}}"}),
		}},
	}}
}

func sandboxPage() Dashboard {
	return Dashboard{Name: "sandboxes", Title: "sandboxes", Rows: slices.Concat([]Row{
		{"Sandboxes", []Panel{
			graph("By state", count, Query{`max by (state) (bivouac_sandboxes)`, "{{state}}"}),
			graph("By reason", count, Query{`max by (state, reason) (bivouac_sandboxes_by_reason)`, "{{state}} {{reason}}"}),
			graph("By isolation", count, Query{`max by (isolation) (bivouac_sandboxes_by_isolation)`, "{{isolation}}"}),
			graph("Failures", count, Query{rate("reason", `bivouac_sandbox_failures_total`), "{{reason}}"}),
			graph("Expired", count, Query{rate("action, reason", `bivouac_sandboxes_expired_total`), "{{action}} {{reason}}"}),
			graph("Graceful pauses", count, Query{rate("outcome", `bivouac_sandbox_graceful_pauses_total`), "{{outcome}}"}),
			graph("Idle or not is unknown", count, Query{`max(bivouac_sandboxes_idle_unknown)`, "sandboxes"}),
		}},
		{"Starts", []Panel{
			graph("Time until a stage, p50", seconds,
				Query{quantile(.5, "stage, start", `bivouac_sandbox_start_duration_seconds_bucket`), "{{start}} {{stage}}"}),
			graph("Time until a stage, p99", seconds,
				Query{quantile(.99, "stage, start", `bivouac_sandbox_start_duration_seconds_bucket`), "{{start}} {{stage}}"}),
			graph("Starts", count,
				Query{rate("start", `bivouac_sandbox_start_duration_seconds_count{stage="running"}`), "{{start}}"}),
			graph("Warm pools: claims", count, Query{rate("outcome", `bivouac_pool_claims_total`), "{{outcome}}"}),
			graph("Warm pools: members", count,
				Query{`max by (spec, state) (bivouac_pool_size)`, "{{spec}} {{state}}"},
				Query{`max by (spec) (bivouac_pool_wanted)`, "{{spec}} wanted"}),
		}},
	}, schedulerRows())}
}

// schedulerRows are the leader's work and the machines that it works with.
func schedulerRows() []Row {
	return []Row{
		{"Scheduler", []Panel{
			graph("Not yet what was asked for", count, Query{`max by (wish) (bivouac_sandboxes_unconverged)`, "{{wish}}"},
				Query{`max by (wish) (bivouac_sandboxes_overdue)`, "{{wish}} overdue"}),
			graph("Oldest wish not yet true", seconds,
				Query{`max by (wish) (bivouac_sandboxes_unconverged_oldest_seconds)`, "{{wish}}"}),
			graph("Steps", count, Query{rate("step, outcome", `bivouac_scheduler_steps_total`), "{{step}} {{outcome}}"}),
			graph("Time of a pass, p99", seconds,
				Query{quantile(.99, "pass", `bivouac_scheduler_pass_duration_seconds_bucket`), "{{pass}}"}),
			graph("Orphans", count, Query{`max by (kind, reason) (bivouac_orphans)`, "{{kind}} {{reason}}"}),
			graph("Removals of the last hour", count,
				Query{`max by (kind) (bivouac_removals)`, "{{kind}}"},
				Query{`max by (kind) (bivouac_removals_braked)`, "{{kind}} braked"}),
			graph("Orphans removed", count, Query{rate("instance", `bivouac_orphans_removed_total`), "{{instance}}"}),
			graph("Secrets collected", count,
				Query{`sum(rate(bivouac_secret_versions_deleted_total[$__rate_interval]))`, "deleted"},
				Query{`sum(rate(bivouac_secret_versions_destroyed_total[$__rate_interval]))`, "destroyed"},
				Query{`sum(rate(bivouac_secret_versions_undeleted_total[$__rate_interval]))`, "undeleted"},
				Query{`max(bivouac_secret_strangers)`, "strangers"}),
		}},
		{"Machines", []Panel{
			graph("Free on Nomad's clients", size, Query{`max(bivouac_capacity_memory_free_bytes)`, "memory free"},
				Query{`max(bivouac_capacity_memory_bytes)`, "memory"},
				Query{`max(bivouac_capacity_waiting_memory_bytes)`, "memory waited for"}),
			graph("Free CPU on Nomad's clients", hertzes, Query{`max(bivouac_capacity_cpu_free_hertz)`, "free"},
				Query{`max(bivouac_capacity_cpu_hertz)`, "all"}, Query{`max(bivouac_capacity_waiting_cpu_hertz)`, "waited for"}),
			graph("Clients, and sandboxes that wait for one", count, Query{`max(bivouac_capacity_clients)`, "clients"},
				Query{`max(bivouac_sandboxes_waiting_for_capacity)`, "waiting sandboxes"}),
			graph("Copies of workspaces", perSec,
				Query{rate(
					"outcome",
					`bivouac_workspace_copies_total`,
				), "copies {{outcome}}"}, Query{rate("reason, outcome",
					`bivouac_workspace_moves_total`), "moves {{reason}} {{outcome}}"}),
			graph("Drains", count, Query{`max by (state) (bivouac_drains)`, "{{state}}"}),
			graph("What a lost client would cost", seconds, Query{`max(bivouac_workspace_uncopied_oldest_seconds)`, "oldest"}),
			graph("Sandboxes without a copy", count, Query{`max(bivouac_workspaces_without_copy)`, "sandboxes"}),
			graph("Copies that can't be restored, and lost objects", count,
				Query{`max(bivouac_workspace_copies_damaged)`, "damaged copies"},
				Query{`sum(increase(bivouac_workspace_copy_objects_lost_total[$__rate_interval]))`, "lost objects"}),
			graph("Copied", size, Query{`sum(rate(bivouac_workspace_copied_bytes_total[$__rate_interval]))`, "a second"}),
			graph("Time of a copy, p99", seconds,
				Query{quantile(.99, "", `bivouac_workspace_copy_duration_seconds_bucket`), "copy"}),
		}},
	}
}

func conversationPage() Dashboard {
	const routes = `route=~"/api/v1/app-conversations.*"`
	return Dashboard{Name: "conversations", Title: "conversations", Rows: []Row{
		{"Conversations", []Panel{
			graph("By the status of their sandbox", count, Query{`max by (status) (bivouac_conversations)`, "{{status}}"}),
			graph("Start tasks by status", count, Query{`max by (status) (bivouac_start_tasks)`, "{{status}}"}),
			number("Start tasks in ERROR", count, Query{`max(bivouac_start_tasks{status="ERROR"})`, ""}),
			number("Start tasks under way", count,
				Query{`sum(max by (status) (bivouac_start_tasks{status!~"READY|ERROR"}))`, ""}),
		}},
		{"Requests", []Panel{
			graph("By route and class", perSec,
				Query{rate("route, method, class", `bivouac_http_requests_total{`+routes+`}`), "{{method}} {{route}} {{class}}"}),
			graph("Time by route, p99", seconds,
				Query{quantile(.99, "route", `bivouac_http_request_duration_seconds_bucket{`+routes+`}`), "{{route}}"}),
			graph("Sessions with agent servers", count,
				Query{`sum(bivouac_proxy_streams_open{port="AGENT_SERVER"})`, "open streams"}),
			graph("Wake-ups by traffic", count, Query{rate("outcome", `bivouac_proxy_wakes_total`), "{{outcome}}"}),
		}},
		{"Models", []Panel{
			graph("Requests by model and status", perSec,
				Query{rate("model, status", `bivouac_llm_requests_total`), "{{model}} {{status}}"}),
			graph("Answered by the gateway itself", perSec, Query{rate("reason", `bivouac_llm_refused_total`), "{{reason}}"}),
			graph("In progress", count, Query{`bivouac_llm_requests_open`, "{{instance}}"}),
			graph("Waiting for a slot", count, Query{`bivouac_llm_requests_waiting`, "{{instance}}"}),
			graph("Time to the first byte, p50", seconds,
				Query{quantile(.5, "model", `bivouac_llm_first_byte_duration_seconds_bucket`), "{{model}}"}),
			graph("Time to the end, p99", seconds,
				Query{quantile(.99, "model", `bivouac_llm_request_duration_seconds_bucket`), "{{model}}"}),
			graph("Tokens", perSec, Query{rate("model, kind", `bivouac_llm_tokens_total`), "{{model}} {{kind}}"}),
			graph("Cost, US dollars an hour", count,
				Query{`3600 * ` + rate("model", `bivouac_llm_cost_dollars_total`), "{{model}}"}),
		}},
	}}
}
