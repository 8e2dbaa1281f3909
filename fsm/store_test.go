package fsm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestWait: a waiter returns exactly when its index is reached, by a command, by a membership
// change or by a restore.
func TestWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t).open() // index 2
		done := make(chan uint64, 10)
		for _, i := range []uint64{7, 3, 5, 3} {
			go func() {
				if err := f.store.Wait(t.Context(), i); err == nil {
					done <- i
				}
			}()
		}
		gone := func(want int) {
			t.Helper()
			synctest.Wait()
			if len(done) != want {
				t.Fatalf("at index %d %d waiters are gone, want %d", f.store.Index(), len(done), want)
			}
		}
		gone(0)
		if err := f.store.Wait(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		f.sandbox("ada", "s1") // 3
		gone(2)
		f.store.SetIndex(5)
		gone(3)
		f.store.SetIndex(4)
		if f.store.Index() != 5 {
			t.Errorf("the index went back to %d", f.store.Index())
		}
		far := newFixture(t)
		far.index = 8
		far.open()
		if err := f.store.Restore(bytes.NewReader(persist(t, far.store))); err != nil {
			t.Fatal(err)
		}
		gone(4)
	})
}

// TestWaitGivesUp: Wait returns with its context's error and leaves no waiter behind.
func TestWaitGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Wait(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if n := len(s.waiters.heap); n != 0 {
			t.Errorf("%d waiters are left", n)
		}
	})
}

// TestRestoreWakes: a restore closes the Changed channel of older Views.
func TestRestoreWakes(t *testing.T) {
	f := newFixture(t).open()
	raw := persist(t, f.store)
	old := f.store.View()
	f.do("ada", &SettingsPutBody{})
	if closed(old.Changed()) || old.Changed() != f.store.View().Changed() {
		t.Fatal("settings woke the scheduler")
	}
	if err := f.store.Restore(bytes.NewReader(raw)); err != nil {
		t.Fatal(err)
	}
	if !closed(old.Changed()) || closed(f.store.View().Changed()) {
		t.Error("the old View must be closed and the new one open")
	}
	if f.store.Index() != 2 || f.store.View().Settings("ada") != nil {
		t.Error("the state is not the snapshot's")
	}
	// The store continues: ids of the snapshot are known, others are free.
	f.sandbox("ada", "s1")
}

// TestBatchIsAtomicPerCommand: a failure in the middle of a batch affects no command before or
// after it, and one View shows the whole batch.
func TestBatchIsAtomicPerCommand(t *testing.T) {
	f := newFixture(t).open()
	old := f.store.View()
	var entries []Entry
	for _, b := range []Body{
		newSandboxBody("s1"),
		newSandboxBody("s1"),
		&SandboxPauseBody{ID: "s1"},
		&SandboxPauseBody{ID: "s2"},
		newSandboxBody("s3"),
	} {
		cmd := f.command("ada", b)
		entries = append(entries, Entry{f.index, cmd})
	}
	out := f.store.ApplyBatch(entries)
	for i, want := range []Code{"", CodeConflict, "", CodeNotFound, ""} {
		if got := codeOf(out[i].Err); got != want || out[i].Result.Index != entries[i].Index {
			t.Errorf("entry %d: %q at %d", i, got, out[i].Result.Index)
		}
	}
	v := f.store.View()
	if v.Index() != 7 || v.Sandbox("ada", "s1").Desired != DesiredPaused || v.Sandbox("ada", "s3") == nil ||
		old.Sandbox("ada", "s1") != nil {
		t.Error("the state is wrong")
	}
	if f.store.ApplyBatch(nil) != nil {
		t.Error("an empty batch gave something")
	}
}

// TestConcurrentUse runs every reader next to the writer, for the race detector. Each View must be
// consistent.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	f := newFixture(t).open()
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				v := f.store.View()
				rows, _ := v.Sandboxes("ada", Page{Limit: 1000})
				n := 0
				for range v.AllSandboxes() {
					n++
				}
				if n != len(rows) {
					t.Errorf("one View has %d and %d sandboxes", n, len(rows))
				}
				for _, s := range rows {
					if !v.SecretReferenced(s.KeyRef.Path, s.KeyRef.Version) || v.SandboxByKeyHash(s.KeyHash) != s {
						t.Errorf("the indexes disagree about %s", s.ID)
					}
				}
				_, _, _, _ = v.CommandResult("c5")
				_ = f.store.Wait(t.Context(), v.Index())
			}
		})
	}
	readers.Go(func() {
		for range 5 {
			_ = f.store.Checksum()
		}
	})
	for i := range 200 {
		f.sandbox("ada", fmt.Sprint("s", i))
		if i%50 == 0 {
			raw := persist(t, f.store)
			if err := f.store.Restore(bytes.NewReader(raw)); err != nil {
				t.Error(err)
			}
		}
	}
	close(stop)
	readers.Wait()
}

// TestDoneTasksAreBounded: the newest MaxDoneTasks finished tasks of a user stay, also across a
// restart. Unfinished tasks and other users' tasks are not counted.
func TestDoneTasksAreBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t).open()
	f.do("bob", &StartTaskCreateBody{ID: "bob", ConversationID: "bob"})
	f.do("", &StartTaskFailBody{ID: "bob", Detail: "x"})
	f.do("ada", &StartTaskCreateBody{ID: "open", ConversationID: "open"})
	for i := range MaxDoneTasks + 3 {
		id := fmt.Sprint("t", i)
		f.do("ada", &StartTaskCreateBody{ID: id, ConversationID: id, Secrets: SecretRef{Path: "p/" + id, Version: 1}})
		f.do("", &StartTaskFailBody{ID: id, Detail: "x"})
		if i == MaxDoneTasks {
			f.store = restored(t, f.store)
		}
	}
	v := f.store.View()
	if n := v.CountStartTasks("ada", StartTaskFilter{}); n != MaxDoneTasks+1 {
		t.Errorf("%d tasks are kept", n)
	}
	if v.StartTask("ada", "t2") != nil || v.StartTask("ada", "t3") == nil || v.StartTask("ada", "open") == nil ||
		v.StartTask("bob", "bob") == nil {
		t.Error("the wrong ones are kept")
	}
}

// TestVersionBrings: every version says what it brings, and no other.
func TestVersionBrings(t *testing.T) {
	for v := range ProtocolVersion + 3 {
		if known := v > 1 && v <= ProtocolVersion; (VersionBrings(v) != "") != known {
			t.Errorf("version %d brings %q", v, VersionBrings(v))
		}
	}
}

// TestProtocolVersion: a version that this node does not know stops it. A command that is too new
// for the cluster is refused and not recorded.
func TestProtocolVersion(t *testing.T) {
	f := newFixture(t)
	t.Run("too new for this node", func(t *testing.T) {
		defer func() {
			if recover() == nil {
				t.Error("the node went on")
			}
		}()
		s := NewStore()
		_, _ = s.Apply(1, NewCommand("c1", testEpoch, "", &ProtocolRaiseBody{Version: ProtocolVersion + 1}))
	})
	v := *f.store.View()
	v.meta.ProtocolVersion = 0
	f.store.current.Store(&v)
	cmd := f.command("ada", &SettingsPutBody{})
	if _, err := f.apply(cmd); CodeOf(err) != CodeProtocol {
		t.Errorf("below its version: %v", err)
	}
	f.do("", &TermOpenBody{Term: 1, Node: "n", ClusterID: "x"})
	f.do("", &ProtocolRaiseBody{Version: 1})
	if r, err := f.apply(cmd); err != nil || r.Replayed {
		t.Errorf("once raised: %+v %v", r, err)
	}
	for _, c := range commandTypes() {
		if MinVersion(c) > ProtocolVersion {
			t.Errorf("%s is newer than this binary", c)
		}
	}
}

// TestDecodeCommand: DecodeCommand refuses what Apply can't apply.
func TestDecodeCommand(t *testing.T) {
	for _, raw := range []string{"", "{}", "nothing", "sandbox.fly{}", `sandbox.pause{"type":"sandbox.resume"}`,
		`sandbox.pause{"id":"c","type":"sandbox.pause","body":null}`, `sandbox.pause{"type":`,
		`sandbox.pause{"type":"sandbox.pause","body":7}`} {
		if c, err := DecodeCommand([]byte(raw)); err == nil {
			t.Errorf("%q gives %+v", raw, c)
		}
	}
	for _, c := range commandTypes() {
		body, err := newBody(c)
		if err != nil {
			t.Error(err)
			continue
		}
		got := recode(t, NewCommand("c", testEpoch, "", body))
		if got.Type != c || got.Body.CommandType() != c || !got.Time.Equal(testEpoch) {
			t.Errorf("%s comes back as %+v", c, got)
		}
	}
}

// TestTimesAreMicrosecondsUTC: for any zone and precision of a proposer, the state holds what the
// API shows and a snapshot keeps.
func TestTimesAreMicrosecondsUTC(t *testing.T) {
	f := newFixture(t).open()
	cmd := f.command("ada", newSandboxBody("s1"))
	cmd.Time = testEpoch.Add(1234567 * time.Nanosecond).In(time.FixedZone("", 3600))
	r, err := f.apply(cmd)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Sandbox.CreatedAt.Format(time.RFC3339Nano); got != "2026-01-02T03:00:00.001234Z" {
		t.Error(got)
	}
}
