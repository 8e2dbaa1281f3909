package slots

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestSlots_ServeInOrderAndLoseNone(t *testing.T) {
	t.Parallel()
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
				t.Errorf("newest first %v: served %v, %d free, %d wait; want %v, 1, 0", newestFirst, served, s.free,
					len(s.waiting), want)
			}
		})
	}
}

func TestShared_OneHolderHasItsShareOnly(t *testing.T) {
	s := New(8, false)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	for i := range 3 {
		if got := s.Enter(ctx, "a") != nil; got != (i < 2) {
			t.Errorf("slot %d of a holder with a share of 2: %v", i+1, got)
		}
	}
	if s.Enter(t.Context(), "b") == nil {
		t.Error("another holder got no slot")
	}
}

func TestShared_ForgetsHoldersWithoutASlot(t *testing.T) {
	s := New(8, false)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, holder := range []string{"a", "b", "c"} {
		for range 2 {
			defer s.Enter(t.Context(), holder)()
		}
		if s.Enter(ended, holder) != nil || s.TryEnter(holder) != nil {
			t.Errorf("holder %s got a third slot of two", holder)
		}
	}
	if n := len(s.holders); n != 3 {
		t.Errorf("%d of 3 holders are known", n)
	}
	for _, holder := range []string{"d", "e"} {
		s.TryEnter(holder)()
		s.Enter(t.Context(), holder)()
	}
	if n := len(s.holders); n != 3 {
		t.Errorf("%d holders are remembered, want 3", n)
	}
}
