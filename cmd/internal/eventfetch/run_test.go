package eventfetch_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bivouac.dev/bivouac/cmd/internal/eventfetch"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent"
)

// silent are agent servers that answer no call, but one, and that show which keys they got.
type silent struct {
	agent.Client
	answers string

	mu    sync.Mutex
	calls map[string]int // by key
}

func (s *silent) CountEvents(ctx context.Context, _, key, _, _ string) (int, error) {
	s.mu.Lock()
	s.calls[key]++
	s.mu.Unlock()
	if key == s.answers {
		return 0, nil
	}
	select {
	case <-time.After(30 * time.Second):
	case <-ctx.Done():
	}
	return 0, &agent.Error{Op: "count events", Kind: agent.ErrUnreachable}
}

func (s *silent) of(key string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[key]
}

// talks makes a conversation in a sandbox, and the sandbox, with its id as its key, if it is not there.
func (w *world) talks(sandbox, conversation string) {
	w.Helper()
	id := sandbox
	task := &fsm.StartTaskCreateBody{ID: "t-" + conversation, ConversationID: conversation}
	bind := &fsm.StartTaskBindBody{ID: task.ID, SandboxID: id}
	if w.Store.View().Sandbox("u1", id) == nil {
		ref, err := w.secrets.Write(w.Context(), fsm.SandboxKeyPath(id), map[string]string{fsm.MemberKey: id})
		if err != nil {
			w.Fatal(err)
		}
		bind.Create = &fsm.SandboxCreateBody{ID: id, KeyRef: ref, KeyHash: fmt.Sprintf("%064x", id)[:64]}
	} else {
		task.Request = fsm.StartRequest{SandboxID: &id}
	}
	w.Must(task, "u1")
	w.Must(bind, "")
	w.Must(&fsm.StartTaskFinishBody{ID: task.ID, Conversation: fsm.Conversation{
		ID: conversation, AgentKind: "openhands",
	}}, "")
}

// runs makes a sandbox run in an allocation.
func (w *world) runs(id, alloc string) {
	w.Must(&fsm.SandboxObserveBody{Observations: []fsm.Observation{{ID: id, Status: fsm.SandboxStatus{
		State: fsm.SandboxRunning, Generation: w.Sandbox(id).Generation, Placement: &fsm.Placement{
			AllocID: alloc, Address: "127.0.0.1", Ports: map[string]int{fsm.PortAgentServer: 1},
		},
	}}}}, "")
}

// run runs a fetcher until the end of the test.
func (w *world) run(agents eventfetch.Agents) {
	f := eventfetch.New(w.Store, w.Cluster, w.keeping, agents, w.secrets, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(w.Context())
	ended := make(chan error)
	go func() { ended <- f.Run(ctx) }()
	w.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			w.Error(err)
		}
	})
}

// TestRun_IsFair: sandboxes that can't be reached, with the lowest ids and many conversations each, don't
// keep the others from being asked, and are asked less often each time.
func TestRun_IsFair(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, fsm.ProtocolVersion)
		agents := &silent{answers: "zz", calls: map[string]int{}}
		for i := range 40 {
			id := fmt.Sprintf("b%02d", i)
			w.talks(id, id+"-1")
			w.talks(id, id+"-2")
			w.runs(id, "a")
		}
		w.talks("zz", "zz-1")
		w.runs("zz", "a")
		w.run(agents)
		time.Sleep(5 * time.Minute)
		if agents.of("zz") == 0 {
			t.Error("the others starve it")
		}
		time.Sleep(55 * time.Minute)
		if n := agents.of("zz"); n < 5 {
			t.Errorf("it was asked %d times in an hour", n)
		}
		if n := agents.of("b00"); n < 5 || n > 12 {
			t.Errorf("one that can't be reached got %d calls in an hour", n)
		}
	})
}

// TestRun_UsesThePresentKey: while a key is replaced the former one is the server's.
func TestRun_UsesThePresentKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, fsm.ProtocolVersion)
		agents := &silent{answers: "one", calls: map[string]int{}}
		w.talks("one", "c1")
		w.runs("one", "a")
		ref, err := w.secrets.Write(t.Context(), fsm.SandboxKeyPath("one"), map[string]string{fsm.MemberKey: "new"})
		if err != nil {
			t.Fatal(err)
		}
		w.Must(&fsm.SandboxRotateKeyBody{ID: "one", KeyRef: ref, KeyHash: strings.Repeat("2", 64)}, "u1")
		w.run(agents)
		time.Sleep(time.Minute)
		if agents.of("one") != 1 || agents.of("new") != 0 {
			t.Errorf("%d calls with the former key, %d with the new one", agents.of("one"), agents.of("new"))
		}
	})
}

// TestRun_AsksUpstreamSooner: upstream's agent server sends to one node alone, which may be down.
func TestRun_AsksUpstreamSooner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, fsm.ProtocolVersion)
		w.Must(&fsm.SpecApplyBody{Specs: []fsm.Spec{{ID: "plain", Template: fsm.Template{
			Driver: fsm.DriverDocker, Image: "ghcr.io/openhands/agent-server:1", WorkingDir: "/workspace/project", CPU: 100,
			Memory: 64, Ports: map[string]int{fsm.PortAgentServer: 8000},
		}}}}, "operator")
		agents := &silent{answers: "up", calls: map[string]int{}}
		w.talks("up", "c1")
		w.runs("up", "a")
		w.run(agents)
		time.Sleep(10*time.Minute - time.Second)
		if n := agents.of("up"); n < 8 || n > 10 {
			t.Errorf("it was asked %d times in ten minutes", n)
		}
	})
}
