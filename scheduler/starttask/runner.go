package starttask

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/google/uuid"
	"golang.org/x/sync/semaphore"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/requestid"
	"bivouac.dev/bivouac/scheduler/fault"
	"bivouac.dev/bivouac/scheduler/slots"
)

// maxDetail bounds the detail of a task, in bytes.
const maxDetail = 1000

// Runner runs every open start task to READY or ERROR while this node leads.
type Runner struct {
	cfg     Config
	log     *slog.Logger
	store   Store
	cluster Cluster
	agents  Agents
	secrets Secrets
	// calls bounds the calls that create conversations, clones the commands that prepare
	// repositories, writes the writes of keys to the secret store.
	calls, clones *calls
	writes        *semaphore.Weighted
	// now is the clock. step is called before each effect of a task. Tests replace them.
	now  func() time.Time
	step func(ctx context.Context, task *fsm.StartTask, name string)
}

// New makes a Runner; it starts nothing. Its Run is one of the functions that scheduler.New runs
// beside its loop.
func New(cfg Config, store Store, cluster Cluster, agents Agents, secrets Secrets) (*Runner, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Runner{
		cfg: cfg, log: cfg.Logger, store: store, cluster: cluster, agents: agents, secrets: secrets,
		calls: newCalls(cfg.Calls, callHurry), clones: newCalls(cfg.Calls, cloneHurry),
		writes: semaphore.NewWeighted(int64(cfg.Calls)),
		now:    time.Now,
		step:   func(_ context.Context, _ *fsm.StartTask, name string) { fault.At("task", name) },
	}, nil
}

// Run runs tasks until ctx ends, and returns nil when all that it started has ended. Each open
// task has one goroutine.
func (r *Runner) Run(ctx context.Context) error {
	began := r.now()
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan *fsm.StartTask, r.cfg.Tasks)
	carried, of := map[string]bool{}, map[string]int{}
	for {
		v := r.store.View()
		for _, t := range v.OpenStartTasks() {
			if len(carried) >= r.cfg.Tasks {
				break
			}
			if carried[t.ID] || of[t.UserID] >= max(r.cfg.Tasks/slots.Share, 1) {
				continue
			}
			carried[t.ID] = true
			of[t.UserID]++
			wg.Go(func() {
				r.carry(ctx, t.UserID, t.ID, began)
				ended <- t // the buffer has a place for every task
			})
		}
		select {
		case <-ctx.Done():
			return nil
		case t := <-ended:
			delete(carried, t.ID)
			if of[t.UserID]--; of[t.UserID] == 0 {
				delete(of, t.UserID)
			}
		case <-v.Changed():
		}
	}
}

// outcome is the result of one step of a task.
type outcome struct {
	// wait: nothing to do until the view changes; detail says what for.
	wait   bool
	detail string
	// until is when a wait ends without a change, zero for the task's deadline.
	until time.Time
	// err: the step failed and is retried. fatal: the task fails with this text.
	err   error
	fatal string
}

// carry runs one task until it, or ctx, has ended.
func (r *Runner) carry(ctx context.Context, userID, id string, began time.Time) {
	log := r.log.With("task", id, "user", userID)
	ctx = requestid.With(ctx, id) // the request that made the task has its id in the access log
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = r.cfg.BackoffMin, r.cfg.BackoffMax
	last := ""
	var d drawn
	for ctx.Err() == nil {
		v := r.store.View()
		t := v.StartTask(userID, id)
		if t == nil || t.Done() {
			return
		}
		if v.HeldTask(t) {
			began = r.awaitRelease(ctx, v)
			continue
		}
		deadline := r.deadline(t, began)
		if !r.now().Before(deadline) {
			if r.fail(ctx, log, t, r.overdue(t), &d) {
				return
			}
			sleep(ctx, pause.NextBackOff(), nil)
			continue
		}
		stepCtx, cancel := context.WithDeadline(ctx, deadline)
		o := r.advance(stepCtx, v, t, &d)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case o.fatal != "":
			if r.fail(ctx, log, t, o.fatal, &d) {
				return
			}
			sleep(ctx, pause.NextBackOff(), nil)
		case o.err != nil:
			if text := o.err.Error(); text != last {
				last = text
				log.Warn("start task step failed, retrying", "state", t.Status, "error", o.err)
			}
			r.note(ctx, t, o.err.Error())
			sleep(ctx, min(pause.NextBackOff(), deadline.Sub(r.now())), nil)
		case o.wait:
			r.note(ctx, t, o.detail)
			if !o.until.IsZero() && o.until.Before(deadline) {
				deadline = o.until
			}
			sleep(ctx, deadline.Sub(r.now()), v.Changed())
			pause.Reset()
		default:
			pause.Reset()
		}
	}
}

// awaitRelease waits until the view changes, because of a hold, and returns the new begin of the
// task's time.
func (r *Runner) awaitRelease(ctx context.Context, v *fsm.View) time.Time {
	select {
	case <-ctx.Done():
	case <-v.Changed():
	}
	return r.now()
}

func (r *Runner) deadline(t *fsm.StartTask, began time.Time) time.Time {
	d := t.CreatedAt.Add(r.limit(t))
	if g := began.Add(r.cfg.TermGrace); d.Before(g) {
		return g
	}
	return d
}

// limit is how long a task may take.
func (r *Runner) limit(t *fsm.StartTask) time.Duration {
	d := r.cfg.Deadline
	if hasProject(t) {
		d += r.cfg.SetupTimeout
	}
	if t.Setup != nil {
		d += r.cfg.ConfirmTimeout
	}
	return d
}

func (r *Runner) overdue(t *fsm.StartTask) string {
	text := fmt.Sprintf("not ready after %s, still %s", r.limit(t), t.Status)
	if t.Detail != "" {
		text += ": " + t.Detail
	}
	return text
}

// sleep waits for d, for wake, or for ctx to end.
func sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) {
	timer := time.NewTimer(max(d, 0))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-wake:
	}
}

// propose proposes one of the leader's commands.
func (r *Runner) propose(ctx context.Context, body fsm.Body) (fsm.Result, error) {
	return r.cluster.Propose(ctx, fsm.NewCommand(uuid.NewString(), r.now(), "", body))
}

// note stores a task's reason for waiting, if it has changed. Best effort: the next step stores
// it again.
func (r *Runner) note(ctx context.Context, t *fsm.StartTask, detail string) {
	detail = decode.Truncate(decode.Redact(detail), maxDetail)
	if detail == t.Detail {
		return
	}
	_, err := r.propose(ctx, &fsm.StartTaskAdvanceBody{ID: t.ID, Status: t.Status, Detail: detail})
	if err != nil && ctx.Err() == nil {
		r.log.Debug("storing a start task's detail failed", "task", t.ID, "error", err)
	}
}

// fail ends a task in ERROR; false when that must be retried. d has the sandbox id drawn for it.
func (r *Runner) fail(ctx context.Context, log *slog.Logger, t *fsm.StartTask, detail string, d *drawn) bool {
	r.step(ctx, t, "fail")
	detail = decode.Truncate(decode.Redact(detail), maxDetail)
	_, err := r.propose(ctx, &fsm.StartTaskFailBody{ID: t.ID, Detail: detail})
	switch {
	case err == nil:
		log.Info("start task failed", "state", t.Status, "reason", detail)
		r.forget(ctx, t)
		r.forgetKey(ctx, t, d)
		return true
	case fsm.CodeOf(err) == fsm.CodeConflict, fsm.CodeOf(err) == fsm.CodeNotFound:
		return true // the task has ended
	default:
		log.Warn("storing a start task's failure failed, retrying", "error", err)
		return false
	}
}

// forget deletes the secrets of a task that has ended. If that fails they are unreferenced, and
// the secret collector destroys them.
func (r *Runner) forget(ctx context.Context, t *fsm.StartTask) {
	if t.Secrets.IsZero() {
		return
	}
	if err := r.secrets.Delete(ctx, t.Secrets.Path); err != nil && ctx.Err() == nil {
		r.log.Warn("deleting a start task's secrets failed, the collector destroys them", "task", t.ID, "error", err)
	}
}

// forgetKey deletes the key that was written for a sandbox that the failed task never got. No
// other sandbox has that path, because the id is this task's alone.
func (r *Runner) forgetKey(ctx context.Context, t *fsm.StartTask, d *drawn) {
	v, id := r.store.View(), d.id
	if id == "" {
		id = newSandboxID(v, t) // perhaps written by an earlier leader
	}
	if t.SandboxID != "" || v.SandboxAny(id) != nil {
		return
	}
	if err := r.secrets.Delete(ctx, fsm.SandboxKeyPath(id)); err != nil && ctx.Err() == nil {
		r.log.Warn("deleting an unused key failed, the collector destroys it", "task", t.ID, "error", err)
	}
}
