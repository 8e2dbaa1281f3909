package conversation

import (
	"slices"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

// rootParent is the parent of the first event of a branch that has nothing before it (upstream's
// ROOT_PARENT_ID).
const rootParent = "__root__"

const leftText = "The conversation was taken back to this tool call, whose result is on another branch."

// parentOf returns the index of an entry's parent: the entry before it where the file has no parents or
// not this one, and -1 for the first of a branch.
func (l *eventLog) parentOf(id *string) int {
	if id != nil {
		if n, known := l.byID[*id]; known {
			return n
		}
		if *id == rootParent {
			return -1
		}
	}
	return len(l.entries) - 1
}

// lineage are the indexes of the entries on the branch that ends with one, oldest first. The last entry's
// is the active one: each event is stored as a child of it.
func (l *eventLog) lineage(last int) []int {
	var list []int
	for n := last; n >= 0; n = l.entries[n].parent {
		list = append(list, n)
	}
	slices.Reverse(list)
	return list
}

// leaf is the last event of the active branch that is no state update, nil for none.
func (l *eventLog) leaf() *string {
	for n := len(l.entries) - 1; n >= 0; n = l.entries[n].parent {
		if e := l.entries[n]; e.Kind != event.KindStateUpdate {
			return &e.ID
		}
	}
	return nil
}

// active returns those of all events that are on the active branch. The caller holds c.mu.
func (c *Conversation) active(all []event.Event) []event.Event {
	if !c.log.branched {
		return slices.Clip(all)
	}
	if c.branch == nil {
		for _, n := range c.log.lineage(len(c.log.entries) - 1) {
			c.branch = append(c.branch, all[n])
		}
	}
	return slices.Clip(c.branch)
}

// Navigate takes a conversation back to an event: what comes next is stored as a child of it, and the
// agent knows the events up to it. nil is the beginning. Nothing is removed. The error is ErrNoEvent for
// an unknown event and ErrRunning beside a run or a goal.
func (s *Service) Navigate(c *Conversation, id *string) error {
	c.control.Lock()
	defer c.control.Unlock()
	eng, err := c.turn(id)
	if eng != nil {
		_ = eng.Close() // its session knows the events of the branch that was left
	}
	return err
}

// turn begins another branch. It returns the engine that can't go on with it, nil for none.
func (c *Conversation) turn(id *string) (engine.Engine, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.history(); err != nil {
		return nil, err
	}
	if c.run != nil || c.goal != nil || c.goesOn {
		return nil, ErrRunning
	}
	parent, last := rootParent, -1
	if id != nil {
		n, known := c.log.byID[*id]
		if !known {
			return nil, ErrNoEvent
		}
		parent, last = *id, n
	}
	if err := c.write(c.turned(last, parent)...); err != nil {
		return nil, err
	}
	c.branch = nil
	c.sendState()
	if c.meta.Agent.Kind != "ACPAgent" {
		return nil, nil // the native engine reads the events each time
	}
	eng := c.engine
	c.engine = nil
	return eng, nil
}

// turned are the first events of another branch: the errors of the actions that are open on it, the status,
// which is idle if a question was left, and the state of an agent without its session.
func (c *Conversation) turned(last int, parent string) []event.Event {
	var kept []event.Event
	for _, n := range c.log.lineage(last) {
		kept = append(kept, c.decoded[n])
	}
	list := unfinished(event.OpenActions(kept), leftText)
	list = append(list, event.Failed(event.OpenCalls(kept), nil)...)
	status := c.log.status()
	if status == engine.StatusWaiting {
		status = engine.StatusIdle
	}
	list = append(list, statusEvent(status))
	if own := withoutSession(c.log.state[engine.KeyAgentState]); own != nil {
		list = append(list, engine.Update(engine.KeyAgentState, own))
	}
	list[0].Envelope().ParentID = &parent
	return list
}
