package watch

import (
	"fmt"
	"slices"
	"time"
)

// Alerts returns the alerting rules.
func Alerts(s Scale) []Alert {
	return slices.Concat(nodeAlerts(s), raftAlerts(s), machineAlerts(s), stackAlerts(), workAlerts(s))
}

// nodeAlerts are about whether nodes run and are seen.
func nodeAlerts(s Scale) []Alert {
	return []Alert{
		{
			Name: "BivouacNodeDown", For: 2 * time.Minute, Severity: Ticket,
			Expr:        `up{` + job + `} == 0`,
			Summary:     "The node {{ $labels.instance }} does not answer",
			Description: "A cluster of three bears the loss of one node. A second one stops all writes.",
		},
		{
			Name: "BivouacNodeRestarts", For: 0, Severity: Ticket,
			// A node that ends before it is scraped shows no start, but comes and goes.
			Expr: fmt.Sprintf(`changes(process_start_time_seconds{%[1]s}[%[2]s]) > 2 or changes(up{%[1]s}[%[2]s]) > 4`, job,
				s.window(10*time.Minute)),
			Summary:     "The node {{ $labels.instance }} starts again and again",
			Description: "It ended at least three times in ten minutes. Its log says why, before each start.",
		},
		{
			Name: "BivouacNotScraped", For: 5 * time.Minute, Severity: Page,
			// A cluster that was scraped, a member that is no target, and none at all.
			Expr: fmt.Sprintf(`group by (cluster) (last_over_time(up{%[1]s}[%[2]s])) unless group by (cluster) (up{%[1]s}) or `+
				`max by (cluster) (sum without (voter) (bivouac_raft_members{%[1]s})) > count by (cluster) (up{%[1]s}) or `+
				`absent(up{%[1]s})`, job, s.window(6*time.Hour)),
			Summary:     "Prometheus does not scrape all nodes{{ with $labels.cluster }} of {{ . }}{{ end }}",
			Description: "No rule sees a node that is no target. The scrape's configuration lost it, or never had it.",
		},
		{
			Name: "BivouacNoLeader", For: time.Minute, Severity: Page,
			Expr: `max by (cluster) (bivouac_raft_leader_known{` + job + `}) == 0` +
				` or count by (cluster) (up{` + job + `} == 0) == on (cluster) count by (cluster) (up{` + job + `})`,
			Summary:     "No node knows a leader",
			Description: "Writes and linearizable reads fail. Running sandboxes go on.",
		},
		{
			Name: "BivouacNodeNotReady", For: 5 * time.Minute, Severity: Ticket,
			Expr:        `bivouac_raft_ready{` + job + `} == 0 and on (cluster, instance) bivouac_draining{` + job + `} == 0`,
			Summary:     "The node {{ $labels.instance }} runs and is not ready",
			Description: "Its /ready says why. Load balancers leave it out.",
		},
	}
}

// raftAlerts are about Raft.
func raftAlerts(s Scale) []Alert {
	quarter := s.window(15 * time.Minute)
	return []Alert{
		{
			Name: "BivouacLeaderUnstable", For: 0, Severity: Ticket,
			Expr:        fmt.Sprintf(`max by (cluster) (increase(bivouac_raft_leader_changes_total{%s}[%s])) > 4`, job, quarter),
			Summary:     "The leader changed {{ $value | humanize }} times in 15 minutes",
			Description: "Each change makes writes wait. A slow disk, a busy machine or a bad network is the usual cause.",
		},
		{
			Name: "BivouacForgedMessages", For: 0, Severity: Ticket,
			Expr: fmt.Sprintf(
				`sum by (cluster, instance) (increase(bivouac_raft_refused_messages_total{%s,reason=~"forged|term"}[%s])) > 0`,
				job,
				quarter,
			),
			Summary:     "{{ $labels.instance }} refused {{ $value | humanize }} forged Raft messages in 15 minutes",
			Description: "Somebody has a certificate of the cluster's CA. Nothing of such a message is taken.",
		},
		{
			Name: "BivouacMemberLags", For: 5 * time.Minute, Severity: Ticket,
			Expr:        `bivouac_raft_peer_lag_entries{` + job + `} > 5000`,
			Summary:     "The member {{ $labels.peer }} lags {{ $value }} entries behind",
			Description: "It is away or too slow. The cluster bears one failure less.",
		},
		{
			Name: "BivouacEventsMissing", For: 15 * time.Minute, Severity: Ticket,
			Expr:        `bivouac_events_missing_bytes{` + job + `} > 0`,
			Summary:     "{{ $labels.instance }} lacks {{ $value | humanize1024 }}B of events of conversations",
			Description: "Until it has them it is none of a majority: stop and remove no other node.",
		},
		{
			Name: "BivouacEventsRefused", For: time.Minute, Severity: Page,
			Expr:        `bivouac_events_full{` + job + `} > 0`,
			Summary:     "The disk of {{ $labels.instance }} has no room for events: the cluster takes none",
			Description: "Agent servers send them again. Settings, pauses and deletions go on.",
		},
		{
			Name: "BivouacLogWritesSlow", For: 10 * time.Minute, Severity: Ticket,
			Expr:        `cluster_instance:bivouac_raft_log_write_duration_seconds:p99_5m > 0.25`,
			Summary:     "Writes to the log of {{ $labels.instance }} take {{ $value | humanizeDuration }} (p99)",
			Description: "A majority waits for its disks with every write. At 30 s a node stops.",
		},
	}
}

// machineAlerts are about the nodes' disks, certificates and programs.
func machineAlerts(s Scale) []Alert {
	return []Alert{
		{
			Name: "BivouacDiskFillsUp", For: 5 * time.Minute, Severity: Page,
			// The last sample of a node that its disk has ended counts, too.
			Expr: fmt.Sprintf(
				`last_over_time(bivouac_disk_free_bytes{%[1]s}[%[2]s]) / last_over_time(bivouac_disk_size_bytes{%[1]s}[%[2]s])`+
					` < 0.10 or last_over_time(bivouac_disk_free_bytes{%[1]s,dir="data"}[%[2]s]) < 1e9`,
				job, s.window(time.Hour),
			),
			Summary:     "The file system of {{ $labels.dir }} on {{ $labels.instance }} is nearly full",
			Description: "A node stops when it can't write its log.",
		},
		{
			Name: "BivouacCertificateExpires", For: time.Hour, Severity: Ticket,
			Expr: fmt.Sprintf(`bivouac_certificate_expiry_timestamp_seconds{%s} - time() < %s`, job,
				s.seconds(7*24*time.Hour)),
			Summary:     "The certificate {{ $labels.name }} of {{ $labels.instance }} ends in {{ $value | humanizeDuration }}",
			Description: "A node whose certificate has expired is cut off from the others.",
		},
		{
			Name: "BivouacCertificateRenewalFails", For: 0, Severity: Ticket,
			Expr: fmt.Sprintf(`sum by (cluster, instance) (increase(bivouac_certificate_renewals_total{%[1]s,`+
				`result="failed"}[%[2]s])) > 1 unless sum by (cluster, instance) `+
				`(increase(bivouac_certificate_renewals_total{%[1]s,result="ok"}[%[2]s])) > 0`, job, s.window(3*time.Hour)),
			Summary:     "{{ $labels.instance }} can't renew its certificate",
			Description: "It tries every hour, and has ten days for it. Its log says why it fails.",
		},
		{
			Name: "BivouacProtocolVersionWaits", For: 24 * time.Hour, Severity: Ticket,
			Expr: fmt.Sprintf(`min by (cluster) (bivouac_protocol_version{%[1]s,of="program"}) > `+
				`max by (cluster) (bivouac_protocol_version{%[1]s,of="cluster"})`, job),
			Summary:     "All nodes know protocol version {{ $value }}, and the cluster does not use it",
			Description: "An upgrade was not finished: what the new version brings is off.",
		},
	}
}

// stackAlerts are about what Bivouac uses, and about backups.
func stackAlerts() []Alert {
	return []Alert{
		{
			Name: "BivouacVaultUnavailable", For: 2 * time.Minute, Severity: Page,
			Expr:        `count by (cluster) (bivouac_secret_store_reachable{` + job + `} == 0) > 0`,
			Summary:     "{{ $value }} nodes can't use Vault",
			Description: "Vault is sealed or away. Starts, resumes and changes of secrets answer 503 or wait.",
		},
		{
			Name: "BivouacVaultLoginFails", For: 2 * time.Minute, Severity: Page,
			Expr: fmt.Sprintf(`count by (cluster) (bivouac_secret_store_session{%[1]s} == 0 and `+
				`bivouac_secret_store_reachable{%[1]s} == 1) > 0`, job),
			Summary:     "{{ $value }} nodes are not logged in to Vault",
			Description: "Vault answers and refuses the AppRole login, or the token was revoked.",
		},
		{
			Name: "BivouacSecretIDExpires", For: 0, Severity: Ticket,
			Expr: fmt.Sprintf(`bivouac_secret_store_secret_id_expiry_timestamp_seconds{%[1]s} - time() and `+
				`bivouac_secret_store_secret_id_warning_timestamp_seconds{%[1]s} < time()`, job),
			Summary:     "The Vault secret id of {{ $labels.instance }} ends in {{ $value | humanizeDuration }}",
			Description: "The node lives on its token until its next start, which then can't log in to Vault.",
		},
		{
			Name: "BivouacNomadUnavailable", For: 2 * time.Minute, Severity: Page,
			Expr:        `count by (cluster) (bivouac_nomad_reachable{` + job + `} == 0) > 0`,
			Summary:     "{{ $value }} nodes can't use Nomad",
			Description: "Nomad does not answer or has no leader. Sandboxes run on; none starts, pauses or ends.",
		},
		{
			Name: "BivouacBackupTooOld", For: 15 * time.Minute, Severity: Page,
			// The age is NaN, which differs from itself, while there is no backup at all.
			Expr: fmt.Sprintf(`min by (cluster) (bivouac_backup_age_seconds{%[1]s}) > `+
				`3 * max by (cluster) (bivouac_backup_interval_seconds{%[1]s}) or max by (cluster) `+
				`(bivouac_backup_age_seconds{%[1]s} != bivouac_backup_age_seconds{%[1]s})`, job),
			Summary:     "The newest backup is {{ $value | humanizeDuration }} old, or there is none",
			Description: "It is older than three intervals: a restore now loses everything since then.",
		},
		{
			Name: "BivouacNoBackups", For: time.Hour, Severity: Ticket,
			Expr:        `max by (cluster) (bivouac_backup_interval_seconds{` + job + `}) == 0`,
			Summary:     "No node makes backups",
			Description: "No file has backup { }: a lost majority of disks loses everything.",
		},
		{
			Name: "BivouacHold", For: 5 * time.Minute, Severity: Page,
			Expr:        `max by (cluster) (bivouac_hold{` + job + `}) == 1`,
			Summary:     "The cluster is in a hold",
			Description: "The leader does nothing by itself until an operator releases the hold.",
		},
		{
			Name: "BivouacStateNearLimit", For: 5 * time.Minute, Severity: Ticket,
			Expr: `max by (cluster) (bivouac_state_bytes{` + job + `})` +
				` / (max by (cluster) (bivouac_state_limit_bytes{` + job + `}) > 0) > 0.85`,
			Summary:     "The state has {{ $value | humanizePercentage }} of what it may have",
			Description: "At the limit, requests that add something are answered 429.",
		},
	}
}

// workAlerts are about requests and sandboxes.
func workAlerts(s Scale) []Alert {
	quarter := s.window(15 * time.Minute)
	const day = 24 * time.Hour
	return []Alert{
		{
			Name: "BivouacErrorBudgetBurnsFast", For: 2 * time.Minute, Severity: Page,
			Expr:        burn(14.4, time.Hour, 5*time.Minute) + " or " + burn(6, 6*time.Hour, 30*time.Minute),
			Summary:     "Requests fail or are slow: {{ $value | humanizePercentage }} of them are bad",
			Description: "At this rate the budget of a month (0.1 %) is gone within five days, or within two.",
		},
		{
			Name: "BivouacErrorBudgetBurnsSlowly", For: 15 * time.Minute, Severity: Ticket,
			Expr:        burn(3, day, 2*time.Hour) + " or " + burn(1, 3*day, 6*time.Hour),
			Summary:     "Too many requests fail or are slow: {{ $value | humanizePercentage }}",
			Description: "At this rate the budget of a month (0.1 %) does not last.",
		},
		{
			Name: "BivouacSandboxesFail", For: 0, Severity: Ticket,
			Expr: fmt.Sprintf(`sum by (cluster, reason) (increase(bivouac_sandbox_failures_total{%s}[%s])) > 3`, job,
				quarter),
			Summary:     "{{ $value | humanize }} sandboxes failed in 15 minutes: {{ $labels.reason }}",
			Description: "They are in ERROR and say why in their status_detail.",
		},
		{
			Name: "BivouacSandboxStuck", For: 5 * time.Minute, Severity: Ticket,
			Expr: fmt.Sprintf(`max by (cluster, wish) (bivouac_sandboxes_unconverged_oldest_seconds{%s}) > %s`, job,
				s.seconds(15*time.Minute)),
			Summary:     "A sandbox has waited {{ $value | humanizeDuration }} to be {{ $labels.wish }}",
			Description: "The scheduler can't reach that state, or does not run.",
		},
		{
			Name: "BivouacModelsFail", For: 5 * time.Minute, Severity: Ticket,
			Expr: fmt.Sprintf(`sum by (cluster, model) (rate(bivouac_llm_requests_total{%[1]s,status!="2xx"}[%[2]s])) / `+
				`(sum by (cluster, model) (rate(bivouac_llm_requests_total{%[1]s}[%[2]s])) > 0) > 0.5`, job, quarter),
			Summary:     "{{ $value | humanizePercentage }} of the requests to the model {{ $labels.model }} fail",
			Description: "Its endpoint is away, or refuses the key or the requests. Agents wait or stop.",
		},
		{
			Name: "BivouacDrainStuck", For: 0, Severity: Ticket,
			Expr:        `max by (cluster) (bivouac_drains{` + job + `,state="stuck"}) > 0`,
			Summary:     "The drain of {{ $value }} Nomad clients leaves sandboxes where they are",
			Description: "Their workspaces can't be moved. They run on where they were, and nothing new comes to the client.",
		},
		{
			Name: "BivouacCopiesDamaged", For: 0, Severity: Ticket,
			Expr: fmt.Sprintf(`max by (cluster) (bivouac_workspace_copies_damaged{%s}) > 0 or sum by (cluster)`+
				` (increase(bivouac_workspace_copy_objects_lost_total{%[1]s}[%s])) > 0`, job, s.window(time.Hour)),
			Summary:     "Copies of workspaces can't be restored, or have lost objects: {{ $value | humanize }}",
			Description: "Something deletes in the store of copies. What is on a client that is lost now may be gone.",
		},
		{
			Name: "BivouacOrphans", For: time.Hour, Severity: Ticket,
			Expr:        `max by (cluster, kind, reason) (bivouac_orphans{` + job + `,reason!~"policy|lost"}) > 0`,
			Summary:     "{{ $value }} of kind {{ $labels.kind }} in Nomad without a sandbox ({{ $labels.reason }})",
			Description: "They use memory or disk. The leader never removes strangers.",
		},
		{
			Name: "BivouacRemovalsBraked", For: 0, Severity: Page,
			Expr:        `max by (cluster, kind) (bivouac_removals_braked{` + job + `}) == 1`,
			Summary:     "The leader stopped removing by itself: {{ $labels.kind }}",
			Description: "More was to be removed within an hour than removals_per_hour allows. That may be a mistake.",
		},
	}
}
