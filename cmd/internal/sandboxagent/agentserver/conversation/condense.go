package conversation

import (
	"context"
	"errors"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

// Condense condenses the history at once, and returns when that is done. A run in progress does it
// in its next step, and so does the run after a confirmation, whose calls need their results first.
// The error is engine.ErrNoCondenser where there is none.
func (s *Service) Condense(ctx context.Context, c *Conversation) error {
	eng, err := s.EngineOf(c)
	if err != nil {
		return err
	}
	can, ok := eng.(engine.HistoryCondenser)
	if !ok || !can.Condenses() {
		return engine.ErrNoCondenser
	}
	var failed error // what condenses writes it, until r.done
	r, err := s.beginCondensing(c, func(ctx context.Context) { failed = s.condense(ctx, can) })
	if err != nil || r == nil {
		return err
	}
	select {
	case <-r.done:
		return failed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// beginCondensing asks for a condensation and begins it. The run is nil where it waits for a step.
func (s *Service) beginCondensing(c *Conversation, condense func(context.Context)) (*run, error) {
	c.control.Lock()
	defer c.control.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.write(&event.CondensationRequest{Head: event.Head{Source: event.SourceUser}})
	if err != nil || c.run != nil || c.log.status() == engine.StatusWaiting {
		return nil, err
	}
	r := &run{condenses: true}
	return r, s.occupy(c, r, func(ctx context.Context, _ *Conversation, _ *run) []event.Event {
		condense(ctx)
		if s.ctx.Err() != nil {
			return nil
		}
		return []event.Event{} // the status stays what it was
	})
}

func (s *Service) condense(ctx context.Context, can engine.HistoryCondenser) error {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return stopped(ctx)
	}
	err := can.Condense(ctx)
	if ctx.Err() != nil {
		return stopped(ctx)
	}
	return err
}

// stopped is why a condensation did not end by itself.
func stopped(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), errInterrupted) {
		return &engine.Failure{Code: "Interrupted", Detail: "The condensation was interrupted."}
	}
	return context.Cause(ctx)
}
