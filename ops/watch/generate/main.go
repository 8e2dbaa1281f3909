// Command generate writes the rules and the dashboards: `go run ./ops/watch/generate`. With -scale
// 60 every time in the rules is a sixtieth, for drills.
package main

import (
	"flag"
	"fmt"
	"os"

	"bivouac.dev/bivouac/ops/watch"
)

func main() {
	scale := flag.Int("scale", 1, "divide all times in the rules by this")
	out := flag.String("o", "ops", "the folder that gets alerts/ and dashboards/")
	metrics := flag.String("metrics", "ops/METRICS.md", "the page of the metrics, for the panels' descriptions")
	flag.Parse()
	if err := watch.Write(*out, *metrics, watch.Scale(*scale)); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}
