package acp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	sdk "github.com/coder/acp-go-sdk"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
)

// The codes of failures (PROTOCOL.md, "Runs").
const (
	codeAuth    = "ACPAuthRequired"
	codeStartup = "ACPStartupTimeout"
	codeSpawn   = "ACPSpawnError"
	codeInit    = "ACPInitError"
	codePrompt  = "ACPPromptError"
	codeRefusal = "UsagePolicyRefusal"
)

// rpcAuthRequired and rpcInternal are error codes of the protocol.
const (
	rpcAuthRequired = -32000
	rpcInternal     = -32603
)

// state is what the conversation keeps of its agent, in agent_state.
type state struct {
	SessionID    string  `json:"acp_session_id,omitempty"`
	Cwd          string  `json:"acp_session_cwd,omitempty"`
	AgentName    string  `json:"acp_agent_name,omitempty"`
	AgentVersion string  `json:"acp_agent_version,omitempty"`
	CurrentModel string  `json:"acp_current_model_id,omitempty"`
	Models       []model `json:"acp_available_models,omitempty"`
	SwitchModel  bool    `json:"acp_supports_runtime_model_switch"`
	Suffix       bool    `json:"acp_suffix_installed"`
	// Server is the agent that the session is of.
	Server string `json:"acp_server,omitempty"`
	// Prompted is the last message of the user that the session was given.
	Prompted string `json:"acp_prompted_message_id,omitempty"`
}

// model is a model that an agent offers.
type model struct {
	ID   string `json:"model_id"`
	Name string `json:"name"`
}

// session is a running agent with an open session.
type session struct {
	process *process
	conn    *sdk.Connection
	id      sdk.SessionId
	// commandKey tells whether the process is still the one that the settings ask for.
	commandKey string
	// loaded reports that the agent knows the conversation so far.
	loaded bool
	images bool
	// modelOption is the config option that chooses the model; empty if there is none.
	modelOption string
	info        state
	mcp         sdk.McpCapabilities
	// cost is what the session has cost so far, as the agent tells it.
	cost float64
	// late is set after a cancelled turn, until the next prompt.
	late bool

	mu sync.Mutex
	// turn takes the updates; nil between turns.
	turn *turn
	// broken is why the reading of the agent ended, if it was not its end.
	broken error
}

// open starts an agent and opens its session: the former one, if the agent can load it.
func (e *Engine) open(ctx context.Context, c command, authMethod, mode string, before state) (*session, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, e.startupTimeout(), errStartup)
	defer cancel()
	p, err := start(c, e.setup.WorkingDir, e.setup.Credential)
	if err != nil {
		return nil, &engine.Failure{
			Code: codeSpawn,
			Detail: "The agent could not be started: " + err.Error() + ". Install it in the sandbox's " +
				"image, or choose another agent.",
			Source: "agent",
		}
	}
	s := &session{process: p, commandKey: c.key()}
	reader := newLineReader(p.stdout, s.update, func(line []byte) {
		e.setup.Logger.Debug("the agent wrote a line that is no message", "bytes", len(line))
	})
	s.conn = sdk.NewConnection(s.handle, p.stdin, brokenReader{reader, s})
	s.conn.SetLogger(slog.New(slog.DiscardHandler))
	if err := e.introduce(ctx, s, authMethod, mode, before); err != nil {
		err = e.startFailure(ctx, s, err)
		s.close()
		return nil, err
	}
	return s, nil
}

var errStartup = errors.New("the agent did not open a session in time")

// brokenReader notes why the reading ended.
type brokenReader struct {
	io.Reader
	s *session
}

// Read implements io.Reader.
func (b brokenReader) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if errors.Is(err, errLine) {
		b.s.mu.Lock()
		b.s.broken = err
		b.s.mu.Unlock()
	}
	return n, err
}

// introduce initializes, authenticates, loads or makes the session, and sets its mode and model.
func (e *Engine) introduce(ctx context.Context, s *session, authMethod, mode string, before state) error {
	hello, err := request[sdk.InitializeResponse](ctx, s, sdk.AgentMethodInitialize, sdk.InitializeRequest{
		ProtocolVersion: sdk.ProtocolVersionNumber, ClientInfo: &sdk.Implementation{Name: "bivouac", Version: "1"},
	})
	if err != nil {
		return fmt.Errorf("initialize: %w", err)
	}
	if hello.ProtocolVersion != sdk.ProtocolVersionNumber {
		return fmt.Errorf("initialize: the agent speaks version %d of the protocol, not %d", hello.ProtocolVersion,
			sdk.ProtocolVersionNumber)
	}
	s.images, s.mcp = hello.AgentCapabilities.PromptCapabilities.Image, hello.AgentCapabilities.McpCapabilities
	s.info = state{Cwd: e.setup.WorkingDir, Server: e.setup.Agent.ACP.Server}
	if i := hello.AgentInfo; i != nil {
		s.info.AgentName, s.info.AgentVersion = i.Name, i.Version
	}
	if authMethod != "" && slices.ContainsFunc(hello.AuthMethods,
		func(m sdk.AuthMethod) bool { return authID(m) == authMethod }) {
		if _, err := request[json.RawMessage](ctx, s, sdk.AgentMethodAuthenticate,
			sdk.AuthenticateRequest{MethodId: authMethod}); err != nil {
			return fmt.Errorf("authenticate with %s: %w", authMethod, err)
		}
	}
	servers, err := mcpServers(e.setup.Agent.MCPConfig, s.mcp)
	if err != nil {
		return err
	}
	opened, err := e.loadOrNew(ctx, s, servers, hello.AgentCapabilities.LoadSession, before)
	if err != nil {
		return err
	}
	if err := s.setMode(ctx, mode, opened); err != nil {
		return err
	}
	return e.setModel(ctx, s, opened)
}

func authID(m sdk.AuthMethod) string {
	switch {
	case m.Agent != nil:
		return m.Agent.Id
	case m.EnvVar != nil:
		return m.EnvVar.Id
	case m.Terminal != nil:
		return m.Terminal.Id
	}
	return ""
}

// opened is what a new or loaded session says of itself. Unknown kinds of options are left out.
type opened struct {
	SessionID string `json:"sessionId"`
	Modes     struct {
		Current   string `json:"currentModeId"`
		Available []struct {
			ID string `json:"id"`
		} `json:"availableModes"`
	} `json:"modes"`
	Models struct {
		Current   string `json:"currentModelId"`
		Available []struct {
			ID   string `json:"modelId"`
			Name string `json:"name"`
		} `json:"availableModels"`
	} `json:"models"`
	Options []struct {
		ID       string          `json:"id"`
		Category string          `json:"category"`
		Type     string          `json:"type"`
		Current  json.RawMessage `json:"currentValue"`
		Options  []struct {
			Value string `json:"value"`
			Name  string `json:"name"`
		} `json:"options"`
	} `json:"configOptions"`
}

// loadOrNew loads the former session. If the agent can't, it makes a new one.
func (e *Engine) loadOrNew(
	ctx context.Context,
	s *session,
	servers []sdk.McpServer,
	canLoad bool,
	before state,
) (opened, error) {
	id := before.SessionID
	if id == "" {
		id = e.setup.Agent.ACP.ResumeSessionID
	} else if before.Cwd != s.info.Cwd || before.Server != s.info.Server {
		id = ""
	}
	if id != "" && canLoad {
		s.id = sdk.SessionId(id)
		o, err := request[opened](ctx, s, sdk.AgentMethodSessionLoad,
			sdk.LoadSessionRequest{Cwd: s.info.Cwd, McpServers: servers, SessionId: s.id})
		if err == nil {
			s.loaded, s.info.SessionID, s.info.Suffix, s.info.Prompted = true, id, before.Suffix, before.Prompted
			return o, nil
		}
		var rpc *sdk.RequestError
		if !errors.As(err, &rpc) || rpc.Code == rpcAuthRequired || ctx.Err() != nil || s.ended() {
			return opened{}, fmt.Errorf("session/load: %w", err)
		}
		e.setup.Logger.Info("the agent can't load its session; it gets the history", "conversation", e.setup.ID, "error",
			rpc.Message)
	}
	o, err := request[opened](ctx, s, sdk.AgentMethodSessionNew,
		sdk.NewSessionRequest{Cwd: s.info.Cwd, McpServers: servers})
	if err != nil {
		return opened{}, fmt.Errorf("session/new: %w", err)
	}
	if o.SessionID == "" {
		return opened{}, errors.New("session/new: the agent named no session")
	}
	s.id, s.info.SessionID, s.info.Prompted = sdk.SessionId(o.SessionID), o.SessionID, before.Prompted
	return o, nil
}

// setMode sets the session's mode, where the agent offers it. Agents offer modes as such or as a
// config option.
func (s *session) setMode(ctx context.Context, mode string, o opened) error {
	if mode == "" || mode == o.Modes.Current {
		return nil
	}
	for _, m := range o.Modes.Available {
		if m.ID == mode {
			_, err := request[json.RawMessage](ctx, s, sdk.AgentMethodSessionSetMode,
				sdk.SetSessionModeRequest{SessionId: s.id, ModeId: sdk.SessionModeId(mode)})
			if err != nil {
				return fmt.Errorf("setting the mode %s: %w", mode, err)
			}
			return nil
		}
	}
	for _, option := range o.Options {
		if option.Category != "mode" {
			continue
		}
		for _, v := range option.Options {
			if v.Value == mode {
				return s.setOption(ctx, option.ID, mode)
			}
		}
	}
	return nil // an agent without the mode keeps its own
}

func (s *session) setOption(ctx context.Context, id, value string) error {
	_, err := request[json.RawMessage](ctx, s, sdk.AgentMethodSessionSetConfigOption, sdk.SetSessionConfigOptionValueId{
		SessionId: s.id, ConfigId: sdk.SessionConfigId(id), Value: sdk.SessionConfigValueId(value)})
	if err != nil {
		return fmt.Errorf("setting %s to %s: %w", id, value, err)
	}
	return nil
}

// setModel notes the models that the agent offers, and sets the one that acp_model asks for.
func (e *Engine) setModel(ctx context.Context, s *session, o opened) error {
	for _, option := range o.Options {
		if option.Type != "select" || option.ID != "model" && option.Category != "model" {
			continue
		}
		s.modelOption = option.ID
		_ = json.Unmarshal(option.Current, &s.info.CurrentModel) // an option of another type has none
		for _, v := range option.Options {
			s.info.Models = append(s.info.Models, model{v.Value, v.Name})
		}
	}
	if s.modelOption == "" {
		s.info.CurrentModel = o.Models.Current
		for _, m := range o.Models.Available {
			s.info.Models = append(s.info.Models, model{m.ID, m.Name})
		}
	}
	s.info.SwitchModel = len(s.info.Models) > 0
	if want := e.wantedModel(); want != "" {
		return s.switchModel(ctx, want)
	}
	return nil
}

// switchModel chooses one of the agent's models, by its id or by the id without a provider.
func (s *session) switchModel(ctx context.Context, want string) error {
	i := slices.IndexFunc(s.info.Models, func(m model) bool { return m.ID == want })
	if i < 0 {
		i = slices.IndexFunc(s.info.Models, func(m model) bool { return strings.HasSuffix(m.ID, "/"+want) })
	}
	if i >= 0 {
		want = s.info.Models[i].ID
	}
	// The agent's list may lack a model that it can use all the same: the agent refuses by itself.
	if want == s.info.CurrentModel {
		return nil
	}
	if s.modelOption != "" {
		if err := s.setOption(ctx, s.modelOption, want); err != nil {
			return err
		}
	} else {
		_, err := request[json.RawMessage](ctx, s, sdk.AgentMethodSessionSetModel,
			sdk.UnstableSetSessionModelRequest{SessionId: s.id, ModelId: sdk.UnstableModelId(want)})
		if err != nil {
			return fmt.Errorf("setting the model %s: %w", want, err)
		}
	}
	s.info.CurrentModel = want
	return nil
}

// request sends one request and waits for its answer. It prefers ctx's cause to the SDK's error.
func request[T any](ctx context.Context, s *session, method string, params any) (T, error) {
	v, err := sdk.SendRequest[T](s.conn, ctx, method, params)
	if err != nil && ctx.Err() != nil {
		return v, context.Cause(ctx)
	}
	return v, err
}

// ended reports whether the agent can no longer be asked.
func (s *session) ended() bool {
	select {
	case <-s.conn.Done():
		return true
	case <-s.process.exited:
		return true
	default:
		return false
	}
}

// startFailure makes the failure of an agent that did not open a session.
func (e *Engine) startFailure(ctx context.Context, s *session, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, errStartup) {
		return cause
	}
	f := &engine.Failure{Code: codeInit, Source: "agent"}
	var rpc *sdk.RequestError
	switch {
	case errors.Is(err, errStartup):
		f.Code = codeStartup
		f.Detail = fmt.Sprintf("The agent did not open a session within %s.", e.startupTimeout())
	case s.ended():
		f.Detail = "The agent ended before it opened a session" + s.reason() + "."
	case errors.As(err, &rpc) && rpc.Code == rpcAuthRequired:
		f.Code = codeAuth
		f.Detail = "The agent asks for a login: set a model key in the settings, or choose another agent."
	default:
		f.Detail = "The agent could not be set up: " + err.Error()
	}
	f.Detail = e.masked(f.Detail + s.said())
	return f
}

// reason says how the agent ended. It waits a moment, as the connection ends before the process.
func (s *session) reason() string {
	s.mu.Lock()
	broken := s.broken
	s.mu.Unlock()
	if broken != nil {
		return ": " + broken.Error()
	}
	t := time.NewTimer(stopWait)
	defer t.Stop()
	select {
	case <-s.process.exited:
		if err := s.process.err; err != nil {
			return " (" + err.Error() + ")"
		}
		return " (it exited with 0)"
	case <-t.C:
		return " (it closed its output)"
	}
}

// said returns the end of what the agent wrote to stderr.
func (s *session) said() string {
	text := s.process.stderr.String()
	if text == "" {
		return ""
	}
	if lines := strings.Split(text, "\n"); len(lines) > 5 {
		text = strings.Join(lines[len(lines)-5:], "\n")
	}
	return "\nIts last words: " + text
}

// close ends the agent.
func (s *session) close() { s.process.stop() }

// mcpServers returns the conversation's MCP servers in the form of the protocol. One of a kind that
// the agent does not speak is an error.
func mcpServers(config json.RawMessage, can sdk.McpCapabilities) ([]sdk.McpServer, error) {
	type server struct {
		Command   string            `json:"command"`
		Args      []string          `json:"args"`
		Env       map[string]string `json:"env"`
		URL       string            `json:"url"`
		Type      string            `json:"type"`
		Transport string            `json:"transport"`
		Headers   map[string]string `json:"headers"`
		Disabled  bool              `json:"disabled"`
	}
	var c struct {
		Servers map[string]server `json:"mcpServers"`
	}
	out := []sdk.McpServer{}
	if len(config) == 0 || string(config) == "null" {
		return out, nil
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, fmt.Errorf("mcp_config: %w", err)
	}
	for _, name := range sortedKeys(c.Servers) {
		m := c.Servers[name]
		kind := cmp.Or(m.Transport, m.Type)
		switch {
		case m.Disabled:
		case m.Command != "":
			stdio := &sdk.McpServerStdio{
				Name:    name,
				Command: m.Command,
				Args:    append([]string{}, m.Args...),
				Env:     []sdk.EnvVariable{},
			}
			for _, k := range sortedKeys(m.Env) {
				stdio.Env = append(stdio.Env, sdk.EnvVariable{Name: k, Value: m.Env[k]})
			}
			out = append(out, sdk.McpServer{Stdio: stdio})
		case kind == "sse" && can.Sse:
			out = append(out,
				sdk.McpServer{Sse: &sdk.McpServerSseInline{Name: name, Url: m.URL, Type: "sse", Headers: headers(m.Headers)}})
		case kind != "sse" && m.URL != "" && can.Http:
			out = append(out,
				sdk.McpServer{Http: &sdk.McpServerHttpInline{Name: name, Url: m.URL, Type: "http", Headers: headers(m.Headers)}})
		default:
			return nil, fmt.Errorf("mcp_config: the agent can't use the server %q: it speaks stdio%s", name, spoken(can))
		}
	}
	return out, nil
}

func spoken(can sdk.McpCapabilities) string {
	text := ""
	if can.Http {
		text += ", http"
	}
	if can.Sse {
		text += ", sse"
	}
	return text + " only"
}

func headers(m map[string]string) []sdk.HttpHeader {
	out := []sdk.HttpHeader{}
	for _, k := range sortedKeys(m) {
		out = append(out, sdk.HttpHeader{Name: k, Value: m[k]})
	}
	return out
}
