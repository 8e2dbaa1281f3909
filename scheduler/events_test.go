package scheduler_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// fetching notes which sandboxes' events were fetched while they ran, and with which key.
type fetching struct {
	w     *world
	mu    sync.Mutex
	did   []string
	hangs bool
}

func (f *fetching) Fetch(ctx context.Context, sb *fsm.Sandbox, _, key string) error {
	f.mu.Lock()
	hangs := f.hangs
	if f.w.nomad.Live(sb.ID) == 1 && key == f.w.nomad.Key(sb.ID) {
		f.did = append(f.did, sb.ID+" "+string(sb.Desired))
	}
	f.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return errors.New("some are not there")
}

func (f *fetching) take() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	did := f.did
	f.did = nil
	return did
}

// converse gives a sandbox a conversation.
func (w *world) converse(id string) {
	w.Helper()
	task := "task-" + id
	w.cluster.Must(&fsm.StartTaskCreateBody{
		ID: task, ConversationID: "c-" + id, Request: fsm.StartRequest{SandboxID: &id},
	}, "u1")
	w.cluster.Must(&fsm.StartTaskBindBody{ID: task, SandboxID: id}, "")
	w.cluster.Must(&fsm.StartTaskFinishBody{
		ID: task, Conversation: fsm.Conversation{ID: "c-" + id, AgentKind: "openhands"},
	}, "")
}

// TestEvents_AreFetchedBeforeAStop: a pause, a rotation and a deletion fetch the events first, and go on
// when some can't be had. A server that hangs holds up none of them for longer than its deadline.
func TestEvents_AreFetchedBeforeAStop(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.step()
		f := &fetching{w: w}
		w.cfg.Events = f
		w.lead()
		want := func(what string, want ...string) {
			w.Helper()
			if got := f.take(); !slices.Equal(got, want) {
				w.Errorf("%s: fetched %q, want %q", what, got, want)
			}
		}
		for _, id := range []string{"a", "b", "empty"} {
			w.create(id)
			w.reach(id, fsm.SandboxRunning, 5*time.Second)
			if id != "empty" {
				w.converse(id)
			}
		}
		w.rotate("a")
		w.expectRotated("a")
		want("a rotation", "a running")
		w.pause("a")
		w.reach("a", fsm.SandboxPaused, 5*time.Second)
		want("a pause", "a paused")
		w.delete("a")
		w.until("a is gone", 5*time.Second, func() bool { return w.cluster.Sandbox("a") == nil })
		want("a deletion while paused")
		// Pausing its conversations fails as where a server is slow, and the fetch is tried all the same.
		w.create("slow")
		w.reach("slow", fsm.SandboxRunning, 5*time.Second)
		w.nomad.Answer("slow", false)
		w.pause("slow")
		w.reach("slow", fsm.SandboxPaused, 5*time.Second)
		want("a pause of one that did not answer", "slow paused")
		f.mu.Lock()
		f.hangs = true
		f.mu.Unlock()
		w.delete("b")
		w.delete("empty")
		w.until("what has no conversation is gone", 5*time.Second, func() bool { return w.cluster.Sandbox("empty") == nil })
		if w.nomad.Live("b") != 1 {
			t.Error("it was removed while its events were fetched")
		}
		w.until("b is gone", 15*time.Second, func() bool { return w.cluster.Sandbox("b") == nil })
		want("a deletion", "b deleted")
	})
}
