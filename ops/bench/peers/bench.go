package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"bivouac.dev/bivouac/ops/bench/peers/load"
)

// The names of the systems, as they stand in records and tables.
const (
	sysBivouac = "Bivouac"
	sysBase    = "Bivouac, base"
	sysEtcd    = "etcd"
	sysRqlite  = "rqlite"
	sysMended  = "rqlite, mended"
	sysRaft    = "raft alone"
	sysHandler = "raft + bare HTTP"
	sysBare    = "bare handler"
)

// Where a row asks.
const (
	atFollower = "follower"
	atLeader   = "leader"
	atWithin   = "within"
)

// subject is one system in a row.
type subject struct{ system, at string }

// loadRow is a row that is measured with a closed loop.
type loadRow struct {
	name, kind string
	subjects   []subject
}

// loadRows are the rows of writes and reads.
func loadRows() []loadRow {
	readers := func(at string) []subject {
		return []subject{{sysBivouac, at}, {sysEtcd, at}, {sysRqlite, at}, {sysMended, at}}
	}
	return []loadRow{
		{"write", workWrite, []subject{
			{sysBivouac, atFollower}, {sysEtcd, atFollower}, {sysRqlite, atFollower}, {sysHandler, atLeader}, {sysRaft, atWithin},
		}},
		{"read-follower", workRead, readers(atFollower)},
		{"read-leader", workRead, readers(atLeader)},
		{"stale", workStale, []subject{{sysBivouac, atFollower}, {sysBare, atFollower}}},
	}
}

// settings are the flags.
type settings struct {
	rows    []string
	clients []int
	repeats int
	load    load.Options
	trials  int
	// starveFor is how long elections are counted.
	starveFor time.Duration
	// shrink divides the large amounts of data.
	shrink  int
	systems []string
	base    string
	program string
	more    string
	store   string
	out     string
}

// bench is one run.
type bench struct {
	settings
	dir      string
	programs programs
	running  map[string]*system
	rec      *recorder
	stdout   io.Writer
}

// wants reports whether a system is to be measured.
func (b *bench) wants(name string) bool {
	return name == sysBivouac || len(b.systems) == 0 || slices.Contains(b.systems, name)
}

// system gives a running system, paused; it is started when first asked for.
func (b *bench) system(ctx context.Context, name string) (*system, error) {
	key := name
	if name == sysHandler {
		key = sysRaft // the same cluster, asked in another way
	}
	if s := b.running[key]; s != nil {
		return s, nil
	}
	s, err := b.make(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	b.running[key] = s
	if err := s.start(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s.pause()
	return s, nil
}

func (b *bench) make(ctx context.Context, name string) (*system, error) {
	switch name {
	case sysBivouac:
		return newBivouac("bivouac", b.dir, b.programs.bivouac, b.more+b.raftHCL())
	case sysBase:
		return newBivouac("base", b.dir, b.base, b.more+b.raftHCL())
	case sysEtcd:
		return newEtcd(b.dir, b.programs.etcd)
	case sysRqlite:
		return newRqlite("rqlite", b.dir, b.programs.rqlite)
	case sysMended:
		return newRqlite("mended", b.dir, b.programs.mended)
	case sysRaft:
		var flags []string
		if b.store != "" {
			flags = []string{"-store", b.store}
		}
		return newRaftAlone("raft", b.dir, b.programs.alone, flags...)
	case sysBare:
		return b.bare(ctx)
	}
	return nil, fmt.Errorf("there is no system %q", name)
}

// raftHCL chooses the log store, the same for Bivouac and raft alone.
func (b *bench) raftHCL() string {
	if b.store == "" {
		return ""
	}
	return fmt.Sprintf("raft {\n  log_store = %q\n}\n", b.store)
}

// bare returns what Bivouac answers to the read it is compared with.
func (b *bench) bare(ctx context.Context) (*system, error) {
	s, err := b.system(ctx, sysBivouac)
	if err != nil {
		return nil, err
	}
	s.resume()
	defer s.pause()
	if _, err := s.settled(ctx); err != nil {
		return nil, err
	}
	ours := s.driver.(*bivouac)
	answer, err := ours.http.fetch(ctx, "GET", ours.base[0]+"/api/settings", nil, "X-Session-API-Key", ours.keys[0])
	if err != nil {
		return nil, err
	}
	file := filepath.Join(b.dir, "answer.json")
	if err := os.WriteFile(file, answer, 0o600); err != nil {
		return nil, err
	}
	return newBare(b.dir, b.programs.alone, file)
}

// loads measures a row: every number of clients, every repeat, all systems in
// turn, forwards and backwards, so that what drifts meets all alike.
func (b *bench) loads(ctx context.Context, row loadRow) error {
	var subjects []subject
	for _, s := range row.subjects {
		if !b.wants(s.system) {
			continue
		}
		if subjects = append(subjects, s); s.system == sysBivouac && b.base != "" {
			subjects = append(subjects, subject{sysBase, s.at})
		}
	}
	for _, s := range subjects {
		if _, err := b.system(ctx, s.system); err != nil {
			return err
		}
	}
	for _, clients := range b.clients {
		for repeat := range b.repeats {
			turn := slices.Clone(subjects)
			if repeat%2 == 1 {
				slices.Reverse(turn)
			}
			for _, s := range turn {
				o := b.load
				o.Clients = clients
				if err := b.measure(ctx, row, s, repeat, o); err != nil {
					return fmt.Errorf("%s, %s, %d clients: %w", row.name, s.system, clients, err)
				}
			}
		}
	}
	return nil
}

// measure takes one system's turn.
func (b *bench) measure(ctx context.Context, row loadRow, who subject, repeat int, o load.Options) error {
	s, err := b.system(ctx, who.system)
	if err != nil {
		return err
	}
	s.resume()
	defer s.pause()
	leader, err := s.settled(ctx)
	if err != nil {
		return err
	}
	before, _ := s.usage()
	begin := time.Now()
	var result load.Result
	if who.at == atWithin {
		result, err = s.driver.(*raftAlone).within(ctx, leader, o)
	} else {
		node := leader
		if who.at == atFollower {
			node = (leader + 1) % len(s.nodes)
		}
		result, err = load.Run(ctx, o, s.work(row.kind, node))
	}
	if err != nil {
		return err
	}
	after, resident := s.usage()
	rec := record{Row: row.name, System: who.system, At: who.at, Repeat: repeat, Load: &result,
		NodesCPU: (after - before).Seconds() / time.Since(begin).Seconds(), Resident: resident}
	fmt.Fprintf(b.stdout, "%-14s %3d clients  %-17s %-8s %8.0f /s  p50 %7.2f ms  p99 %7.2f ms  cores: nodes %.2f, generator %.2f%s\n",
		row.name, o.Clients, who.system, who.at, result.PerS, float64(result.P50)/1000, float64(result.P99)/1000, rec.NodesCPU, result.CPU, failures(result))
	return b.rec.write(rec)
}

func failures(r load.Result) string {
	if r.Errors == 0 {
		return ""
	}
	return fmt.Sprintf("  %d ERRORS: %s", r.Errors, r.Error)
}

func (b *bench) stop() {
	for _, s := range b.running {
		s.stop()
	}
}
