package scheduler

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestGate_OneClientHoldsItsShareOnly(t *testing.T) {
	g := newGate(8, time.Second)
	late := g.slots[probeKind{late: true}]
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	for i := range 3 {
		if got := late.Enter(ctx, "a") != nil; got != (i < 2) {
			t.Errorf("slot %d of a client with a share of 2: %v", i+1, got)
		}
	}
	if late.Enter(t.Context(), "b") == nil {
		t.Error("another client got no slot")
	}
}

func TestGate_FirstAnswerAfterSilenceWakes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(4, time.Second)
		defer g.join("a")()
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

func TestGate_ForgetsClientsWithoutProbers(t *testing.T) {
	g := newGate(8, time.Second)
	for _, client := range []string{"a", "b", "c"} {
		one, two := g.join(client), g.join(client)
		g.answered(client)
		one()
		g.wellAgain(client)
		two()
	}
	if n := len(g.clients); n != 0 {
		t.Errorf("%d clients are remembered, want none", n)
	}
}
