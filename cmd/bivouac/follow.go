package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/httpapi/client"
)

// What --confirm says.
const (
	confirmAsk    = "ask"
	confirmAccept = "accept"
	confirmReject = "reject"
)

// The statuses of a conversation (agent-server protocol, "Conversations: read").
const (
	statusIdle     = "idle"
	statusRunning  = "running"
	statusPaused   = "paused"
	statusWaiting  = "waiting_for_confirmation"
	statusFinished = "finished"
	statusError    = "error"
	statusStuck    = "stuck"
	statusDeleting = "deleting"
)

// drawPause is how long the live line stays while an answer arrives in parts.
const drawPause = 100 * time.Millisecond

// firstTime is how long the first call waits for a node: the address may be wrong.
const firstTime = 15 * time.Second

// runFollower shows a conversation's events until its run has ended. One goroutine uses it.
type runFollower struct {
	p      *program
	client *client.Client
	flags  runFlags
	out    *screen
	// ctx ends when the user leaves.
	ctx context.Context
	// stopping is closed by the first request to stop; nil once it was heard. left is closed by the
	// second one.
	stopping, left <-chan struct{}
	// lines are what the user types; nil until something was asked.
	lines    <-chan typed
	question *question
	reached  bool // a node has answered

	conversation, sandbox string
	gone                  bool // the sandbox
	// began: a run has begun since the mark. waits: it must begin before the end is one.
	began, waits                   bool
	interrupted, rejected, limited bool
	status                         string
	asked                          string // the last action that was asked about
	open                           []*event.Action
	shown                          transcript
	since, drawn                   time.Time // when the present activity began, and the line was drawn
	events                         *stream
	stale                          int64 // what this socket and those before it say is not current
}

// typed is a line that the user typed. end: there will be no more.
type typed struct {
	text string
	end  bool
}

// question is what the user is asked.
type question struct {
	text   string
	answer func(accept bool, reason string) error
}

func (p *program) newFollower(c *client.Client, flags runFlags) *runFollower {
	return &runFollower{p: p, client: c, flags: flags, out: newScreen(p.stdout)}
}

// begin prepares for a user who stops or leaves. The returned function ends it.
func (f *runFollower) begin(ctx context.Context) func(*error) {
	following, cancel := context.WithCancel(context.WithoutCancel(ctx))
	left := make(chan struct{})
	f.ctx, f.stopping, f.left = following, ctx.Done(), left
	go func() {
		select {
		case <-f.p.again:
			close(left)
			cancel()
		case <-following.Done():
		}
	}()
	return func(err *error) {
		select {
		case <-left:
			*err = f.leave()
		default:
		}
		f.out.live("")
		cancel()
	}
}

// leave says how to come back.
func (f *runFollower) leave() error {
	text := "left"
	switch {
	case f.conversation != "":
		text = "the conversation goes on: bivouac conversations attach " + f.conversation
	case f.reached:
		text = "the start goes on: bivouac conversations list"
	}
	f.out.live("")
	fmt.Fprintln(f.p.stderr, text)
	return exitStatus(exitInterrupted)
}

// say prints what is no event: to people on stdout, beside --json on stderr.
func (f *runFollower) say(text string) {
	if f.flags.api.asJSON {
		fmt.Fprintln(f.p.stderr, printableText(text))
		return
	}
	f.out.print(text)
}

// note says what is waited for: as the live line, or as a line on stderr.
func (f *runFollower) note(text string) {
	if f.out.width() > 0 && !f.flags.api.asJSON {
		f.out.live(text)
		return
	}
	fmt.Fprintln(f.p.stderr, printableText(text))
}

// patience is how long and how often nodes are asked again.
func (f *runFollower) patience() []backoff.RetryOption {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = 200*time.Millisecond, 3*time.Second
	most := outageTime
	if !f.reached {
		most = firstTime
	}
	told := false
	return []backoff.RetryOption{
		backoff.WithBackOff(b), backoff.WithMaxElapsedTime(most),
		backoff.WithNotify(func(error, time.Duration) {
			if !told {
				f.note("no node can do it now; asking again")
			}
			told = true
		}),
	}
}

// agent is a path of the agent server of the conversation's sandbox.
func (f *runFollower) agent(path string) string {
	return agentPath(f.sandbox, path)
}

// agentPath is a path of a sandbox's agent server, through any node.
func agentPath(sandbox, path string) string {
	return "/sandboxes/" + url.PathEscape(sandbox) + "/AGENT_SERVER" + path
}

// of is a path of the conversation on its agent server.
func (f *runFollower) of(path string) string {
	return f.agent("/api/conversations/" + url.PathEscape(f.conversation) + path)
}

// follow shows what comes after a mark, asks where the agent asks, and returns how the run ended.
func (f *runFollower) follow(from mark) error {
	f.since = time.Now()
	arrivals := make(chan arrival)
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	s := &stream{
		f: f, from: from, out: arrivals, seen: map[string]bool{}, notes: make(chan string, 1), renew: make(chan struct{}, 1),
	}
	f.events = s
	go s.run(ctx)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		var err error
		select {
		case a := <-arrivals:
			if a.err != nil {
				return a.err
			}
			err = f.take(a)
		case text := <-s.notes:
			f.note(text)
		case <-f.stopping:
			f.stopping = nil
			f.interrupted = true
		case <-f.left:
			return f.ctx.Err()
		case line := <-f.lines:
			err = f.answer(line)
		case <-tick.C:
			f.draw()
		}
		if err == nil && f.interrupted && !f.shown.interrupting && f.status != "" {
			err = f.interrupt()
		}
		if err != nil {
			return err
		}
		if f.shown.current && f.over() {
			return f.conclude()
		}
	}
}

// take shows one event.
func (f *runFollower) take(a arrival) error {
	f.shown.current = a.current && a.socket > f.stale
	if a.event == nil {
		return f.confirm()
	}
	switch state, is := a.event.(*event.StateUpdate); {
	case f.flags.api.asJSON && is && state.Key == "full_state": // of each socket anew
	case f.flags.api.asJSON:
		line, err := printableJSON(a.raw)
		if err != nil {
			return fmt.Errorf("an event of the conversation: %w", err)
		}
		if _, err := f.p.stdout.Write(append(line, '\n')); err != nil {
			return fmt.Errorf("printing an event: %w", err)
		}
	default:
		if text := f.shown.text(a.event); text != "" {
			f.out.print(text)
		}
	}
	f.learn(a.event)
	if _, is := a.event.(*event.StreamingDelta); !is || time.Since(f.drawn) >= drawPause {
		f.draw()
	}
	return f.confirm()
}

// learn keeps of an event what decides how it goes on.
func (f *runFollower) learn(e event.Event) {
	list := make([]event.Event, 0, len(f.open)+1)
	for _, a := range f.open {
		list = append(list, a)
	}
	f.open = event.OpenActions(append(list, e))
	switch e := e.(type) {
	case *event.StateUpdate:
		var status string
		if e.Key == "execution_status" && json.Unmarshal(e.Value, &status) == nil {
			f.setStatus(status)
		}
	case *event.ConversationError:
		f.limited = e.Code == "MaxIterationsReached" || e.Classification.Kind == "quota"
	case *event.UserReject:
		f.rejected = f.rejected || e.RejectionSource != "hook"
	}
}

func (f *runFollower) setStatus(status string) {
	if status == statusRunning {
		f.began, f.limited, f.asked = true, false, ""
	}
	if f.status = status; status != statusWaiting && f.question != nil { // another has answered
		f.question = nil
		f.out.live("")
	}
	f.since = time.Now()
}

// over reports whether the run has ended.
func (f *runFollower) over() bool {
	switch f.status {
	case statusFinished, statusError, statusStuck, statusDeleting:
		return true
	case statusIdle, statusPaused:
		return f.began || !f.waits || f.interrupted
	}
	return false
}

// draw renews the live line.
func (f *runFollower) draw() {
	f.drawn = time.Now()
	switch {
	case f.flags.api.asJSON || f.question != nil:
	case f.status == statusRunning || f.status == "":
		f.out.live(fmt.Sprintf("%s %d s", f.shown.activity(), int(time.Since(f.since).Seconds())))
	default:
		f.out.live("")
	}
}

// interrupt breaks the run off, or rejects what waits for an answer.
func (f *runFollower) interrupt() error {
	f.shown.interrupting = true
	f.say("interrupting; Ctrl-C again leaves it running")
	if f.status == statusWaiting {
		return f.respond(false, "The user interrupted the run")
	}
	err := f.call(http.MethodPost, f.of("/interrupt"), nil, nil)
	var refused *client.Error
	if errors.As(err, &refused) {
		return fmt.Errorf("interrupting the run: %w", err)
	}
	return err
}

// confirm asks about actions that wait for it, once.
func (f *runFollower) confirm() error {
	if f.status != statusWaiting || !f.shown.current || f.question != nil || f.interrupted {
		return nil
	}
	id := cmp.Or(f.shown.call, "a call")
	if len(f.open) > 0 {
		id = f.open[0].ID
	}
	if id == f.asked {
		return nil
	}
	f.asked = id
	risk := ""
	for _, a := range f.open {
		if a.SecurityRisk != "" && a.SecurityRisk != "UNKNOWN" {
			risk = " (risk " + strings.ToLower(a.SecurityRisk) + ")"
		}
	}
	return f.ask("The agent asks before it does this"+risk+". Allow it? [y/N, or why not] ", f.respond)
}

// respond answers a confirmation. An answer of another client's came before where it is a conflict.
// An accept is sent once: what waits after a lost one may be an action that nobody has seen.
func (f *runFollower) respond(accept bool, reason string) error {
	body := map[string]any{"accept": accept}
	if !accept {
		f.rejected = true
		if reason != "" {
			body["reason"] = reason
		}
	}
	send := func() error {
		return f.client.Call(f.ctx, http.MethodPost, f.of("/events/respond_to_confirmation"), body, nil)
	}
	if !accept {
		again := send
		send = func() error { return f.repeat(again) }
	}
	err := send()
	var refused *client.Error
	switch {
	case errors.As(err, &refused) && refused.Status == http.StatusConflict:
		return nil
	case accept && err != nil && isOutage(err):
		f.lookAgain()
		return nil
	}
	return err
}

// lookAgain reads the events over a new socket, and asks then about what waits.
func (f *runFollower) lookAgain() {
	f.note("your answer may be lost; looking again")
	f.asked, f.shown.current, f.stale = "", false, f.events.sockets.Load()
	select {
	case f.events.renew <- struct{}{}:
	default:
	}
}

// ask asks the user, and answers by itself with --confirm and where nobody can be asked.
func (f *runFollower) ask(text string, answer func(accept bool, reason string) error) error {
	_, asks := isTerminal(f.p.stdin)
	switch {
	case f.flags.confirm == confirmAccept:
		f.say(strings.TrimSpace(text) + " accepted (--confirm)")
		return answer(true, "")
	case f.flags.confirm == confirmReject:
		f.say(strings.TrimSpace(text) + " rejected (--confirm)")
		return answer(false, "")
	case !asks:
		f.say(strings.TrimSpace(text) + " rejected: there is no terminal to ask at (--confirm accept allows it)")
		return answer(false, "Nobody could be asked")
	}
	if f.lines == nil {
		f.lines = f.p.typedLines()
	}
	f.question = &question{text: text, answer: answer}
	if f.out.width() > 0 {
		f.out.live(text)
	} else {
		fmt.Fprint(f.p.stderr, text)
	}
	return nil
}

// typedLines reads stdin.
func (p *program) typedLines() <-chan typed {
	lines := make(chan typed)
	go func() {
		s := bufio.NewScanner(p.stdin)
		for s.Scan() {
			lines <- typed{text: s.Text()}
		}
		lines <- typed{end: true}
	}()
	return lines
}

// answer takes what the user typed. What nobody has asked for answers nothing.
func (f *runFollower) answer(line typed) error {
	q := f.question
	if q == nil {
		return nil
	}
	f.question = nil
	f.out.entered()
	text := strings.TrimSpace(line.text)
	switch {
	case line.end:
		return q.answer(false, "Nobody answered")
	case slices.Contains([]string{"y", "yes"}, strings.ToLower(text)):
		return q.answer(true, "")
	case slices.Contains([]string{"", "n", "no"}, strings.ToLower(text)):
		return q.answer(false, "")
	}
	return q.answer(false, text)
}
