package acp

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"

	sdk "github.com/coder/acp-go-sdk"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

// errAsks leaves a turn in which the agent waits for the user: Step ends, and the next one goes on.
var errAsks = errors.New("the agent asks the user")

// lostSession tells the user why an accepted call may be asked about again.
const lostSession = "This agent can't load its session: the turn that waited for your answer is lost. It begins the " +
	"turn again with the history of this conversation. The call that you accepted is carried out without another " +
	"question if it comes again as it was."

// askedAgain is the end of an accepted call whose agent is gone.
const askedAgain = "The agent was started again and makes this call anew."

// carried is a prompt of a session, until its answer.
type carried struct {
	session *session
	turn    *turn
	done    chan answered
	// decision is the user's answer to what the agent asks; nil is that of a plain run, which accepts.
	decision *decision
}

// decision is the user's answer to the requests that wait.
type decision struct {
	accept bool
	reason string
}

// Respond implements engine.Engine. A rejection of a call whose agent is gone ends the call.
func (e *Engine) Respond(accept bool, reason string) (goesOn bool, err error) {
	e.mu.Lock()
	p := e.asks
	if p != nil {
		p.decision = &decision{accept, reason}
	}
	e.mu.Unlock()
	if p != nil || accept {
		return p != nil, nil
	}
	events, err := e.conversation.Events()
	if err != nil {
		return false, err
	}
	return false, e.endCalls(event.OpenCalls(events), rejection(reason))
}

// endCalls stores the ends of calls that nobody carries out any more.
func (e *Engine) endCalls(calls []*event.ACPToolCall, why string) error {
	output, err := json.Marshal(map[string]string{"error": why})
	if len(calls) == 0 || err != nil {
		return err
	}
	return e.conversation.Append(event.Failed(calls, output)...)
}

func rejection(reason string) string {
	return "Action rejected: " + cmp.Or(reason, "User rejected the action")
}

// wait keeps a turn for the next Step.
func (e *Engine) wait(p *carried) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		close(p.turn.over)
		return
	}
	p.decision = nil
	e.asks = p
}

// answered takes the turn that waits, and gives its agent the user's answer. It is nil without one: where
// none waits, where the agent is gone, and where a message came in the place of an answer.
func (e *Engine) answered() (*carried, error) {
	e.mu.Lock()
	p := e.asks
	e.asks = nil
	e.mu.Unlock()
	if p == nil {
		e.grants = nil // the turn that they were for has ended
		return nil, nil
	}
	events, err := e.conversation.Events()
	if err != nil {
		return nil, err
	}
	d := decision{accept: true}
	if p.decision != nil {
		d = *p.decision
	}
	open := unanswered(events, p.session.info.Prompted)
	message := len(open) > 0 && open[len(open)-1].ID != p.session.info.Prompted
	switch {
	case d.accept && p.session.ended():
		for _, one := range p.turn.asked {
			p.turn.known(one.call).ended = true // it stays open: the next turn carries it out
		}
		_, err := e.over(p, promptAnswer{StopReason: "cancelled"}, true, nil)
		return nil, err
	case !d.accept && message:
		e.grants = nil
		_, err := e.over(p, promptAnswer{}, false, nil)
		return nil, err
	}
	if err := e.decide(p.turn, d); err != nil {
		_, err = e.over(p, promptAnswer{}, false, err)
		return nil, err
	}
	return p, nil
}

// decide gives the user's answer to the agent. A rejected call ends here; the agent goes on.
func (e *Engine) decide(t *turn, d decision) error {
	asked := t.asked
	t.asked = nil
	for _, p := range asked {
		c := t.known(p.call)
		t.decided[c.ID] = verdict{d.accept, *c}
		if d.accept {
			p.answer <- p.choose(sdk.PermissionOptionKindAllowOnce)
			continue
		}
		if err := e.reject(c, d.reason); err != nil {
			return err
		}
		t.rejected = true
		p.answer <- p.choose(sdk.PermissionOptionKindRejectOnce)
	}
	return nil
}

// reject ends a call that the user rejected, once.
func (e *Engine) reject(c *call, reason string) error {
	if c.ended {
		return nil
	}
	c.Status, c.begun, c.ended = callFailed, true, true
	ev := c.event(e.masked)
	ev.RawOutput, _ = json.Marshal(map[string]string{"error": rejection(reason)}) // strings encode
	return e.conversation.Append(ev)
}

// verdict is the user's answer to a call as it was shown.
type verdict struct {
	accept bool
	call   call
}

func (v verdict) fits(c *call) bool {
	return v.call.ID == c.ID && v.call.Title == c.Title && bytes.Equal(v.call.RawInput, c.RawInput)
}

// permit answers a request where nobody is to be asked, or was asked before. Else the call is stored
// as pending, and the turn waits.
func (e *Engine) permit(t *turn, p *permission) error {
	var before call
	if c := t.calls[p.call.ID]; c != nil {
		before = *c
	}
	c := t.known(p.call)
	kind := sdk.PermissionOptionKindAllowOnce
	switch v, known := t.decided[c.ID]; {
	case !e.mayAsk():
	case known && v.fits(c):
		if !v.accept {
			kind = sdk.PermissionOptionKindRejectOnce
		}
	case e.accepted(c.event(e.masked)):
	default:
		t.asked = append(t.asked, p)
		c.begun, c.Status = true, callPending
		if reflect.DeepEqual(*c, before) { // it is stored so
			return nil
		}
		return e.conversation.Append(c.event(e.masked))
	}
	p.answer <- p.choose(kind)
	return nil
}

// accepted reports whether the user has accepted this call before its agent was gone, once.
func (e *Engine) accepted(c *event.ACPToolCall) bool {
	n := slices.IndexFunc(e.grants, func(g *event.ACPToolCall) bool {
		return g.Title == c.Title && sameInput(g, c)
	})
	if n < 0 {
		return false
	}
	e.grants = slices.Delete(e.grants, n, n+1)
	return true
}

// sameInput reports whether two calls ask for the same. Codex names the call and its time in the input.
func sameInput(a, b *event.ACPToolCall) bool {
	input := func(c *event.ACPToolCall) map[string]json.RawMessage {
		var members map[string]json.RawMessage
		var id string
		if json.Unmarshal(c.RawInput, &members) == nil && json.Unmarshal(members["call_id"], &id) == nil &&
			id == c.ToolCallID {
			for _, name := range []string{"call_id", "turn_id", "started_at_ms"} {
				delete(members, name)
			}
		}
		return members
	}
	if bytes.Equal(a.RawInput, b.RawInput) {
		return true
	}
	x, y := input(a), input(b)
	return x != nil && y != nil && maps.EqualFunc(x, y,
		func(v, w json.RawMessage) bool { return bytes.Equal(v, w) })
}

// accept takes over the calls that a former process asked about: only the user's approval starts a
// Step while one of them waits. It returns what the agent is told of them, and of those from a try
// before in which it was gone and had not asked about them.
func (e *Engine) accept(s *session, events []event.Event) (note string, err error) {
	waiting := slices.DeleteFunc(event.OpenCalls(events), func(c *event.ACPToolCall) bool {
		return c.Status == nil || *c.Status != callPending
	})
	e.grants = append(e.grants, waiting...)
	if len(e.grants) == 0 {
		return "", nil
	}
	note = "The user has accepted what waited for a confirmation. Do it now, exactly so:\n"
	for _, c := range e.grants {
		note += "- " + c.Title + " " + string(c.RawInput) + "\n"
	}
	if err := e.endCalls(waiting, askedAgain); err != nil || s.loaded || len(waiting) == 0 {
		return note + "\n", err
	}
	return note + "\n", e.conversation.Append(agentMessage(lostSession))
}

// LastRead implements engine.Reader.
func (e *Engine) LastRead() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.prompted
}

var _ engine.Reader = (*Engine)(nil)
