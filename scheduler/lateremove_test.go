package scheduler_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/agent"
	"bivouac.dev/bivouac/scheduler/starttask"
)

// conversations is an agent server that accepts every conversation.
type conversations struct{ starttask.Projects }

func (conversations) CreateConversation(
	_ context.Context,
	_, _ string,
	req agent.CreateRequest,
) (agent.ConversationInfo, bool, error) {
	return agent.ConversationInfo{ID: req.ConversationID}, true, nil
}

func (conversations) SendMessage(context.Context, string, string, string, agent.Message) error {
	return errors.New("no message is sent in this test")
}

func (conversations) RunCommand(context.Context, string, string, agent.Command) (agent.Output, error) {
	return agent.Output{}, errors.New("no command is run in this test")
}

func (conversations) StartCommand(context.Context, string, string, agent.Command) (string, error) {
	return "", nil
}

// deposed begins a term that can end while one of its calls hangs: leave ends its context, and
// ended waits until all it started has ended.
func (w *world) deposed() (leave, ended func()) {
	w.Helper()
	s, err := scheduler.New(w.fresh(), w.cluster.Store, w.cluster, w.nomad, w.nomad, w.secrets)
	if err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, w.term) }()
	return cancel, func() {
		if err := <-done; err != nil {
			w.Error(err)
		}
	}
}

// wished starts the conversation whose id a client chose, and returns its sandbox once it runs.
func (w *world) wished(task, conversation string) *fsm.Sandbox {
	w.Helper()
	w.cluster.Must(&fsm.StartTaskCreateBody{
		ID: task, ConversationID: conversation,
		Request: fsm.StartRequest{AgentType: "default", ConversationID: &conversation},
	}, "u1")
	var row *fsm.StartTask
	w.until("start task "+task, time.Minute, func() bool {
		row = w.cluster.Store.View().StartTask("u1", task)
		return row.Done()
	})
	if row.Status != fsm.StartTaskReady {
		w.Fatalf("%+v", row)
	}
	return w.reach(row.SandboxID, fsm.SandboxRunning, time.Minute)
}

// Fault 6: a deposed leader sleeps between its last read of a stopped job and its purge.
// Meanwhile its successor removes the sandbox, and the user starts a conversation with the same
// id again. The late purge must not find it.
func TestScheduler_LateRemove_LeavesTheNextSandboxOfTheSameWishedID(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		tasks, err := starttask.New(starttask.DefaultConfig(), w.cluster.Store, w.cluster, conversations{}, w.secrets)
		if err != nil {
			w.Fatal(err)
		}
		ctx, cancel := context.WithCancel(w.Context())
		done := make(chan error, 1)
		go func() { done <- tasks.Run(ctx) }()
		defer func() {
			cancel()
			<-done
		}()
		conversation := strings.Repeat("c", 32)
		first := w.wished(strings.Repeat("1", 32), conversation)

		w.step()
		var asleep atomic.Bool
		wake := make(chan bool)
		w.nomad.Before(func(call string, _ scheduler.Job) error {
			if call == "purge" && asleep.CompareAndSwap(false, true) {
				<-wake
			}
			return nil
		})
		leave, ended := w.deposed()
		w.cluster.Must(&fsm.ConversationDeleteBody{ID: conversation, DeleteSandbox: true}, "u1")
		w.until("the removal asleep before its purge", time.Minute, asleep.Load)
		leave()
		w.lead()
		w.gone(first.ID, time.Minute)
		second := w.wished(strings.Repeat("2", 32), conversation)
		close(wake)
		ended()
		w.elapse(time.Minute)
		now := w.cluster.Sandbox(second.ID)
		if now.State() != fsm.SandboxRunning || now.Status.Placement.AllocID != second.Status.Placement.AllocID ||
			!w.nomad.HasVolume(second.ID) {
			w.Errorf("the next sandbox after the late removal: %s", w.describe())
		}
		if first.ID == second.ID {
			w.Errorf("the id %s was given out twice", first.ID)
		}
		for _, id := range []string{first.ID, second.ID} {
			if id == conversation {
				w.Errorf("a client chose the sandbox id %s", id)
			}
		}
	})
}
