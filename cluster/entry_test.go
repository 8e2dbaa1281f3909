package cluster

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestCommands_JoinAndSplit(t *testing.T) {
	t.Parallel()
	for _, commands := range [][]string{
		{"a{}"}, {"a{}", "b{}"}, {strings.Repeat("x", 1<<20), "b{}", strings.Repeat("y", 300)},
	} {
		var raw [][]byte
		for _, c := range commands {
			raw = append(raw, []byte(c))
		}
		entry := joinCommands(raw)
		back, err := splitCommands(entry)
		if err != nil || !slices.EqualFunc(raw, back, bytes.Equal) {
			t.Errorf("%d commands came back as %d, %v", len(raw), len(back), err)
		}
		if len(commands) == 1 {
			continue
		}
		for cut := range min(len(entry), 400) {
			if back, err := splitCommands(entry[:len(entry)-1-cut]); err == nil && slices.EqualFunc(raw, back, bytes.Equal) {
				t.Errorf("without its last %d bytes the batch is still whole", cut+1)
			}
		}
	}
	for _, bad := range []string{
		"\x01",
		"\x01\x00",
		"\x01\x01x",
		"\x01\x02x",
		"\x01\x01x\x00",
		"\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
		"\x01\x01x\xff",
	} {
		if got, err := splitCommands([]byte(bad)); err == nil {
			t.Errorf("%q was taken for %q", bad, got)
		}
	}
}

// FuzzDecodeEntry: whatever stands in the log is refused or read, and what is
// read was joined from its parts.
func FuzzDecodeEntry(f *testing.F) {
	f.Add([]byte(`settings.put{"id":"x","type":"settings.put","time":"2026-01-01T00:00:00Z","user_id":"u","body":{}}`))
	f.Add(joinCommands([][]byte{
		[]byte(`settings.put{"id":"x","type":"settings.put","time":"2026-01-01T00:00:00Z","user_id":"u","body":{}}`),
		[]byte(`sandbox.pause{"id":"y","type":"sandbox.pause","time":"2026-01-01T00:00:00Z","user_id":"u",` +
			`"body":{"sandbox_id":"s"}}`),
	}))
	f.Add([]byte("\x01\x00"))
	f.Fuzz(func(t *testing.T, entry []byte) {
		commands, err := decodeEntry(entry)
		if err != nil {
			return
		}
		parts, err := splitCommands(entry)
		if err != nil || len(parts) != len(commands) {
			t.Fatalf("%d commands of %d parts, %v", len(commands), len(parts), err)
		}
		again, err := splitCommands(joinCommands(parts))
		if err != nil || !slices.EqualFunc(parts, again, bytes.Equal) {
			t.Errorf("joined again it is another entry: %q", entry)
		}
	})
}

// TestBatcher_Batches: never more than its lanes at a time, in order, within the
// bounds, one leader's at a time, and none lost.
func TestBatcher_Batches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var goroutines sync.WaitGroup
		var mu sync.Mutex
		var order []int
		var sizes []int
		busy, most := 0, 0
		b := batcher{maxInFlight: 2, spawn: goroutines.Go}
		b.run = func(batch []*proposal, release func()) {
			mu.Lock()
			busy++
			most = max(most, busy)
			bytes, before := 0, len(order)
			for _, p := range batch {
				order = append(order, p.slot)
				if p.slot != batch[0].slot+len(order)-before-1 {
					t.Errorf("slot %d out of order", p.slot)
				}
				bytes += len(p.data)
				if p.leader != batch[0].leader {
					t.Error("commands for two leaders in one batch")
				}
			}
			if len(batch) > 1 && bytes > maxBatchBytes || len(batch) > maxBatch {
				t.Errorf("%d commands, %d bytes", len(batch), bytes)
			}
			sizes = append(sizes, len(batch))
			mu.Unlock()
			time.Sleep(time.Millisecond)
			mu.Lock()
			busy--
			mu.Unlock()
			release()
			release() // more than once is no harm
			time.Sleep(5 * time.Millisecond)
			for _, p := range batch {
				p.resolve(outcome{status: committed, index: uint64(p.slot)})
			}
		}
		one, other := &leadership{}, &leadership{}
		const count = 2000
		answers := make(chan slotOutcome, count)
		for i := range count {
			p := &proposal{data: make([]byte, 1+i%700), slot: i, done: answers, leader: one}
			if i > 1500 {
				p.leader = other
			}
			if i == 700 {
				p.data = make([]byte, maxBatchBytes+1)
			}
			b.add(p)
		}
		goroutines.Wait()
		if len(order) != count || most != 2 || len(sizes) > 20 {
			t.Errorf("%d carried, %d at a time, batches %v", len(order), most, sizes)
		}
		for range count {
			if d := <-answers; d.index != uint64(d.slot) {
				t.Errorf("slot %d got the answer of %d", d.slot, d.index)
			}
		}
	})
}

// slowBatcher has one lane, on which each batch takes a minute.
func slowBatcher(spawn func(func())) *batcher {
	return &batcher{maxInFlight: 1, spawn: spawn, run: func(batch []*proposal, _ func()) {
		time.Sleep(time.Minute)
		for _, p := range batch {
			p.resolve(outcome{status: committed})
		}
	}}
}

func TestBatcher_Send_WhoGivesUpKnowsWhetherItLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var goroutines sync.WaitGroup
		b := slowBatcher(goroutines.Go)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var callers sync.WaitGroup
		var first, second outcome
		callers.Go(func() { first = b.send(ctx, &proposal{}) })
		synctest.Wait()
		callers.Go(func() { second = b.send(ctx, &proposal{}) })
		callers.Wait()
		if first.status != maybeCommitted || second.status != notCommitted {
			t.Errorf("on its way: %v; still waiting: %v", first.status, second.status)
		}
		if patient := b.send(t.Context(), &proposal{}); patient.status != committed {
			t.Errorf("the next: %v", patient.status)
		}
		goroutines.Wait()
	})
}

func TestBatcher_Send_EndsWithTheLeaderItIsFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var goroutines sync.WaitGroup
		b := slowBatcher(goroutines.Go)
		begin := time.Now()
		l := &leadership{}
		l.ctx, l.end = context.WithTimeout(context.Background(), time.Second)
		defer l.end()
		if lost := b.send(t.Context(), &proposal{leader: l}); lost.status != maybeCommitted ||
			time.Since(begin) != time.Second {
			t.Errorf("%v after %v", lost.status, time.Since(begin))
		}
		goroutines.Wait()
	})
}
