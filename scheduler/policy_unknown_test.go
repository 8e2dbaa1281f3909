package scheduler_test

import (
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// With the secret store away a sandbox's key can't be read, so that nobody can
// ask whether a conversation runs. Not knowing is not idleness.
func TestPolicy_SecretStoreAway_NobodyIsPausedAsIdle(t *testing.T) {
	for name, c := range map[string]struct {
		busy bool
		// use is how often somebody calls the sandbox; 0 for never.
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
				// What the server itself said of its use was noted all the time.
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

// A task that ends because it lost its secret store is started again, for longer
// than a start may take.
func TestScheduler_KeyLostWhileItRuns_IsStartedAgain(t *testing.T) {
	for name, away := range map[string]time.Duration{"for a moment": 20 * time.Second, "beyond a start's deadline": 20 * time.Minute} {
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

// A server that says nothing about what it does is not idle either.
func TestPolicy_ServerThatDoesNotSay_IsNotPausedAsIdle(t *testing.T) {
	inWorld(t, options(), func(w *world) {
		w.under(fsm.Policy{IdleTimeout: 5 * time.Minute})
		w.create("a")
		w.reach("a", fsm.SandboxRunning, time.Second)
		w.nomad.Use("a", true)
		w.nomad.Silent("a", true)
		w.elapse(30 * time.Minute)
		if w.cluster.State("a") != fsm.SandboxRunning {
			t.Fatal(w.describe())
		}
		w.nomad.Silent("a", false)
		w.nomad.Use("a", false)
		w.reach("a", fsm.SandboxPaused, 7*time.Minute)
	})
}

// A server that refuses the key does not say that it is idle.
func TestPolicy_ServerThatRefusesTheKey_IsNotPausedAsIdle(t *testing.T) {
	inWorld(t, options(), func(w *world) {
		w.under(fsm.Policy{IdleTimeout: 5 * time.Minute})
		w.create("a")
		w.reach("a", fsm.SandboxRunning, time.Second)
		w.nomad.Use("a", true)
		w.nomad.Refusing("a", true)
		w.elapse(30 * time.Minute)
		if w.cluster.State("a") != fsm.SandboxRunning {
			t.Fatal(w.describe())
		}
		w.nomad.Refusing("a", false)
	})
}
