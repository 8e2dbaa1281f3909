package watch

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
	"time"
)

// Series is what a query of a panel returned over a time: the legend, and values by Unix seconds.
type Series struct {
	Name   string
	Points [][2]float64
}

// pictured are the panels of a picture, by page.
func pictured() map[string][]string {
	return map[string][]string{
		"oncall": {
			"Nodes up", "Nodes ready", "Leader known", "Hold", "Vault reachable (least)", "Nomad reachable (least)",
			"Logged in to Vault (least)", "Newest backup", "First certificate ends in", "First secret id ends in",
			"Least room on a disk", "Oldest wish not yet true", "Bad requests, 5 minutes and 1 hour", "Requests that count",
			"Errors of Vault and Nomad",
		},
		"cluster": {
			"Ready and draining", "Term", "Time of a write", "Write to the log, p99", "Time since the leader was heard",
			"Entries that members lack", "Changes of the leader, elections, leases lost", "Reachable", "Memory",
		},
	}
}

// The size of a picture's parts.
const (
	tileWidth, tileHeight  = 320.0, 190.0
	plotLeft, plotTop      = 52.0, 34.0
	plotWidth, plotHeight  = 256.0, 116.0
	tilesInRow, mostLegend = 3, 4
)

// Picture draws the key panels of a page as SVG, from what ask returns for each of their queries.
func Picture(
	page string,
	begin, end time.Time,
	ask func(q PanelQuery, legend string) ([]Series, error),
) ([]byte, error) {
	var tiles strings.Builder
	n := 0
	queries := PanelQueries("10s", "tested")
	for _, d := range Dashboards() {
		if d.Name != page {
			continue
		}
		for _, row := range d.Rows {
			for _, p := range row.Panels {
				if !slices.Contains(pictured()[page], p.Title) {
					continue
				}
				var all []Series
				for i, q := range p.Queries {
					where := fmt.Sprintf("%s: %s (%c)", page, p.Title, 'A'+i)
					k := slices.IndexFunc(queries, func(q PanelQuery) bool { return q.Where == where })
					got, err := ask(queries[k], q.Legend)
					if err != nil {
						return nil, fmt.Errorf("%s: %w", where, err)
					}
					all = append(all, got...)
				}
				fmt.Fprintf(&tiles, "<g transform=\"translate(%g %g)\">\n", float64(n%tilesInRow)*tileWidth,
					float64(n/tilesInRow)*tileHeight)
				p.draw(&tiles, page, all, float64(begin.Unix()), float64(end.Unix()))
				tiles.WriteString("</g>\n")
				n++
			}
		}
	}
	rows := (n + tilesInRow - 1) / tilesInRow
	return fmt.Appendf(nil, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\" "+
		"font-family=\"sans-serif\" font-size=\"10\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n%s</svg>\n",
		tileWidth*tilesInRow, tileHeight*float64(rows), tiles.String()), nil
}

// color is that of a bound for a value.
func (b bound) color(v float64) string {
	color := ""
	for _, s := range b.steps() {
		if s.Value == nil || v >= *s.Value {
			color = s.Color
		}
	}
	return color
}

// draw draws one panel.
func (p Panel) draw(w *strings.Builder, page string, all []Series, begin, end float64) {
	b := bounds()[page+": "+p.Title]
	fmt.Fprintf(w, "<rect x=\"3\" y=\"3\" width=\"%g\" height=\"%g\" fill=\"none\" stroke=\"#ccc\"/>\n"+
		"<text x=\"10\" y=\"18\" font-weight=\"bold\">%s</text>\n", tileWidth-6, tileHeight-6, html.EscapeString(p.Title))
	low, high := math.Inf(1), math.Inf(-1)
	last := math.NaN()
	for _, s := range all {
		for _, at := range s.Points {
			low, high, last = min(low, at[1]), max(high, at[1]), at[1]
		}
	}
	switch {
	case math.IsInf(low, 1):
		fmt.Fprintf(w, "<text x=\"%g\" y=\"90\" fill=\"#888\">no data</text>\n", plotLeft)
		return
	case p.Stat:
		fmt.Fprintf(w, "<text x=\"%g\" y=\"110\" font-size=\"40\" text-anchor=\"middle\" fill=\"%s\">%s</text>\n",
			tileWidth/2, b.color(last), p.value(last))
		return
	}
	low = min(low, 0)
	for _, s := range b.steps() {
		if s.Value != nil && *s.Value < 2*high {
			high = max(high, *s.Value)
		}
	}
	if high <= low {
		high = low + 1
	}
	x := func(t float64) float64 { return plotLeft + plotWidth*(t-begin)/max(end-begin, 1) }
	y := func(v float64) float64 { return plotTop + plotHeight*(high-v)/(high-low) }
	marks := []float64{low, (low + high) / 2, high}
	if p.Unit == flag {
		marks = []float64{low, high}
	}
	for _, v := range marks {
		fmt.Fprintf(w, "<path d=\"M%g %.1fh%g\" stroke=\"#eee\"/><text x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
			plotLeft, y(v), plotWidth, plotLeft-4, y(v)+3, p.value(v))
	}
	for _, s := range b.steps() {
		if s.Value != nil && *s.Value <= high {
			fmt.Fprintf(w, "<path d=\"M%g %.1fh%g\" stroke=\"%s\" stroke-dasharray=\"4 3\"/>\n", plotLeft, y(*s.Value),
				plotWidth, s.Color)
		}
	}
	p.lines(w, all, x, y)
}

// lines draws the series and the first of their names.
func (p Panel) lines(w *strings.Builder, all []Series, x, y func(float64) float64) {
	colors := []string{"#1f77b4", "#9467bd", "#17becf", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22"}
	for i, s := range all {
		var path strings.Builder
		for k, at := range s.Points {
			move := "L"
			if k == 0 || at[0]-s.Points[k-1][0] > 5 { // it was away
				move = "M"
			}
			fmt.Fprintf(&path, "%s%.1f %.1f", move, x(at[0]), y(at[1]))
		}
		color := colors[i%len(colors)]
		fmt.Fprintf(w, "<path d=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"1.3\"/>\n", path.String(), color)
		if i < mostLegend {
			fmt.Fprintf(w, "<text x=\"%g\" y=\"%g\" font-size=\"8\" fill=\"%s\">%.18s</text>\n", 10+float64(i)*76,
				tileHeight-12, color, html.EscapeString(s.Name))
		}
	}
}

// value formats a value in the panel's unit.
func (p Panel) value(v float64) string {
	switch p.Unit {
	case flag:
		return map[bool]string{true: "On", false: "Off"}[v > 0]
	case ratio:
		return fmt.Sprintf("%.3g%%", 100*v)
	case size:
		return fmt.Sprintf("%.3g MB", v/1e6)
	case seconds:
		switch {
		case v >= 2*day:
			return fmt.Sprintf("%.3g d", v/day)
		case v != 0 && v < 1:
			return fmt.Sprintf("%.3g ms", 1000*v)
		}
		return fmt.Sprintf("%.3g s", v)
	}
	return fmt.Sprintf("%.3g", v)
}
