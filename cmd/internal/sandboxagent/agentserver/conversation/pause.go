package conversation

import (
	"context"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

// interruptTime is how long an interrupt waits for the run's end before it responds.
const interruptTime = 5 * time.Second

// Pause ends a run after its present step. An idle conversation becomes paused. One that resumes
// goes on by itself after the server's next start: then nobody asked for it to be still.
func (s *Service) Pause(c *Conversation, resumes bool) error {
	if !resumes {
		c.StopGoal()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	l, err := c.events()
	if err != nil {
		return err
	}
	if c.run != nil && !c.run.condenses {
		c.run.pause, c.run.again = true, false
		return c.noteStop(resumes)
	}
	if resumes {
		return nil // nothing runs that would have to go on
	}
	if c.meta.AfterRestart != "" || c.goesOn {
		err = c.noteStop(false)
	}
	if err != nil || l.status() != engine.StatusIdle && !c.goesOn {
		return err
	}
	c.goesOn = false
	defer c.sendState()
	return c.write(&event.Pause{Head: event.Head{Source: event.SourceUser}}, statusEvent(engine.StatusPaused))
}

// noteStop stores what a pause or an interrupt means for the server's next start. A person's counts
// more than another's. The caller holds c.mu.
func (c *Conversation) noteStop(resumes bool) error {
	switch {
	case !resumes:
		return c.setAfterRestart(afterRestartStay)
	case c.meta.AfterRestart == "":
		return c.setAfterRestart(afterRestartRun)
	}
	return nil
}

// Interrupt breaks off a run and waits a while for its end. Without a run it is a pause. resumes is as
// that of Pause.
func (s *Service) Interrupt(ctx context.Context, c *Conversation, resumes bool) error {
	if !resumes {
		c.StopGoal()
	}
	c.mu.Lock()
	r := c.run
	var err error
	if r != nil {
		r.again = false
		err = c.noteStop(resumes)
	}
	c.mu.Unlock()
	if r == nil {
		return s.Pause(c, resumes)
	}
	r.cancel(errInterrupted)
	select {
	case <-r.done:
	case <-ctx.Done():
	case <-time.After(interruptTime):
	}
	return err
}
