package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/raftmetrics"
)

var update = flag.Bool("update", false, "rewrite ops/METRICS.md")

const metricsFile = "../../ops/METRICS.md"

// metric is a row of METRICS.md.
type metric struct {
	name, kind, help string
	labels           []string
	// values are the values of each label on a fresh node.
	values map[string][]string
}

// freshMetrics returns the metrics of a node with everything configured that has just started,
// alone: no leader, no Nomad, no Vault. It also returns those without a series yet.
func freshMetrics(t *testing.T) []metric {
	t.Helper()
	s := newServers(t, serverOptions{
		nomad: "http://" + freeAddress(t), vault: "http://" + freeAddress(t), roleID: "none", https: true,
		more: fmt.Sprintf("backup {\n  dir = %q\n}\n", t.TempDir()),
	})
	cfg, err := loadConfig(s.nodes[0].config)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Peer.PKIMount, cfg.Peer.PKIRole = "pki", "n1" // the node renews its certificate
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		t.Fatal(err)
	}
	made, err := cfg.parts(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer made.nomad.Close()
	if err := raftmetrics.CollectLibrary(made.registry); err != nil {
		t.Fatal(err)
	}
	if made.listener, err = listen(cfg.HTTP.Address); err != nil {
		t.Fatal(err)
	}
	node, err := newApp(made.parts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() { done <- node.run(ctx) }()
	defer func() {
		cancel(cluster.ErrAbrupt)
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	eventually(t, "the node runs", func() error {
		n, err := testutil.GatherAndCount(made.registry, "bivouac_raft_state")
		if err == nil && n == 0 {
			err = fmt.Errorf("no state of Raft")
		}
		return err
	})
	if problems, err := testutil.GatherAndLint(made.registry); err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
	return metricsOf(t, made.registry)
}

// metricsOf lists what a registry has and describes, without the metrics of the Go runtime.
func metricsOf(t *testing.T, registry *prometheus.Registry) []metric {
	t.Helper()
	all := map[string]metric{}
	descs := make(chan *prometheus.Desc)
	go func() { registry.Describe(descs); close(descs) }()
	parts := regexp.MustCompile(`fqName: "(bivouac_[a-z0-9_]+)", help: "(.*)", constLabels: \{.*\}, ` +
		`variableLabels: \{([^}]*)\}`)
	for d := range descs {
		if p := parts.FindStringSubmatch(d.String()); p != nil {
			m := metric{name: p[1], help: p[2], kind: "gauge", values: map[string][]string{}}
			if p[3] != "" {
				m.labels = strings.Split(p[3], ",")
			}
			all[m.name] = m
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		m, ours := all[f.GetName()]
		if !ours {
			continue
		}
		m.kind = strings.ToLower(f.GetType().String())
		for _, series := range f.GetMetric() {
			for _, l := range series.GetLabel() {
				if !slices.Contains(m.labels, l.GetName()) { // a constant one
					m.labels = append(m.labels, l.GetName())
				}
				if !slices.Contains(m.values[l.GetName()], l.GetValue()) {
					m.values[l.GetName()] = append(m.values[l.GetName()], l.GetValue())
				}
			}
		}
		all[f.GetName()] = m
	}
	return slices.SortedFunc(maps.Values(all), func(a, b metric) int { return strings.Compare(a.name, b.name) })
}

// someValues is how many values of a label the table shows.
const someValues = 16

func (m metric) row() string {
	labels := []string{}
	for _, l := range slices.Sorted(slices.Values(m.labels)) {
		values := slices.Sorted(slices.Values(m.values[l]))
		text := "`" + l + "`"
		switch {
		case m.name == "bivouac_build_info":
		case len(values) > someValues:
			text += " (of a fixed list)"
		case len(values) > 0:
			text += ": " + strings.Join(values, ", ")
		default:
			text += " (from its first event on)"
		}
		labels = append(labels, text)
	}
	return fmt.Sprintf("| `%s` | %s | %s | %s |\n", m.name, m.kind, strings.Join(labels, "; "), m.help)
}

const metricsHead = `# Metrics

` + "`go test ./cmd/bivouac -run TestMetrics -update`" + ` writes this page from a node that has just started.
The same test fails when the program and the page differ. Names, types and labels are stable: a
change of one is in CHANGELOG.md.

Names follow Prometheus' conventions: base units (seconds, bytes), ` + "`_total`" + ` for counters. Every
metric exists from the start of the node with all values of its labels, at 0, except those whose
label is a member, a spec or a directory. Labels never hold users, ids, paths or texts of errors.

Each node counts what it does itself. What is read from the replicated store is the same on every
node: take the ` + "`max`" + `, not the ` + "`sum`" + `. Only the leader runs the scheduler, so counters of a former
leader stand still.

Metrics of Nomad, of the secret store and of hashicorp/raft are those of ` + "`bivouac server`" + `; those of
backups, but their interval, exist where ` + "`backup { dir }`" + ` is set, and those of renewals where the
node renews its certificate itself. Metrics that begin with ` + "`go_`" +
	` and ` + "`process_`" + ` are the Go
client library's.

| name | type | labels | what |
| --- | --- | --- | --- |
`

func TestMetrics_AreThoseOfThePage(t *testing.T) {
	var page bytes.Buffer
	page.WriteString(metricsHead)
	units := regexp.MustCompile(`_(milliseconds|ms|minutes|hours|kilobytes|mebibytes|mib|percent)(_|$)`)
	for _, m := range freshMetrics(t) {
		page.WriteString(m.row())
		if units.MatchString(m.name) {
			t.Errorf("%s: not a base unit", m.name)
		}
		for _, l := range m.labels {
			if slices.Contains([]string{"user", "id", "sandbox", "conversation", "path", "error", "key"}, l) {
				t.Errorf("%s has the label %s, which is not bounded", m.name, l)
			}
		}
	}
	if *update {
		if err := os.WriteFile(metricsFile, page.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := os.ReadFile(metricsFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(kept), page.String()); diff != "" {
		t.Errorf("ops/METRICS.md differs from the program (go test ./cmd/bivouac -run TestMetrics -update):\n%s", diff)
	}
}

// A directory that is made later has the room of the file system in which it will be.
func TestRoomOf_ADirectoryThatIsMadeLater(t *testing.T) {
	dir := t.TempDir()
	want, ok := roomOf(dir, time.Minute)
	got, later := roomOf(filepath.Join(dir, "a", "b"), time.Minute)
	if !ok || !later || got.Blocks != want.Blocks {
		t.Errorf("%d blocks, %v, and %d, %v", want.Blocks, ok, got.Blocks, later)
	}
}
