package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac.dev/bivouac/ops/bench/peers/load"
)

func loaded(run, row, system string, repeat, clients int, perS float64) record {
	return record{
		Run:    run,
		Row:    row,
		System: system,
		Repeat: repeat,
		Load:   &load.Result{Clients: clients, PerS: perS, P50: 1000, P99: 2000},
	}
}

// Ratios are computed within a turn, and only the newest commit's records count.
func TestReport(t *testing.T) {
	all := []record{
		{Run: "1", Machine: &machine{Commit: "old"}},
		loaded("1", "write", sysBivouac, 0, 64, 100), loaded("1", "write", sysEtcd, 0, 64, 1),
		loaded("1", "stale", sysBivouac, 0, 64, 50), loaded("1", "stale", sysBare, 0, 64, 100),
		{Run: "2", Machine: &machine{Commit: "new", Protocol: 8}},
		loaded("2", "write", sysBivouac, 0, 64, 120), loaded("2", "write", sysEtcd, 0, 64, 100),
		loaded("2", "write", sysBivouac, 1, 64, 20), loaded("2", "write", sysEtcd, 1, 64, 10),
		loaded("2", "write", sysBivouac, 2, 64, 110), loaded("2", "write", sysEtcd, 2, 64, 100),
		loaded("2", "write", sysRqlite, 2, 64, 100),
		{Run: "2", Row: "write", System: sysRqlite, Repeat: 1, Others: 1.5, Load: &load.Result{Clients: 64, PerS: 1}},
		{
			Run:    "2",
			Row:    rowFailover,
			System: sysBivouac,
			Millis: 550,
		}, {Run: "2", Row: rowFailover, System: sysEtcd, Millis: 1100},
		{Run: "2", Row: rowFailover, System: sysRqlite, Millis: 500},
	}
	dir := t.TempDir()
	out := filepath.Join(dir, "results.jsonl")
	for _, rec := range all {
		f, err := os.OpenFile(out, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if err := (&recorder{f, rec.Run}).write(rec); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	into := filepath.Join(dir, "RESULTS.md")
	if err := os.WriteFile(into, []byte("before\n"+markBegin+"\nstale words\n"+markEnd+"\nafter\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // writing it again changes nothing
		if err := report(out, into); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := os.ReadFile(into)
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	for _, want := range []string{
		"before\n", "after\n",
		"### Settings write through a follower\n\nMeasured at commit new, protocol version 8.\n\n| Bivouac, clients |",
		"| 64 | **1.20 (1.10 to 2.00)** aim 1.2 met | **1.10 (1.10 to 1.10)** aim 2.0 missed |",
		"**0.50 (0.50 to 0.50)** aim 0.8 missed",
		"| etcd | 0.50 | 1100 | 1100 to 1100 | 1 | Bivouac below it: met |",
		"| rqlite | 1.10 | 500 | 500 to 500 | 1 | Bivouac below it: **missed** |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "stale words") {
		t.Error("the old report is still there")
	}
	for _, picture := range []string{"write", "stale", rowFailover} {
		if _, err := os.Stat(filepath.Join(dir, "plots", picture+".svg")); err != nil {
			t.Error(err)
		}
	}
}
