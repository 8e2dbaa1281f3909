package scheduler

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// TouchInterval is how often a node tells the cluster which sandboxes were used.
const TouchInterval = 10 * time.Second

// maxTouches is how many sandboxes one command tells of.
const maxTouches = 500

// Touches collects the use of sandboxes on any node, for their idle timeout,
// and brings it into the store in batches. cmd makes one for each node, hands
// it to the API's door, and runs it.
type Touches struct {
	cluster Cluster
	log     *slog.Logger

	mu   sync.Mutex
	last map[string]time.Time
}

// NewTouches makes a Touches; it starts nothing. logger may be nil.
func NewTouches(cluster Cluster, logger *slog.Logger) *Touches {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &Touches{cluster: cluster, log: logger, last: map[string]time.Time{}}
}

// Touched notes that the sandbox is used right now. It never waits for more
// than a short lock, and may be called by many at once.
func (t *Touches) Touched(sandboxID string) { t.at(sandboxID, time.Now()) }

// at notes that the sandbox was used at a time.
func (t *Touches) at(sandboxID string, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at.After(t.last[sandboxID]) {
		t.last[sandboxID] = at
	}
}

// Run brings what was noted into the store every TouchInterval, until ctx ends;
// then it returns nil. What is not accepted is tried again with the next batch.
func (t *Touches) Run(ctx context.Context) error {
	ticker := time.NewTicker(TouchInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			t.flush(ctx)
		}
	}
}

// flush proposes everything that is noted; false when something was refused.
func (t *Touches) flush(ctx context.Context) bool {
	for {
		batch := t.take()
		if len(batch) == 0 {
			return true
		}
		callCtx, cancel := context.WithTimeout(ctx, TouchInterval)
		_, err := t.cluster.Propose(callCtx, command(&fsm.SandboxTouchBody{Touches: batch}))
		cancel()
		if err != nil {
			if ctx.Err() == nil {
				t.log.Info("the use of sandboxes could not be noted; trying again", "count", len(batch), "error", err)
			}
			for _, touch := range batch {
				t.at(touch.ID, touch.At)
			}
			return false
		}
	}
}

func (t *Touches) take() []fsm.Touch {
	t.mu.Lock()
	defer t.mu.Unlock()
	var batch []fsm.Touch
	for id, at := range t.last {
		if len(batch) == maxTouches {
			break
		}
		batch = append(batch, fsm.Touch{ID: id, At: micro(at)})
		delete(t.last, id)
	}
	return batch
}
