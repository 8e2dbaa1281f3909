package nomad_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/agent"
	"bivouac.dev/bivouac/scheduler/nomad"
	"bivouac.dev/bivouac/scheduler/starttask"
)

// deposed is a runner whose calls of one kind hang on their way to Nomad, like those of a paused
// leader: the first call that which names hangs, and it continues when wake is called.
func (b *bench) deposed(which func(*http.Request) bool) (r *nomad.Runner, asleep *atomic.Bool, wake func()) {
	b.Helper()
	to, err := url.Parse(b.s.nomad.Address)
	b.must(err)
	asleep = new(atomic.Bool)
	gate := make(chan bool)
	proxy := httputil.NewSingleHostReverseProxy(to)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if which(req) && asleep.CompareAndSwap(false, true) {
			<-gate
		}
		proxy.ServeHTTP(w, req)
	}))
	b.Cleanup(server.Close)
	wake = sync.OnceFunc(func() { close(gate) })
	b.Cleanup(wake)
	cfg := b.config
	cfg.Address, cfg.Registerer = server.URL, nil
	cfg.CallTimeout = time.Minute // the sleep is no timeout
	r, err = nomad.New(cfg)
	b.must(err)
	b.Cleanup(r.Close)
	return r, asleep, wake
}

// changesJobs selects the first call by which a removal changes a job.
func changesJobs(req *http.Request) bool {
	return req.Method != http.MethodGet && strings.HasPrefix(req.URL.Path, "/v1/job")
}

func purges(req *http.Request) bool { return req.Method == http.MethodDelete }

func (b *bench) asleep(asleep *atomic.Bool) {
	b.Helper()
	b.until("a call asleep", func() error {
		if !asleep.Load() {
			return fmt.Errorf("no call came")
		}
		return nil
	})
}

// Fault 6, the runner's part: the deposed leader sleeps between its last read of a stopped job
// and its first call that changes it, and the job is started again.
func TestRunner_LateRemoveOfAStoppedJob_Loses(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	job, _ := b.started(b.born(b.job(fsm.DriverRawExec), 7))
	job = b.paused(job)
	late, asleep, wake := b.deposed(changesJobs)
	done := make(chan error, 1)
	go func() { done <- late.Remove(t.Context(), job) }()
	b.asleep(asleep)
	_, o := b.started(job)
	wake()
	if err := <-done; fsm.CodeOf(err) != fsm.CodeConflict {
		t.Errorf("the late removal: %v", err)
	}
	now := b.observed(job)
	if !now.Exists || now.Stopped || now.ModifyIndex != o.ModifyIndex || now.Live != 1 || len(b.volumes(job)) != 1 {
		t.Errorf("before the late removal %+v, after it %+v", o, now)
	}
}

// Fault 6 on the real Nomad: the deposed leader sleeps right before its purge, which Nomad
// accepts for any state of the job. The user starts a conversation with the same id again; its
// sandbox must not be the one purged.
func TestLife_LateRemove_LeavesTheNextSandboxOfTheSameWishedID(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	l.store.Must(&fsm.SpecApplyBody{Specs: []fsm.Spec{{ID: "spec", Template: l.template(fsm.DriverRawExec)}}}, "operator")
	tasks, err := starttask.New(starttask.DefaultConfig(), l.store.Store, l.store, agent.New(agent.Config{}), l.secrets)
	l.must(err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- tasks.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		l.must(<-ended)
	})
	wished := fmt.Sprintf("%032x", l.store.Store.View().Index())
	first := l.conversation("1", wished)
	late, asleep, wake := l.deposed(purges)
	l.wish(&fsm.SandboxPauseBody{ID: first})
	l.reach(first, fsm.SandboxPaused)
	l.stop()
	l.wish(&fsm.ConversationDeleteBody{ID: wished, DeleteSandbox: true})
	job := scheduler.Job{SandboxID: first, ClusterID: l.cluster, Birth: l.store.Sandbox(first).Birth.String()}
	job.ModifyIndex = l.observed(job).ModifyIndex
	done := make(chan error, 1)
	go func() { done <- late.Remove(t.Context(), job) }()
	l.asleep(asleep)
	l.lead()
	l.until("the sandbox removed by the next leader", func() error {
		if sb := l.store.Sandbox(first); sb != nil {
			return fmt.Errorf("%+v", sb)
		}
		return nil
	})
	second := l.conversation("2", wished)
	before := l.reach(second, fsm.SandboxRunning)
	wake()
	t.Logf("the late removal ended with: %v", <-done)
	again := scheduler.Job{SandboxID: second, ClusterID: l.cluster}
	if o := l.observed(again); !o.Exists || o.Placement == nil || o.Placement.AllocID != before.Placement.AllocID ||
		len(l.volumes(again)) != 1 {
		t.Errorf("the next sandbox %s was %+v, and after the late removal its job is %+v", second, before.Placement, o)
	}
	if second == first {
		t.Errorf("the id %s was given out twice", first)
	}
}

// conversation starts one with the id that a client chose, and returns the sandbox.
func (l *life) conversation(task, id string) string {
	l.Helper()
	task = fmt.Sprintf("%032s", task+id[:16])
	l.wish(&fsm.StartTaskCreateBody{
		ID:             task,
		ConversationID: id,
		Request:        fsm.StartRequest{AgentType: "default", ConversationID: &id},
	})
	var sandbox string
	l.until("a conversation", func() error {
		row := l.store.Store.View().StartTask("u1", task)
		sandbox = row.SandboxID
		// Before that there is no conversation that could be deleted.
		if row.Status != fsm.StartTaskReady || l.store.Sandbox(sandbox).State() != fsm.SandboxRunning {
			return fmt.Errorf("%+v", row)
		}
		return nil
	})
	return sandbox
}

// Fault 8 on the real Nomad: a stop is on its way, the pause is taken back, and the next leader
// finds the job running and takes it over. The stop fails, and the task is not affected.
func TestLife_LateStop_LosesAgainstTheJobThatWasTakenOver(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers {
		t.Run(string(driver), func(t *testing.T) {
			t.Parallel()
			l := newLife(t)
			id := l.create(l.template(driver))
			before := l.reach(id, fsm.SandboxRunning)
			job := scheduler.Job{SandboxID: id, ClusterID: l.cluster}
			l.createConversation(scheduler.Observed{Placement: before.Placement}, job, conversation)
			l.stop()
			late := job
			late.ModifyIndex = l.observed(job).ModifyIndex
			l.wish(&fsm.SandboxPauseBody{ID: id})
			l.wish(&fsm.SandboxResumeBody{ID: id})
			l.lead()
			l.reach(id, fsm.SandboxRunning)
			if err := l.r.Stop(t.Context(), late); fsm.CodeOf(err) != fsm.CodeConflict {
				t.Errorf("the late stop: %v", err)
			}
			o := l.observed(job)
			if o.Stopped || o.Live != 1 || o.Placement == nil || o.Placement.AllocID != before.Placement.AllocID {
				t.Errorf("before %+v, after the late stop %+v", before.Placement, o)
			}
			if n := restarts(l, before.Placement.AllocID); n != 1 {
				t.Errorf("the task was started %d times", n)
			}
			// A later resume reverts to the version that the take-over made.
			l.wish(&fsm.SandboxPauseBody{ID: id})
			l.reach(id, fsm.SandboxPaused)
			l.wish(&fsm.SandboxResumeBody{ID: id})
			l.hasConversation(scheduler.Observed{Placement: l.reach(id, fsm.SandboxRunning).Placement}, job, conversation)
		})
	}
}

// restarts returns how often the allocation's task was started, once its client has reported the
// first start.
func restarts(l *life, alloc string) (n int) {
	l.until("the task's first start", func() error {
		a, _, err := l.s.client.Allocations().Info(alloc, nil)
		if err != nil {
			return err
		}
		if a.TaskStates["agent"] == nil {
			return fmt.Errorf("the task has no state yet")
		}
		n = 0
		for _, ev := range a.TaskStates["agent"].Events {
			if ev.Type == api.TaskStarted {
				n++
			}
		}
		if n == 0 {
			return fmt.Errorf("the task was not started yet")
		}
		return nil
	})
	return n
}

// A stop that Nomad accepts at the same moment as the take-over is repaired: the desired state is
// running, so the sandbox is started again.
func TestLife_LateStopThatPassed_IsMadeGood(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	id := l.create(l.template(fsm.DriverRawExec))
	before := l.reach(id, fsm.SandboxRunning)
	job := scheduler.Job{SandboxID: id, ClusterID: l.cluster}
	l.createConversation(scheduler.Observed{Placement: before.Placement}, job, conversation)
	job.ModifyIndex = l.observed(job).ModifyIndex
	l.must(l.r.Stop(t.Context(), job))
	l.until("another allocation", func() error {
		if sb := l.store.Sandbox(id); sb.State() != fsm.SandboxRunning || sb.Status.Placement.Equal(before.Placement) {
			return fmt.Errorf("%+v", sb.Status)
		}
		return nil
	})
	l.hasConversation(scheduler.Observed{Placement: l.reach(id, fsm.SandboxRunning).Placement}, job, conversation)
}

// A take-over leaves a task alone that mounts its volume itself, too.
func TestRunner_TakeOver_ChangesNoTask(t *testing.T) {
	t.Parallel()
	for _, mount := range []bool{false, true} {
		t.Run(fmt.Sprintf("mount=%v", mount), func(t *testing.T) {
			t.Parallel()
			b := benchWith(t, func(cfg *nomad.Config) { cfg.MountVolumes = mount })
			job, o := b.started(b.born(b.job(fsm.DriverDocker), 7))
			job.TakeOver = true
			b.must(b.r.Start(t.Context(), job))
			after := b.look(job, "another version in place", func(now scheduler.Observed) bool {
				return now.ModifyIndex != o.ModifyIndex && now.Placement != nil && now.Version == o.Version+1
			})
			if !after.Placement.Equal(o.Placement) || after.Live != 1 || after.Birth != o.Birth {
				t.Errorf("before %+v, after %+v", o, after)
			}
		})
	}
}

// A stop and a take-over at the same moment can both pass. In either order no second copy stays
// beside the first.
func TestRunner_StopAndTakeOverAtOnce_NoSecondCopyStays(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	passed := 0
	for range 12 {
		job, o := b.started(b.born(b.job(fsm.DriverRawExec), 7))
		over := job
		// Without a version to tag both make one call after one read.
		over.TakeOver, job.HasVersion = true, false
		var wg sync.WaitGroup
		var stop, take error
		begin := make(chan bool)
		wg.Go(func() {
			<-begin
			stop = b.r.Stop(t.Context(), job)
		})
		wg.Go(func() {
			<-begin
			take = b.r.Start(t.Context(), over)
		})
		close(begin)
		wg.Wait()
		for _, err := range []error{stop, take} {
			if err != nil && fsm.CodeOf(err) != fsm.CodeConflict {
				t.Error(err)
			}
		}
		if stop == nil {
			passed++
		}
		now := b.look(job, "one copy, or none", func(now scheduler.Observed) bool {
			return !now.Stopped && now.Live == 1 && now.Placement != nil || now.Stopped && now.Live == 0
		})
		if p := now.Placement; p != nil && p.AllocID != o.Placement.AllocID {
			t.Errorf("stop %v, take over %v: allocation %s stays beside %s", stop, take, p.AllocID, o.Placement.AllocID)
		}
		b.remove(job)
	}
	t.Logf("in %d of 12 rounds the stop passed", passed)
}

// What an enforced index does not exclude: Nomad checks it before its log, so two calls at the
// same moment can both pass.
func TestFact_EnforcedIndexIsLookedAtBeforeTheLog(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const rounds, callers = 60, 8
	job := b.job(fsm.DriverRawExec)
	job.Template.CPU = 20
	b.started(job)
	several := 0
	for round := range rounds {
		cur := b.raw(job)
		index := *cur.JobModifyIndex
		var passed atomic.Int32
		var wg sync.WaitGroup
		begin := make(chan bool)
		for caller := range callers {
			mine := *cur
			mine.UI = &api.JobUIConfig{Description: fmt.Sprintf("round %d of caller %d", round, caller)}
			wg.Go(func() {
				<-begin
				if _, _, err := b.s.client.Jobs().EnforceRegister(&mine, index, nil); err == nil {
					passed.Add(1)
				}
			})
		}
		close(begin)
		wg.Wait()
		if passed.Load() > 1 {
			several++
		}
		if passed.Load() == 0 {
			t.Fatal("nobody won")
		}
	}
	t.Logf("in %d of %d rounds more than one of %d calls with the same index passed", several, rounds, callers)
}
