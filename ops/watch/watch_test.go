package watch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"bivouac.dev/bivouac/ops/runbooks"
)

func metricsPage(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../METRICS.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestFiles_AreWhatIsGenerated(t *testing.T) {
	t.Parallel()
	files, err := Files(1, metricsPage(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		kept, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(name)))
		if err != nil || !bytes.Equal(kept, want) {
			t.Errorf("ops/%s is not what go run ./ops/watch/generate writes: %v", name, err)
		}
	}
	for _, dir := range []string{"alerts", "dashboards"} {
		entries, err := os.ReadDir(filepath.Join("..", dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if _, known := files[dir+"/"+e.Name()]; !known {
				t.Errorf("ops/%s/%s is not generated any more", dir, e.Name())
			}
		}
	}
}

func TestAlerts_EachHasARunbookAndEachRunbookAnAlert(t *testing.T) {
	t.Parallel()
	alerts := Alerts(1)
	if len(alerts) < 12 || len(alerts) > 32 {
		t.Errorf("%d alerts", len(alerts))
	}
	var names []string
	for _, a := range alerts {
		names = append(names, a.Name)
		if page, err := runbooks.Read(a.Name); err != nil || !strings.HasPrefix(page.Text, "# "+a.Name+": ") {
			t.Errorf("bivouac runbook %s: %v", a.Name, err)
		}
		if a.Summary == "" || a.Description == "" || a.Severity != Page && a.Severity != Ticket {
			t.Errorf("%s: %+v", a.Name, a)
		}
	}
	pages, err := runbooks.Alerts()
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		if !slices.Contains(names, page.Name) {
			t.Errorf("ops/runbooks/alerts/%s.md is of no alert", page.Name)
		}
	}
}

// queries returns every expression of the rules and the dashboards, by where it stands.
func queries() map[string]string {
	all := map[string]string{}
	for _, r := range Recordings(1) {
		all["rule "+r.Name] = r.Expr
	}
	for _, a := range Alerts(1) {
		all["alert "+a.Name] = a.Expr
	}
	for _, p := range PanelQueries("1m", "a") {
		all[p.Where] = p.Expr
	}
	for _, m := range marks(grafanaSource{}) {
		all["annotation "+m.Name] = strings.NewReplacer("$cluster", "a", "$node", ".*").Replace(m.Target.Expr)
	}
	return all
}

func TestQueries_NameOnlyMetricsOfThePage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../METRICS.md")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]string{}
	metric := regexp.MustCompile("(?m)^\\| `(bivouac_[a-z0-9_]+)` \\| ([a-z]+) \\|")
	for _, row := range metric.FindAllStringSubmatch(string(page), -1) {
		kinds[row[1]] = row[2]
	}
	recorded := map[string]bool{}
	for _, r := range Recordings(1) {
		recorded[r.Name] = true
	}
	named, shown := regexp.MustCompile(`[a-z_]*:?bivouac_[a-z0-9_]+(:[a-z0-9_]+)?`), map[string]bool{}
	for where, expr := range queries() {
		for _, name := range named.FindAllString(expr, -1) {
			if strings.Contains(name, ":") {
				if !recorded[name] {
					t.Errorf("%s: there is no recording rule %s", where, name)
				}
				continue
			}
			base := name
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				if cut, is := strings.CutSuffix(name, part); is && kinds[cut] == "histogram" {
					base = cut
				}
			}
			if kinds[base] == "" || kinds[base] == "histogram" && base == name {
				t.Errorf("%s: METRICS.md has no series %s", where, name)
			}
			shown[base] = true
		}
	}
	for name := range kinds {
		if !shown[name] && !regexp.MustCompile(notShown).MatchString(name) {
			t.Errorf("no panel and no rule shows %s", name)
		}
	}
}

// notShown are the metrics for a question that no panel asks.
const notShown = `^bivouac_(raft_(append|install|request|restore|snapshot|store|compact|dispatch|fsm|leader_last|` +
	`leader_restarts|heartbeat_timeouts|read_|wrong)|backup_|certificate_(renewals|last)|` +
	`secret_store_(logins|secret_id_renewals)|` +
	`proxy_connections_cut).*`

func promtool(t *testing.T, dir string, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		if slices.Contains(strings.Split(os.Getenv("BIVOUAC_TEST_REQUIRE"), ","), "prometheus") {
			t.Fatal("promtool is not installed and BIVOUAC_TEST_REQUIRE has prometheus")
		}
		t.Skip("promtool is not installed")
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	t.Logf("promtool %s: %s", strings.Join(args, " "), out)
	if err != nil {
		t.Error(err)
	}
}

// Every query of a panel is a rule for promtool, which parses it.
func TestQueries_ParseInPrometheus(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var b strings.Builder
	b.WriteString("groups:\n  - name: queries\n    rules:\n")
	n := 0
	for _, expr := range queries() {
		n++
		fmt.Fprintf(&b, "      - record: query_%d\n        expr: %s\n", n, quote(expr))
	}
	if err := os.WriteFile(filepath.Join(dir, "queries.yml"), []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	promtool(t, dir, "check", "rules", "queries.yml")
	for _, scale := range []Scale{1, 60} {
		name := fmt.Sprintf("rules-%d.yml", scale)
		if err := os.WriteFile(filepath.Join(dir, name), Rules(scale), 0o644); err != nil {
			t.Fatal(err)
		}
		promtool(t, dir, "check", "rules", name)
	}
}

func TestDashboards_AreUsable(t *testing.T) {
	t.Parallel()
	files, err := Files(1, metricsPage(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range Dashboards() {
		text := files["dashboards/"+d.Name+".json"]
		var page grafanaDashboard
		if err := json.Unmarshal(text, &page); err != nil {
			t.Fatal(err)
		}
		ids, at := map[int]bool{}, map[string]string{}
		for _, p := range page.Panels {
			if ids[p.ID] || p.Type != "row" && len(p.Targets) == 0 {
				t.Errorf("%s: panel %d %q", d.Name, p.ID, p.Title)
			}
			ids[p.ID] = true
			for x := range p.GridPos["w"] {
				for y := range p.GridPos["h"] {
					cell := fmt.Sprint(p.GridPos["x"]+x, "/", p.GridPos["y"]+y)
					if at[cell] != "" {
						t.Errorf("%s: %q lies on %q", d.Name, p.Title, at[cell])
					}
					at[cell] = p.Title
				}
			}
		}
	}
}

// Every series of every rule and panel is chosen by job or cluster, and no sum mixes clusters.
func TestQueries_SelectTheCluster(t *testing.T) {
	t.Parallel()
	series := regexp.MustCompile(`\b(bivouac_\w+|process_\w+|go_\w+|up)\b(\{[^}]*\})?`)
	recorded := regexp.MustCompile(`cluster[a-z_]*:[a-z0-9_:]+\{cluster="a"\}`)
	for _, p := range PanelQueries("1m", "a") {
		for _, s := range series.FindAllStringSubmatch(recorded.ReplaceAllString(p.Expr, ""), -1) {
			if !strings.HasPrefix(s[2], `{job="bivouac",cluster="a",instance=~".*"`) {
				t.Errorf("%s: %s in %s", p.Where, s[0], p.Expr)
			}
		}
	}
	by := regexp.MustCompile(`\b(by|on) \(([^)]*)\)`)
	for name, expr := range queries() {
		if !strings.HasPrefix(name, "rule ") && !strings.HasPrefix(name, "alert ") {
			continue
		}
		for _, labels := range by.FindAllStringSubmatch(expr, -1) {
			if !strings.HasPrefix(labels[2], "cluster") {
				t.Errorf("%s mixes clusters: %s", name, labels[0])
			}
		}
	}
}

// Every panel says what it shows; what has good and bad values has their bounds, and what an alert
// reads leads to its page. A flag is never green at both of its values.
func TestDashboards_SayWhatIsGoodAndBad(t *testing.T) {
	t.Parallel()
	files, err := Files(1, metricsPage(t))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, d := range Dashboards() {
		var page grafanaDashboard
		if err := json.Unmarshal(files["dashboards/"+d.Name+".json"], &page); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"datasource", "cluster", "node", "runbooks"} {
			if !slices.ContainsFunc(page.Templating.List, func(v grafanaVariable) bool { return v.Name == name }) {
				t.Errorf("%s has no variable %s", d.Name, name)
			}
		}
		if len(page.Annotations.List) != 4 {
			t.Errorf("%s: annotations %v", d.Name, page.Annotations.List)
		}
		for _, row := range d.Rows {
			for _, p := range row.Panels {
				where := d.Name + ": " + p.Title
				known[where] = true
				i := slices.IndexFunc(page.Panels, func(g grafanaPanel) bool { return g.Title == p.Title && g.Type != "row" })
				shown := page.Panels[i]
				if len(shown.Description) < 20 || shown.FieldConfig.Defaults["thresholds"] == nil {
					t.Errorf("%s: %q, %v", where, shown.Description, shown.FieldConfig)
				}
				_, bounded := bounds()[where]
				if p.Stat && p.Unit == flag && !bounded {
					t.Errorf("%s is green at both values", where)
				}
				for _, link := range shown.Links {
					name := strings.TrimSuffix(filepath.Base(link.URL), ".md")
					if _, err := runbooks.Read(name); err != nil {
						t.Errorf("%s leads to %s: %v", where, link.URL, err)
					}
				}
			}
		}
	}
	for where := range bounds() {
		if !known[where] {
			t.Errorf("bounds has %q, which is no panel", where)
		}
	}
	if len(known) < 100 || len(bounds()) < 50 {
		t.Errorf("%d panels, %d with bounds", len(known), len(bounds()))
	}
}
