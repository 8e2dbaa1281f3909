package conversation

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/scheduler/agent"
)

var (
	// ErrNoGoal means that a conversation has no goal that could go on.
	ErrNoGoal = errors.New("no goal to resume: none was started, or it has ended")
	// ErrNoJudge means that an engine judges no goals.
	ErrNoJudge = errors.New("the agent judges no goals")
)

const (
	// keyGoal is the state that pages show of a goal.
	keyGoal = "goal"
	// judgeTime bounds one call of the judge.
	judgeTime = 5 * time.Minute

	goalResumed = "Go on with the goal, which was interrupted. Look at the files and their state as they are now: " +
		"do not rely on what you remember. Finish when each requirement is met and checked."
	goalFollowUp = "The goal is not reached (audit %d). What is missing: %s\n\nLook at the files and their state as " +
		"they are now. Meet each requirement that is left, run what proves it, and keep the whole goal. Finish when " +
		"each requirement is met and checked."
)

// goalStatus is the value of the state goal, in upstream's form.
type goalStatus struct {
	Active        bool            `json:"active"`
	Status        string          `json:"status"` // running, complete, capped or interrupted
	Iteration     int             `json:"iteration"`
	MaxIterations int             `json:"max_iterations"`
	Objective     string          `json:"objective"`
	Verdict       *engine.Verdict `json:"verdict"`
}

// goal is a loop that lets the agent run until a judge finds its objective reached.
type goal struct {
	state  goalStatus // only the loop uses it
	cancel context.CancelFunc
	done   chan struct{}
}

// StartGoal sends an objective, and after each run asks a judge whether it is reached. Until then, and
// at most rounds times, it tells the agent what is missing. The error is ErrRunning beside a run or a
// goal.
func (s *Service) StartGoal(c *Conversation, objective string, rounds int) error {
	return s.pursue(c, goalStatus{MaxIterations: rounds, Objective: objective}, objective)
}

// ResumeGoal goes on with a goal that was interrupted, also by a restart.
func (s *Service) ResumeGoal(c *Conversation) error {
	var last goalStatus
	if json.Unmarshal(c.State(keyGoal), &last) != nil || last.Status != "interrupted" && last.Status != "running" {
		return ErrNoGoal
	}
	return s.pursue(c, last, goalResumed)
}

func (s *Service) pursue(c *Conversation, state goalStatus, message string) error {
	eng, err := s.EngineOf(c)
	if err != nil {
		return err
	}
	judge, ok := eng.(engine.Judge)
	if !ok {
		return ErrNoJudge
	}
	c.control.Lock()
	defer c.control.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	l, err := c.events()
	switch {
	case err != nil:
		return err
	case c.goal != nil || c.run != nil || l.status() == engine.StatusRunning:
		return ErrRunning
	case s.ctx.Err() != nil:
		return ErrStopping
	}
	ctx, cancel := context.WithCancel(s.ctx)
	g := &goal{state: state, cancel: cancel, done: make(chan struct{})}
	c.goal = g
	s.background.Go(func() {
		defer close(g.done)
		defer cancel()
		err := s.rounds(ctx, c, g, judge, message)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.goal = nil
		if err == nil || s.ctx.Err() != nil || c.deleted {
			return // after a restart it is interrupted
		}
		s.logger.Info("a goal was interrupted", "conversation", c.Id, "reason", err)
		g.state.Active, g.state.Status, g.state.Verdict = false, "interrupted", nil
		_ = c.write(engine.Update(keyGoal, g.state)) // a full disk: the next start of the server tells it
	})
	return nil
}

// rounds runs the agent and the judge in turn. It returns nil when the goal has ended, by itself or by
// the number of its rounds, and else why it was left.
func (s *Service) rounds(ctx context.Context, c *Conversation, g *goal, judge engine.Judge, message string) error {
	for {
		g.state.Active, g.state.Status = true, "running"
		if err := c.Append(engine.Update(keyGoal, g.state)); err != nil {
			return err
		}
		if err := s.round(ctx, c, message); err != nil {
			return err
		}
		limited, cancel := context.WithTimeout(ctx, judgeTime)
		v, err := judge.Judge(limited, g.state.Objective)
		cancel()
		if err != nil {
			return err
		}
		g.state.Iteration++
		g.state.Verdict = &v
		if v.Complete || g.state.Iteration >= g.state.MaxIterations {
			g.state.Active, g.state.Status = false, map[bool]string{true: "complete", false: "capped"}[v.Complete]
			return c.Append(engine.Update(keyGoal, g.state))
		}
		missing := cmp.Or(v.Missing, "some requirements are not checked.")
		message = fmt.Sprintf(goalFollowUp, g.state.Iteration, missing)
	}
}

// round sends a message and waits for the end of its run. A run that is paused, has failed or waits for
// its user is an error; one that is stuck is judged.
func (s *Service) round(ctx context.Context, c *Conversation, message string) error {
	err := s.message(c, agent.Message{
		Role: "user", Run: true, Content: []agent.ContentBlock{{Type: "text", Text: message}},
	})
	if err != nil {
		return err
	}
	for r := c.inProgress(); r != nil; r = c.inProgress() {
		select {
		case <-r.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var status string
	_ = json.Unmarshal(c.State(engine.KeyStatus), &status) // it is a text
	switch status {
	case engine.StatusPaused, engine.StatusError, engine.StatusWaiting, engine.StatusRunning:
		return fmt.Errorf("the run is %s", strings.ReplaceAll(status, "_", " "))
	}
	return nil
}

// StopGoal ends a goal. The run in progress goes on.
func (c *Conversation) StopGoal() {
	c.mu.Lock()
	g := c.goal
	c.mu.Unlock()
	if g != nil {
		g.cancel()
		<-g.done
	}
}

// interruptedGoal is the end of a goal that a restart left, nil without one.
func (c *Conversation) interruptedGoal() []event.Event {
	var last goalStatus
	if json.Unmarshal(c.log.state[keyGoal], &last) != nil || !last.Active {
		return nil
	}
	last.Active, last.Status, last.Verdict = false, "interrupted", nil
	return []event.Event{engine.Update(keyGoal, last)}
}
