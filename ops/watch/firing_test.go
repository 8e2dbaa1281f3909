package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// firing says which series make an alert fire. Values are in promtool's notation, one for each
// minute, or each ten minutes of those that take days.
type firing struct {
	alert  string
	series map[string]string
	// quiet and loud are times at which it does not fire and does.
	quiet, loud time.Duration
}

const j = `{cluster="a",job="bivouac",instance="n1"}`

// with is a series of n1 with more labels.
func with(name, labels string) string {
	return name + strings.Replace(j, "}", ","+labels+"}", 1)
}

func firings() []firing {
	const day = 24 * time.Hour
	m := func(n int) time.Duration { return time.Duration(n) * time.Minute }
	return []firing{
		{"BivouacNodeDown", map[string]string{"up" + j: "1x5 0x10"}, m(7), m(9)},
		{"BivouacNoLeader", map[string]string{"up" + j: "1x20", "bivouac_raft_leader_known" + j: "1x5 0x10"}, m(6), m(8)},
		{
			"BivouacNoLeader",
			map[string]string{"up" + j: "1x5 0x10", `up{cluster="a",job="bivouac",instance="n2"}`: "1x5 0x10"},
			m(5),
			m(8),
		},
		{
			"BivouacNodeNotReady",
			map[string]string{"bivouac_raft_ready" + j: "1x5 0x20", "bivouac_draining" + j: "0x30"},
			m(10),
			m(12),
		},
		{
			"BivouacNodeRestarts",
			map[string]string{"process_start_time_seconds" + j: "1000x20 1001+1x10"},
			m(20),
			m(24),
		},
		{
			// It ends before it is scraped: up for a minute, away for one.
			"BivouacNodeRestarts",
			map[string]string{"up" + j: "1x20 0 1 0 1 0 1 0 1 0 1"},
			m(22),
			m(28),
		},
		{
			"BivouacNotScraped", // a whole cluster has no target any more
			map[string]string{"up" + j: "1x10", `up{cluster="b",job="bivouac",instance="m1"}`: "1x60"},
			m(15),
			m(30),
		},
		{
			"BivouacNotScraped", // a member is no target
			map[string]string{
				"up" + j: "1x40", with("bivouac_raft_members", `voter="true"`): "1x10 3x30",
				with("bivouac_raft_members", `voter="false"`): "0x40",
			},
			m(14),
			m(17),
		},
		{"BivouacNotScraped", map[string]string{`up{job="other"}`: "1x60"}, m(4), m(7)},
		{"BivouacLeaderUnstable", map[string]string{"bivouac_raft_leader_changes_total" + j: "0x20 1+1x20"}, m(20), m(32)},
		{
			"BivouacForgedMessages",
			map[string]string{with("bivouac_raft_refused_messages_total", `reason="term"`): "0x20 1x60"},
			m(20),
			m(32),
		},
		{
			"BivouacMemberLags",
			map[string]string{with("bivouac_raft_peer_lag_entries", `peer="n2"`): "0x5 9000x20"},
			m(10),
			m(12),
		},
		{"BivouacEventsMissing", map[string]string{with("bivouac_events_missing_bytes", ""): "-1x5 3e6x40"}, m(20), m(22)},
		{"BivouacEventsRefused", map[string]string{with("bivouac_events_full", ""): "0x5 1x20"}, m(6), m(8)},
		{"BivouacLogWritesSlow", map[string]string{
			with("bivouac_raft_log_write_duration_seconds_bucket", `le="0.1"`):  "0x60",
			with("bivouac_raft_log_write_duration_seconds_bucket", `le="1"`):    "0+60x60",
			with("bivouac_raft_log_write_duration_seconds_bucket", `le="+Inf"`): "0+60x60",
		}, m(5), m(20)},
		{"BivouacDiskFillsUp", map[string]string{
			with("bivouac_disk_free_bytes",
				`dir="data"`): "5e10x5 9e9x20", with("bivouac_disk_size_bytes", `dir="data"`): "1e11x30",
		}, m(10), m(12)},
		{
			"BivouacCertificateExpires",
			map[string]string{with("bivouac_certificate_expiry_timestamp_seconds", `name="peer"`): "691200x300"},
			m(1400),
			m(1520),
		},
		{
			"BivouacDiskFillsUp", // the node stopped with its disk full
			map[string]string{
				with("bivouac_disk_free_bytes", `dir="data"`): "5e10x5 1e8 stale",
				with("bivouac_disk_size_bytes", `dir="data"`): "1e11x6 stale", "up" + j: "1x6 0x30",
			},
			m(5),
			m(20),
		},
		{
			"BivouacCertificateRenewalFails",
			map[string]string{
				with("bivouac_certificate_renewals_total", `result="failed"`): "0x60 1x60 2x60 3x60",
				with("bivouac_certificate_renewals_total", `result="ok"`):     "1x240",
			},
			m(100),
			m(200),
		},
		{
			"BivouacSecretIDExpires",
			map[string]string{
				"bivouac_secret_store_secret_id_expiry_timestamp_seconds" + j:  "691200x1600",
				"bivouac_secret_store_secret_id_warning_timestamp_seconds" + j: "86400x1600",
			},
			m(1400),
			m(1450),
		},
		{"BivouacProtocolVersionWaits", map[string]string{
			with("bivouac_protocol_version", `of="program"`): "9x10 10x300",
			with("bivouac_protocol_version", `of="cluster"`): "9x310",
		}, 25 * time.Hour, 27 * time.Hour},
		{"BivouacModelsFail", map[string]string{
			with("bivouac_llm_requests_total", `model="m",status="2xx"`):  "0+60x30 1800x60",
			with("bivouac_llm_requests_total", `model="m",status="none"`): "0x30 0+10x60",
		}, m(30), m(55)},
		{"BivouacNoBackups", map[string]string{"bivouac_backup_interval_seconds" + j: "3600x5 0x100"}, m(60), m(70)},
		{"BivouacVaultUnavailable", map[string]string{"bivouac_secret_store_reachable" + j: "1x5 0x10"}, m(7), m(9)},
		{
			"BivouacVaultLoginFails",
			map[string]string{"bivouac_secret_store_reachable" + j: "1x20", "bivouac_secret_store_session" + j: "1x5 0x10"},
			m(7),
			m(9),
		},
		{"BivouacNomadUnavailable", map[string]string{"bivouac_nomad_reachable" + j: "1x5 0x10"}, m(7), m(9)},
		{"BivouacBackupTooOld", map[string]string{
			"bivouac_backup_age_seconds" + j: "0+60x300", "bivouac_backup_interval_seconds" + j: "3600x300",
		}, m(190), m(200)},
		{"BivouacBackupTooOld", map[string]string{ // the threshold follows the interval
			"bivouac_backup_age_seconds" + j: "0+600x300", "bivouac_backup_interval_seconds" + j: "43200x300",
		}, 36 * time.Hour, 37 * time.Hour},
		{
			"BivouacBackupTooOld",
			map[string]string{"bivouac_backup_age_seconds" + j: strings.Repeat("NaN ", 30)},
			m(14),
			m(17),
		},
		{"BivouacHold", map[string]string{"bivouac_hold" + j: "0x5 1x20"}, m(10), m(12)},
		{
			"BivouacStateNearLimit",
			map[string]string{"bivouac_state_bytes" + j: "10x5 90x20", "bivouac_state_limit_bytes" + j: "100x30"},
			m(10),
			m(12),
		},
		// An hour in which 2 % of the requests are bad, after three good ones.
		{"BivouacErrorBudgetBurnsFast", map[string]string{
			"bivouac_slo_requests_total" + j: "0+600x400", "bivouac_slo_good_requests_total" + j: "0+600x180 108588+588x220",
		}, m(180), m(250)},
		// Half a percent for a day, after a good day, is slow.
		{"BivouacErrorBudgetBurnsSlowly", map[string]string{
			"bivouac_slo_requests_total" + j: "0+1000x400", "bivouac_slo_good_requests_total" + j: "0+1000x144 144995+995x256",
		}, day, 2 * day},
		{
			"BivouacSandboxesFail",
			map[string]string{with("bivouac_sandbox_failures_total", `reason="image"`): "0x10 1+1x20"},
			m(10),
			m(20),
		},
		{
			"BivouacSandboxStuck",
			map[string]string{with("bivouac_sandboxes_unconverged_oldest_seconds", `wish="deleted"`): "0+60x60"},
			m(18),
			m(25),
		},
		{"BivouacDrainStuck", map[string]string{with("bivouac_drains", `state="stuck"`): "0x5 1x10"}, m(5), m(7)},
		{"BivouacCopiesDamaged", map[string]string{"bivouac_workspace_copies_damaged" + j: "0x5 1x10"}, m(5), m(7)},
		{"BivouacCopiesDamaged", map[string]string{"bivouac_workspace_copy_objects_lost_total" + j: "0x5 2x10"}, m(5), m(7)},
		{
			"BivouacOrphans",
			map[string]string{with("bivouac_orphans", `kind="job",reason="unowned"`): "0x5 2x100"},
			m(60),
			m(70),
		},
		{"BivouacRemovalsBraked", map[string]string{with("bivouac_removals_braked", `kind="job"`): "0x5 1x10"}, m(5), m(7)},
	}
}

// The alerts fire with the windows that an operator gets, and not before.
func TestAlerts_FireInTheirTime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "bivouac.yml"), Rules(1), 0o644); err != nil {
		t.Fatal(err)
	}
	tried := map[string]bool{}
	write := func(name, step string, slow bool) {
		var b strings.Builder
		// Without an order promtool evaluates an alert before or after what it reads, by chance.
		fmt.Fprintf(&b,
			"rule_files: [bivouac.yml]\nevaluation_interval: %s\ngroup_eval_order: [bivouac-recordings, "+
				"bivouac-alerts]\ntests:\n", step)
		for _, f := range firings() {
			if slow != (f.loud > 10*time.Hour) {
				continue
			}
			tried[f.alert] = true
			fmt.Fprintf(&b, "  - name: %s\n    interval: %s\n    input_series:\n", f.alert, step)
			for series, values := range f.series {
				fmt.Fprintf(&b, "      - series: %s\n        values: %s\n", quote(series), quote(values))
			}
			b.WriteString("    promql_expr_test:\n")
			for value, at := range []time.Duration{f.quiet, f.loud} {
				fmt.Fprintf(&b, "      - expr: %s\n        eval_time: %s\n        exp_samples: [{labels: '{}', value: %d}]\n",
					quote(fmt.Sprintf(`min(clamp_max(count(ALERTS{alertname="%s",alertstate="firing"}), 1) or vector(0))`,
						f.alert)), Scale(1).window(at), value)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("minutes.yml", "1m", false)
	write("days.yml", "10m", true)
	for _, a := range Alerts(1) {
		if !tried[a.Name] {
			t.Errorf("no series here make %s fire", a.Name)
		}
	}
	promtool(t, dir, "test", "rules", "minutes.yml", "days.yml")
}

// Two clusters in one Prometheus: the one that is well does not hide what is wrong with the other,
// and the alert says which.
func TestAlerts_KeepClustersApart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var b strings.Builder
	fmt.Fprint(&b, "rule_files: [bivouac.yml]\nevaluation_interval: 1m\ngroup_eval_order: [bivouac-recordings, "+
		"bivouac-alerts]\ntests:\n  - interval: 1m\n    input_series:\n")
	for metric, values := range map[string][2]string{
		"up":                                {"1x400", "1x400"},
		"bivouac_raft_leader_known":         {"1x400", "0x400"},
		"bivouac_secret_store_reachable":    {"1x400", "0x400"},
		"bivouac_backup_age_seconds":        {"60x400", "1e6x400"},
		"bivouac_backup_interval_seconds":   {"3600x400", "3600x400"},
		"bivouac_slo_requests_total":        {"0+6000x400", "0+600x400"},
		"bivouac_slo_good_requests_total":   {"0+6000x400", "0+500x400"},
		"bivouac_state_bytes":               {"10x400", "95x400"},
		"bivouac_state_limit_bytes":         {"1000x400", "100x400"},
		"bivouac_nomad_reachable":           {"1x400", "1x400"},
		"bivouac_raft_leader_changes_total": {"1x400", "0+1x400"},
	} {
		for i, cluster := range []string{"well", "ill"} {
			fmt.Fprintf(&b, "      - series: '%s{job=\"bivouac\",cluster=\"%s\",instance=\"n1\"}'\n        values: %s\n",
				metric, cluster, values[i])
		}
	}
	fmt.Fprint(&b, "    promql_expr_test:\n      - expr: count by (alertname, cluster) (ALERTS{alertstate=\"firing\"})\n"+
		"        eval_time: 6h\n        exp_samples:\n")
	for _, name := range []string{"BackupTooOld", "ErrorBudgetBurnsFast", "ErrorBudgetBurnsSlowly", "LeaderUnstable",
		"NoLeader", "StateNearLimit", "VaultUnavailable"} {
		fmt.Fprintf(&b, "          - {labels: '{alertname=\"Bivouac%s\",cluster=\"ill\"}', value: 1}\n", name)
	}
	for name, text := range map[string][]byte{"bivouac.yml": Rules(1), "two.yml": []byte(b.String())} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	promtool(t, dir, "test", "rules", "two.yml")
}
