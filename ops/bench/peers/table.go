package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// aim is a target of issue 4 for a row: the minimum ratio to a system's throughput at these
// numbers of clients.
type aim struct {
	system  string
	clients []int
	ratio   float64
}

// aims are the targets of issue 4 for the rows of loads.
func aims(row string) []aim {
	switch row {
	case "write":
		return []aim{{sysEtcd, []int{64, 256}, 1.2}, {sysRqlite, []int{64, 256}, 2}, {sysHandler, []int{1, 16, 64, 256}, 0.7}}
	case "read-follower", "read-leader":
		return []aim{{sysEtcd, []int{64}, 1.3}, {sysRqlite, []int{64}, 1.5}, {sysMended, []int{64}, 1.5}}
	case "stale":
		return []aim{{sysBare, []int{1, 16, 64, 256}, 0.8}}
	}
	return nil
}

// results are the records that count: for each row and number of clients, those of the newest
// commit, possibly from several runs.
type results struct {
	records  []record
	machines map[string]*machine // by run
	// spoiled counts the records omitted because the machine was too busy.
	spoiled int
}

func newResults(all []record) *results {
	r := &results{machines: map[string]*machine{}}
	for _, rec := range all {
		if rec.Machine != nil {
			r.machines[rec.Run] = rec.Machine
		}
	}
	newest := map[string]string{} // the commit, by what is measured
	for _, rec := range all {
		if rec.Machine == nil {
			newest[measured(rec)] = r.commit(rec)
		}
	}
	for _, rec := range all {
		switch {
		case rec.Machine != nil || r.commit(rec) != newest[measured(rec)]:
		case rec.Others > spoiled:
			r.spoiled++
		default:
			r.records = append(r.records, rec)
		}
	}
	return r
}

// measuredAt has a line for each commit that a row's records are of. ops/bench/results reads them.
func (r *results) measuredAt(row string) string {
	var lines []string
	for _, rec := range r.records {
		m := r.machines[rec.Run]
		if rec.Row != row || m == nil {
			continue
		}
		line := fmt.Sprintf("Measured at commit %s, protocol version %d.", m.Commit, m.Protocol)
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

func (r *results) commit(rec record) string {
	if m := r.machines[rec.Run]; m != nil {
		return m.Commit
	}
	return ""
}

// measured names a measurement without its system.
func measured(rec record) string {
	if rec.Load == nil {
		return rec.Row
	}
	return fmt.Sprint(rec.Row, rec.Load.Clients)
}

// turn is one pass over all systems; comparisons are within one.
type turn struct {
	run    string
	repeat int
}

// loads returns a row's results by number of clients, turn and system.
func (r *results) loads(row string) map[int]map[turn]map[string]record {
	out := map[int]map[turn]map[string]record{}
	for _, rec := range r.records {
		if rec.Row != row || rec.Load == nil {
			continue
		}
		c, t := rec.Load.Clients, turn{rec.Run, rec.Repeat}
		if out[c] == nil {
			out[c] = map[turn]map[string]record{}
		}
		if out[c][t] == nil {
			out[c][t] = map[string]record{}
		}
		out[c][t][rec.System] = rec
	}
	return out
}

// spread is the median of some figures, with the least and the greatest.
type spread struct {
	median, least, most float64
	count               int
}

func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{}
	}
	v := slices.Sorted(slices.Values(values))
	median := v[len(v)/2]
	if len(v)%2 == 0 {
		median = (v[len(v)/2-1] + v[len(v)/2]) / 2
	}
	return spread{median, v[0], v[len(v)-1], len(v)}
}

// ratios compares one system with another, turn by turn.
func ratios(turns map[turn]map[string]record, one, with string) spread {
	var list []float64
	for _, t := range turns {
		ours, theirs := t[one].Load, t[with].Load
		if ours != nil && theirs != nil && theirs.PerS > 0 {
			list = append(list, ours.PerS/theirs.PerS)
		}
	}
	return spreadOf(list)
}

// of returns the spread of one figure of a system over the turns.
func of(turns map[turn]map[string]record, system string, figure func(record) float64) spread {
	var list []float64
	for _, t := range turns {
		if rec, ok := t[system]; ok {
			list = append(list, figure(rec))
		}
	}
	return spreadOf(list)
}

func perSecond(r record) float64 { return r.Load.PerS }
func p50(r record) float64       { return float64(r.Load.P50) / 1000 }
func p99(r record) float64       { return float64(r.Load.P99) / 1000 }
func nodesCPU(r record) float64  { return r.NodesCPU }
func ownCPU(r record) float64    { return r.Load.CPU }

// table builds Markdown.
type table struct{ strings.Builder }

func (t *table) row(cells ...string) { t.WriteString("| " + strings.Join(cells, " | ") + " |\n") }

func (t *table) head(cells ...string) {
	t.row(cells...)
	t.row(slices.Repeat([]string{"---"}, len(cells))...)
}

// loadTables returns a row's two tables: the ratios with their targets, and the figures behind
// them.
func (r *results) loadTables(row loadRow) string {
	byClients := r.loads(row.name)
	if len(byClients) == 0 {
		return ""
	}
	clients := slices.Sorted(maps.Keys(byClients))
	var t table
	head := []string{row.ours + ", clients"}
	var others []string
	for _, s := range row.subjects {
		if s.system != row.ours {
			others = append(others, s.system)
			head = append(head, "÷ "+s.system)
		}
	}
	t.head(head...)
	for _, c := range clients {
		cells := []string{fmt.Sprint(c)}
		for _, other := range others {
			cells = append(cells, verdict(ratios(byClients[c], row.ours, other), row.name, other, c))
		}
		t.row(cells...)
	}
	t.WriteString("\n")
	t.head("clients", "system", "per second", "p50, ms", "p99, ms", "cores: nodes", "generator")
	for _, c := range clients {
		for _, s := range row.subjects {
			turns := byClients[c]
			rate := of(turns, s.system, perSecond)
			if rate.count == 0 {
				continue
			}
			t.row(fmt.Sprint(c), fmt.Sprintf("%s (%s)", s.system,
				s.at), fmt.Sprintf("%.0f (%.0f to %.0f)", rate.median, rate.least, rate.most),
				fmt.Sprintf("%.2f", of(turns, s.system, p50).median), fmt.Sprintf("%.2f", of(turns, s.system, p99).median),
				fmt.Sprintf("%.2f", of(turns, s.system, nodesCPU).median), generator(turns, s))
		}
	}
	return t.String()
}

// generator returns the load generator's share of a core. Within the leader it is part of the
// nodes.
func generator(turns map[turn]map[string]record, s subject) string {
	if s.at == atWithin {
		return "in the leader"
	}
	return fmt.Sprintf("%.2f", of(turns, s.system, ownCPU).median)
}

// verdict formats a ratio, and whether it meets its target, if any.
func verdict(s spread, row, system string, clients int) string {
	if s.count == 0 {
		return ""
	}
	text := fmt.Sprintf("%.2f (%.2f to %.2f)", s.median, s.least, s.most)
	for _, a := range aims(row) {
		if a.system != system || !slices.Contains(a.clients, clients) {
			continue
		}
		if s.median >= a.ratio {
			return fmt.Sprintf("**%s** aim %.1f met", text, a.ratio)
		}
		return fmt.Sprintf("**%s** aim %.1f missed", text, a.ratio)
	}
	return text
}
