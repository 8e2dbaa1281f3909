package main

import (
	"fmt"
	"image/color"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

const (
	plotWidth  = 24 * vg.Centimeter
	plotHeight = 10 * vg.Centimeter
)

// plots draws a plot of each row with results.
func (r *results) plots(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, row := range loadRows() {
		if err := r.plotLoads(dir, row); err != nil {
			return fmt.Errorf("plotting %s: %w", row.name, err)
		}
	}
	for _, row := range []string{rowFailover, rowElections} {
		if order, by := r.millis(row); len(order) > 0 {
			if err := plotWaits(dir, row, order, by); err != nil {
				return fmt.Errorf("plotting %s: %w", row, err)
			}
		}
	}
	if err := r.plotSearch(dir); err != nil {
		return fmt.Errorf("plotting %s: %w", rowSearch, err)
	}
	return r.plotSize(dir)
}

// plotLoads plots throughput and latency against the number of clients.
func (r *results) plotLoads(dir string, row loadRow) error {
	byClients := r.loads(row.name)
	if len(byClients) == 0 {
		return nil
	}
	clients := slices.Sorted(maps.Keys(byClients))
	rate, latency := plot.New(), plot.New()
	rate.Title.Text, rate.Y.Label.Text = titles()[row.name]+": throughput", "per second"
	latency.Title.Text, latency.Y.Label.Text = "latency, p50 and (dashed) p99", "milliseconds"
	latency.Y.Scale, latency.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	for _, p := range []*plot.Plot{rate, latency} {
		p.X.Label.Text = "clients"
		p.X.Scale = plot.LogScale{}
		var ticks []plot.Tick
		for _, c := range clients {
			ticks = append(ticks, plot.Tick{Value: float64(c), Label: fmt.Sprint(c)})
		}
		p.X.Tick.Marker = plot.ConstantTicks(ticks)
		p.Add(plotter.NewGrid())
	}
	rate.Y.Min = 0
	rate.Legend.Top, rate.Legend.Left = true, true
	for i, s := range row.subjects {
		points := func(figure func(record) float64) (xy plotter.XYs) {
			for _, c := range clients {
				if f := of(byClients[c], s.system, figure); f.count > 0 {
					xy = append(xy, plotter.XY{X: float64(c), Y: f.median})
				}
			}
			return xy
		}
		for _, one := range []struct {
			on     *plot.Plot
			name   string
			xy     plotter.XYs
			dashed bool
		}{{rate, s.system, points(perSecond), false}, {latency, "", points(p50), false}, {latency, "", points(p99), true}} {
			if err := addLine(one.on, one.name, one.xy, i, one.dashed); err != nil {
				return err
			}
		}
	}
	return savePlots(filepath.Join(dir, row.name+".svg"), rate, latency)
}

// addLine adds a line in one of the styles. A line without a name is not in the legend.
func addLine(p *plot.Plot, name string, xy plotter.XYs, style int, dashed bool) error {
	if len(xy) == 0 {
		return nil
	}
	line, dots, err := plotter.NewLinePoints(xy)
	if err != nil {
		return err
	}
	line.Color, dots.Color = plotutil.Color(style), plotutil.Color(style)
	line.Width = vg.Points(1.5)
	dots.Shape = plotutil.Shape(style)
	if dashed {
		line.Dashes = plotutil.Dashes(1)
	}
	p.Add(line, dots)
	if name != "" {
		p.Legend.Add(name, line, dots)
	}
	return nil
}

// savePlots writes plots side by side into one image.
func savePlots(path string, plots ...*plot.Plot) error {
	canvas := vgsvg.New(plotWidth, plotHeight)
	tiles := draw.Tiles{Rows: 1, Cols: len(plots), PadX: vg.Centimeter}
	for i, c := range plot.Align([][]*plot.Plot{plots}, tiles, draw.New(canvas))[0] {
		plots[i].Draw(c)
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err := canvas.WriteTo(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// plotWaits draws each system's trials as a box plot.
func plotWaits(dir, row string, order []string, by map[string][]float64) error {
	p := plot.New()
	p.Title.Text, p.Y.Label.Text, p.Y.Min = titles()[row], "milliseconds", 0
	p.Add(plotter.NewGrid())
	for i, name := range order {
		box, err := plotter.NewBoxPlot(vg.Points(40), float64(i), plotter.Values(by[name]))
		if err != nil {
			return err
		}
		p.Add(box)
	}
	p.NominalX(order...)
	return savePlots(filepath.Join(dir, row+".svg"), p)
}

// plotSearch draws the medians of the pages, of both users side by side.
func (r *results) plotSearch(dir string) error {
	var names []string
	bars := map[string]plotter.Values{}
	for _, page := range pages() {
		for _, system := range []string{"many", "few"} {
			var list []float64
			for _, rec := range r.records {
				if rec.Row == rowSearch && rec.At == page.String() && rec.System == system {
					list = append(list, p50(rec))
				}
			}
			if len(list) > 0 {
				bars[system] = append(bars[system], spreadOf(list).median)
			}
		}
		if len(bars["many"]) > len(names) {
			names = append(names, page.String())
		}
	}
	if len(names) == 0 {
		return nil
	}
	return plotBars(filepath.Join(dir, rowSearch+".svg"), titles()[rowSearch]+": p50", "milliseconds", names,
		map[string]plotter.Values{
			"of 100,000": bars["many"], "of 1,000": bars["few"],
		})
}

// plotSize draws the measured values beside the extrapolation from a tenth.
func (r *results) plotSize(dir string) error {
	var steps []map[string]float64
	for _, rec := range r.records {
		if rec.Row == rowSize {
			steps = append(steps, rec.Values)
		}
	}
	if len(steps) < 3 {
		return nil
	}
	p := steps[len(steps)-3:]
	memory, snapshot := plot.New(), plot.New()
	memory.Title.Text, memory.Y.Label.Text = "a node's live heap", "MiB"
	snapshot.Title.Text, snapshot.Y.Label.Text = "snapshot time", "milliseconds"
	for i, one := range []struct {
		on      *plot.Plot
		key     string
		divisor float64
	}{{memory, "heap", 1 << 20}, {snapshot, "snapshot_ms", 1}} {
		one.on.X.Label.Text, one.on.Y.Min = "users", 0
		one.on.Add(plotter.NewGrid())
		one.on.Legend.Top, one.on.Legend.Left = true, true
		var found plotter.XYs
		for _, s := range p {
			found = append(found, plotter.XY{X: s["people"], Y: s[one.key] / one.divisor})
		}
		slope := (found[1].Y - found[0].Y) / (found[1].X - found[0].X)
		line := plotter.XYs{found[0], {X: found[2].X, Y: found[0].Y + slope*found[2].X}}
		if err := addLine(one.on, "measured", found, i, false); err != nil {
			return err
		}
		if err := addLine(one.on, "extrapolated from a tenth", line, i+2, false); err != nil {
			return err
		}
	}
	return savePlots(filepath.Join(dir, rowSize+".svg"), memory, snapshot)
}

// plotBars draws groups of bars.
func plotBars(path, title, unit string, names []string, groups map[string]plotter.Values) error {
	p := plot.New()
	p.Title.Text, p.Y.Label.Text, p.Y.Min = title, unit, 0
	p.Legend.Top = true
	width := vg.Points(24)
	for i, name := range slices.Sorted(maps.Keys(groups)) {
		bars, err := plotter.NewBarChart(groups[name], width)
		if err != nil {
			return err
		}
		bars.Color, bars.LineStyle.Color = plotutil.Color(i), color.Black
		bars.Offset = width * vg.Length(2*i-1) / 2
		p.Add(bars)
		p.Legend.Add(name, bars)
	}
	p.NominalX(names...)
	return savePlots(path, p)
}
