package native

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/hooks"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/mcp"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/skills"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/tools"
)

// Engine is the native agent of one conversation. It implements engine.Engine, Reader, Asker, Titler,
// Switcher, SecretsUpdater, HistoryCondenser, Prompter and Augmenter.
type Engine struct {
	conv      engine.Conversation
	log       *slog.Logger
	transport *http.Transport

	hooks      *hooks.Config // nil for none
	background sync.WaitGroup

	skillsOnce sync.Once
	skills     *skills.Catalog // see catalog

	mu      sync.Mutex // guards what follows
	setup   engine.Setup
	client  *client
	toolbox *toolbox // nil until the first step; it is replaced, never changed
	// connected is closed when the MCP servers are there or have failed; nil before the first step.
	connected chan struct{}
	closed    bool
	// shortened is the id of the batch up to which outputs are shown shortened, "" for none.
	shortened string
	lastRead  string // see LastRead

	// life ends with Close.
	life context.Context //nolint:containedctx // MCP servers outlive the step that starts them
	stop context.CancelFunc
}

// New returns the engine of a conversation. It starts nothing: tools start in the first step that
// needs them.
func New(setup engine.Setup, conv engine.Conversation) (*Engine, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	log := setup.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	configured, err := readHooks(setup.Agent.Hooks)
	if err != nil {
		return nil, err
	}
	e := &Engine{conv: conv, log: log, transport: transport, setup: setup, hooks: configured}
	e.life, e.stop = context.WithCancel(context.Background())
	e.client = newClient(setup.Agent.LLM, transport)
	e.client.queued = e.queued
	return e, nil
}

// model returns the client that the next call uses.
func (e *Engine) model() *client {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.client
}

// SwitchLLM implements engine.Switcher.
func (e *Engine) SwitchLLM(_ context.Context, llm engine.LLM) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	delay := e.client.firstDelay
	e.setup.Agent.LLM = llm
	e.client = newClient(llm, e.transport)
	e.client.firstDelay, e.client.queued = delay, e.queued
	return nil
}

// UpdateSecrets implements engine.SecretsUpdater: the secrets are added, or replace those of the
// same name.
func (e *Engine) UpdateSecrets(secrets map[string]engine.Secret) {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make(map[string]engine.Secret, len(e.setup.Secrets)+len(secrets))
	maps.Copy(all, e.setup.Secrets)
	maps.Copy(all, secrets)
	e.setup.Secrets = all
}

// secretValues are the secrets' values by name.
func (e *Engine) secretValues() map[string]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	values := make(map[string]string, len(e.setup.Secrets))
	for name, s := range e.setup.Secrets {
		values[name] = s.Value
	}
	return values
}

// Notify implements engine.Engine. The next step reads the message with the others.
func (e *Engine) Notify() {}

// Close implements engine.Engine.
func (e *Engine) Close() error {
	e.stop()
	e.mu.Lock()
	e.closed = true
	connected := e.connected
	e.mu.Unlock()
	if connected != nil {
		<-connected // its start ends with life
	}
	e.mu.Lock()
	box := e.toolbox
	e.toolbox = nil
	e.mu.Unlock()
	if box != nil {
		box.close()
	}
	e.background.Wait()
	e.transport.CloseIdleConnections()
	return nil
}

// Respond implements engine.Engine. No step of this engine waits for an answer.
func (e *Engine) Respond(accept bool, reason string) (bool, error) {
	if accept {
		return false, nil
	}
	events, err := e.conv.Events()
	if err != nil {
		return false, err
	}
	reason = cmp.Or(reason, "User rejected the action")
	var rejections []event.Event
	for _, a := range event.OpenActions(events) {
		rejections = append(rejections, &event.UserReject{
			Head:     event.Head{Source: event.SourceEnvironment},
			ToolName: a.ToolName, ToolCallID: a.ToolCallID, ActionID: a.ID, RejectionReason: reason, RejectionSource: "user",
		})
	}
	if len(rejections) == 0 {
		return false, nil
	}
	return false, e.conv.Append(rejections...)
}

// toolbox has the tools of a conversation and what was said of them.
type toolbox struct {
	tools        []tools.Tool
	instructions string // for the dynamic context
	closers      []func()
}

func (b *toolbox) close() {
	for _, f := range slices.Backward(b.closers) {
		f()
	}
}

// find returns the tool of a name, nil if there is none.
func (b *toolbox) find(name string) tools.Tool {
	for _, t := range b.tools {
		if t.Definition().Name == name {
			return t
		}
	}
	return nil
}

func (b *toolbox) names() []string {
	var names []string
	for _, t := range b.tools {
		names = append(names, t.Definition().Name)
	}
	return names
}

// open returns the conversation's tools. The first call opens them. It waits for those of MCP servers
// until ctx ends.
func (e *Engine) open(ctx context.Context) (*toolbox, error) {
	connected, err := e.openOwn()
	if err != nil {
		return nil, err
	}
	select {
	case <-connected:
	case <-ctx.Done():
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, errClosed()
	}
	return e.toolbox, nil
}

func errClosed() error {
	return &engine.Failure{Code: codeInternal, Detail: "The conversation is closed."}
}

// openOwn opens the engine's own tools and starts the MCP servers, once.
func (e *Engine) openOwn() (connected <-chan struct{}, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, errClosed()
	}
	if e.toolbox != nil {
		return e.connected, nil
	}
	set := tools.Open(tools.Config{
		WorkingDir: e.setup.WorkingDir, StateDir: e.setup.Dir, Environ: e.setup.Environ,
		Credential: e.setup.Credential, Secrets: e.secretValues,
	})
	box := &toolbox{closers: []func(){set.Close}}
	for _, t := range set.Tools() {
		if wants(e.setup.Agent.Tools, t.Definition()) {
			box.tools = append(box.tools, t)
		}
	}
	if t := e.catalog().Tool(func(s string) string { return tools.Mask(e.secretValues(), s) }); t != nil {
		box.tools = append(box.tools, t)
	}
	e.toolbox, e.connected = box, make(chan struct{})
	if len(e.setup.Agent.MCPConfig) == 0 {
		close(e.connected)
		return e.connected, nil
	}
	go e.connect(box.names(), e.connected)
	return e.connected, nil
}

// wants reports whether a conversation has one of the engine's own tools, by the names in its request.
func wants(names []string, d tools.Definition) bool {
	switch {
	case d.Name == tools.FinishName || d.Name == tools.ThinkName:
		return true
	case len(names) == 0:
		return !d.OnlyNamed
	}
	return slices.Contains(names, d.Name) || slices.Contains(names, d.Kind)
}

// connect starts the MCP servers and adds their tools.
func (e *Engine) connect(reserved []string, connected chan<- struct{}) {
	defer close(connected)
	s := mcp.Connect(e.life, e.setup.Agent.MCPConfig, mcp.Options{
		WorkingDir: e.setup.WorkingDir, Environ: e.setup.Environ, Credential: e.setup.Credential,
		Secrets: e.secretValues, Reserved: reserved, Logger: e.log,
	})
	e.mu.Lock()
	defer e.mu.Unlock()
	box := *e.toolbox
	box.tools = slices.Concat(box.tools, s.Tools())
	box.closers = append(slices.Clip(box.closers), s.Close)
	box.instructions = strings.TrimSpace(box.instructions + "\n\n" + missingServers(s.Failures()))
	e.toolbox = &box
}

// missingServers tells the model, and who reads its prompt, what MCP servers can't be used.
func missingServers(failures []mcp.Failure) string {
	if len(failures) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("<MCP_SERVERS>\nThese servers are configured and can't be used. Tell the user if the task needs them.")
	for _, f := range failures {
		b.WriteString("\n- " + cmp.Or(f.Server, "all") + ": " + f.Err.Error())
	}
	b.WriteString("\n</MCP_SERVERS>")
	return b.String()
}

// begin appends the SystemPromptEvent if the conversation has none.
func (e *Engine) begin(events []event.Event, box *toolbox) ([]event.Event, error) {
	for _, ev := range events {
		if _, is := ev.(*event.SystemPrompt); is {
			return events, nil
		}
	}
	if err := e.conv.Append(e.systemPrompt(box)); err != nil {
		return nil, err
	}
	return e.conv.Events()
}

// SystemPrompt implements engine.Prompter.
func (e *Engine) SystemPrompt(ctx context.Context) *event.SystemPrompt {
	box, err := e.open(ctx)
	if err != nil {
		box = &toolbox{}
	}
	return e.systemPrompt(box)
}

func (e *Engine) systemPrompt(box *toolbox) *event.SystemPrompt {
	e.mu.Lock()
	defer e.mu.Unlock()
	about := event.NewText(dynamicContext(e.setup, e.skillsPrompt()+"\n\n"+box.instructions))
	prompt := &event.SystemPrompt{
		Head:         event.Head{Source: event.SourceAgent},
		SystemPrompt: event.NewText(systemPrompt), DynamicContext: &about, Tools: []event.ToolDefinition{},
	}
	for _, t := range box.tools {
		prompt.Tools = append(prompt.Tools, t.Definition().Event())
	}
	return prompt
}

// flag reads a boolean of the state.
func (e *Engine) flag(key string, absent bool) bool {
	value := absent
	if raw := e.conv.State(key); len(raw) > 0 && json.Unmarshal(raw, &value) != nil {
		return absent
	}
	return value
}
