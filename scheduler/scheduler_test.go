package scheduler_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/nomadtest"
)

func TestScheduler_StartPauseResumeDelete(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		begin := time.Now()
		w.create("a")
		sb := w.reach("a", fsm.SandboxRunning, time.Second)
		if took := time.Since(begin); took > 115*time.Millisecond {
			t.Errorf("RUNNING after %s; the agent server answered after 104 ms", took)
		}
		if p := sb.Status.Placement; p == nil || p.Ports[fsm.PortAgentServer] == 0 || !sb.Status.Job.Registered {
			t.Errorf("status of a running sandbox: %+v", sb.Status)
		}
		w.pause("a")
		if sb = w.reach("a", fsm.SandboxPaused, 2*time.Second); sb.Status.Placement != nil || w.nomad.Live("a") != 0 {
			t.Errorf("status of a paused sandbox: %+v, live %d", sb.Status, w.nomad.Live("a"))
		}
		w.resume("a")
		w.reach("a", fsm.SandboxRunning, time.Second)
		w.delete("a")
		w.gone("a", 2*time.Second)
	})
}

func TestScheduler_QuietWhenNothingChanges(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		for i := range 20 {
			w.create(fmt.Sprintf("s%d", i))
		}
		for i := range 20 {
			w.reach(fmt.Sprintf("s%d", i), fsm.SandboxRunning, time.Second)
		}
		// The secret collector's fence is at most one of an hour's six.
		reports, starts := w.cluster.Count(fsm.SandboxObserve), w.nomad.Calls("start")
		if starts != 20 {
			t.Errorf("%d starts for 20 sandboxes", starts)
		}
		time.Sleep(time.Hour)
		if more := w.cluster.Count(fsm.SandboxObserve) - reports; more > 7 {
			t.Errorf("%d observations in an hour in which nothing happened", more)
		}
		if w.nomad.Calls("start") != starts || w.nomad.Calls("stop") != 0 {
			t.Error("steps were taken in an hour in which nothing happened")
		}
	})
}

func TestScheduler_NextLeaderFinishes(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.create("a")
		time.Sleep(50 * time.Millisecond)
		w.step()
		w.create("b")
		w.lead()
		w.reach("a", fsm.SandboxRunning, time.Second)
		w.reach("b", fsm.SandboxRunning, time.Second)
		w.pause("a")
		w.delete("b")
		time.Sleep(10 * time.Millisecond)
		w.step()
		w.lead()
		w.reach("a", fsm.SandboxPaused, time.Second)
		w.gone("b", 5*time.Second)
		w.resume("a")
		w.step()
		w.lead()
		w.reach("a", fsm.SandboxRunning, time.Second)
		if n := w.nomad.Calls("start"); n > 4 {
			t.Errorf("%d starts for three", n)
		}
	})
}

func TestScheduler_LeaderKilledAtEachCall_NothingDoubledOrLost(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"start", "stop", "remove", "list", "watch"} {
		for _, when := range []string{"before", "after"} {
			t.Run(call+" "+when, func(t *testing.T) {
				inWorld(t, options(), func(w *world) {
					hit := make(chan struct{}, 1)
					var armed atomic.Bool
					armed.Store(true)
					w.step()
					// The call is cut off: it has no effect, or its response is lost.
					w.nomad.Before(func(c string, j scheduler.Job) error {
						if c != call || !armed.CompareAndSwap(true, false) {
							return nil
						}
						hit <- struct{}{}
						if when == "before" {
							return errors.New("cut off")
						}
						return nil
					})
					w.lead()
					w.create("a")
					w.create("b")
					w.create("c")
					go func() {
						<-hit
						time.Sleep(2 * time.Millisecond)
						w.step()
						w.lead()
					}()
					for _, id := range []string{"a", "b", "c"} {
						w.reach(id, fsm.SandboxRunning, 5*time.Second)
					}
					w.pause("a")
					w.delete("b")
					w.reach("a", fsm.SandboxPaused, 5*time.Second)
					w.gone("b", 10*time.Second)
					w.resume("a")
					w.reach("a", fsm.SandboxRunning, 5*time.Second)
					synctest.Wait()
					if got := strings.Join(w.nomad.Running(), " "); got != "a c" {
						t.Errorf("live in the end: %s", got)
					}
				})
			})
		}
	}
}

func TestScheduler_UnreliableEvents_Converge(t *testing.T) {
	t.Parallel()
	o := options()
	n := 0
	o.Fault = func(scheduler.Observed) nomadtest.Fault {
		n++
		switch n % 4 {
		case 0:
			return nomadtest.Fault{Drop: true}
		case 1:
			return nomadtest.Fault{Times: 3}
		case 2:
			return nomadtest.Fault{Delay: time.Duration(n%7) * 200 * time.Millisecond, Times: 2}
		}
		return nomadtest.Fault{}
	}
	inWorld(t, o, func(w *world) {
		for i := range 10 {
			w.create(fmt.Sprintf("s%d", i))
		}
		for round := range 4 {
			for i := range 10 {
				w.reach(fmt.Sprintf("s%d", i), fsm.SandboxRunning, 2*time.Minute)
			}
			if round == 2 {
				w.nomad.Break()
			}
			for i := range 10 {
				w.pause(fmt.Sprintf("s%d", i))
			}
			for i := range 10 {
				w.reach(fmt.Sprintf("s%d", i), fsm.SandboxPaused, 2*time.Minute)
				w.resume(fmt.Sprintf("s%d", i))
			}
		}
	})
}

func TestScheduler_NoEventsAtAll_ListingIsEnough(t *testing.T) {
	t.Parallel()
	o := options()
	o.Fault = func(scheduler.Observed) nomadtest.Fault { return nomadtest.Fault{Drop: true} }
	inWorld(t, o, func(w *world) {
		w.create("a")
		w.reach("a", fsm.SandboxRunning, time.Minute)
		w.pause("a")
		w.reach("a", fsm.SandboxPaused, 2*time.Minute)
		w.resume("a")
		w.reach("a", fsm.SandboxRunning, 2*time.Minute)
		w.delete("a")
		w.gone("a", 2*time.Minute)
	})
}

func TestScheduler_OperatorsHands_AreSurvived(t *testing.T) {
	t.Parallel()
	for name, act := range map[string]func(w *world){
		"job purged":  func(w *world) { w.nomad.PurgeByHand("a") },
		"job stopped": func(w *world) { w.nomad.StopByHand("a") },
		"gc": func(w *world) {
			w.pause("a")
			w.reach("a", fsm.SandboxPaused, time.Second)
			w.nomad.CollectGarbage()
			w.resume("a")
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, options(), func(w *world) {
				w.create("a")
				first := w.reach("a", fsm.SandboxRunning, time.Second).Status.Placement
				act(w)
				w.until("another allocation", time.Minute, func() bool {
					sb := w.cluster.Sandbox("a")
					return sb.State() == fsm.SandboxRunning && !sb.Status.Placement.Equal(first)
				})
				if !w.nomad.HasVolume("a") || w.nomad.Live("a") != 1 {
					t.Errorf("volume %v, live %d", w.nomad.HasVolume("a"), w.nomad.Live("a"))
				}
			})
		})
	}
}

func TestScheduler_WorkspaceGone_ResumeIsAnErrorAndDeleteWorks(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.create("a")
		w.reach("a", fsm.SandboxRunning, time.Second)
		w.pause("a")
		w.reach("a", fsm.SandboxPaused, time.Second)
		w.nomad.LoseVolume("a")
		w.resume("a")
		sb := w.reach("a", fsm.SandboxError, time.Second)
		if sb.Status.Reason != fsm.ReasonWorkspace {
			t.Errorf("status %+v", sb.Status)
		}
		starts := w.nomad.Calls("start")
		time.Sleep(10 * time.Minute)
		if w.nomad.Calls("start") != starts {
			t.Error("a start that can't work was tried again")
		}
		w.delete("a")
		w.gone("a", time.Second)
	})
}

func TestScheduler_Orphans_AreRemovedAndForeignJobsLeftAlone(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.step()
		w.nomad.AddBorn("orphan", clusterID, w.birth())
		w.nomad.Declare("orphan")
		w.nomad.Add("foreign", "another-cluster")
		w.create("foreign")
		w.lead()
		w.until("the orphan gone", time.Minute, func() bool { return !w.nomad.Has("orphan") })
		w.expectOrphan("orphan", fsm.OrphanWorkspace, fsm.OrphanUnowned)
		if sb := w.reach("foreign", fsm.SandboxError, time.Minute); sb.Status.Reason != fsm.ReasonForeignJob {
			t.Errorf("status %+v", sb.Status)
		}
		w.delete("foreign")
		w.until("the row gone", time.Minute, func() bool { return w.cluster.Sandbox("foreign") == nil })
		if w.nomad.Live("foreign") != 1 || !w.nomad.HasVolume("foreign") {
			t.Error("the foreign job was touched")
		}
	})
}

// A leader whose store lags must not take another leader's sandbox for an orphan: the fence
// fails, or brings the row.
func TestScheduler_CutOffLeader_RemovesNoOrphans(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.cluster.Refuse(func(fsm.Command) error { return fsm.Errorf(fsm.CodeNoLeader, "no leader") })
		w.nomad.AddBorn("theirs", clusterID, w.birth())
		time.Sleep(5 * time.Minute)
		if w.nomad.Live("theirs") != 1 || w.nomad.Calls("remove") != 0 {
			t.Error("a leader without a majority removed a job")
		}
		w.nomad.Declare("theirs")
		w.cluster.Refuse(nil)
		w.until("the orphan gone", time.Minute, func() bool { return !w.nomad.Has("theirs") })
	})
}

func TestScheduler_NomadAway_StartingSaysSoAndRecovers(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.create("b")
		w.reach("b", fsm.SandboxRunning, time.Second)
		w.nomad.Away(true)
		w.create("a")
		w.until("a reason", 10*time.Second,
			func() bool { return w.cluster.Sandbox("a").Status.Reason == fsm.ReasonScheduler })
		if sb := w.cluster.Sandbox("a"); sb.State() != fsm.SandboxStarting || sb.Status.Detail == "" {
			t.Errorf("status %+v", sb.Status)
		}
		time.Sleep(20 * time.Second)
		if w.cluster.State("b") != fsm.SandboxRunning {
			t.Error("a running sandbox suffered")
		}
		w.nomad.Away(false)
		w.reach("a", fsm.SandboxRunning, 30*time.Second)
	})
}

func TestScheduler_NomadAwayForLong_ErrorSaysSo(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.nomad.Away(true)
		w.create("a")
		sb := w.reach("a", fsm.SandboxError, 3*time.Minute)
		if sb.Status.Reason != fsm.ReasonScheduler || !strings.Contains(sb.Status.Detail, "Nomad can't be reached") {
			t.Errorf("status %+v", sb.Status)
		}
		w.nomad.Away(false)
		w.resume("a")
		w.reach("a", fsm.SandboxRunning, time.Minute)
	})
}

func TestScheduler_VaultSealed_StartingSaysSoAndRecovers(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.create("a")
		w.create("b")
		w.reach("b", fsm.SandboxRunning, time.Second)
		w.secrets.Seal(true)
		w.pause("a")
		w.reach("a", fsm.SandboxPaused, time.Second)
		w.resume("a")
		w.until("a reason", 10*time.Second,
			func() bool { return w.cluster.Sandbox("a").Status.Reason == fsm.ReasonSecretStore })
		time.Sleep(30 * time.Second)
		if w.cluster.State("a") != fsm.SandboxStarting || w.cluster.State("b") != fsm.SandboxRunning {
			t.Error(w.describe())
		}
		w.secrets.Seal(false)
		w.reach("a", fsm.SandboxRunning, time.Second)
	})
}

func TestScheduler_NoRoom_IsAnErrorThatEndsWithRoom(t *testing.T) {
	t.Parallel()
	inWorld(t, nomadtest.Options{PlaceAfter: time.Second, AnswerAfter: time.Millisecond}, func(w *world) {
		w.create("a")
		w.until("the job", time.Second, func() bool { return w.nomad.Has("a") })
		full := &scheduler.Failure{Reason: fsm.ReasonNoCapacity, Detail: "memory exhausted on 1"}
		w.nomad.Wait("a", full)
		w.until("the words", time.Second, func() bool { return w.cluster.Sandbox("a").Status.Detail == full.Detail })
		if w.cluster.State("a") != fsm.SandboxStarting {
			t.Error("an ERROR before the grace was over")
		}
		if sb := w.reach("a", fsm.SandboxError, time.Minute); sb.Status.Reason != fsm.ReasonNoCapacity {
			t.Errorf("status %+v", sb.Status)
		}
		w.nomad.Wait("a", nil)
		w.reach("a", fsm.SandboxRunning, time.Minute)
	})
}

func TestScheduler_CrashedForGood_IsAnErrorThatResumeMends(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.create("a")
		w.reach("a", fsm.SandboxRunning, time.Second)
		w.nomad.Fail("a", &scheduler.Failure{Reason: fsm.ReasonCrashed, Detail: "exit code 1"})
		if sb := w.reach("a", fsm.SandboxError, time.Second); sb.Status.Reason != fsm.ReasonCrashed ||
			sb.Status.Detail != "exit code 1" {
			t.Errorf("status %+v", sb.Status)
		}
		w.resume("a")
		w.reach("a", fsm.SandboxRunning, 5*time.Second)
	})
}

func TestScheduler_AgentServerSilent(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.create("a")
		w.reach("a", fsm.SandboxRunning, time.Second)
		// One or two failed probes change nothing.
		w.nomad.Answer("a", false)
		time.Sleep(12 * time.Second)
		w.nomad.Answer("a", true)
		time.Sleep(time.Minute)
		if sb := w.cluster.Sandbox("a"); sb.Status.State != fsm.SandboxRunning {
			t.Errorf("status %+v", sb.Status)
		}
		w.nomad.Answer("a", false)
		sb := w.reach("a", fsm.SandboxError, time.Minute)
		if sb.Status.Reason != fsm.ReasonHealth || !strings.Contains(sb.Status.Detail, "10.0.0.1:") {
			t.Errorf("status %+v", sb.Status)
		}
		w.nomad.Answer("a", true)
		w.reach("a", fsm.SandboxRunning, time.Minute)
		// A resume of a sandbox that does not answer starts it again.
		w.nomad.Answer("a", false)
		w.reach("a", fsm.SandboxError, time.Minute)
		w.resume("a")
		w.reach("a", fsm.SandboxRunning, time.Minute)
	})
}

func TestScheduler_NeverAnswers_IsAnErrorAtTheDeadline(t *testing.T) {
	t.Parallel()
	o := options()
	o.AnswerAfter = time.Hour
	inWorld(t, o, func(w *world) {
		begin := time.Now()
		w.create("a")
		sb := w.reach("a", fsm.SandboxError, 3*time.Minute)
		if took := time.Since(begin).Round(time.Second); took != w.cfg.StartTimeout {
			t.Errorf("ERROR after %s", took)
		}
		if sb.Status.Reason != fsm.ReasonHealth || !strings.Contains(sb.Status.Detail, "10.0.0.1:") {
			t.Errorf("status %+v", sb.Status)
		}
		time.Sleep(time.Hour)
		w.reach("a", fsm.SandboxRunning, time.Minute)
	})
}

func TestScheduler_NotOurs_IsAnError(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.cluster.Create("a", specID, 1)
		if _, err := w.secrets.Write(w.Context(), fsm.SandboxKeyPath("a"), map[string]string{"key": "one"}); err != nil {
			t.Fatal(err)
		}
		w.cluster.Create("b", specID, 2)
		for _, k := range []string{"theirs", ""} {
			if _, err := w.secrets.Write(w.Context(), fsm.SandboxKeyPath("b"), map[string]string{"key": k}); err != nil {
				t.Fatal(err)
			}
		}
		w.reach("a", fsm.SandboxRunning, time.Minute)
		w.reach("b", fsm.SandboxRunning, 3*time.Minute)
	})
}

func TestScheduler_DeleteWorksFromEveryState(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]func(w *world){
		"at once":  func(*world) {},
		"starting": func(*world) { time.Sleep(20 * time.Millisecond) },
		"running":  func(w *world) { w.reach("a", fsm.SandboxRunning, time.Second) },
		"pausing": func(w *world) {
			w.reach("a", fsm.SandboxRunning, time.Second)
			w.pause("a")
			time.Sleep(10 * time.Millisecond)
		},
		"paused": func(w *world) {
			w.reach("a", fsm.SandboxRunning, time.Second)
			w.pause("a")
			w.reach("a", fsm.SandboxPaused, time.Second)
		},
		"error": func(w *world) {
			w.reach("a", fsm.SandboxRunning, time.Second)
			w.nomad.Fail("a", &scheduler.Failure{Reason: fsm.ReasonCrashed})
			w.reach("a", fsm.SandboxError, time.Second)
		},
		"nomad away": func(w *world) {
			w.nomad.Away(true)
			time.AfterFunc(time.Minute, func() { w.nomad.Away(false) })
		},
		"vault sealed": func(w *world) {
			w.secrets.Seal(true)
			time.AfterFunc(time.Minute, func() { w.secrets.Seal(false) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, options(), func(w *world) {
				w.create("a")
				before(w)
				w.delete("a")
				w.gone("a", 3*time.Minute)
			})
		})
	}
}
