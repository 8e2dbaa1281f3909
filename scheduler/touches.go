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

// Touches collects the use of sandboxes on any node, for their idle timeout and
// their conversations' times, and brings it into the store in batches. cmd makes one for each node, hands
// it to the API's door, and runs it.
type Touches struct {
	cluster Cluster
	log     *slog.Logger

	mu   sync.Mutex
	last map[use]time.Time
}

// use is what Touches notes the last time of: a sandbox, or a conversation in it.
type use struct{ sandbox, conversation string }

// NewTouches makes a Touches; it starts nothing. logger may be nil.
func NewTouches(cluster Cluster, logger *slog.Logger) *Touches {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &Touches{cluster: cluster, log: logger, last: map[use]time.Time{}}
}

// Touched notes that the sandbox is used right now. It never waits for more
// than a short lock, and may be called by many at once.
func (t *Touches) Touched(sandboxID string) { t.at(use{sandbox: sandboxID}, time.Now()) }

// Talked notes that a message was given to a conversation in the sandbox right
// now. It is as quick as Touched. The caller knows that there is such a
// conversation.
func (t *Touches) Talked(sandboxID, conversationID string) {
	t.at(use{sandbox: sandboxID, conversation: conversationID}, time.Now())
}

// at notes a use at a time.
func (t *Touches) at(what use, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at.After(t.last[what]) {
		t.last[what] = at
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
