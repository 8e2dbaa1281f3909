package main

import (
	_ "embed"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// timesFile has a line for each test: its name, the seconds that it takes, the CPU seconds of it
// and of all processes that it starts, and "alone" if it measures what other tests would disturb.
//
//go:embed times.txt
var timesFile string

// cost is what a test took.
type cost struct {
	wall, cpu time.Duration
	alone     bool
}

// cpus is how many CPUs the test keeps busy on average.
func (c cost) cpus() float64 { return c.cpu.Seconds() / max(c.wall.Seconds(), 0.001) }

// times are the costs by the tests' names.
type times map[string]cost

// of returns a test's cost. One without a line begins early and counts as most drills do.
func (t times) of(name string) cost {
	if c, there := t[name]; there {
		return c
	}
	return cost{wall: time.Minute, cpu: 27 * time.Second}
}

func parseTimes(text string) (times, error) {
	all := times{}
	n := 0
	for line := range strings.Lines(text) {
		n++
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if len(fields) < 3 || len(fields) > 4 || len(fields) == 4 && fields[3] != "alone" {
			return nil, fmt.Errorf("times.txt:%d: want a test, seconds, CPU seconds and perhaps \"alone\": %q", n,
				strings.TrimSpace(line))
		}
		wall, err := strconv.ParseFloat(fields[1], 64)
		if err != nil {
			return nil, fmt.Errorf("times.txt:%d: %w", n, err)
		}
		cpu, err := strconv.ParseFloat(fields[2], 64)
		if err != nil {
			return nil, fmt.Errorf("times.txt:%d: %w", n, err)
		}
		all[fields[0]] = cost{wall: seconds(wall), cpu: seconds(cpu), alone: len(fields) == 4}
	}
	return all, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// String is the content of the file.
func (t times) String() string {
	var b strings.Builder
	b.WriteString("# A test of ops/e2e in its short form, the seconds it takes, its CPU seconds (`make e2e RECORD=1`).\n")
	for _, name := range slices.Sorted(maps.Keys(t)) {
		c := t[name]
		fmt.Fprintf(&b, "%s %.1f %.1f", name, c.wall.Seconds(), c.cpu.Seconds())
		if c.alone {
			b.WriteString(" alone")
		}
		b.WriteString("\n")
	}
	return b.String()
}

// record replaces the times of the tests that passed or were skipped.
func record(path string, known times, results []result) error {
	for _, r := range results {
		if r.failed() {
			continue
		}
		known[r.name] = cost{wall: r.took, cpu: r.cpu, alone: known[r.name].alone}
	}
	return os.WriteFile(path, []byte(known.String()), 0o644)
}
