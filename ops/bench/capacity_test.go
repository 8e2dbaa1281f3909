package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the table of ../CAPACITY.md")

// The user of the table, in a working day of eight hours.
const (
	day           = 8 * 3600 // seconds
	readsDay      = 2880     // two lists every twenty seconds, read linearizably
	writesDay     = 200
	proxiedDay    = 2000 // requests to the agent server: commands, files, pages of events
	startsDay     = 4
	runningAtOnce = 1 // sandboxes at a time, of two that are kept
	eventsDay     = 3000
	sandboxMiB    = 2048 // the memory of deploy/config/stack-docker.hcl
)

// What the cluster of the table has.
const (
	// coresUsed is what a node may use of four cores, so that two nodes bear the load of three.
	coresUsed = 2
	// stateMiB is fsm's default limit of the installation.
	stateMiB = 1024
	// clientMiB is the memory that a Nomad client of 64 GiB has for sandboxes.
	clientMiB = 62 << 10
)

// What RESULTS.md has in sections of its own.
const (
	// proxied bounds the CPU of the nodes for a proxied request, in µs: two cores at 5,090 a second,
	// those who asked and answered included ("The sandbox proxy").
	proxied = 390
	// startsSecond is how many sandboxes a second become RUNNING, of 1,000 ("Against Nomad alone").
	startsSecond = 48
	// restCores is what the leader's scheduler takes at rest for a sandbox ("Against Nomad alone").
	restCores = 2.5 / 100 / 1000
)

// figures are what the table is computed from.
type figures struct {
	// read, write and proxied are µs of CPU of all nodes for a request, heap the bytes of a user.
	read, write, heap float64
}

// measured reads the newest run of peers.jsonl.
func measured(t *testing.T) (f figures) {
	t.Helper()
	raw, err := os.ReadFile("peers.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	costs := map[string][]float64{}
	for lines := bufio.NewScanner(bytes.NewReader(raw)); lines.Scan(); {
		var r struct {
			Row, System string
			Load        struct {
				Clients int
				PerS    float64 `json:"per_s"`
			}
			NodesCPU float64 `json:"nodes_cpu"`
			Values   struct{ People, Heap float64 }
		}
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		switch {
		case r.System != "Bivouac":
		case r.Row == "size" && r.Values.People > 0:
			f.heap = r.Values.Heap / r.Values.People
		case r.Load.Clients == 64:
			costs[r.Row] = append(costs[r.Row], 1e6*r.NodesCPU/r.Load.PerS)
		}
	}
	median := func(row string) float64 {
		all := costs[row]
		if len(all) == 0 {
			t.Fatalf("peers.jsonl has no row %q", row)
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	f.read, f.write = median("read-follower"), median("write")
	return f
}

// ending is something that more users use up.
type ending struct {
	what, user, has string
	users           float64
	how             string
}

// endings computes how many users each thing is enough for.
func (f figures) endings() []ending {
	cpu := (readsDay*f.read + writesDay*f.write + proxiedDay*proxied) / day / 1e6
	return []ending{
		{
			"state in memory", fmt.Sprintf("%.0f KiB, measured", f.heap/1024),
			fmt.Sprintf("%d MiB, the default limit", stateMiB), stateMiB << 20 / f.heap, "computed",
		},
		{
			"CPU for requests", fmt.Sprintf("%.4f %% of a core, computed", 100*cpu),
			fmt.Sprintf("%d cores of the node that gets all", coresUsed), coresUsed / cpu, "computed",
		},
		{
			"the leader's CPU for sandboxes at rest",
			fmt.Sprintf("%.4f %% of a core, measured at 1,000", 100*runningAtOnce*restCores),
			"one core", 1 / (runningAtOnce * restCores), "computed",
		},
		{
			"starts of sandboxes, all in one hour", fmt.Sprint(startsDay),
			fmt.Sprintf("%d a second, measured", startsSecond), startsSecond * 3600 / startsDay, "computed",
		},
	}
}

// table is the part of CAPACITY.md that is computed.
func (f figures) table() string {
	var b strings.Builder
	all := f.endings()
	first := slices.MinFunc(all, func(a, b ending) int { return cmp.Compare(a.users, b.users) })
	b.WriteString("| what ends | one user takes | a cluster has | users | |\n| --- | --- | --- | --- | --- |\n")
	for _, e := range all {
		users := rounded(e.users)
		if e == first {
			users = "**" + users + "**"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", e.what, e.user, e.has, users, e.how)
	}
	b.WriteString("\n| users | reads a second | writes | proxied | events a day | state, MiB | cores | " +
		"running sandboxes | Nomad clients of 64 GiB |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, users := range []float64{100, 1000, 10_000, first.users} {
		cores := users * ((readsDay*f.read+writesDay*f.write+proxiedDay*proxied)/day/1e6 + runningAtOnce*restCores)
		fmt.Fprintf(&b, "| %s | %.0f | %.1f | %.0f | %s | %.0f | %.2f | %s | %.0f |\n", rounded(users), users*readsDay/day,
			users*writesDay/day, users*proxiedDay/day, rounded(users*eventsDay), users*f.heap/(1<<20), cores,
			rounded(users*runningAtOnce), math.Ceil(users*runningAtOnce*sandboxMiB/clientMiB))
	}
	return b.String()
}

// rounded formats a number of three digits that count.
func rounded(n float64) string {
	unit := math.Pow(10, max(0, math.Floor(math.Log10(n))-2))
	return fmt.Sprintf("%.0f", math.Floor(n/unit)*unit)
}

const (
	capacityFile = "../CAPACITY.md"
	capacityFrom = "<!-- begin: go test ./ops/bench -run TestCapacity -update -->\n\n"
	capacityTo   = "\n<!-- end -->"
)

// TestCapacity holds the table of CAPACITY.md against what was measured.
func TestCapacity(t *testing.T) {
	raw, err := os.ReadFile(capacityFile)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(raw), capacityFrom)
	there, after, ends := strings.Cut(rest, capacityTo)
	if !begins || !ends {
		t.Fatalf("%s has no table between its marks", capacityFile)
	}
	switch want := measured(t).table(); {
	case want == there:
	case *update:
		if err := os.WriteFile(capacityFile, []byte(before+capacityFrom+want+capacityTo+after), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is not what peers.jsonl says (go test ./ops/bench -run TestCapacity -update):\n%s", capacityFile, want)
	}
}
