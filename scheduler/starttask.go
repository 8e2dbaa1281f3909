package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/google/uuid"
	"golang.org/x/sync/semaphore"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent"
	"bivouac.dev/bivouac/scheduler/fault"
)

// TaskAgents is what start tasks ask of agent servers; agent.Client implements
// it. Every call is bounded by the implementation.
type TaskAgents interface {
	// CreateConversation makes the conversation of req.ConversationID, or
	// finds it made already.
	CreateConversation(ctx context.Context, baseURL, key string, req agent.CreateRequest) (info agent.ConversationInfo, created bool, err error)
	// RunCommand runs a shell command and waits for its end.
	RunCommand(ctx context.Context, baseURL, key string, cmd agent.Command) (agent.Output, error)
	// Upload writes a file.
	Upload(ctx context.Context, baseURL, key, path string, content []byte) error
}

// StartTaskConfig holds the start-task runner's bounds. Start from
// DefaultStartTaskConfig.
type StartTaskConfig struct {
	// Deadline bounds a task from its creation to its end.
	Deadline time.Duration
	// TermGrace is what a task gets at least in a new term, however old it
	// is: a cluster that was away for long finishes what it accepted.
	TermGrace time.Duration
	// Tasks is how many tasks are carried at a time, the oldest first, of which
	// a user has a quarter. Calls is
	// how many of them may be creating their conversation at a time, how many
	// more preparing a repository, and how many more writing a key; of both the
	// former as many again, four times, where that takes long. A user has a
	// quarter of each.
	Tasks, Calls int
	// RepositoryTimeout bounds the commands that prepare a repository.
	RepositoryTimeout time.Duration
	// BackoffMin and BackoffMax bound the pause after a failed attempt.
	BackoffMin, BackoffMax time.Duration
	// Logger may be nil.
	Logger *slog.Logger
}

// DefaultStartTaskConfig gives the values of an ordinary installation.
func DefaultStartTaskConfig() StartTaskConfig {
	return StartTaskConfig{
		Deadline:          10 * time.Minute,
		TermGrace:         time.Minute,
		Tasks:             1024,
		Calls:             64,
		RepositoryTimeout: 5 * time.Minute,
		BackoffMin:        100 * time.Millisecond,
		BackoffMax:        5 * time.Second,
	}
}

// Validate names the first field that is out of bounds.
func (c StartTaskConfig) Validate() error {
	if c.Tasks < 1 || c.Calls < 1 {
		return fmt.Errorf("scheduler: start tasks need room for at least one task and one call, got %d and %d", c.Tasks, c.Calls)
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"deadline", c.Deadline},
		{"repository timeout", c.RepositoryTimeout},
		{"minimum back-off", c.BackoffMin},
		{"maximum back-off", c.BackoffMax},
	} {
		if d.value <= 0 {
			return fmt.Errorf("scheduler: the start tasks' %s must be positive, got %s", d.name, d.value)
		}
	}
	if c.BackoffMax < c.BackoffMin {
		return errors.New("scheduler: the start tasks' maximum back-off is below the minimum")
	}
	return nil
}

// StartTasks carries every open start task to READY or ERROR while this node
// leads (api-contract.md A.5 and C.3). Each step is either one command or a
// call that answers the same when it is repeated, so a leader that follows
// another one in the middle goes on without a second sandbox or conversation.
type StartTasks struct {
	cfg     StartTaskConfig
	log     *slog.Logger
	store   Store
	cluster Cluster
	agents  TaskAgents
	secrets Secrets
	// calls bounds the calls that create conversations, clones the commands that
	// prepare repositories, writes the secret store's.
	calls, clones *calls
	writes        *semaphore.Weighted
	// now is the clock; step is told before each effect of a task. Tests set
	// them.
	now  func() time.Time
	step func(ctx context.Context, task *fsm.StartTask, name string)
}

// NewStartTasks makes a StartTasks; it starts nothing. Its Run goes to New as
// one of the functions that run beside the loop.
func NewStartTasks(cfg StartTaskConfig, store Store, cluster Cluster, agents TaskAgents, secrets Secrets) (*StartTasks, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &StartTasks{
		cfg: cfg, log: cfg.Logger, store: store, cluster: cluster, agents: agents, secrets: secrets,
		calls: newCalls(cfg.Calls, callHurry), clones: newCalls(cfg.Calls, cloneHurry), writes: semaphore.NewWeighted(int64(cfg.Calls)),
		now:  time.Now,
		step: func(_ context.Context, _ *fsm.StartTask, name string) { fault.At("task", name) },
	}, nil
}

// Run carries tasks until ctx ends, and returns nil when all it began has
// ended. Each open task has one goroutine.
func (r *StartTasks) Run(ctx context.Context) error {
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
			if carried[t.ID] || of[t.UserID] >= max(r.cfg.Tasks/holderShare, 1) {
				continue
			}
			carried[t.ID] = true
			of[t.UserID]++
			wg.Go(func() {
				r.carry(ctx, t.UserID, t.ID, began)
				ended <- t // has room for every task carried
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

// outcome is what became of one step of a task.
type outcome struct {
	// wait: nothing to do until the view changes. detail says what for.
	wait   bool
	detail string
	// err: the step failed and is tried again; fatal: the task fails with
	// these words.
	err   error
	fatal string
}

// carry moves one task on until it has ended, or ctx has.
func (r *StartTasks) carry(ctx context.Context, userID, id string, began time.Time) {
	log := r.log.With("task", id, "user", userID)
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
			r.sleep(ctx, pause.NextBackOff(), nil)
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
			r.sleep(ctx, pause.NextBackOff(), nil)
		case o.err != nil:
			if text := o.err.Error(); text != last {
				last = text
				log.Warn("a step of a start task failed; trying again", "status", t.Status, "error", o.err)
			}
			r.note(ctx, t, o.err.Error())
			r.sleep(ctx, min(pause.NextBackOff(), deadline.Sub(r.now())), nil)
		case o.wait:
			r.note(ctx, t, o.detail)
			r.sleep(ctx, deadline.Sub(r.now()), v.Changed())
			pause.Reset()
		default:
			pause.Reset()
		}
	}
}

// awaitRelease waits until the view changes, because of a hold. A task's time
// begins anew then.
func (r *StartTasks) awaitRelease(ctx context.Context, v *fsm.View) time.Time {
	select {
	case <-ctx.Done():
	case <-v.Changed():
	}
	return r.now()
}

func (r *StartTasks) deadline(t *fsm.StartTask, began time.Time) time.Time {
	d := t.CreatedAt.Add(r.cfg.Deadline)
	if g := began.Add(r.cfg.TermGrace); d.Before(g) {
		return g
	}
	return d
}

func (r *StartTasks) overdue(t *fsm.StartTask) string {
	text := fmt.Sprintf("not ready after %s, still %s", r.cfg.Deadline, t.Status)
	if t.Detail != "" {
		text += ": " + t.Detail
	}
	return text
}

// sleep waits for d, for wake, or for ctx to end.
func (r *StartTasks) sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) {
	timer := time.NewTimer(max(d, 0))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-wake:
	}
}

// propose puts a leader's command through the log.
func (r *StartTasks) propose(ctx context.Context, body fsm.Body) (fsm.Result, error) {
	return r.cluster.Propose(ctx, fsm.NewCommand(uuid.NewString(), r.now(), "", body))
}

// note shows a task's reason for waiting, if it is another than it showed.
// Best effort: the reason is shown again with the next step.
func (r *StartTasks) note(ctx context.Context, t *fsm.StartTask, detail string) {
	detail = clipDetail(detail)
	if detail == t.Detail {
		return
	}
	_, err := r.propose(ctx, &fsm.StartTaskAdvanceBody{ID: t.ID, Status: t.Status, Detail: detail})
	if err != nil && ctx.Err() == nil {
		r.log.Debug("a start task's detail was not stored", "task", t.ID, "error", err)
	}
}

// fail ends a task in ERROR; false when that has to be tried again. d is the
// sandbox that was drawn for it.
func (r *StartTasks) fail(ctx context.Context, log *slog.Logger, t *fsm.StartTask, detail string, d *drawn) bool {
	r.step(ctx, t, "fail")
	_, err := r.propose(ctx, &fsm.StartTaskFailBody{ID: t.ID, Detail: clipDetail(detail)})
	switch {
	case err == nil:
		log.Info("start task failed", "status", t.Status, "reason", clipDetail(detail))
		r.forget(ctx, t)
		r.forgetKey(ctx, t, d)
		return true
	case fsm.CodeOf(err) == fsm.CodeConflict, fsm.CodeOf(err) == fsm.CodeNotFound:
		return true // it has ended
	default:
		log.Warn("failing a start task failed; trying again", "error", err)
		return false
	}
}

// forget deletes the secrets of a task that has ended. What is left behind
// here is unreferenced, and the secret collector destroys it.
func (r *StartTasks) forget(ctx context.Context, t *fsm.StartTask) {
	if t.Secrets.IsZero() {
		return
	}
	if err := r.secrets.Delete(ctx, t.Secrets.Path); err != nil && ctx.Err() == nil {
		r.log.Warn("deleting a start task's secrets failed; the collector will do it", "task", t.ID, "error", err)
	}
}

// forgetKey deletes the key that was written for a sandbox which the task, that
// has failed, never got. Nobody else's can be at that place: the id was drawn
// for this task, and is taken by it only. A wished one may be another's by now,
// and is left to the collector.
func (r *StartTasks) forgetKey(ctx context.Context, t *fsm.StartTask, d *drawn) {
	id := d.id
	if id == "" && t.Request.ConversationID == nil {
		id = t.ID // perhaps by a leader before
	}
	if t.SandboxID != "" || id == "" || id == t.ConversationID || r.store.View().SandboxAny(id) != nil {
		return
	}
	if err := r.secrets.Delete(ctx, sessionPath(id)); err != nil && ctx.Err() == nil {
		r.log.Warn("deleting a key that was not needed failed; the collector will do it", "task", t.ID, "error", err)
	}
}

// clipDetail bounds a detail for the store.
func clipDetail(s string) string {
	if s == "" || len(s) <= maxDetail {
		return s
	}
	cut := maxDetail
	for cut > 0 && s[cut]&0xC0 == 0x80 {
		cut--
	}
	return s[:cut] + "…"
}
