package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"bivouac.dev/bivouac/ops/bench/peers/load"
)

const (
	rowSize = "size"
	// allPeople have a sandbox each and ten conversations in it.
	allPeople = 10_000
)

// sizeConfig makes snapshots soon after the last change, but not all the time.
const sizeConfig = `
raft {
  snapshot_threshold = 2000
  snapshot_interval  = "8s"
}
`

// size is what the nodes of a cluster need, the means of three.
type size struct {
	// heap is what is live, resident what the process has, in bytes.
	heap, resident float64
	// snapshot is how long one takes, in milliseconds, bytes how long it is.
	snapshot, bytes float64
}

// sizes fills a cluster to a tenth and then to the whole, and each time looks
// at what it holds in memory and how long a snapshot takes.
func (b *bench) sizes(ctx context.Context) error {
	s, err := newBivouac("size", b.dir, b.programs.bivouac, b.more+seedConfig+sizeConfig)
	if err != nil {
		return err
	}
	b.running[rowSize] = s
	if err := s.start(ctx); err != nil {
		return err
	}
	defer s.pause()
	ours := s.driver.(*bivouac)
	seed, err := ours.seeder()
	if err != nil {
		return err
	}
	if err := seed.spec(ctx); err != nil {
		return err
	}
	whole := allPeople / b.shrink
	have := 0
	for _, people := range []int{0, whole / 10, whole} {
		begin := time.Now()
		if err := seed.people(ctx, have, people); err != nil {
			return err
		}
		made := time.Since(begin).Round(time.Second)
		have = people
		z, err := ours.size(ctx)
		if err != nil {
			return err
		}
		fmt.Fprintf(b.stdout, "%-14s %6d users, %6d sandboxes, %6d conversations (made in %s): live heap %6.1f MiB, resident %6.1f MiB, snapshot %7.0f ms, %6.1f MiB\n",
			rowSize, people, people, 10*people, made, z.heap/(1<<20), z.resident/(1<<20), z.snapshot, z.bytes/(1<<20))
		if err := b.rec.write(record{Row: rowSize, System: sysBivouac, Values: map[string]float64{
			"people": float64(people), "heap": z.heap, "resident": z.resident, "snapshot_ms": z.snapshot, "snapshot_bytes": z.bytes,
		}}); err != nil {
			return err
		}
	}
	return nil
}

// size waits for a snapshot of all there is, while nothing else happens, and
// for a collection of the garbage.
func (b *bivouac) size(ctx context.Context) (size, error) {
	var z size
	leader, err := b.leader(ctx)
	if err != nil {
		return z, err
	}
	// As many writes as a snapshot wants.
	write := b.work(workWrite, leader)
	if err := inParallel(ctx, 2500, func(ctx context.Context, i int) error { return write(ctx, i, i) }); err != nil {
		return z, err
	}
	for i, n := range b.nodes {
		var status struct {
			Applied uint64 `json:"applied_index"`
		}
		if err := b.http.call(ctx, http.MethodGet, b.base[i]+"/api/v1/operator/status", nil, &status, "X-Session-API-Key", b.key); err != nil {
			return z, err
		}
		// The last of the writes may be in the next one.
		took, path, err := awaitSnapshot(ctx, n, status.Applied-2000)
		if err != nil {
			return z, err
		}
		file, err := os.Stat(path)
		if err != nil {
			return z, err
		}
		if err := b.collect(ctx, i); err != nil {
			return z, err
		}
		heap, err := b.metric(ctx, i, "go_memstats_next_gc_bytes")
		if err != nil {
			return z, err
		}
		_, resident := n.usage()
		z.snapshot += took.Seconds() * 1000 / 3
		z.bytes += float64(file.Size()) / 3
		z.heap += heap / 2 / 3 // the goal of the next collection is twice what is live
		z.resident += float64(resident) / 3
	}
	return z, nil
}

// collect makes a node collect its garbage twice, by giving it work.
func (b *bivouac) collect(ctx context.Context, node int) error {
	const collections = "go_gc_duration_seconds_count"
	before, err := b.metric(ctx, node, collections)
	if err != nil {
		return err
	}
	return until(ctx, readyLimit, "the garbage is collected", func(ctx context.Context) error {
		if _, err := load.Run(ctx, load.Options{Clients: 8, For: time.Second}, b.work(workStale, node)); err != nil {
			return err
		}
		now, err := b.metric(ctx, node, collections)
		if err == nil && now < before+2 {
			err = errors.New("it was not yet")
		}
		return err
	})
}

// metric reads one of a node's metrics.
func (b *bivouac) metric(ctx context.Context, node int, name string) (float64, error) {
	raw, err := b.http.fetch(ctx, http.MethodGet, b.base[node]+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(raw)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("node %d has no metric %s", node, name)
}

// What hashicorp/raft says of its snapshots.
var (
	snapshotLine = regexp.MustCompile(`^time=(\S+) .*msg="raft: (starting snapshot up to|creating new snapshot|snapshot complete up to)(.*)`)
	snapshotPath = regexp.MustCompile(`path=(\S+)\.tmp`)
	snapshotUpTo = regexp.MustCompile(` index=(\d+)`)
)

// awaitSnapshot waits until a node has written a snapshot that reaches the
// index, and gives how long that took and where it is.
func awaitSnapshot(ctx context.Context, n *process, index uint64) (took time.Duration, path string, err error) {
	err = until(ctx, readyLimit, n.name+" makes a snapshot", func(context.Context) error {
		f, err := os.Open(n.log())
		if err != nil {
			return err
		}
		defer f.Close()
		var began time.Time
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			m := snapshotLine.FindStringSubmatch(lines.Text())
			if m == nil {
				continue
			}
			at, err := time.Parse(time.RFC3339Nano, m[1])
			if err != nil {
				return err
			}
			switch m[2] {
			case "starting snapshot up to":
				began = at
			case "creating new snapshot":
				if p := snapshotPath.FindStringSubmatch(m[3]); p != nil {
					path = p[1] + "/state.bin"
				}
			default:
				if i := snapshotUpTo.FindStringSubmatch(m[3]); i != nil {
					if upTo, err := strconv.ParseUint(i[1], 10, 64); err == nil && upTo >= index {
						took = at.Sub(began)
						return nil
					}
				}
			}
		}
		return errors.Join(lines.Err(), errors.New("none reaches far enough"))
	})
	return took, path, err
}
