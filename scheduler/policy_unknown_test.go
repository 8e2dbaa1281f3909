package scheduler_test

import (
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// While the secret store is away a sandbox's key can't be read, so it is unknown whether a
// conversation runs. Unknown use is not idleness.
func TestPolicy_SecretStoreAway_NobodyIsPausedAsIdle(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		busy bool
		// use is how often the sandbox is called; 0 for never.
		use time.Duration
	}{
		"an agent at work":          {busy: true},
		"somebody calls it":         {use: 17500 * time.Millisecond},
		"nobody knows what it does": {},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, options(), func(w *world) {
				w.under(fsm.Policy{IdleTimeout: 5 * time.Minute})
				w.create("a")
				w.reach("a", fsm.SandboxRunning, time.Second)
				w.nomad.Use("a", c.busy)
				w.secrets.Seal(true)
				begin, used := time.Now(), time.Now()
				for time.Since(begin) < 30*time.Minute {
					w.elapse(500 * time.Millisecond)
					if c.use > 0 && time.Since(used) >= c.use {
						used = time.Now()
						w.nomad.Use("a", false)
					}
					if w.cluster.State("a") != fsm.SandboxRunning {
						t.Fatalf("paused after %s: %s", time.Since(begin), w.describe())
					}
				}
				// The use that the server itself reports was stored all the time.
				if at := w.cluster.Sandbox("a").Status.LastActive; c.use > 0 && time.Since(at) > 2*time.Minute {
					t.Errorf("last used at %s by the row, at %s in truth", at, used)
				}
				w.secrets.Seal(false)
				w.nomad.Use("a", false)
				w.reach("a", fsm.SandboxPaused, 7*time.Minute)
			})
		})
	}
}

// A task that ends because it lost its secret store is started again, for longer than a start may
// take.
func TestScheduler_KeyLostWhileItRuns_IsStartedAgain(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]time.Duration{
		"for a moment":              20 * time.Second,
		"beyond a start's deadline": 20 * time.Minute,
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, options(), func(w *world) {
				w.create("a")
				w.reach("a", fsm.SandboxRunning, time.Second)
				w.secrets.Seal(true)
				w.nomad.Fail("a", &scheduler.Failure{Reason: fsm.ReasonSecretStore, Detail: "Vault: failed to derive vault token"})
				w.elapse(away)
				if st := w.cluster.Sandbox("a").Status; st.Reason != fsm.ReasonSecretStore {
					t.Errorf("status %+v", st)
				}
				w.secrets.Seal(false)
				w.reach("a", fsm.SandboxRunning, 2*time.Minute)
			})
		})
	}
}

// A server that does not report its use, or refuses the key, is not idle either.
func TestPolicy_ServerThatDoesNotSay_IsNotPausedAsIdle(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		mute func(w *world, on bool)
		// limit is how long after its first new report it is paused.
		limit time.Duration
	}{
		"it answers 503":     {func(w *world, on bool) { w.nomad.Silent("a", on) }, 7 * time.Minute},
		"it refuses the key": {func(w *world, on bool) { w.nomad.Refusing("a", on) }, 7 * time.Minute},
		// It is asked less and less often.
		"it hangs": {func(w *world, on bool) {
			w.nomad.HangCalls(func(call, _ string) bool { return on && call == "server info" })
		}, 15 * time.Minute},
	} {
		t.Run(what, func(t *testing.T) {
			inWorld(t, options(), func(w *world) {
				w.under(fsm.Policy{IdleTimeout: 5 * time.Minute})
				w.create("a")
				w.reach("a", fsm.SandboxRunning, time.Second)
				w.nomad.Use("a", true)
				c.mute(w, true)
				w.elapse(30 * time.Minute)
				if w.cluster.State("a") != fsm.SandboxRunning {
					t.Fatal(w.describe())
				}
				c.mute(w, false)
				w.nomad.Use("a", false)
				w.reach("a", fsm.SandboxPaused, c.limit)
			})
		})
	}
}

// The maximum running time applies all the same.
func TestPolicy_ServerThatDoesNotSay_RunsNoLongerThanAnyMay(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.under(fsm.Policy{IdleTimeout: 5 * time.Minute, MaxRunning: time.Hour})
		w.create("a")
		begin := w.reach("a", fsm.SandboxRunning, time.Second).Status.Since
		w.nomad.Silent("a", true)
		w.eventually("the sandbox paused", 2*time.Hour, func() bool { return w.cluster.State("a") == fsm.SandboxPaused })
		sb := w.cluster.Sandbox("a")
		if took := sb.Status.Since.Sub(begin); sb.PausedBy != fsm.PausedByMaxRunning || took < time.Hour ||
			took > time.Hour+time.Minute {
			t.Errorf("paused by %q after %s", sb.PausedBy, took)
		}
	})
}
