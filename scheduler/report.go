package scheduler

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/scheduler/fault"
)

// maxReport is the most observations that one command carries.
const maxReport = 256

// reporter proposes observations. While one command is under way the next observations are
// gathered. So a burst of changes costs few commands, and a single change does not wait.
type reporter struct {
	s   *Scheduler
	log *slog.Logger

	mu      sync.Mutex
	pending map[string]fsm.SandboxStatus
	kick    chan struct{}
}

func newReporter(s *Scheduler, log *slog.Logger) *reporter {
	return &reporter{s: s, log: log, pending: map[string]fsm.SandboxStatus{}, kick: make(chan struct{}, 1)}
}

// submit queues the status to be proposed, in place of an older one that still waits.
func (r *reporter) submit(id string, st fsm.SandboxStatus) {
	r.mu.Lock()
	r.pending[id] = st
	r.mu.Unlock()
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// run proposes until ctx ends.
func (r *reporter) run(ctx context.Context) error {
	retry := newBackoff(r.s.cfg.BackoffMin, 2*time.Second)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.kick:
		}
		for {
			batch := r.take()
			if len(batch) == 0 {
				break
			}
			fault.At("before observe", string(batch[0].Status.State))
			_, err := r.s.cluster.Propose(ctx, command(&fsm.SandboxObserveBody{Observations: batch}))
			if err == nil {
				fault.At("after observe", string(batch[0].Status.State))
				retry.Reset()
				r.count(batch)
				continue
			}
			if ctx.Err() != nil {
				return nil
			}
			r.log.Warn("proposing observations failed", "count", len(batch), "error", err)
			r.putBack(batch)
			if !sleep(ctx, retry.NextBackOff()) {
				return nil
			}
		}
	}
}

// take removes a batch of pending statuses and drops those that change nothing.
func (r *reporter) take() []fsm.Observation {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.pending) == 0 {
		return nil
	}
	v := r.s.store.View()
	var batch []fsm.Observation
	for id, st := range r.pending {
		if len(batch) == maxReport {
			break
		}
		delete(r.pending, id)
		if sb := v.SandboxAny(id); sb != nil && sb.Generation == st.Generation && !statusEqual(sb.Status, st) {
			batch = append(batch, fsm.Observation{ID: id, Status: st})
		}
	}
	return batch
}

// putBack returns what was not accepted, unless there is a newer status.
func (r *reporter) putBack(batch []fsm.Observation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range batch {
		if _, newer := r.pending[o.ID]; !newer {
			r.pending[o.ID] = o.Status
		}
	}
}

func (r *reporter) count(batch []fsm.Observation) {
	for _, o := range batch {
		st := o.Status
		log := r.log.With("sandbox", o.ID, "state", st.State)
		switch st.State {
		case fsm.SandboxError:
			log.Warn("sandbox failed", "reason", st.Reason, "error", st.Detail)
		default:
			log.Info("sandbox observed", "reason", st.Detail)
		}
	}
}

// statusEqual compares two statuses except for Since, which Apply keeps.
func statusEqual(a, b fsm.SandboxStatus) bool {
	a.Since, b.Since = time.Time{}, time.Time{}
	return a.Equal(&b)
}

// sleep waits; false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// awaitChange waits until the store has changed since v, until at unless that is zero, or for
// news. It is false when ctx ended.
func awaitChange(ctx context.Context, v *fsm.View, at time.Time, news <-chan struct{}) bool {
	var due <-chan time.Time
	if !at.IsZero() {
		timer := time.NewTimer(time.Until(at))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-due:
	case <-v.Changed():
	case <-news:
	}
	return true
}

// command makes one of the leader's own commands.
func command(body fsm.Body) fsm.Command {
	return fsm.NewCommand(uuid.NewString(), time.Now(), "", body)
}

// maxDetail bounds the detail of a status, in bytes.
const maxDetail = 1000

// clipped redacts and bounds the detail of a status and joins it to one line.
func clipped(st fsm.SandboxStatus) fsm.SandboxStatus {
	st.Detail = decode.Truncate(decode.Redact(strings.Join(strings.Fields(st.Detail), " ")), maxDetail)
	return st
}
