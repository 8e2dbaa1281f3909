package scheduler_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// slowLister returns a listing after it was read: while slow, on release.
type slowLister struct {
	scheduler.Backend
	slow, reading atomic.Bool
	release       chan struct{}
}

func (s *slowLister) List(ctx context.Context, clusterID string) ([]scheduler.Observed, error) {
	jobs, err := s.Backend.List(ctx, clusterID)
	if s.slow.Load() {
		s.reading.Store(true)
		<-s.release
	}
	return jobs, err
}

// A listing that was read before a removal and arrives after it does not make an orphan of what
// was removed.
func TestListing_ReadBeforeARemoval_MakesNoOrphan(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.create("a")
		w.reach("a", fsm.SandboxRunning, time.Minute)
		w.step()
		lister := &slowLister{Backend: w.nomad, release: make(chan struct{})}
		w.backend = lister
		w.lead()
		w.elapse(w.cfg.ListInterval / 2)
		lister.slow.Store(true)
		w.until("a listing under way", time.Minute, lister.reading.Load)
		w.delete("a")
		w.gone("a", time.Second)
		w.elapse(100 * time.Millisecond)
		lister.slow.Store(false)
		close(lister.release)
		w.elapse(2 * w.cfg.ListInterval)
		if n := w.cluster.Count(fsm.OrphanNote); n != 0 {
			t.Errorf("%d orphans noted", n)
		}
		if n := w.nomad.Calls("remove"); n != 1 {
			t.Errorf("%d removals, want 1", n)
		}
	})
}
