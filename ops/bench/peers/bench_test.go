package main

import (
	"bytes"
	"context"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/ops/bench/peers/load"
	"bivouac.dev/bivouac/ops/check"
)

// The project rules hold here, too; ops/check itself stops at a go.mod.
func TestTree_KeepsTheRules(t *testing.T) {
	files, err := check.Load(".")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 10 {
		t.Fatalf("only %d files", len(files))
	}
	for _, said := range slices.Concat(check.House(files), check.Docs(files), check.Sleeps(files)) {
		t.Error(said)
	}
}

// The stored document is as large as raft alone's commands, and Bivouac accepts all its
// members.
func TestDocument_Has512Bytes(t *testing.T) {
	raw := document(7, 100)
	if len(raw) < commandBytes-16 || len(raw) > commandBytes+16 {
		t.Errorf("the document has %d bytes, want about %d", len(raw), commandBytes)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(new(fsm.SettingsValues)); err != nil {
		t.Error(err)
	}
}

// The rows that need no peer run as in `make bench`, but shorter.
func TestBench_OfWhatIsOurs(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and starts three nodes, twice")
	}
	out := filepath.Join(t.TempDir(), "results.jsonl")
	b := newBench(new(bytes.Buffer))
	if _, err := b.parse([]string{"-rows", "write,read-follower,stale", "-clients", "4", "-repeats", "1", "-for", "200ms",
		"-warm", "50ms",
		"-systems", sysHandler + ";" + sysRaft + ";" + sysBare, "-out", out}); err != nil {
		t.Fatal(err)
	}
	if err := b.measureAll(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, b.stdout)
	}
	records, err := readRecords(out)
	if err != nil {
		t.Fatal(err)
	}
	if len(records) != 1+3+1+2 {
		t.Errorf("%d records, want 7:\n%s", len(records), b.stdout)
	}
	for _, r := range records[1:] {
		if r.Load == nil || r.Load.Ops == 0 || r.Load.Errors > 0 || r.Load.P99 < r.Load.P50 {
			t.Errorf("%s of %s: %+v", r.Row, r.System, r.Load)
		}
	}
}

// The guard measures every kind of request. One program stands for both commits.
func TestGuard_MeasuresEveryRow(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and starts six nodes")
	}
	out := new(bytes.Buffer)
	program := filepath.Join(t.TempDir(), "bivouac")
	if err := local.BuildGo(t.Context(), "./cmd/bivouac", program); err != nil {
		t.Fatal(err)
	}
	g := newGuard(out)
	g.rounds, g.load.For, g.load.Warm, g.program, g.base = 1, 500*time.Millisecond, 100*time.Millisecond, program, program
	g.again = 0 // other programs disturb each measurement
	// One round beside other programs says little of the cost, so the verdict may be either.
	if err := g.run(t.Context(), "HEAD"); err != nil && !strings.Contains(err.Error(), baseFile) {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, row := range guardRows() {
		rounds := g.found[row.name]
		if len(rounds) != 1 || rounds[0].bare <= 0 || rounds[0].here <= rounds[0].bare/2 ||
			rounds[0].base <= rounds[0].bare/2 {
			t.Errorf("%s: %v\n%s", row.name, rounds, out)
		}
	}
}

func TestRun_CountsWhatIsAnsweredInTime(t *testing.T) {
	result, err := load.Run(t.Context(), load.Options{
		Clients: 3,
		Warm:    20 * time.Millisecond,
		For:     100 * time.Millisecond,
	}, func(_ context.Context, client, n int) error {
		if client == 0 && n%2 == 1 {
			return context.DeadlineExceeded
		}
		return nil
	})
	if err != nil || result.Ops == 0 || result.Errors == 0 || result.Error == "" {
		t.Errorf("%+v, %v", result, err)
	}
}
