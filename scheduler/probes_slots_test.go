package scheduler

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestSlots_ServeInOrderAndLoseNone(t *testing.T) {
	for _, newestFirst := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := &slots{newestFirst: newestFirst, free: 1}
			s.take(t.Context())
			var served []int
			for i := range 4 {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() {
					if s.take(ctx) {
						served = append(served, i)
						s.give()
					}
				}()
				synctest.Wait()
				if i == 2 {
					cancel() // it gives up
					synctest.Wait()
				}
			}
			s.give()
			synctest.Wait()
			want := []int{0, 1, 3}
			if newestFirst {
				slices.Reverse(want)
			}
			if !slices.Equal(served, want) || s.free != 1 || len(s.waiting) != 0 {
				t.Errorf("newest first %v: served %v, %d free, %d wait; want %v, 1, 0", newestFirst, served, s.free, len(s.waiting), want)
			}
		})
	}
}

func TestShared_OneClientHoldsItsShareOnly(t *testing.T) {
	g := newGate(8)
	late := g.slots[probeKind{late: true}]
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	for i := range 3 {
		if got := late.enter(ctx, "a") != nil; got != (i < 2) {
			t.Errorf("place %d of a client with a share of 2: %v", i+1, got)
		}
	}
	if late.enter(t.Context(), "b") == nil {
		t.Error("another client got no place")
	}
}

func TestGate_FirstAnswerAfterSilenceWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(4)
		g.answered("a")
		rested := func() time.Duration {
			begin := time.Now()
			go func() { time.Sleep(time.Second); g.answered("a") }()
			rest(t.Context(), g.wellAgain("a"), time.Minute)
			return time.Since(begin)
		}
		if took := rested(); took != time.Minute {
			t.Errorf("an answer beside others woke what rests after %s", took)
		}
		time.Sleep(clientSilence)
		if took := rested(); took != time.Second {
			t.Errorf("the first answer after a silence woke what rests after %s, not at once", took)
		}
	})
}
