package acp

import (
	sdk "github.com/coder/acp-go-sdk"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

// ask stores what is new of a call that waits for the user, and the status that says so.
func (e *Engine) ask(p *permission, events ...event.Event) error {
	e.asking.Lock()
	defer e.asking.Unlock()
	if !e.waits() {
		events = append(events, engine.Update(engine.KeyStatus, engine.StatusWaiting))
	}
	if err := e.conversation.Append(events...); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting = append(e.waiting, p)
	return nil
}

// Respond implements engine.Engine. Each request is answered once.
func (e *Engine) Respond(accept bool, reason string) (bool, error) {
	e.asking.Lock()
	defer e.asking.Unlock()
	if !e.waits() {
		return false, nil
	}
	if err := e.conversation.Append(engine.Update(engine.KeyStatus, engine.StatusRunning)); err != nil {
		return true, err
	}
	e.decisions <- decision{accept, reason, e.withdraw()}
	return true, nil
}

// unask cancels the requests that wait, at the end of a turn, and an answer that came too late.
func (e *Engine) unask() {
	e.asking.Lock()
	defer e.asking.Unlock()
	list := e.withdraw()
	if len(list) > 0 {
		// A failure shows itself with the next event of the turn.
		_ = e.conversation.Append(engine.Update(engine.KeyStatus, engine.StatusRunning))
	}
	select {
	case d := <-e.decisions:
		list = append(list, d.permissions...)
	default:
	}
	for _, p := range list {
		p.answer <- sdk.NewRequestPermissionOutcomeCancelled()
	}
}

// withdraw takes the requests that wait.
func (e *Engine) withdraw() []*permission {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := e.waiting
	e.waiting = nil
	return list
}

// waits reports whether the user has requests to answer.
func (e *Engine) waits() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.waiting) > 0
}
