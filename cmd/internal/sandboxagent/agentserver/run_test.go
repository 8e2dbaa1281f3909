package agentserver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/conversation"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/deploy/local/ownprocess"
)

const convPath = "/api/conversations/" + convID

// begun makes the conversation and waits for the end of its first run.
func (s *server) begun() string {
	s.t.Helper()
	s.want(201, "POST", "/api/conversations", createBody(s.t, convUID))
	return s.settled(convID)
}

func TestRun_Ends(t *testing.T) {
	for name, c := range map[string]struct {
		step   func(ctx context.Context, e *steps, n int) (engine.Outcome, error)
		status string
		kinds  []string
	}{
		"finished": {func(_ context.Context, e *steps, n int) (engine.Outcome, error) {
			if n == 1 {
				return engine.Continue, e.act("a")
			}
			return engine.Finished, e.observe()
		}, "finished", []string{"ActionEvent", "ObservationEvent", `"finished"`}},
		"stuck": {
			func(context.Context, *steps, int) (engine.Outcome, error) { return engine.Stuck, nil },
			"stuck",
			[]string{`"stuck"`},
		},
		"waiting": {
			func(_ context.Context, e *steps, _ int) (engine.Outcome, error) { return engine.Waiting, e.act("a") },
			"waiting_for_confirmation",
			[]string{"ActionEvent", `"waiting_for_confirmation"`},
		},
		"refused key": {func(context.Context, *steps, int) (engine.Outcome, error) {
			return 0, fmt.Errorf("step: %w", &engine.Failure{Code: "LLMAuthenticationError", Detail: "The key was refused."})
		}, "error", []string{"LLMAuthenticationError", `"error"`}},
		"unknown fault": {func(_ context.Context, e *steps, _ int) (engine.Outcome, error) {
			_ = e.act("a")
			return 0, errTest
		}, "error", []string{"ActionEvent", "AgentErrorEvent", "InternalError", `"error"`}},
		"panic": {
			func(context.Context, *steps, int) (engine.Outcome, error) { panic("at the disco") },
			"error",
			[]string{"InternalError", `"error"`},
		},
		"never ends": {func(context.Context, *steps, int) (engine.Outcome, error) { return engine.Continue, nil },
			"error", []string{"MaxIterationsReached", `"error"`}},
		"too dear": {func(_ context.Context, e *steps, _ int) (engine.Outcome, error) {
			return engine.Continue, e.conv.Append(engine.Update(engine.KeyStats,
				event.Stats{UsageToMetrics: map[string]event.Metrics{
					"agent": {AccumulatedCost: 1.5}, "condenser": {AccumulatedCost: 0.5}}}))
		}, "error", []string{`{"usage_to_metrics"`, "MaxBudgetReached", `"error"`}},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveAt(t, t.TempDir(), stepping(nil, c.step))
			body := strings.Replace(createBody(t, convUID), `{`, `{"max_budget_per_task":2,"max_iterations":20,`, 1)
			s.want(201, "POST", "/api/conversations", body)
			if got := s.settled(convID); got != c.status {
				t.Errorf("status %s, want %s", got, c.status)
			}
			got := s.kinds(convID)[2:] // after the message and "running"
			for i := range got {
				if strings.HasPrefix(got[i], `{"usage_to_metrics"`) {
					got[i] = `{"usage_to_metrics"`
				}
			}
			kindsEqual(t, got, c.kinds...)
			search(t, "the log", s.logs.String())
		})
	}
}

// holding is an engine whose first step waits until it is let go or interrupted.
func holding(step chan struct{}) func(context.Context, *steps, int) (engine.Outcome, error) {
	return func(ctx context.Context, e *steps, n int) (engine.Outcome, error) {
		if n > 1 {
			return engine.Finished, e.observe()
		}
		if err := e.act("a"); err != nil {
			return 0, err
		}
		step <- struct{}{}
		select {
		case <-step:
			return engine.Continue, e.observe()
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

func TestRun_PauseAndInterrupt(t *testing.T) {
	t.Run("pause", func(t *testing.T) {
		step := make(chan struct{})
		s := serveAt(t, t.TempDir(), stepping(nil, holding(step)))
		s.want(201, "POST", "/api/conversations", createBody(t, convUID))
		<-step
		s.want(409, "POST", convPath+"/run", "")
		s.want(200, "POST", convPath+"/pause", "")
		s.want(200, "POST", convPath+"/pause", "")
		step <- struct{}{}
		if got := s.settled(convID); got != "paused" {
			t.Errorf("status %s", got)
		}
		kindsEqual(t, s.kinds(convID)[2:], "ActionEvent", "ObservationEvent", "PauseEvent", `"paused"`)
		s.want(200, "POST", convPath+"/run", "")
		if got := s.settled(convID); got != "finished" {
			t.Errorf("status %s after the pause", got)
		}
	})
	t.Run("interrupt", func(t *testing.T) {
		step := make(chan struct{})
		s := serveAt(t, t.TempDir(), stepping(nil, holding(step)))
		s.want(201, "POST", "/api/conversations", createBody(t, convUID))
		<-step
		s.want(200, "POST", convPath+"/interrupt", "")
		if got := s.settled(convID); got != "paused" {
			t.Errorf("status %s", got)
		}
		kindsEqual(t, s.kinds(convID)[2:], "ActionEvent", "AgentErrorEvent", "InterruptEvent", `"paused"`)
	})
	t.Run("a message meanwhile runs again", func(t *testing.T) {
		step, kept := make(chan struct{}), (*steps)(nil)
		s := serveAt(t, t.TempDir(), stepping(&kept, holding(step)))
		s.want(201, "POST", "/api/conversations", createBody(t, convUID))
		<-step
		s.want(200, "POST", convPath+"/events", `{"content":"more","run":true}`)
		step <- struct{}{}
		if got := s.settled(convID); got != "finished" {
			t.Errorf("status %s", got)
		}
		s.settled(convID)
		kindsEqual(t, s.kinds(convID)[2:], "ActionEvent", "MessageEvent", "ObservationEvent", `"finished"`, `"running"`,
			`"finished"`)
		if kept.notified != 1 {
			t.Errorf("the engine was told %d times", kept.notified)
		}
	})
}

// TestRun_ADeletionEndsTheRunAfter deletes beside a message that starts the next run: the step that is
// cancelled ends as if nothing had been asked of it.
func TestRun_ADeletionEndsTheRunAfter(t *testing.T) {
	begun, over := make(chan struct{}, 2), make(chan struct{})
	s := serveAt(t, t.TempDir(), stepping(nil, func(ctx context.Context, _ *steps, _ int) (engine.Outcome, error) {
		begun <- struct{}{}
		select {
		case <-ctx.Done():
		case <-over: // the test has failed
		}
		return engine.Finished, nil
	}))
	s.want(201, "POST", "/api/conversations", createBody(t, convUID))
	<-begun
	s.want(200, "POST", convPath+"/events", `{"content":"more","run":true}`)
	deleted := make(chan int, 1)
	go func() {
		status, _ := s.send("DELETE", convPath, "")
		deleted <- status
	}()
	select {
	case status := <-deleted:
		if status != 200 {
			t.Errorf("status %d", status)
		}
	case <-time.After(20 * time.Second):
		close(over)
		t.Fatal("the deletion waits for a run that nobody ends")
	}
	s.want(404, "GET", convPath, "")
}

func TestRun_Confirmation(t *testing.T) {
	asking := func(_ context.Context, e *steps, n int) (engine.Outcome, error) {
		if n == 1 {
			return engine.Waiting, e.act("a")
		}
		return engine.Finished, e.observe()
	}
	answer := func(s *server, body string) int {
		status, _ := s.send("POST", convPath+"/events/respond_to_confirmation", body)
		return status
	}
	for name, c := range map[string]struct {
		do    func(s *server)
		after string
		kinds []string
	}{
		"accept": {func(s *server) { s.want(200, "POST", convPath+"/events/respond_to_confirmation", `{"accept":true}`) },
			"finished", []string{`"running"`, "ObservationEvent", `"finished"`}},
		"reject": {func(s *server) {
			s.want(200, "POST", convPath+"/events/respond_to_confirmation", `{"accept":false,"reason":"no"}`)
		}, "idle", []string{"UserRejectObservation", `"idle"`}},
		"run": {
			func(s *server) { s.want(200, "POST", convPath+"/run", "") },
			"finished",
			[]string{`"running"`, "ObservationEvent", `"finished"`},
		},
		"a message is no approval": {func(s *server) {
			s.want(200, "POST", convPath+"/events",
				`{"content":"what is this?","run":true}`)
		},
			"finished", []string{"UserRejectObservation", "MessageEvent", `"running"`, `"finished"`}},
		"a silent message changes nothing": {func(s *server) {
			s.want(200, "POST", convPath+"/events",
				`{"content":"wait"}`)
		},
			"waiting_for_confirmation", []string{"MessageEvent"}},
		"bad": {
			func(s *server) { s.want(422, "POST", convPath+"/events/respond_to_confirmation", `{"reason":"no"}`) },
			"waiting_for_confirmation",
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveAt(t, t.TempDir(), stepping(nil, asking))
			if got := s.begun(); got != "waiting_for_confirmation" {
				t.Fatalf("status %s", got)
			}
			c.do(s)
			if got := s.settled(convID); got != c.after {
				t.Errorf("status %s, want %s", got, c.after)
			}
			kindsEqual(t, s.kinds(convID)[4:], c.kinds...)
		})
	}
	t.Run("many answers, one counts", func(t *testing.T) {
		s := serveAt(t, t.TempDir(), stepping(nil, asking))
		s.begun()
		var group sync.WaitGroup
		var mu sync.Mutex
		got := map[int]int{}
		for i := range 8 {
			group.Go(func() {
				status := answer(s, fmt.Sprintf(`{"accept":%v}`, i%2 == 0))
				mu.Lock()
				defer mu.Unlock()
				got[status]++
			})
		}
		group.Wait()
		s.settled(convID)
		if got[200] != 1 || got[409] != 7 {
			t.Errorf("answers: %v", got)
		}
		if results := strings.Count(strings.Join(s.kinds(convID), " "), "Observation"); results != 1 {
			t.Errorf("%d results: %q", results, s.kinds(convID))
		}
	})
	t.Run("after a restart", func(t *testing.T) {
		dir := t.TempDir()
		serveAt(t, dir, stepping(nil, asking)).begun()
		s := serveAt(t, dir,
			stepping(nil,
				func(_ context.Context, e *steps, _ int) (engine.Outcome, error) { return engine.Finished, e.observe() }))
		s.want(200, "POST", convPath+"/events/respond_to_confirmation", `{"accept":true}`)
		if got := s.settled(convID); got != "finished" {
			t.Errorf("status %s", got)
		}
	})
}

// TestRun_Restart stops the server in a step: the next one tells of it once, and goes on by itself. One
// without a secret key, which has no create request to go on with, ends the run.
func TestRun_Restart(t *testing.T) {
	end := func(_ context.Context, e *steps, _ int) (engine.Outcome, error) { return engine.Finished, e.observe() }
	for _, secret := range []string{"SEALCANARY", ""} {
		dir, step := t.TempDir(), make(chan struct{})
		serve := func(how func(context.Context, *steps, int) (engine.Outcome, error)) *server {
			return serveAt(t, dir, func(cfg *config.Config) { stepping(nil, how)(cfg); cfg.SecretKey = secret })
		}
		s := serve(holding(step))
		s.want(201, "POST", "/api/conversations", createBody(t, convUID))
		<-step
		s.s.close()
		want, kinds := "error", []string{"ActionEvent", "AgentErrorEvent", "ServerRestarted", `"error"`}
		if secret != "" {
			want, kinds = "finished", []string{"ActionEvent", "AgentErrorEvent", "1", `"finished"`}
		}
		for range 2 {
			s = serve(end)
			s.until("the end", func() bool {
				return decodeJSON[conversation.Info](t, s.want(200, "GET", convPath, "")).ExecutionStatus == want
			})
			kindsEqual(t, s.kinds(convID)[2:], kinds...)
		}
		s.want(200, "POST", convPath+"/run", "")
		if got := s.settled(convID); got != "finished" {
			t.Errorf("status %s", got)
		}
	}
}

// TestRun_DiskFull fills the disk in a step: the status and the reason are told at once, and stored
// when there is room.
func TestRun_DiskFull(t *testing.T) {
	if !ownprocess.Enter(t) {
		return
	}
	dir := t.TempDir()
	file := filepath.Join(dir, convID, "events.jsonl")
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	s := serveAt(t, dir, stepping(nil, func(_ context.Context, e *steps, n int) (engine.Outcome, error) {
		if n > 1 {
			return engine.Finished, nil
		}
		st, err := os.Stat(file)
		if err != nil {
			return 0, err
		}
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE,
			&syscall.Rlimit{Cur: uint64(st.Size()) + 10, Max: old.Max}); err != nil {
			return 0, err
		}
		return engine.Continue, e.act("a")
	}))
	got := s.begun()
	conn := s.subscribe(convID, "", withKey())
	frameOf(t, conn) // the state
	code, why := s.send("POST", convPath+"/events", `{"content":"more"}`)
	if err := conn.Write(t.Context(), websocket.MessageText, []byte(`{"content":"more"}`)); err != nil {
		t.Fatal(err)
	}
	refused := next(t, conn)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	if got != "error" || code != 507 || !strings.Contains(why, "disk is full") || refused.Kind != event.KindServerError {
		t.Errorf("status %s, a message got %d %s, over a socket %s", got, code, why, refused.Kind)
	}
	s.want(200, "POST", convPath+"/events", `{"content":"more"}`)
	kindsEqual(t, s.kinds(convID)[2:], "DiskFull", `"error"`, "MessageEvent")
	s.chained()
	s.want(200, "POST", convPath+"/run", "")
	if got := s.settled(convID); got != "finished" {
		t.Errorf("status %s", got)
	}
}

// chained checks that each stored event has the one before it as its parent.
func (s *server) chained() {
	s.t.Helper()
	events, err := s.s.conversations.Get(convID).Events()
	if err != nil {
		s.t.Fatal(err)
	}
	for i, e := range events {
		parent := e.Envelope().ParentID
		if i == 0 && parent != nil || i > 0 && (parent == nil || *parent != events[i-1].Envelope().ID) {
			s.t.Errorf("event %d, %s, is not a child of the one before it", i, event.KindOf(e))
		}
	}
}

// TestRun_DeltasComeBeforeWhatReplacesThem sends parts of an answer that are not stored.
func TestRun_DeltasComeBeforeWhatReplacesThem(t *testing.T) {
	s := serveAt(t, t.TempDir(), stepping(nil, func(_ context.Context, e *steps, _ int) (engine.Outcome, error) {
		for i := range 50 {
			text := fmt.Sprint(i)
			e.conv.Send(&event.StreamingDelta{Head: event.Head{Source: event.SourceAgent}, Content: &text})
			if i%10 == 9 {
				if err := e.act(text); err != nil {
					return 0, err
				}
			}
		}
		return engine.Finished, nil
	}))
	body := strings.Replace(createBody(t, convUID), `"initial_message"`, `"ignored"`, 1)
	s.want(201, "POST", "/api/conversations", body)
	conn := s.subscribe(convID, "?resend_mode=all", withKey())
	frameOf(t, conn) // the state
	if err := conn.Write(t.Context(), websocket.MessageText, []byte(`{"content":"go"}`)); err != nil {
		t.Fatal(err)
	}
	deltas, actions := 0, 0
	for actions < 5 {
		switch e := next(t, conn); e.Kind {
		case event.KindStreamingDelta:
			deltas++
		case event.KindAction:
			actions++
			if deltas != 10*actions {
				t.Errorf("action %d came after %d deltas", actions, deltas)
			}
		}
	}
	s.settled(convID)
	if n := strings.Count(strings.Join(s.kinds(convID), " "), event.KindStreamingDelta); n != 0 {
		t.Errorf("%d deltas are stored", n)
	}
}

// TestRun_Bounded lets more conversations run than there is room for.
func TestRun_Bounded(t *testing.T) {
	var mu sync.Mutex
	running, most := 0, 0
	s := serveAt(t, t.TempDir(), func(cfg *config.Config) {
		stepping(nil, func(context.Context, *steps, int) (engine.Outcome, error) {
			mu.Lock()
			running++
			most = max(most, running)
			mu.Unlock()
			defer func() { mu.Lock(); running--; mu.Unlock() }()
			return engine.Finished, nil
		})(cfg)
		cfg.MaxRuns = 2
	})
	for i := range 12 {
		s.want(201, "POST", "/api/conversations", createBody(t, fmt.Sprintf("%032x", i+1)))
	}
	for i := range 12 {
		if got := s.settled(fmt.Sprintf("%032x", i+1)); got != "finished" {
			t.Errorf("conversation %d is %s", i, got)
		}
	}
	if most > 2 {
		t.Errorf("%d ran at once", most)
	}
}
