package scheduler

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// TouchInterval is how often a node stores which sandboxes were used.
const TouchInterval = 10 * time.Second

// maxTouches is the most uses that one command carries.
const maxTouches = 500

// Touches collects the use of sandboxes on any node, for their idle timeout and their
// conversations' times, and stores it in batches. cmd makes one for each node, passes it to the
// API's sandbox proxy, and runs it.
type Touches struct {
	cluster Cluster
	log     *slog.Logger

	mu   sync.Mutex
	last map[use]time.Time
}

// use is a key of Touches: a sandbox, or a conversation in it.
type use struct{ sandbox, conversation string }

// NewTouches makes a Touches; it starts nothing. logger may be nil.
func NewTouches(cluster Cluster, logger *slog.Logger) *Touches {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &Touches{cluster: cluster, log: logger, last: map[use]time.Time{}}
}

// Touched records that the sandbox is used now. It only waits for a short lock and is safe for
// concurrent use.
func (t *Touches) Touched(sandboxID string) { t.at(use{sandbox: sandboxID}, time.Now()) }

// Talked records that a conversation in the sandbox gets a message now. It is as fast as Touched.
// The caller knows that the conversation exists.
func (t *Touches) Talked(sandboxID, conversationID string) {
	t.at(use{sandbox: sandboxID, conversation: conversationID}, time.Now())
}

// at records a use at a time.
func (t *Touches) at(what use, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at.After(t.last[what]) {
		t.last[what] = at
	}
}

// Run stores what was recorded every TouchInterval. It returns nil when ctx ends. A batch that is
// not accepted is retried with the next one.
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

// flush proposes everything that is recorded; false when a batch was refused.
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
				t.log.Info("storing the use of sandboxes failed, retrying", "count", len(batch), "error", err)
			}
			for _, touch := range batch {
				t.at(use{sandbox: touch.ID, conversation: touch.Conversation}, touch.At)
			}
			return false
		}
	}
}

func (t *Touches) take() []fsm.Touch {
	t.mu.Lock()
	defer t.mu.Unlock()
	var batch []fsm.Touch
	for what, at := range t.last {
		if len(batch) == maxTouches {
			break
		}
		batch = append(batch, fsm.Touch{ID: what.sandbox, At: micro(at), Conversation: what.conversation})
		delete(t.last, what)
	}
	return batch
}
