package conversation

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/scheduler/agent"
)

const (
	// defaultRuns is how many conversations run at once; the others wait with the status running.
	defaultRuns = 10
	interrupted = "Tool call interrupted before completion. It may have had an effect: look before you repeat it."
)

var (
	// ErrRunning means that a run is in progress.
	ErrRunning = errors.New("conversation already running")
	// ErrNotAsked means that no action waits for a confirmation.
	ErrNotAsked = errors.New("no action waits for a confirmation")
	// ErrNoMessage means that a message has the id of an event that is none.
	ErrNoMessage = errors.New("an event that is no message has this id")
	// ErrStopping means that the server stops.
	ErrStopping = errors.New("the server stops")

	errInterrupted = errors.New("the run was interrupted")
)

// run is one run of a conversation. The conversation's lock guards pause and again. A pause or an
// interrupt takes back what was asked before.
type run struct {
	cancel context.CancelCauseFunc
	done   chan struct{}
	// pause asks the run to end after the present step, again asks for another run after it: for the
	// message asked, if nothing else did.
	pause, again bool
	asked        string
	// condenses is a run that only condenses the history. The status does not show it.
	condenses bool
}

// start starts a run. It returns ErrRunning if there is one.
func (s *Service) start(c *Conversation) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.run != nil {
		return ErrRunning
	}
	if err := c.setAfterRestart(""); err != nil {
		return err
	}
	if err := c.write(statusEvent(engine.StatusRunning)); err != nil {
		return err
	}
	return s.launch(c)
}

// launch works on a conversation whose status is running already. The caller holds c.mu.
func (s *Service) launch(c *Conversation) error { return s.occupy(c, &run{}, s.work) }

// occupy does the work of a run in the background. The caller holds c.mu.
func (s *Service) occupy(c *Conversation, r *run, work func(context.Context, *Conversation, *run) []event.Event) error {
	if s.ctx.Err() != nil {
		return ErrStopping
	}
	ctx, cancel := context.WithCancelCause(s.ctx)
	r.cancel, r.done = cancel, make(chan struct{})
	c.run, c.goesOn = r, c.goesOn && r.condenses
	s.background.Go(func() {
		defer close(r.done)
		defer cancel(nil)
		s.finish(c, r, work(ctx, c, r))
	})
	return nil
}

// work steps until the run ends. It returns the events that end it, nil if the server stops: the
// next process then ends the run.
func (s *Service) work(ctx context.Context, c *Conversation, r *run) []event.Event {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return s.broken(ctx, c)
	}
	eng, err := s.EngineOf(c)
	if err != nil {
		return failureEvents(s.failure(c, err))
	}
	for step := int64(1); ; step++ {
		outcome, err := s.step(ctx, c, eng)
		switch {
		case err == nil && ends(outcome) != "":
			return []event.Event{statusEvent(ends(outcome))}
		case ctx.Err() != nil:
			return s.broken(ctx, c)
		case err != nil:
			return append(s.openErrors(c, "The run ended before this tool call was executed."),
				failureEvents(s.failure(c, err))...)
		}
		if end := c.limit(step); end != nil {
			return failureEvents(end)
		}
		if c.paused(r) {
			return []event.Event{&event.Pause{Head: event.Head{Source: event.SourceUser}}, statusEvent(engine.StatusPaused)}
		}
	}
}

// ends is the status with which an outcome ends the run, empty if the run goes on.
func ends(outcome engine.Outcome) string {
	switch outcome {
	case engine.Continue:
	case engine.Finished:
		return engine.StatusFinished
	case engine.Waiting:
		return engine.StatusWaiting
	case engine.Stuck:
		return engine.StatusStuck
	case engine.Idle:
		return engine.StatusIdle
	}
	return ""
}

// step is one step of the engine. A panic becomes an error.
func (s *Service) step(ctx context.Context, c *Conversation, eng engine.Engine) (out engine.Outcome, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.logger.Error("a step panicked", "conversation", c.Id, "error", fmt.Errorf("%v\n%s", p, debug.Stack()))
			err = &engine.Failure{
				Code:   "InternalError",
				Detail: "The agent server failed. Send a message or start a run to go on.",
			}
		}
	}()
	return eng.Step(ctx)
}

// broken are the events of a run that was interrupted, nil if the server stops.
func (s *Service) broken(ctx context.Context, c *Conversation) []event.Event {
	if !errors.Is(context.Cause(ctx), errInterrupted) {
		return nil
	}
	return append(s.openErrors(c, interrupted),
		&event.Interrupt{Head: event.Head{Source: event.SourceUser}}, statusEvent(engine.StatusPaused))
}

// openErrors are the errors of the actions without a result.
func (s *Service) openErrors(c *Conversation, text string) []event.Event {
	events, err := c.Events()
	if err != nil {
		s.logger.Error("the events can't be read", "conversation", c.Id, "error", err)
		return nil
	}
	return unfinished(event.OpenActions(events), text)
}

// failure is the reason that a client sees of an error. The log has the error itself.
func (s *Service) failure(c *Conversation, err error) *engine.Failure {
	var f *engine.Failure
	if errors.As(err, &f) {
		s.logger.Info("a run failed", "conversation", c.Id, "reason", f.Code)
		return f
	}
	s.logger.Error("a run failed", "conversation", c.Id, "error", err)
	if IsFull(err) {
		return &engine.Failure{Code: "DiskFull", Detail: "The sandbox's disk is full. Delete files, " +
			"then send a message or start a run to go on."}
	}
	return &engine.Failure{Code: "InternalError", Detail: "The agent server failed. " +
		"Send a message or start a run to go on."}
}

// finish ends a run with its last events. It starts the next one if a message asked for it.
func (s *Service) finish(c *Conversation, r *run, last []event.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.run = nil
	if c.deleted {
		s.rest(c) // the deletion has left the engine to the run
		return
	}
	if last == nil {
		return
	}
	again := r.again && !held(last) && !c.hasRead(r.asked) || c.goesOn
	if again {
		_ = c.setAfterRestart("") // a pause that was asked for before is over
		last = append(last, statusEvent(engine.StatusRunning))
	}
	if err := c.conclude(last...); err != nil && !IsGone(err) {
		s.logger.Error("the end of a run could not be stored", "conversation", c.Id, "error", err)
		again = false
	}
	c.sendState()
	if again {
		_ = s.launch(c) // fails only when the server stops
	}
	s.rest(c)
}

// held reports whether a run ended so that only the user may start the next one.
func held(last []event.Event) bool {
	for _, e := range last {
		switch e := e.(type) {
		case *event.ConversationError:
			return true
		case *event.StateUpdate:
			if string(e.Value) == `"`+engine.StatusWaiting+`"` {
				return true
			}
		}
	}
	return false
}

// hasRead reports whether the engine was given a message. The caller holds c.mu.
func (c *Conversation) hasRead(id string) bool {
	reader, ok := c.engine.(engine.Reader)
	if !ok || id == "" || c.log == nil {
		return false
	}
	last, known := c.log.byID[reader.LastRead()]
	at, stored := c.log.byID[id]
	return known && stored && at <= last
}

// paused reports whether a pause was asked for.
func (c *Conversation) paused(r *run) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return r.pause
}

// limit returns the failure if the conversation has reached its steps or its cost.
func (c *Conversation) limit(steps int64) *engine.Failure {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.log == nil {
		return nil
	}
	if all := total(c.stats(c.log)); all != nil && c.meta.MaxBudget > 0 && all.AccumulatedCost >= c.meta.MaxBudget {
		return &engine.Failure{Code: "MaxBudgetReached", Detail: fmt.Sprintf(
			"The conversation has cost %.4f US dollars, its limit is %.4f. Raise max_budget_per_task to go on.",
			all.AccumulatedCost, c.meta.MaxBudget)}
	}
	if steps >= c.meta.MaxIterations {
		return &engine.Failure{Code: "MaxIterationsReached", Detail: fmt.Sprintf(
			"The agent has done %d steps, the limit of one run. Send a message or start a run to go on.", steps)}
	}
	return nil
}

// askRun starts a run, or asks for one after the present one unless that reads the message.
func (s *Service) askRun(c *Conversation, message string) error {
	err := s.start(c)
	if !errors.Is(err, ErrRunning) {
		return err
	}
	c.mu.Lock()
	eng := c.engine
	if r := c.run; r != nil {
		if !r.again || r.asked != "" {
			r.asked = message
		}
		r.again = true
	}
	again := c.run == nil
	c.mu.Unlock()
	if again {
		return s.start(c)
	}
	if eng != nil {
		eng.Notify()
	}
	return nil
}

// Message stores a message of a client. If it says so, it asks for a run. A message whose id is stored
// is not stored again; it runs if no run has begun since.
func (s *Service) Message(c *Conversation, sent agent.Message) error {
	if stored, _, err := c.has(sent.ID); err == nil && !stored {
		c.StopGoal() // its user has something else in mind
	}
	return s.message(c, sent)
}

func (s *Service) message(c *Conversation, sent agent.Message) error {
	m, run := messageEvent(sent), sent.Run
	m.ID = sent.ID
	c.control.Lock()
	defer c.control.Unlock()
	if stored, status, err := c.has(m.ID); stored || err != nil {
		if run && err == nil && status == engine.StatusIdle {
			return s.askRun(c, m.ID)
		}
		return err
	}
	if run {
		if err := s.withdraw(c); err != nil {
			return err
		}
	}
	if err := c.add(s.opening(c, m)); err != nil {
		return err
	}
	s.entitle(c)
	if !run {
		return nil
	}
	return s.askRun(c, m.ID)
}

// has reports whether a message is stored, and the status. An event that is no message is an error.
func (c *Conversation) has(id string) (stored bool, status string, err error) {
	if id == "" {
		return false, "", nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	l, err := c.events()
	if err != nil {
		return false, "", err
	}
	at, stored := l.byID[id]
	if stored && l.entries[at].Kind != event.KindMessage {
		err = ErrNoMessage
	}
	return stored, l.status(), err
}

// withdraw rejects the actions that wait for a confirmation: a message is no approval of what the
// user may not have read. The caller holds c.control.
func (s *Service) withdraw(c *Conversation) error {
	c.mu.Lock()
	l, err := c.events()
	waits := err == nil && c.run == nil && l.status() == engine.StatusWaiting
	c.mu.Unlock()
	if err != nil || !waits {
		return err
	}
	eng, err := s.EngineOf(c)
	if err != nil {
		return err
	}
	_, err = eng.Respond(false, "The user sent a message instead of a confirmation")
	return err
}

// add stores a message's events. A conversation that had ended is idle then.
func (c *Conversation) add(events []event.Event) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, err := c.events()
	if err != nil {
		return err
	}
	if status := l.status(); status == engine.StatusFinished || status == engine.StatusStuck {
		events = append(events, statusEvent(engine.StatusIdle))
	}
	return c.write(events...)
}

// Respond answers a confirmation, once.
func (s *Service) Respond(c *Conversation, accept bool, reason string) error {
	c.control.Lock()
	defer c.control.Unlock()
	c.mu.Lock()
	l, err := c.events()
	waits := err == nil && l.status() == engine.StatusWaiting
	c.mu.Unlock()
	switch {
	case err != nil:
		return err
	case !waits:
		return ErrNotAsked
	}
	eng, err := s.EngineOf(c)
	if err != nil {
		return err
	}
	goesOn, err := eng.Respond(accept, reason)
	switch {
	case err != nil:
		return err
	case accept || goesOn:
		return s.start(c)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.write(statusEvent(engine.StatusIdle))
}

// Delete ends a conversation's run and engine and removes it. The workspace's files stay.
func (s *Service) Delete(c *Conversation) error {
	c.StopGoal()
	// A run that ends may have begun the next one.
	for r := c.inProgress(); r != nil; r = c.inProgress() {
		r.cancel(errInterrupted)
		<-r.done
	}
	if err := s.store.delete(c); err != nil {
		return err
	}
	s.relay.Forget(c.Id)
	s.release(c)
	return nil
}

// Wait returns when no run is in progress.
func (c *Conversation) Wait() {
	for r := c.inProgress(); r != nil; r = c.inProgress() {
		<-r.done
	}
}

// inProgress returns the run in progress, nil if there is none.
func (c *Conversation) inProgress() *run {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.run
}

// StartRun is start for a client. A run that is about to pause is followed by another one.
func (s *Service) StartRun(c *Conversation) error {
	c.control.Lock()
	defer c.control.Unlock()
	err := s.start(c)
	if !errors.Is(err, ErrRunning) {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.run; r != nil && r.pause {
		r.again, r.asked = true, ""
		return nil
	}
	return err
}
