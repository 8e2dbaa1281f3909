package scheduler

import (
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// While a backend is away the state of a client is unknown. When it is back, what waited for the
// client is tried at once, and soon again.
func TestLoop_BackendIsBack_PatienceBeginsAnew(t *testing.T) {
	s := &Scheduler{cfg: DefaultConfig(), store: fsm.NewStore()}
	l := newLoop(s, nil, nil, nil)
	l.takeListing(nil, 0)
	l.away = &Failure{Reason: fsm.ReasonScheduler}
	track := l.trackLocked("a")
	track.awayFailures, track.notBefore = 7, time.Now().Add(maxAwayPause)
	l.takeListing([]Observed{{SandboxID: "a"}}, 0)
	if track.awayFailures != 0 || !track.notBefore.IsZero() {
		t.Errorf("after the backend was away a removal has failed %d times in a row, and waits until %s",
			track.awayFailures, track.notBefore)
	}
}

// The loop keeps nothing of a sandbox without a row, even if events of it come late.
func TestLoop_LateEventsOfARemovedSandbox_AreForgotten(t *testing.T) {
	l := newLoop(&Scheduler{cfg: DefaultConfig(), store: fsm.NewStore()}, nil, nil, nil)
	l.takeListing(nil, l.seq)
	l.onEvent(Observed{SandboxID: "a"})
	l.onEvent(Observed{SandboxID: "b", Exists: true, ModifyIndex: 7})
	l.onEvent(Observed{SandboxID: "b", Live: 1})
	l.takeListing(nil, 0)
	if n := len(l.tracks); n != 2 {
		t.Errorf("%d are kept after a listing that began before their events, want both", n)
	}
	l.takeListing(nil, l.seq) // shows that b has ended
	l.takeListing(nil, l.seq)
	if n := len(l.tracks); n != 0 {
		t.Errorf("%d are kept", n)
	}
}
