package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/tools"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// memory is a conversation in memory. It keeps events as their JSON, as the server does.
type memory struct {
	mu     sync.Mutex
	stored []json.RawMessage
	sent   []event.Event
	state  map[string]json.RawMessage
	n      int
}

func newMemory() *memory { return &memory{state: map[string]json.RawMessage{}} }

func (m *memory) Append(events ...event.Event) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range events {
		h := e.Envelope()
		m.n++
		if h.Source == "" {
			return fmt.Errorf("%T has no source", e)
		}
		h.Kind = event.KindOf(e)
		if h.ID == "" {
			h.ID = fmt.Sprintf("event-%d", m.n)
		}
		h.Timestamp = fmt.Sprintf("2026-01-01T00:00:00.%06d", m.n)
		raw, err := json.Marshal(e)
		if err != nil {
			return err
		}
		m.stored = append(m.stored, raw)
		if u, is := e.(*event.StateUpdate); is {
			m.state[u.Key] = u.Value
		}
	}
	return nil
}

func (m *memory) Send(e event.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sent = append(m.sent, e)
}

func (m *memory) Events() ([]event.Event, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]event.Event, len(m.stored))
	for i, raw := range m.stored {
		e, err := event.Decode(raw)
		if err != nil {
			return nil, err
		}
		list[i] = e
	}
	return list, nil
}

func (m *memory) State(key string) json.RawMessage {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state[key]
}

func (m *memory) set(t *testing.T, key string, value any) {
	t.Helper()
	if err := m.Append(engine.Update(key, value)); err != nil {
		t.Fatal(err)
	}
}

// rig is an engine on a conversation in memory, with a scripted model.
type rig struct {
	*Engine
	t      *testing.T
	memory *memory
	server *modeltest.Server
	setup  engine.Setup
}

type option func(*engine.Setup)

func newRig(t *testing.T, script *modeltest.Script, options ...option) *rig {
	t.Helper()
	s := modeltest.New(t, script)
	setup := engine.Setup{
		ID: "0123456789abcdef0123456789abcdef", Dir: t.TempDir(), WorkingDir: t.TempDir(),
		Agent: engine.Agent{
			Kind: "openhands",
			LLM:  engine.LLM{Model: "openai/scripted", APIKey: "sk-scripted", BaseURL: s.BaseURL()},
		},
	}
	for _, o := range options {
		o(&setup)
	}
	r := &rig{t: t, memory: newMemory(), server: s, setup: setup}
	r.restart()
	return r
}

// restart makes a new engine on the same conversation.
func (r *rig) restart() {
	r.t.Helper()
	if r.Engine != nil {
		r.Engine.Close()
	}
	e, err := New(r.setup, r.memory)
	if err != nil {
		r.t.Fatal(err)
	}
	e.client.firstDelay = time.Millisecond
	r.Engine = e
	r.t.Cleanup(func() { e.Close() })
}

// add adds tools of the test's own.
func (r *rig) add(more ...tools.Tool) {
	r.t.Helper()
	box, err := r.open(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	box.tools = append(box.tools, more...)
}

func (r *rig) say(text string) {
	r.t.Helper()
	if err := r.memory.Append(userMessage(event.SourceUser, text)); err != nil {
		r.t.Fatal(err)
	}
}

// run does steps as the server does, until the run ends.
func (r *rig) run(ctx context.Context) (engine.Outcome, error) {
	r.t.Helper()
	for range 60 {
		outcome, err := r.Step(ctx)
		if outcome != engine.Continue || err != nil {
			return outcome, err
		}
	}
	r.t.Fatal("60 steps and no end")
	return 0, nil
}

// ends runs and checks the outcome.
func (r *rig) ends(want engine.Outcome) {
	r.t.Helper()
	if got, err := r.run(r.t.Context()); got != want || err != nil {
		r.t.Fatalf("the run ends with %d, %v; want %d\n%s", got, err, want, strings.Join(r.story(), "\n"))
	}
}

// fails runs and checks the failure's code.
func (r *rig) fails(code string) *engine.Failure {
	r.t.Helper()
	_, err := r.run(r.t.Context())
	var f *engine.Failure
	if !errors.As(err, &f) || f.Code != code {
		r.t.Fatalf("the run fails with %v, want %s\n%s", err, code, strings.Join(r.story(), "\n"))
	}
	if event.Classify(f.Code).Kind == "unknown" {
		r.t.Errorf("the code %s is not classified", f.Code)
	}
	return f
}

func (r *rig) events() []event.Event {
	r.t.Helper()
	events, err := r.memory.Events()
	if err != nil {
		r.t.Fatal(err)
	}
	return events
}

// story is the stored events in short, without state updates.
func (r *rig) story() []string {
	r.t.Helper()
	var list []string
	for _, e := range r.events() {
		switch e := e.(type) {
		case *event.SystemPrompt:
			list = append(list, "system")
		case *event.Message:
			list = append(list, e.Source+": "+e.LLMMessage.Text())
		case *event.Action:
			valid := ""
			if !e.Valid() {
				valid = " null"
			}
			list = append(list, "call "+e.ToolName+valid)
		case *event.Observation:
			list = append(list, "result "+e.ToolName+": "+strings.TrimSpace(observed(e)))
		case *event.UserReject:
			list = append(list, "rejected "+e.ToolName+": "+e.RejectionReason)
		case *event.AgentError:
			list = append(list, "error "+e.ToolName)
		case *event.Condensation:
			list = append(list, fmt.Sprintf("condensation of %d", len(e.ForgottenEventIDs)))
		case *event.CondensationRequest:
			list = append(list, "condensation request")
		}
	}
	return list
}

func observed(o *event.Observation) string {
	text, _ := split(tools.ForModel(o.Observation))
	return text
}

func (r *rig) tells(want ...string) {
	r.t.Helper()
	if got := r.story(); !slices.Equal(got, want) {
		r.t.Errorf("the story is\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// all reads events of one type.
func all[T event.Event](r *rig) []T {
	r.t.Helper()
	var list []T
	for _, e := range r.events() {
		if e, is := e.(T); is {
			list = append(list, e)
		}
	}
	return list
}

// probe is a tool of tests: echo answers with its text, and hangs while its gate is not open.
type probe struct {
	name string
	gate chan struct{} // nil is open
	mu   *sync.Mutex
	runs *[]string
}

func newProbe(name string) *probe { return &probe{name: name, mu: &sync.Mutex{}, runs: &[]string{}} }

func (p *probe) Definition() tools.Definition {
	return tools.Definition{
		Name: p.name, Kind: "ProbeTool", ActionType: "ProbeAction", ObservationType: "ProbeObservation",
		Parameters: json.RawMessage(`{"type":"object","properties":{"text":{"type":"string"}}}`),
	}
}

func (p *probe) Parse(arguments string) (tools.Call, error) {
	var a struct {
		Text *string `json:"text"`
		Risk string  `json:"security_risk"`
	}
	if err := json.Unmarshal([]byte(arguments), &a); err != nil || a.Text == nil {
		return tools.Call{}, fmt.Errorf("%s needs the text", p.name)
	}
	action, err := json.Marshal(map[string]string{"kind": "ProbeAction", "text": *a.Text})
	return tools.Call{Action: action, SecurityRisk: a.Risk}, err
}

func (p *probe) Run(ctx context.Context, action json.RawMessage) tools.Observation {
	var a struct{ Text string }
	if err := json.Unmarshal(action, &a); err != nil {
		panic(err)
	}
	p.mu.Lock()
	*p.runs = append(*p.runs, a.Text)
	p.mu.Unlock()
	if p.gate != nil {
		select {
		case <-p.gate:
		case <-ctx.Done():
		}
	}
	return tools.Observation{Kind: "ProbeObservation", Content: []event.Content{event.TextContent("echo " + a.Text)}}
}

func echo(text string) modeltest.Call { return modeltest.Tool("echo", map[string]string{"text": text}) }

func risky(text, risk string) modeltest.Call {
	return modeltest.Tool("echo", map[string]string{"text": text, "security_risk": risk})
}

func finishing(message string) modeltest.Call {
	return modeltest.Tool("finish", map[string]string{"message": message})
}

func mustDecode(t *testing.T, raw json.RawMessage, into any) {
	t.Helper()
	if err := json.Unmarshal(raw, into); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
}
