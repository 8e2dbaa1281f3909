package watch

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
)

// Panel is one graph or number. Its queries use $__rate_interval as a range.
type Panel struct {
	Title, Unit string
	// Stat shows the last value as a number instead of a graph.
	Stat    bool
	Queries []Query
}

// Query is one expression and the legend of its series.
type Query struct{ Expr, Legend string }

// Row is a heading with its panels.
type Row struct {
	Title  string
	Panels []Panel
}

// Dashboard is one page.
type Dashboard struct {
	// Name is the name of the file, and part of the id that links keep.
	Name, Title string
	Rows        []Row
}

// Units of Grafana.
const (
	count   = "short"
	seconds = "s"
	size    = "bytes"
	perSec  = "reqps"
	each    = "cps"
	hertzes = "hertz"
	ratio   = "percentunit"
	flag    = "bool_on_off"
	date    = "dateTimeAsIso"
)

func graph(title, unit string, queries ...Query) Panel {
	return Panel{Title: title, Unit: unit, Queries: queries}
}

func number(title, unit string, queries ...Query) Panel {
	return Panel{Title: title, Unit: unit, Stat: true, Queries: queries}
}

// rate is the sum of a counter's rates by labels.
func rate(by, series string) string {
	return fmt.Sprintf("sum by (%s) (rate(%s[$__rate_interval]))", by, series)
}

// quantile is a quantile of a histogram by labels; by may be "".
func quantile(q float64, by, series string) string {
	if by != "" {
		by += ", "
	}
	return fmt.Sprintf("histogram_quantile(%g, sum by (%sle) (rate(%s[$__rate_interval])))", q, by, series)
}

// The variables of every page: one cluster, and its nodes.
const (
	clusterLabel = `cluster="$cluster"`
	nodeLabels   = job + `,` + clusterLabel + `,instance=~"$node"`
)

// selected adds the page's variables to each series of an expression. What a rule recorded for a
// cluster has no node.
func selected(expr string) string {
	series := regexp.MustCompile(`\b(cluster[a-z_]*:bivouac[a-z0-9_:]*|bivouac_\w+|process_\w+|go_\w+|up)\b(\{[^}]*\})?`)
	return series.ReplaceAllStringFunc(expr, func(s string) string {
		name, own, _ := strings.Cut(strings.TrimSuffix(s, "}"), "{")
		labels := nodeLabels
		if strings.HasPrefix(name, "cluster") {
			labels = clusterLabel
		}
		if own = strings.TrimPrefix(own, job); own != "" {
			labels += "," + strings.TrimPrefix(own, ",")
		}
		return name + "{" + labels + "}"
	})
}

// The shape of Grafana's JSON, as far as these dashboards need it.
type (
	grafanaDashboard struct {
		UID           string            `json:"uid"`
		Title         string            `json:"title"`
		Tags          []string          `json:"tags"`
		Timezone      string            `json:"timezone"`
		Editable      bool              `json:"editable"`
		SchemaVersion int               `json:"schemaVersion"`
		Version       int               `json:"version"`
		Refresh       string            `json:"refresh"`
		Time          map[string]string `json:"time"`
		Annotations   grafanaMarks      `json:"annotations"`
		Templating    grafanaVariables  `json:"templating"`
		Panels        []grafanaPanel    `json:"panels"`
	}
	grafanaMarks struct {
		List []grafanaMark `json:"list"`
	}
	grafanaMark struct {
		Name       string            `json:"name"`
		Datasource grafanaSource     `json:"datasource"`
		Enable     bool              `json:"enable"`
		IconColor  string            `json:"iconColor"`
		Target     grafanaMarkTarget `json:"target"`
	}
	grafanaMarkTarget struct {
		RefID    string `json:"refId"`
		Expr     string `json:"expr"`
		Interval string `json:"interval"`
	}
	grafanaLink struct {
		Title       string   `json:"title"`
		Type        string   `json:"type"`
		URL         string   `json:"url"`
		Icon        string   `json:"icon"`
		Tooltip     string   `json:"tooltip"`
		Tags        []string `json:"tags"`
		AsDropdown  bool     `json:"asDropdown"`
		IncludeVars bool     `json:"includeVars"`
		KeepTime    bool     `json:"keepTime"`
		TargetBlank bool     `json:"targetBlank"`
	}
	grafanaVariables struct {
		List []grafanaVariable `json:"list"`
	}
	grafanaVariable struct {
		Name       string         `json:"name"`
		Label      string         `json:"label"`
		Type       string         `json:"type"`
		Query      string         `json:"query"`
		Datasource *grafanaSource `json:"datasource,omitempty"`
		Refresh    int            `json:"refresh,omitempty"`
		Multi      bool           `json:"multi,omitempty"`
		IncludeAll bool           `json:"includeAll,omitempty"`
		AllValue   string         `json:"allValue,omitempty"`
	}
	grafanaSource struct {
		Type string `json:"type"`
		UID  string `json:"uid"`
	}
	grafanaPanel struct {
		ID          int              `json:"id"`
		Type        string           `json:"type"`
		Title       string           `json:"title"`
		Description string           `json:"description,omitempty"`
		Links       []grafanaLink    `json:"links,omitempty"`
		GridPos     map[string]int   `json:"gridPos"`
		Datasource  *grafanaSource   `json:"datasource,omitempty"`
		Targets     []grafanaTarget  `json:"targets,omitempty"`
		FieldConfig *grafanaDefaults `json:"fieldConfig,omitempty"`
		Collapsed   bool             `json:"collapsed,omitempty"`
	}
	grafanaTarget struct {
		RefID        string        `json:"refId"`
		Datasource   grafanaSource `json:"datasource"`
		Expr         string        `json:"expr"`
		LegendFormat string        `json:"legendFormat"`
	}
	grafanaDefaults struct {
		Defaults  map[string]any `json:"defaults"`
		Overrides []any          `json:"overrides"`
	}
)

// The grid of Grafana has 24 columns.
const (
	columns     = 24
	graphWidth  = 8
	graphHeight = 7
	statWidth   = 4
	statHeight  = 4
)

// variables are those of every page. Where no scrape sets the label cluster it is empty, and selects
// what has none. refresh is at each load, and at each change of the time.
func variables(source grafanaSource) []grafanaVariable {
	const onLoad, onTime = 1, 2
	return []grafanaVariable{
		{Name: "datasource", Label: "Prometheus", Type: "datasource", Query: "prometheus"},
		{
			Name: "cluster", Label: "Cluster", Type: "query", Query: `label_values(up{` + job + `}, cluster)`,
			Datasource: &source, Refresh: onLoad,
		},
		{
			Name: "node", Label: "Node", Type: "query", Query: `label_values(up{` + job + `,` + clusterLabel + `}, instance)`,
			Datasource: &source, Refresh: onTime, Multi: true, IncludeAll: true, AllValue: ".*",
		},
		{Name: "runbooks", Label: "Runbooks", Type: "textbox", Query: "/public/bivouac/runbooks"},
	}
}

// marks are the annotations of every page.
func marks(source grafanaSource) (list []grafanaMark) {
	for _, m := range []struct{ name, color, expr string }{
		{"Another leader", "orange", `max(changes(bivouac_raft_leader_changes_total[1m])) > 0`},
		{"A node started", "blue", `changes(process_start_time_seconds[1m]) > 0`},
		{"The cluster holds", "red", `max(bivouac_hold) == 1`},
		{"The configuration changed", "purple", `max(changes(bivouac_config_index[1m])) > 0`},
	} {
		list = append(list, grafanaMark{
			Name: m.name, Datasource: source, Enable: true, IconColor: m.color,
			Target: grafanaMarkTarget{RefID: "Anno", Expr: selected(m.expr), Interval: "60s"},
		})
	}
	return list
}

// decorate adds what the panel means: its description, the runbooks of its alerts and its bound.
func (p *grafanaPanel) decorate(page string, from Panel, help map[string]string) {
	b, bounded := bounds()[page+": "+from.Title]
	p.Description = from.describe(help, b, bounded)
	for _, name := range alertsOf(from) {
		p.Links = append(p.Links, grafanaLink{
			Title: "Runbook of " + name, Type: "link", Icon: "doc", Tags: []string{}, TargetBlank: true,
			URL: "${runbooks}/alerts/" + name + ".md",
		})
	}
	unit, line := from.Unit, "off"
	if unit == count && strings.Contains(from.exprs(), "rate(") {
		unit = each
	}
	if bounded {
		line = "dashed"
	}
	p.FieldConfig = &grafanaDefaults{Overrides: []any{}, Defaults: map[string]any{
		"unit":       unit,
		"thresholds": map[string]any{"mode": "absolute", "steps": b.steps()},
	}}
	if from.Stat {
		p.FieldConfig.Defaults["color"] = map[string]any{"mode": "thresholds"}
	} else {
		p.FieldConfig.Defaults["custom"] = map[string]any{"thresholdsStyle": map[string]any{"mode": line}}
	}
}

// render writes a dashboard as Grafana's JSON. help is what each metric is.
func (d Dashboard) render(help map[string]string) ([]byte, error) {
	source := grafanaSource{Type: "prometheus", UID: "${datasource}"}
	page := grafanaDashboard{
		UID: "bivouac-" + d.Name, Title: "Bivouac: " + d.Title, Tags: []string{"bivouac"}, Timezone: "browser",
		Editable: true, SchemaVersion: 39, Version: 1, Refresh: "30s", Time: map[string]string{"from": "now-3h", "to": "now"},
		Templating: grafanaVariables{
			List: variables(source),
		},
		Annotations: grafanaMarks{List: marks(source)},
	}
	id, y := 0, 0
	next := func() int { id++; return id }
	for _, row := range d.Rows {
		page.Panels = append(page.Panels, grafanaPanel{
			ID: next(), Type: "row", Title: row.Title, GridPos: map[string]int{"x": 0, "y": y, "w": columns, "h": 1},
		})
		y++
		x, high := 0, 0
		for _, p := range row.Panels {
			kind, w, h := "timeseries", graphWidth, graphHeight
			if p.Stat {
				kind, w, h = "stat", statWidth, statHeight
			}
			if x+w > columns {
				x, y, high = 0, y+high, 0
			}
			panel := grafanaPanel{
				ID: next(), Type: kind, Title: p.Title, GridPos: map[string]int{
					"x": x,
					"y": y,
					"w": w,
					"h": h,
				}, Datasource: &source,
			}
			panel.decorate(d.Name, p, help)
			for i, q := range p.Queries {
				panel.Targets = append(panel.Targets,
					grafanaTarget{RefID: string(rune('A' + i)), Datasource: source, Expr: selected(q.Expr), LegendFormat: q.Legend})
			}
			page.Panels = append(page.Panels, panel)
			x, high = x+w, max(high, h)
		}
		y += high
	}
	var out strings.Builder
	text := json.NewEncoder(&out)
	text.SetEscapeHTML(false)
	text.SetIndent("", "  ")
	err := text.Encode(page)
	return []byte(out.String()), err
}
