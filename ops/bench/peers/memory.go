package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
)

// samplesDrawn: every such sample is drawn, which is one a minute of an hour.
const samplesDrawn = 12

// plotMemory draws the samples of `make soak` (samples.csv): each node's memory over time.
func plotMemory(args []string) error {
	if len(args) != 2 {
		return errors.New("memory takes the samples of a soak and the file of the plot")
	}
	f, err := os.Open(filepath.Clean(args[0]))
	if err != nil {
		return err
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil || len(rows) == 0 {
		return errors.Join(err, errors.New("there are no samples"))
	}
	columns := []string{"seconds", "rss_bytes", "next_gc_bytes"}
	for _, name := range append(columns, "node") {
		if !slices.Contains(rows[0], name) {
			return fmt.Errorf("%s has no column %s", args[0], name)
		}
	}
	resident, heap := plot.New(), plot.New()
	resident.Title.Text, heap.Title.Text = "resident memory", "heap at the next collection"
	var order []string
	nodes := map[string][2]plotter.XYs{}
	for at, row := range rows[1:] {
		node := row[slices.Index(rows[0], "node")]
		lines, known := nodes[node]
		if !known {
			order = append(order, node)
		}
		if at%samplesDrawn != 0 {
			nodes[node] = lines
			continue
		}
		var figures [3]float64
		for i, name := range columns {
			if figures[i], err = strconv.ParseFloat(row[slices.Index(rows[0], name)], 64); err != nil {
				return err
			}
		}
		for i := range lines {
			lines[i] = append(lines[i], plotter.XY{X: figures[0] / 60, Y: figures[1+i] / (1 << 20)})
		}
		nodes[node] = lines
	}
	for i, p := range []*plot.Plot{resident, heap} {
		p.X.Label.Text, p.Y.Label.Text, p.Y.Min = "minutes", "MiB", 0
		p.Add(plotter.NewGrid())
		for style, node := range order {
			if err := addLine(p, fmt.Sprintf("node %d", style+1), nodes[node][i], style, false); err != nil {
				return err
			}
		}
	}
	return savePlots(args[1], resident, heap)
}
