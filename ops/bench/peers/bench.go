package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"bivouac.dev/bivouac/ops/bench/peers/load"
)

// The names of the systems in records and tables.
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

// The node of a row's requests.
const (
	atFollower = "follower"
	atLeader   = "leader"
	atWithin   = "within"
)

// subject is one system in a row.
type subject struct{ system, at string }

// loadRow is a row that is measured with a closed loop. ours is compared with the others.
type loadRow struct {
	name, kind, ours string
	subjects         []subject
}

// loadRows are the rows of writes and reads.
func loadRows() []loadRow {
	readers := func(at string) []subject {
		return []subject{{sysBivouac, at}, {sysEtcd, at}, {sysRqlite, at}, {sysMended, at}}
	}
	return []loadRow{
		{"write", workWrite, sysBivouac, []subject{
			{
				sysBivouac,
				atFollower,
			}, {sysEtcd, atFollower}, {sysRqlite, atFollower}, {sysHandler, atLeader}, {sysRaft, atWithin},
		}},
		{"read-follower", workRead, sysBivouac, readers(atFollower)},
		{"read-leader", workRead, sysBivouac, readers(atLeader)},
		{"stale", workStale, sysBivouac, []subject{{sysBivouac, atFollower}, {sysBare, atFollower}}},
		{
			"store",
			workWrite,
			raftOn("wal"),
			[]subject{{raftOn("wal"), atWithin}, {raftOn("boltdb"), atWithin}},
		},
	}
}

// raftOn returns the name of raft alone with a log store.
func raftOn(store string) string { return sysRaft + ", " + store }

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
	// again is how often a disturbed measurement is repeated.
	again int
	// etcdConns is the number of connections to each etcd node.
	etcdConns int
	out       string
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

// wants reports whether a system is measured.
func (b *bench) wants(name string) bool {
	return name == sysBivouac || len(b.systems) == 0 || slices.Contains(b.systems, name)
}

// system returns a running system, paused. The first call starts it.
func (b *bench) system(ctx context.Context, name string) (*system, error) {
	key := name
	if name == sysHandler {
		key = sysRaft // the same cluster with other requests
	}
	if s := b.running[key]; s != nil {
		return s, nil
	}
	s, err := b.make(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s.name = key
	b.running[key] = s
	if err := s.start(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s.pause()
	return s, nil
}

func (b *bench) make(ctx context.Context, name string) (*system, error) {
	if store, ok := strings.CutPrefix(name, raftOn("")); ok {
		return newRaftAlone("raft-"+store, b.dir, b.programs.alone, "-store", store)
	}
	switch name {
	case sysBivouac:
		return newBivouac("bivouac", b.dir, b.programs.bivouac, b.more)
	case sysBase:
		return newBivouac("base", b.dir, b.base, b.more)
	case sysEtcd:
		return newEtcd(b.dir, b.programs.etcd, b.etcdConns)
	case sysRqlite:
		return newRqlite("rqlite", b.dir, b.programs.rqlite)
	case sysMended:
		return newRqlite("mended", b.dir, b.programs.mended)
	case sysRaft:
		return newRaftAlone("raft", b.dir, b.programs.alone)
	case sysBare:
		return b.bare(ctx)
	}
	return nil, fmt.Errorf("there is no system %q", name)
}

// bare returns Bivouac's response to the read that it is compared with.
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

// loads measures a row: every number of clients, every repeat, all systems in turn, in both
// orders, so that drift affects all of them equally.
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

// measure measures one system, and repeats that if other programs used the machine meanwhile.
func (b *bench) measure(ctx context.Context, row loadRow, who subject, repeat int, o load.Options) error {
	s, err := b.system(ctx, who.system)
	if err != nil {
		return err
	}
	s.resume()
	defer s.pause()
	var rec record
	for try := 0; ; try++ {
		if rec, err = b.once(ctx, s, row, who, o); err != nil {
			return err
		}
		if rec.Others <= disturbed || try >= b.again {
			break
		}
		fmt.Fprintf(b.stdout, "%-14s %3d clients  %-17s disturbed: others used %.2f cores; again\n", row.name, o.Clients,
			who.system, rec.Others)
	}
	rec.Repeat = repeat
	fmt.Fprintf(b.stdout, "%-14s %3d clients  %-17s %-8s %8.0f /s  p50 %7.2f ms  p99 %7.2f ms  cores: nodes %.2f, "+
		"generator %.2f, others %.2f%s\n",
		row.name, o.Clients, who.system, who.at, rec.Load.PerS, p50(rec), p99(rec), rec.NodesCPU, rec.Load.CPU, rec.Others,
		failures(*rec.Load))
	return b.rec.write(rec)
}

// once is one measurement.
func (b *bench) once(ctx context.Context, s *system, row loadRow, who subject, o load.Options) (record, error) {
	leader, err := s.settled(ctx)
	if err != nil {
		return record{}, err
	}
	before, _ := s.usage()
	all := busy()
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
		return record{}, err
	}
	took := time.Since(begin).Seconds()
	after, resident := s.usage()
	others := (busy() - all) - (after - before) - result.Used
	return record{Row: row.name, System: who.system, At: who.at, Load: &result,
		NodesCPU: (after - before).Seconds() / took, Resident: resident, Others: max(0, others.Seconds()/took)}, nil
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
