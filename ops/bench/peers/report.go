package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The markers in RESULTS.md around the generated report.
const (
	markBegin = "<!-- begin: go run -C ops/bench/peers . -report -->"
	markEnd   = "<!-- end -->"
)

// report writes the tables into the Markdown file, and the plots into the folder plots beside
// it.
func report(from, into string) error {
	all, err := readRecords(from)
	if err != nil {
		return err
	}
	r := newResults(all)
	text := r.markdown()
	if err := r.plots(filepath.Join(filepath.Dir(into), "plots")); err != nil {
		return err
	}
	old, err := os.ReadFile(into)
	if err != nil {
		return err
	}
	head, rest, begun := strings.Cut(string(old), markBegin)
	_, tail, ended := strings.Cut(rest, markEnd)
	if !begun || !ended {
		return fmt.Errorf("%s has no %q and %q", into, markBegin, markEnd)
	}
	return os.WriteFile(into, []byte(head+markBegin+"\n\n"+text+"\n"+markEnd+tail), 0o644)
}

// titles describe the rows for people.
func titles() map[string]string {
	return map[string]string{
		"write":         "Settings write through a follower",
		"read-follower": "Linearizable read from a follower",
		"read-leader":   "Linearizable read from the leader",
		"stale":         "Stale read",
		"store":         "Log stores: raft alone, from within the leader",
		rowFailover:     "Leader killed: time until the next acknowledged write through a survivor",
		rowElections:    "Raft's timers: false elections and failover",
		rowSearch:       "Search over 100,000 conversations of one user against 1,000",
		rowSize:         "Memory and snapshot time at 10,000 users, 100,000 conversations, 10,000 sandboxes",
	}
}

func (r *results) markdown() string {
	var out strings.Builder
	part := func(row, text string) {
		if text != "" {
			fmt.Fprintf(&out, "### %s\n\n%s\n\n%s\n![%s](plots/%s.svg)\n\n", titles()[row], r.measuredAt(row), text, row, row)
		}
	}
	for _, row := range loadRows() {
		part(row.name, r.loadTables(row))
	}
	out.WriteString(r.followerLine())
	part(rowSearch, r.searchTable())
	part(rowFailover, r.failoverTable())
	part(rowSize, r.sizeTable())
	part(rowElections, r.electionsTable())
	out.WriteString("### Where and how\n\n")
	out.WriteString(r.where())
	return out.String()
}

// followerLine describes the cost of a read from a follower for Bivouac.
func (r *results) followerLine() string {
	follower, leader := r.loads("read-follower"), r.loads("read-leader")
	var cells []string
	for _, c := range slices.Sorted(maps.Keys(follower)) {
		f, l := of(follower[c], sysBivouac, perSecond), of(leader[c], sysBivouac, perSecond)
		if f.count > 0 && l.count > 0 {
			cells = append(cells, fmt.Sprintf("%.2f at %d", f.median/l.median, c))
		}
	}
	if len(cells) == 0 {
		return ""
	}
	return fmt.Sprintf("Linearizable reads of Bivouac from a follower ÷ from the leader, by clients: %s.\n\n",
		strings.Join(cells, ", "))
}

// where lists machines, commits and commands.
func (r *results) where() string {
	var machines, versions, commands []string
	add := func(list *[]string, text string) {
		if !slices.Contains(*list, text) {
			*list = append(*list, text)
		}
	}
	fsyncs, loads := []float64{}, []string{}
	used := map[string]bool{}
	for _, rec := range r.records {
		used[rec.Run] = true
	}
	for _, run := range slices.Sorted(maps.Keys(r.machines)) {
		m := r.machines[run]
		if !used[run] {
			continue
		}
		add(&machines, fmt.Sprintf("%d CPUs (%s), %s of memory, Linux %s", m.CPUs, m.Model, m.Memory, m.Kernel))
		add(&versions, fmt.Sprintf("commit %s, protocol version %d, built with %s", m.Commit, m.Protocol, m.Go))
		add(&commands, fmt.Sprintf("%s (%s)", m.Command, run))
		fsyncs, loads = append(fsyncs, float64(m.FsyncUS)), append(loads, m.Load)
	}
	f := spreadOf(fsyncs)
	var out strings.Builder
	fmt.Fprintf(&out, "- %s; an append of 4 KiB with fsync takes %.0f µs there (%.0f to %.0f at the beginning of the "+
		"runs); load averages at the beginnings: %s.\n",
		strings.Join(machines, "; "), f.median, f.least, f.most, strings.Join(loads, ", "))
	fmt.Fprintf(&out, "- etcd %s, rqlite %s, hashicorp/raft %s; Bivouac at %s.\n", etcdVersion, rqliteVersion,
		raftVersion, strings.Join(versions, ", "))
	noisy, counted := 0, 0
	for _, rec := range r.records {
		if rec.NodesCPU > 0 {
			if counted++; rec.Others > disturbed {
				noisy++
			}
		}
	}
	fmt.Fprintf(&out, "- During %d of the %d measurements that count other programs used more than %.2f of a core; "+
		"%d more, when they used more than %.2f, do not count.\n",
		noisy, counted, disturbed, r.spoiled, spoiled)
	out.WriteString("- The runs:\n\n")
	for _, c := range commands {
		fmt.Fprintf(&out, "      %s\n", c)
	}
	return out.String()
}

// millis returns a row's times by system, in the order of their first record.
func (r *results) millis(row string) (order []string, by map[string][]float64) {
	by = map[string][]float64{}
	for _, rec := range r.records {
		if rec.Row != row || rec.Millis == 0 {
			continue
		}
		if by[rec.System] == nil {
			order = append(order, rec.System)
		}
		by[rec.System] = append(by[rec.System], rec.Millis)
	}
	return order, by
}

// failoverAim is the target for the median, in milliseconds.
const failoverAim = 600

func (r *results) failoverTable() string {
	order, by := r.millis(rowFailover)
	if len(order) == 0 {
		return ""
	}
	ours := spreadOf(by[sysBivouac])
	var t table
	t.head("system", "Bivouac ÷ it", "median, ms", "least to most", "trials", "aim")
	for _, name := range order {
		s := spreadOf(by[name])
		said := ""
		switch {
		case name == sysBivouac:
			said = met(s.median < failoverAim, fmt.Sprintf("median under %d ms", failoverAim))
		case name != sysHandler:
			said = met(ours.median < s.median, "Bivouac below it")
		}
		t.row(name, fmt.Sprintf("%.2f", ours.median/s.median), fmt.Sprintf("%.0f", s.median),
			fmt.Sprintf("%.0f to %.0f", s.least, s.most), fmt.Sprint(s.count), said)
	}
	return t.String()
}

func met(yes bool, aim string) string {
	if yes {
		return aim + ": met"
	}
	return aim + ": **missed**"
}

// searchLimit is the allowed ratio between a page of the large user and one of the small user.
const searchLimit = 1.5

func (r *results) searchTable() string {
	var t table
	t.head("page", "many ÷ few", "of 100,000: p50, ms (p99)", "of 1,000: p50, ms (p99)", "aim")
	found := false
	for _, p := range pages() {
		median := map[string]spread{}
		worst := map[string]spread{}
		byTurn := map[turn]map[string]float64{}
		for _, system := range []string{"many", "few"} {
			var mid, high []float64
			for _, rec := range r.records {
				if rec.Row != rowSearch || rec.At != p.String() || rec.System != system {
					continue
				}
				mid, high = append(mid, p50(rec)), append(high, p99(rec))
				at := turn{rec.Run, rec.Repeat}
				if byTurn[at] == nil {
					byTurn[at] = map[string]float64{}
				}
				byTurn[at][system] = p50(rec)
			}
			median[system], worst[system] = spreadOf(mid), spreadOf(high)
		}
		var list []float64
		for _, m := range byTurn {
			if m["few"] > 0 {
				list = append(list, m["many"]/m["few"])
			}
		}
		s := spreadOf(list)
		if s.count == 0 {
			continue
		}
		found = true
		t.row(p.String(), fmt.Sprintf("**%.2f** (%.2f to %.2f)", s.median, s.least, s.most),
			fmt.Sprintf("%.3f (%.3f)", median["many"].median,
				worst["many"].median), fmt.Sprintf("%.3f (%.3f)", median["few"].median, worst["few"].median),
			met(s.median <= searchLimit, fmt.Sprintf("at most %.1f", searchLimit)))
	}
	if !found {
		return ""
	}
	return t.String()
}

// sizeTable extrapolates from the tenth, minus the values of an empty cluster.
func (r *results) sizeTable() string {
	var steps []map[string]float64
	for _, rec := range r.records {
		if rec.Row == rowSize {
			steps = append(steps, rec.Values)
		}
	}
	if len(steps) < 3 {
		return ""
	}
	empty, tenth, whole := steps[len(steps)-3], steps[len(steps)-2], steps[len(steps)-1]
	var t table
	t.head("a node's", "whole ÷ extrapolated", "empty", fmt.Sprintf("%.0f users", tenth["people"]),
		"extrapolated from it", fmt.Sprintf("%.0f users", whole["people"]), "aim")
	for _, row := range []struct {
		name, key, unit string
		divisor         float64
	}{
		{"live heap", "heap", "MiB", 1 << 20}, {"snapshot time", "snapshot_ms", "ms", 1},
		{"snapshot size", "snapshot_bytes", "MiB", 1 << 20}, {"time to restore it", "restore_ms", "ms", 1},
	} {
		e, a, w := empty[row.key]/row.divisor, tenth[row.key]/row.divisor, whole[row.key]/row.divisor
		line := e + (a-e)*(whole["people"]/tenth["people"])
		cell := func(v float64) string { return fmt.Sprintf("%.1f %s", v, row.unit) }
		t.row(row.name, fmt.Sprintf("**%.2f**", w/line), cell(e), cell(a), cell(line), cell(w), sizeAim(row.key, w <= line))
	}
	return t.String()
}

// sizeAim compares with the targets of issue 4: memory and the time of a snapshot.
func sizeAim(key string, within bool) string {
	if key == "heap" || key == "snapshot_ms" {
		return met(within, "at most 1")
	}
	return ""
}

func (r *results) electionsTable() string {
	order, by := r.millis(rowElections)
	terms, seconds, p99s, errs := map[string]float64{}, map[string]float64{}, map[string][]float64{}, map[string]int64{}
	var names []string
	for _, rec := range r.records {
		if rec.Row != rowElections || rec.Load == nil {
			continue
		}
		if seconds[rec.System] == 0 {
			names = append(names, rec.System)
		}
		terms[rec.System] += rec.Values["terms"]
		seconds[rec.System] += rec.Values["seconds"]
		p99s[rec.System] = append(p99s[rec.System], p99(rec))
		errs[rec.System] += rec.Load.Errors
	}
	for _, name := range order {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	var t table
	t.head("heartbeat/election/lease, ms", "new terms while every leader lived", "starved for, minutes",
		"writes' p99 then, ms", "failed", "leader killed: median, ms", "least to most", "trials")
	for _, name := range names {
		s := spreadOf(by[name])
		killed := []string{"", "", ""}
		if s.count > 0 {
			killed = []string{fmt.Sprintf("%.0f", s.median), fmt.Sprintf("%.0f to %.0f", s.least, s.most), fmt.Sprint(s.count)}
		}
		t.row(append([]string{name, fmt.Sprintf("%.0f", terms[name]), fmt.Sprintf("%.1f", seconds[name]/60),
			fmt.Sprintf("%.0f", spreadOf(p99s[name]).median), fmt.Sprint(errs[name])}, killed...)...)
	}
	return t.String()
}
