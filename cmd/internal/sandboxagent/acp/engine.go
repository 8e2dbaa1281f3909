package acp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	sdk "github.com/coder/acp-go-sdk"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

const (
	defaultPromptTimeout  = 1800 * time.Second
	defaultStartupTimeout = 90 * time.Second
	systemPrompt          = "The agent has a system prompt of its own, which it does not show."
	noResponse            = "(No response from ACP server)"
)

// Engine runs one conversation's agent over ACP. A Step is one whole turn, or a part of it up to a
// question. It implements engine.Engine, Reader, Switcher and SecretsUpdater.
type Engine struct {
	conversation engine.Conversation
	preset       Preset
	// retries are the pauses before a turn is tried again.
	retries   []time.Duration
	drainWait time.Duration

	// notified has a message of the user that came during a Step.
	notified chan struct{}
	// grants are calls that the user has accepted and whose agent is gone. Only Step uses it.
	grants []*event.ACPToolCall

	mu    sync.Mutex
	setup engine.Setup
	// session is the agent in use, nil without one.
	session *session
	closed  bool
	// asks is a turn in which the agent waits for the user, nil without one.
	asks *carried
	// prompted is the last message of the user that the agent was given.
	prompted string
	mask     *strings.Replacer
}

// New returns the engine of a conversation. The agent is started by the first Step.
func New(setup engine.Setup, conversation engine.Conversation) (*Engine, error) {
	acp := setup.Agent.ACP
	preset, known := PresetByID(acp.Server)
	if !known && len(acp.Command) == 0 {
		return nil, &engine.Failure{Code: codeInit, Source: event.SourceAgent, Detail: fmt.Sprintf(
			"acp_server %q is not one of the agents with a known command line: set acp_command, or choose another agent.",
			acp.Server)}
	}
	e := &Engine{
		setup: setup, conversation: conversation,
		preset:  preset.merged(acp.Command, acp.Args, acp.Env, acp.SessionMode),
		retries: []time.Duration{5 * time.Second, 15 * time.Second, 30 * time.Second}, drainWait: drainWait,
		notified: make(chan struct{}, 1),
	}
	e.setMask()
	return e, nil
}

// Step implements engine.Engine: it gives the agent the messages that have no answer, and stores
// the answer. After a question it goes on with the same turn.
func (e *Engine) Step(ctx context.Context) (engine.Outcome, error) {
	p, err := e.answered()
	if err != nil {
		return 0, err
	}
	for attempt := 0; ; {
		if p == nil {
			if p, err = e.begin(ctx); err != nil || p == nil {
				return engine.Finished, err
			}
		}
		s, t := p.session, p.turn
		answer, err := e.carry(ctx, p)
		p = nil
		switch {
		case err == nil:
			return e.finish(s, t, answer)
		case errors.Is(err, errAsks):
			return engine.Waiting, nil
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case errors.Is(err, errNewMessage):
			e.grants = nil
			continue
		case !retryable(s, err) || attempt == len(e.retries):
			return 0, e.broken(e.failed(s, err))
		}
		e.setup.Logger.Warn("the agent's turn failed and is tried again", "conversation", e.setup.ID,
			"reason", e.failed(s, err).Detail, "retry_in", e.retries[attempt])
		select {
		case <-time.After(e.retries[attempt]):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		attempt++
	}
}

// begin sends the agent the messages that have no answer; nil if there are none.
func (e *Engine) begin(ctx context.Context) (*carried, error) {
	select {
	case <-e.notified: // the prompt has the message
	default:
	}
	s, err := e.ready(ctx)
	if err != nil {
		return nil, err
	}
	events, err := e.conversation.Events()
	if err != nil {
		return nil, err
	}
	note, err := e.accept(s, events)
	if err != nil {
		return nil, err
	}
	blocks := e.promptOf(s, events, note)
	if len(blocks) == 0 {
		return nil, nil
	}
	if err := e.remember(s, events); err != nil {
		return nil, err
	}
	p := e.prompt(ctx, s, blocks)
	s.loaded = true // it was told the history, if it did not know it
	return p, nil
}

// retryable reports whether a turn may succeed when it is tried again: the agent is gone, or had an
// internal error, which agents also answer when the model can't be reached.
func retryable(s *session, err error) bool {
	var rpc *sdk.RequestError
	return !errors.Is(err, errIdle) && (s.ended() || errors.As(err, &rpc) && rpc.Code == rpcInternal)
}

// ready returns a session of the agent that the settings ask for now.
func (e *Engine) ready(ctx context.Context) (*session, error) {
	v := values{llm: e.llm(), named: e.named(), dataDir: e.dataDir(), ask: e.mayAsk()}
	c, err := v.command(e.preset, e.environ())
	if err != nil {
		return nil, e.initFailure(err)
	}
	mode, err := v.expand(e.preset.SessionMode)
	if err != nil {
		return nil, e.initFailure(err)
	}
	e.mu.Lock()
	s := e.session
	e.mu.Unlock()
	if s != nil && s.commandKey == c.key() && !s.ended() {
		if want := e.wantedModel(); want != "" {
			if err := s.switchModel(ctx, want); err != nil {
				return nil, e.initFailure(err)
			}
		}
		return s, nil
	}
	e.use(nil)
	if err := e.makeDataDir(); err != nil {
		return nil, e.initFailure(err)
	}
	var before state
	_ = json.Unmarshal(e.conversation.State(engine.KeyAgentState), &before) // none is no session
	s, err = e.open(ctx, c, e.preset.AuthMethod, mode, before)
	if err != nil {
		return nil, err
	}
	e.use(s)
	return s, nil
}

func (e *Engine) initFailure(err error) error {
	return &engine.Failure{
		Code:   codeInit,
		Source: event.SourceAgent,
		Detail: e.masked("The agent could not be set up: " + err.Error()),
	}
}

// remember stores what the agent is given, before it is: after a crash the next prompt says that
// the turn was broken off.
func (e *Engine) remember(s *session, events []event.Event) error {
	open := unanswered(events, s.info.Prompted)
	before := s.info
	s.info.Prompted, s.info.Suffix = open[len(open)-1].ID, s.info.Suffix || e.setup.Agent.Suffix != ""
	e.mu.Lock()
	e.prompted = s.info.Prompted
	e.mu.Unlock()
	var list []event.Event
	if !slices.ContainsFunc(events, func(ev event.Event) bool { _, ok := ev.(*event.SystemPrompt); return ok }) {
		list = append(list, e.SystemPrompt(context.Background()))
	}
	if now, err := json.Marshal(s.info); err != nil || !sameState(now, e.conversation.State(engine.KeyAgentState)) ||
		before.Prompted != s.info.Prompted {
		list = append(list, engine.Update(engine.KeyAgentState, s.info))
	}
	if len(list) == 0 {
		return nil
	}
	return e.conversation.Append(list...)
}

func sameState(now, stored json.RawMessage) bool {
	var a, b state
	if json.Unmarshal(now, &a) != nil || json.Unmarshal(stored, &b) != nil {
		return false
	}
	models := slices.Equal(a.Models, b.Models)
	a.Models, b.Models = nil, nil
	return models && a.SessionID == b.SessionID && a.Prompted == b.Prompted && a.CurrentModel == b.CurrentModel &&
		a.Suffix == b.Suffix
}

// SystemPrompt implements engine.Prompter.
func (e *Engine) SystemPrompt(context.Context) *event.SystemPrompt {
	return &event.SystemPrompt{Head: event.Head{Source: event.SourceAgent},
		SystemPrompt: event.NewText(systemPrompt), Tools: []event.ToolDefinition{}}
}

// Notify implements engine.Engine.
func (e *Engine) Notify() {
	select {
	case e.notified <- struct{}{}:
	default:
	}
}

// Close implements engine.Engine.
func (e *Engine) Close() error {
	e.mu.Lock()
	e.closed = true
	p := e.asks
	e.asks = nil
	e.mu.Unlock()
	if p != nil {
		close(p.turn.over) // its call stays pending: the next process asks for it again
	}
	e.use(nil)
	return nil
}

// use makes s the session in use, and ends the one before.
func (e *Engine) use(s *session) {
	e.mu.Lock()
	if e.closed && s != nil {
		e.mu.Unlock()
		s.close()
		return
	}
	before := e.session
	e.session = s
	e.mu.Unlock()
	if before != nil {
		before.close()
	}
}

// SwitchLLM implements engine.Switcher. An agent that gets its model by its command line is started
// again by the next Step, and loads its session.
func (e *Engine) SwitchLLM(_ context.Context, llm engine.LLM) error {
	e.mu.Lock()
	e.setup.Agent.LLM, e.setup.Agent.ACP.Model = llm, ""
	e.mu.Unlock()
	e.setMask()
	return nil
}

// SwitchModel chooses another of the agent's models, from the next Step on.
func (e *Engine) SwitchModel(_ context.Context, model string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.setup.Agent.ACP.Model = model
	return nil
}

// UpdateSecrets implements engine.SecretsUpdater. The agent gets them when it is started again, by
// the next Step.
func (e *Engine) UpdateSecrets(secrets map[string]engine.Secret) {
	e.mu.Lock()
	all := maps.Clone(e.setup.Secrets)
	if all == nil {
		all = map[string]engine.Secret{}
	}
	maps.Copy(all, secrets)
	e.setup.Secrets = all
	e.mu.Unlock()
	e.setMask()
}

// setMask makes the replacer of what no event shows.
func (e *Engine) setMask() {
	e.mu.Lock()
	defer e.mu.Unlock()
	var pairs []string
	list := []string{e.setup.Agent.LLM.APIKey}
	for _, s := range e.setup.Secrets {
		list = append(list, event.Hidden(s.Value)...)
	}
	// The longest first: one may begin with another.
	slices.SortFunc(list, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	for _, v := range list {
		if v != "" {
			pairs = append(pairs, v, "<secret-hidden>")
		}
	}
	e.mask = strings.NewReplacer(pairs...)
}

func (e *Engine) masked(s string) string {
	e.mu.Lock()
	m := e.mask
	e.mu.Unlock()
	return m.Replace(s)
}

// environ is the agent's environment without the preset's: the server's for agents, and all
// secrets of the conversation.
func (e *Engine) environ() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	env := slices.DeleteFunc(slices.Clone(e.setup.Environ), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		_, secret := e.setup.Secrets[name]
		return secret
	})
	for _, name := range sortedKeys(e.setup.Secrets) {
		env = append(env, name+"="+e.setup.Secrets[name].Value)
	}
	return env
}

func (e *Engine) llm() engine.LLM {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.setup.Agent.LLM
	l.Model = preset.BareModel(cmp.Or(e.setup.Agent.ACP.Model, l.Model))
	return l
}

// named returns the model that tells the vendor of the key.
func (e *Engine) named() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.setup.Agent.LLM.Model
}

// wantedModel is the model to choose in the session: none where the command line names it.
func (e *Engine) wantedModel() string {
	if e.preset.namesModel() {
		return ""
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.setup.Agent.ACP.Model
}

// mayAsk reports whether the policy may ask the user. An agent tells no risk of its calls.
func (e *Engine) mayAsk() bool {
	var p engine.Policy
	if json.Unmarshal(e.conversation.State(engine.KeyConfirmationPolicy), &p) != nil {
		return false
	}
	switch p.Kind {
	case "AlwaysConfirm":
		return true
	case "ConfirmRisky":
		return p.ConfirmUnknown == nil || *p.ConfirmUnknown
	}
	return false
}

// dataDir is where the agent keeps its sessions. It is on the workspace, which outlives the
// sandbox's container.
func (e *Engine) dataDir() string {
	name := e.setup.Agent.ACP.Server
	if !filepath.IsLocal(name) || strings.ContainsRune(name, filepath.Separator) || name == "." {
		name = "custom"
	}
	return filepath.Join(e.setup.Dir, "acp", name)
}

func (e *Engine) makeDataDir() error {
	dir := e.dataDir()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the agent's directory: %w", err)
	}
	c := e.setup.Credential
	if c == nil {
		return nil
	}
	// The directories above are the server's: the agent may pass through them, and see nothing there.
	var errs []error
	for _, above := range []string{filepath.Dir(dir), e.setup.Dir, filepath.Dir(e.setup.Dir)} {
		errs = append(errs, os.Chmod(above, 0o711)) //nolint:gosec // only passage
	}
	if err := errors.Join(append(errs, os.Chown(dir, int(c.Uid), int(c.Gid)))...); err != nil {
		return fmt.Errorf("giving the agent its directory: %w", err)
	}
	return nil
}

func (e *Engine) promptTimeout() time.Duration {
	return seconds(e.setup.Agent.ACP.PromptTimeout, defaultPromptTimeout)
}

func (e *Engine) startupTimeout() time.Duration {
	return seconds(e.setup.Agent.ACP.StartupTimeout, defaultStartupTimeout)
}

func seconds(n float64, otherwise time.Duration) time.Duration {
	if n <= 0 {
		return otherwise
	}
	return time.Duration(n * float64(time.Second))
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
