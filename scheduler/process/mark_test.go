package process

import (
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
)

func markAt(index uint64) fsm.Mark {
	return fsm.Mark{
		Cluster: "c1",
		History: "h1",
		Epoch:   1,
		Nonce:   "aa",
		Index:   index,
		Time:    time.Date(2026, 11, 22, 4, 0, 0, 0, time.UTC),
	}
}

func TestRunner_Mark_IsCheckedAndSet_AndOutlivesTheProgram(t *testing.T) {
	dir := t.TempDir()
	r := newRunner(t, dir, "serve")
	if _, cas, found, err := r.ReadMark(ctx); found || cas != 0 || err != nil {
		t.Fatalf("a mark before there is one: %d, %v, %v", cas, found, err)
	}
	if err := r.WriteMark(ctx, markAt(1), 0); err != nil {
		t.Fatal(err)
	}
	var won atomic.Int32
	var all sync.WaitGroup
	_, cas, _, err := r.ReadMark(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(8) {
		all.Go(func() {
			switch err := r.WriteMark(ctx, markAt(2+i), cas); {
			case err == nil:
				won.Add(1)
			case fsm.CodeOf(err) != fsm.CodeConflict:
				t.Error(err)
			}
		})
	}
	all.Wait()
	if won.Load() != 1 {
		t.Fatalf("%d writes of 8 that named the same number were accepted", won.Load())
	}
	before, now, _, err := r.ReadMark(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := r.ReadMark(ctx); fsm.CodeOf(err) != fsm.CodeScheduler {
		t.Errorf("a closed runner reads: %v", err)
	}
	r = newRunner(t, dir, "serve")
	if after, again, found, err := r.ReadMark(ctx); !found || after != before || again != now || err != nil {
		t.Fatalf("after a restart: %+v, %d, %v, %v", after, again, found, err)
	}
	// A lost mark stays lost, and its numbers are not reused.
	if err := os.Remove(filepath.Join(dir, markFile)); err != nil {
		t.Fatal(err)
	}
	for _, old := range []uint64{cas, now} {
		if err := r.WriteMark(ctx, markAt(20), old); fsm.CodeOf(err) != fsm.CodeConflict {
			t.Errorf("a write over a lost mark: %v", err)
		}
	}
	if err := r.WriteMark(ctx, markAt(21), 0); err != nil {
		t.Fatal(err)
	}
	for _, old := range []uint64{cas, now, 0} {
		if err := r.WriteMark(ctx, markAt(22), old); fsm.CodeOf(err) != fsm.CodeConflict {
			t.Errorf("a write that names %d: %v", old, err)
		}
	}
}

func TestRunner_Mark_DamagedIsAnErrorAndIsLeft(t *testing.T) {
	dir := t.TempDir()
	r := newRunner(t, dir, "serve")
	for _, text := range []string{"", "{", "{}", `{"cas": 3}`} {
		if err := os.WriteFile(filepath.Join(dir, markFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := r.ReadMark(ctx); fsm.CodeOf(err) != fsm.CodeScheduler {
			t.Errorf("%q was read as a mark: %v", text, err)
		}
		if err := r.WriteMark(ctx, markAt(1), 0); fsm.CodeOf(err) != fsm.CodeScheduler {
			t.Errorf("%q was written over: %v", text, err)
		}
	}
}
