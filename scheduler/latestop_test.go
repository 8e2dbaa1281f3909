package scheduler_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// Fault 8: a deposed leader's stop hangs, the user takes the pause back, and the successor finds
// the job still running. The late stop must fail, and the task must not be affected.
func TestScheduler_LateStop_LosesAgainstTheJobThatWasTakenOver(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.create("a")
		before := w.reach("a", fsm.SandboxRunning, time.Minute).Status
		w.step()
		var asleep atomic.Bool
		wake, late := make(chan bool), make(chan error, 1)
		w.nomad.Before(func(call string, job scheduler.Job) error {
			if call == "stop" && asleep.CompareAndSwap(false, true) {
				<-wake
				// The call is on its way to Nomad: the end of the term does not end it.
				late <- w.nomad.Stop(context.WithoutCancel(w.Context()), job)
			}
			return nil
		})
		leave, ended := w.deposed()
		w.pause("a")
		w.until("the stop on its way", time.Minute, asleep.Load)
		leave()
		w.resume("a")
		w.lead()
		w.reach("a", fsm.SandboxRunning, time.Minute)
		close(wake)
		ended()
		if err := <-late; fsm.CodeOf(err) != fsm.CodeConflict {
			w.Errorf("the late stop: %v", err)
		}
		w.elapse(time.Minute)
		after := w.cluster.Sandbox("a").Status
		if after.State != fsm.SandboxRunning || after.Placement.AllocID != before.Placement.AllocID ||
			w.nomad.Live("a") != 1 {
			w.Errorf("before %+v, after the late stop %+v", before.Placement, after)
		}
		if n := w.nomad.Calls("take over"); n != 1 {
			w.Errorf("the job was taken over %d times, want once", n)
		}
		// The next pause and resume work as usual.
		w.pause("a")
		w.reach("a", fsm.SandboxPaused, time.Minute)
		w.resume("a")
		w.reach("a", fsm.SandboxRunning, time.Minute)
	})
}

// No leader takes over what runs by the present desired state: no earlier request can be late.
func TestScheduler_NextLeader_TakesOverNothingThatRuns(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.create("a")
		w.reach("a", fsm.SandboxRunning, time.Minute)
		w.pause("a")
		w.reach("a", fsm.SandboxPaused, time.Minute)
		w.resume("a")
		w.reach("a", fsm.SandboxRunning, time.Minute)
		w.step()
		w.lead()
		w.elapse(time.Minute)
		if n := w.nomad.Calls("take over"); n != 0 {
			w.Errorf("%d jobs taken over", n)
		}
	})
}

// Nomad refuses a take-over, as it refuses any job that is not valid. It is not repeated, and the
// sandbox, which runs all the time, is RUNNING without it.
func TestScheduler_RefusedTakeOver_LeavesTheSandboxRunning(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.create("a")
		before := w.reach("a", fsm.SandboxRunning, time.Minute).Status
		w.step()
		w.pause("a")
		w.resume("a")
		refused := 0
		w.nomad.Before(func(call string, job scheduler.Job) error {
			if call == "start" && job.TakeOver {
				refused++
				return &scheduler.Failure{Reason: fsm.ReasonSpec, Detail: "Nomad refused the job"}
			}
			return nil
		})
		w.lead()
		after := w.reach("a", fsm.SandboxRunning, w.cfg.SettleTimeout).Status
		if after.Placement.AllocID != before.Placement.AllocID || refused != 1 {
			w.Errorf("placed on %+v, then on %+v; %d take-overs refused, want one", before.Placement, after.Placement, refused)
		}
		// The refusal is of the take-over alone: a job that ends is started again.
		w.nomad.PurgeByHand("a")
		w.until("another start", time.Minute, func() bool {
			sb := w.cluster.Sandbox("a")
			return sb.State() == fsm.SandboxRunning && sb.Status.Placement.AllocID != before.Placement.AllocID
		})
	})
}
