package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"bivouac.dev/bivouac/fsm"
)

const (
	rowSize = "size"
	// allPeople is the number of users, with one sandbox and ten conversations each.
	allPeople = 10_000
	// snapshots is how many are written; the median is reported.
	snapshots = 3
)

// sizes fills a store in this process to a tenth and then completely. Each time it measures the
// memory, the time of writing a snapshot to disk, and the time of restoring it.
func (b *bench) sizes(ctx context.Context) error {
	before := liveHeap()
	store := fsm.NewStore()
	whole := allPeople / b.shrink
	seed := seedStore(store, time.Now().Add(-30*24*time.Hour))
	if err := seed.spec(ctx); err != nil {
		return err
	}
	have := 0
	for _, people := range []int{0, whole / 10, whole} {
		if err := seed.people(ctx, have, people); err != nil {
			return err
		}
		have = people
		values := map[string]float64{"people": float64(people), "heap": liveHeap() - before}
		if err := b.snapshots(store, values); err != nil {
			return err
		}
		fmt.Fprintf(b.stdout, "%-14s %6d users, %6d sandboxes, %6d conversations: live heap %6.1f MiB, snapshot %7.1f ms, "+
			"%6.1f MiB, restored in %7.1f ms\n",
			rowSize, people, people, 10*people, values["heap"]/(1<<20), values["snapshot_ms"], values["snapshot_bytes"]/(1<<20),
			values["restore_ms"])
		if err := b.rec.write(record{Row: rowSize, System: sysBivouac, Values: values}); err != nil {
			return err
		}
	}
	runtime.KeepAlive(store)
	return nil
}

// snapshots records the median times and the size.
func (b *bench) snapshots(store *fsm.Store, values map[string]float64) error {
	var written, restored []float64
	for range snapshots {
		f, err := os.Create(filepath.Join(b.dir, "snapshot"))
		if err != nil {
			return err
		}
		defer f.Close()
		begin := time.Now()
		if err := store.Snapshot().Persist(f); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		written = append(written, time.Since(begin).Seconds()*1000)
		info, err := f.Stat()
		if err != nil {
			return err
		}
		values["snapshot_bytes"] = float64(info.Size())
		if _, err := f.Seek(0, 0); err != nil {
			return err
		}
		begin = time.Now()
		if err := fsm.NewStore().Restore(f); err != nil {
			return err
		}
		restored = append(restored, time.Since(begin).Seconds()*1000)
	}
	values["snapshot_ms"], values["restore_ms"] = spreadOf(written).median, spreadOf(restored).median
	return nil
}

// liveHeap returns the heap in use after a collection.
func liveHeap() float64 {
	var m runtime.MemStats
	for range 2 { // the second frees what finalizers held
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}
