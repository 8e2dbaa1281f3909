package acp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	sdk "github.com/coder/acp-go-sdk"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

// drainWait is how long an agent may take to end a turn that was cancelled, before it is killed.
const drainWait = 2 * time.Second

// barrierWait is how long an agent may take to refuse methodBarrier.
const barrierWait = time.Second

// methodBarrier is no method of any agent: its refusal comes after what the agent sent before.
const methodBarrier = "_bivouac/barrier"

// turn is one prompt of a session, until its answer. Only the goroutine of Step uses it, except
// the channels.
type turn struct {
	updates     chan json.RawMessage
	permissions chan *permission
	// over is closed at its end, so that nobody waits for it.
	over chan struct{}

	// asked are the requests that the user has not answered, decided the user's answers by call.
	asked   []*permission
	decided map[string]verdict

	calls map[string]*call
	// order has the calls in the order of their start.
	order         []*call
	text, thought strings.Builder
	// separate is set when the next text begins a new paragraph.
	separate bool
	// cost and size are the latest of the agent's; cost is negative if it told none.
	cost, size float64
	// rejected is set when the user has rejected a call, and no text followed.
	rejected bool
}

func newTurn() *turn {
	return &turn{updates: make(chan json.RawMessage, 64), permissions: make(chan *permission), over: make(chan struct{}),
		calls: map[string]*call{}, decided: map[string]verdict{}, cost: -1}
}

// permission is a request of the agent for permission, until it is answered.
type permission struct {
	call    call
	options []permissionOption
	answer  chan sdk.RequestPermissionOutcome
}

type permissionOption struct {
	ID   string                   `json:"optionId"`
	Kind sdk.PermissionOptionKind `json:"kind"`
}

// choose returns the answer with the option of this kind only: allow_always would answer later
// requests too. Without the option the request is cancelled.
func (p *permission) choose(kind sdk.PermissionOptionKind) sdk.RequestPermissionOutcome {
	i := slices.IndexFunc(p.options, func(o permissionOption) bool { return o.Kind == kind })
	if i < 0 {
		return sdk.NewRequestPermissionOutcomeCancelled()
	}
	return sdk.NewRequestPermissionOutcomeSelected(sdk.PermissionOptionId(p.options[i].ID))
}

// update takes a session update from the reader. It waits when the turn is behind, and drops what
// comes between turns, such as the history that session/load repeats.
func (s *session) update(params json.RawMessage) {
	var n struct {
		SessionID sdk.SessionId   `json:"sessionId"`
		Update    json.RawMessage `json:"update"`
	}
	if t := s.present(); t != nil && json.Unmarshal(params, &n) == nil && n.SessionID == s.id {
		select {
		case t.updates <- n.Update:
		case <-t.over:
		}
	}
}

// handle answers the agent's requests. It has no files and no terminals to offer: the agent works
// on the sandbox's own.
func (s *session) handle(ctx context.Context, method string, params json.RawMessage) (any, *sdk.RequestError) {
	if method != sdk.ClientMethodSessionRequestPermission {
		return nil, sdk.NewMethodNotFound(method)
	}
	var r struct {
		SessionID sdk.SessionId      `json:"sessionId"`
		ToolCall  call               `json:"toolCall"`
		Options   []permissionOption `json:"options"`
	}
	if err := json.Unmarshal(params, &r); err != nil {
		return nil, sdk.NewInvalidParams(map[string]any{"error": err.Error()})
	}
	cancelled := sdk.RequestPermissionResponse{Outcome: sdk.NewRequestPermissionOutcomeCancelled()}
	t := s.present()
	if t == nil || r.SessionID != s.id {
		return cancelled, nil
	}
	p := &permission{call: r.ToolCall, options: r.Options, answer: make(chan sdk.RequestPermissionOutcome, 1)}
	select {
	case t.permissions <- p:
	case <-t.over:
		return cancelled, nil
	case <-ctx.Done():
		return cancelled, nil
	}
	select {
	case o := <-p.answer:
		return sdk.RequestPermissionResponse{Outcome: o}, nil
	case <-t.over:
		return cancelled, nil
	case <-ctx.Done():
		return cancelled, nil
	}
}

func (s *session) present() *turn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.turn
}

func (s *session) set(t *turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn = t
}

// settle drops what the agent sends after the end of a cancelled turn: an update does not say of which
// turn it is. Between turns updates are dropped; the agent's next answer is behind them.
func (s *session) settle(ctx context.Context) {
	if !s.late {
		return
	}
	s.late = false
	ctx, cancel := context.WithTimeout(ctx, barrierWait)
	defer cancel()
	_, _ = sdk.SendRequest[json.RawMessage](s.conn, ctx, methodBarrier, struct{}{}) // it is refused
}

// promptAnswer is the answer to session/prompt. Agents count tokens in one of two places.
type promptAnswer struct {
	StopReason string `json:"stopReason"`
	Usage      *struct {
		Input      float64 `json:"inputTokens"`
		Output     float64 `json:"outputTokens"`
		CacheRead  float64 `json:"cachedReadTokens"`
		CacheWrite float64 `json:"cachedWriteTokens"`
		Thought    float64 `json:"thoughtTokens"`
		Total      float64 `json:"totalTokens"`
	} `json:"usage"`
	Meta struct {
		Quota struct {
			TokenCount struct {
				Input  float64 `json:"input_tokens"`
				Output float64 `json:"output_tokens"`
			} `json:"token_count"`
		} `json:"quota"`
	} `json:"_meta"`
}

// The reasons to leave a turn before the agent ends it.
var (
	errNewMessage = errors.New("the user sent a new message")
	errIdle       = errors.New("the agent sent no update in time")
)

type answered struct {
	answer promptAnswer
	err    error
}

// prompt sends a prompt.
func (e *Engine) prompt(ctx context.Context, s *session, blocks []sdk.ContentBlock) *carried {
	p := &carried{session: s, turn: newTurn(), done: make(chan answered, 1)}
	s.settle(ctx)
	s.set(p.turn)
	go func() {
		// The SDK's own cancellation is not the protocol's: the request ends with the turn or with the
		// connection.
		raw, err := sdk.SendRequest[json.RawMessage](s.conn, context.Background(), sdk.AgentMethodSessionPrompt,
			sdk.PromptRequest{SessionId: s.id, Prompt: blocks})
		a := answered{err: err}
		if err == nil {
			a.err = json.Unmarshal(raw, &a.answer)
		}
		p.done <- a
	}()
	return p
}

// carry carries a turn to its end, or until the agent asks the user: errAsks. It returns ctx's error
// after an interrupt, errNewMessage, errIdle, or the agent's error.
func (e *Engine) carry(ctx context.Context, p *carried) (promptAnswer, error) {
	a, finished, err := e.follow(ctx, p.turn, p.done)
	if errors.Is(err, errAsks) {
		e.wait(p)
		return promptAnswer{}, err
	}
	return e.over(p, a, finished, err)
}

// over ends a turn.
func (e *Engine) over(p *carried, a promptAnswer, finished bool, err error) (promptAnswer, error) {
	if !finished {
		e.cancelTurn(p)
		p.session.late = true
	}
	p.session.set(nil)
	close(p.turn.over)
	status := callCompleted
	if err != nil || !finished || a.StopReason == "cancelled" {
		status = callFailed
	}
	return a, errors.Join(err, e.closeCalls(p.turn, status))
}

// follow takes what the agent sends until it answers the prompt, and reports whether it did.
func (e *Engine) follow(ctx context.Context, t *turn, done <-chan answered) (promptAnswer, bool, error) {
	idle := time.NewTimer(e.promptTimeout())
	defer idle.Stop()
	for {
		select {
		case raw := <-t.updates:
			idle.Reset(e.promptTimeout())
			if err := e.take(t, raw); err != nil {
				return promptAnswer{}, false, err
			}
		case p := <-t.permissions:
			if err := e.question(t, p); err != nil {
				return promptAnswer{}, false, err
			}
		case a := <-done:
			return a.answer, true, errors.Join(a.err, e.drain(t))
		case <-ctx.Done():
			return promptAnswer{}, false, ctx.Err()
		case <-e.notified:
			return promptAnswer{}, false, errNewMessage
		case <-idle.C:
			return promptAnswer{}, false, errIdle
		}
	}
}

// question deals with a request for permission, and with those that came beside it. It is errAsks if
// the user is to be asked.
func (e *Engine) question(t *turn, p *permission) error {
	for p != nil {
		if err := errors.Join(e.drain(t), e.permit(t, p)); err != nil {
			return err
		}
		select {
		case p = <-t.permissions:
		default:
			p = nil
		}
	}
	if len(t.asked) > 0 {
		return errAsks
	}
	return nil
}

// drain takes the updates that were read already.
func (e *Engine) drain(t *turn) error {
	for {
		select {
		case raw := <-t.updates:
			if err := e.take(t, raw); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

// cancelTurn cancels a turn. An agent that does not end it in time is killed.
func (e *Engine) cancelTurn(c *carried) {
	s, t, done := c.session, c.turn, c.done
	for _, p := range t.asked {
		p.answer <- sdk.NewRequestPermissionOutcomeCancelled()
	}
	t.asked = nil
	_ = s.conn.SendNotification(context.Background(), sdk.AgentMethodSessionCancel,
		sdk.CancelNotification{SessionId: s.id})
	limit := time.NewTimer(e.drainWait)
	defer limit.Stop()
	for {
		select {
		case raw := <-t.updates:
			_ = e.take(t, raw) // the turn is lost anyway
		case p := <-t.permissions:
			p.answer <- sdk.NewRequestPermissionOutcomeCancelled()
		case <-done:
			_ = e.drain(t)
			return
		case <-limit.C:
			s.process.kill()
			limit.Stop()
		}
	}
}

// take takes one update.
func (e *Engine) take(t *turn, raw json.RawMessage) error {
	var u update
	if json.Unmarshal(raw, &u) != nil {
		e.setup.Logger.Debug("the agent sent an update that can't be read", "bytes", len(raw))
		return nil
	}
	switch u.Kind {
	case "agent_message_chunk":
		text := contentText(u.Content)
		if t.separate && t.text.Len() > 0 && text != "" {
			t.text.WriteString("\n\n")
		}
		t.separate, t.rejected = t.separate && text == "", t.rejected && text == ""
		t.text.WriteString(text)
		e.delta(text, "")
	case "agent_thought_chunk":
		text := contentText(u.Content)
		t.thought.WriteString(text)
		e.delta("", text)
	case "tool_call", "tool_call_update":
		t.separate = true
		return e.progress(t, u.call)
	case "usage_update":
		if u.Size > 0 {
			t.size = u.Size
		}
		if u.Cost != nil {
			t.cost = u.Cost.Amount
		}
	}
	return nil
}

func (e *Engine) delta(content, reasoning string) {
	d := &event.StreamingDelta{Head: event.Head{Source: event.SourceAgent}}
	if content, reasoning = e.masked(content), e.masked(reasoning); content != "" {
		d.Content = &content
	}
	if reasoning != "" {
		d.ReasoningContent = &reasoning
	}
	if d.Content != nil || d.ReasoningContent != nil {
		e.conversation.Send(d)
	}
}

// known returns the call of an update, with what the update says.
func (t *turn) known(u call) *call {
	c := t.calls[u.ID]
	if c == nil {
		c = &call{ID: u.ID}
		t.calls[u.ID] = c
		t.order = append(t.order, c)
	}
	if !c.ended {
		c.merge(u)
	}
	return c
}

// progress stores a call at its start and at its end, and nothing between.
func (e *Engine) progress(t *turn, u call) error {
	if u.ID == "" {
		return nil
	}
	c := t.known(u)
	if c.ended || c.begun && !c.over() {
		return nil
	}
	c.begun, c.ended = true, c.over()
	return e.conversation.Append(c.event(e.masked))
}

// closeCalls ends the calls that the agent left open.
func (e *Engine) closeCalls(t *turn, status string) error {
	var events []event.Event
	for _, c := range t.order {
		if c.begun && !c.ended {
			c.Status, c.ended = status, true
			events = append(events, c.event(e.masked))
		}
	}
	if len(events) == 0 {
		return nil
	}
	return e.conversation.Append(events...)
}

// failed makes the failure of a turn.
func (e *Engine) failed(s *session, err error) *engine.Failure {
	f := &engine.Failure{Code: codePrompt, Source: event.SourceAgent}
	var rpc *sdk.RequestError
	switch {
	case errors.Is(err, errIdle):
		f.Detail = fmt.Sprintf("The agent sent no update for %s.", e.promptTimeout())
	case s.ended():
		f.Detail = "The agent ended in its turn" + s.reason() + "." + s.said()
	case errors.As(err, &rpc) && rpc.Code == rpcAuthRequired:
		f.Code = codeAuth
		f.Detail = "The agent asks for a login: set a model key in the settings, or choose another agent."
	case errors.As(err, &rpc):
		f.Detail = rpc.Message
		if rpc.Data != nil {
			if b, err := json.Marshal(rpc.Data); err == nil {
				f.Detail += ": " + string(b)
			}
		}
	default:
		f.Detail = err.Error()
	}
	f.Detail = e.masked(f.Detail)
	return f
}
