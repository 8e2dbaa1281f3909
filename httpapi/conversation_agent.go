package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// agentCallTime bounds one call that is passed on to an agent server.
const agentCallTime = 20 * time.Second

// conversationRoutes are the routes that a conversation's agent server answers (API.md,
// "Conversations: of the agent server").
func conversationRoutes() []route {
	const get, post, of = http.MethodGet, http.MethodPost, pathConversations + "/:conversation_id"
	return []route{
		{name: "conversation.file", method: get, path: of + "/file", access: user, handle: (*Server).handleConversationFile},
		{name: "conversation.files", method: get, path: of + "/files", access: user,
			handle: (*Server).handleConversationFiles},
		{
			name:   "conversation.git_changes",
			method: get,
			path:   of + "/git/changes",
			access: user,
			handle: (*Server).handleGitChanges,
		},
		{name: "conversation.git_diff", method: get, path: of + "/git/diff", access: user, handle: (*Server).handleGitDiff},
		{name: "conversation.download", method: get, path: of + "/download", access: user, handle: (*Server).handleDownload},
		{
			name:   "conversation.skills",
			method: get,
			path:   of + "/skills",
			access: user,
			format: response.FormatError,
			handle: (*Server).handleSkills,
		},
		{
			name:   "conversation.hooks",
			method: get,
			path:   of + "/hooks",
			access: user,
			format: response.FormatError,
			handle: (*Server).handleHooks,
		},
		{
			name:   "conversation.pending_message",
			method: post,
			path:   pathPending,
			access: user,
			handle: (*Server).handlePendingMessage,
		},
		{
			name:   "conversation.switch_acp_model",
			method: post,
			path:   of + "/switch_acp_model",
			access: user,
			handle: (*Server).handleSwitchACPModel,
		},
		{
			name:   "conversation.switch_llm",
			method: post,
			path:   of + "/switch_llm",
			access: user,
			handle: (*Server).handleSwitchLLM,
		},
		{
			name:   "conversation.switch_profile",
			method: post,
			path:   of + "/switch_profile",
			access: user,
			handle: (*Server).handleSwitchProfile,
		},
	}
}

// conversationAgent is a conversation and, while its sandbox runs, its agent server.
type conversationAgent struct {
	server *Server
	row    *fsm.Conversation
	// sandbox is nil when it is gone. url and key are "" unless it serves.
	sandbox  *fsm.Sandbox
	url, key string
}

// agentOf finds the caller's conversation; nil if there is none.
func (c *call) agentOf(id string, consistency cluster.Consistency) (*conversationAgent, error) {
	v, err := c.ViewWith(consistency)
	if err != nil {
		return nil, err
	}
	row := v.Conversation(c.Caller.User, id)
	if row == nil {
		return nil, nil
	}
	a := &conversationAgent{server: c.server, row: row, sandbox: v.Sandbox(c.Caller.User, row.SandboxID)}
	if a.sandbox == nil || !proxy.IsServing(a.sandbox) {
		return a, nil
	}
	request.InfoOf(c.Request.Context()).Sandbox = a.sandbox.ID
	entry, err := c.server.sandboxEntry(c.Ctx(), a.sandbox)
	if err != nil {
		return nil, err
	}
	a.url, a.key = agentURL(a.sandbox.Status.Placement), entry[fsm.MemberKey]
	return a, nil
}

// serves reports whether the agent server can be called.
func (a *conversationAgent) serves() bool { return a.url != "" }

// paused reports whether the conversation's sandbox is paused, or will be.
func (a *conversationAgent) paused() bool {
	return a.sandbox != nil && (a.sandbox.State() == fsm.SandboxPaused || a.sandbox.Desired == fsm.DesiredPaused)
}

// state is the sandbox's.
func (a *conversationAgent) state() fsm.SandboxState {
	if a.sandbox == nil {
		return fsm.SandboxMissing
	}
	return a.sandbox.State()
}

// errBadAgentAnswer is an agent server's answer of another form.
var errBadAgentAnswer = errors.New("the agent server's answer has another form")

// call makes a call and decodes the answer into out, unless that is nil.
func (a *conversationAgent) call(ctx context.Context, q AgentRequest, out any) error {
	ctx, cancel := context.WithTimeout(ctx, agentCallTime)
	defer cancel()
	body, err := a.server.agents.Call(ctx, a.url, a.key, q)
	if err != nil {
		return errors.Join(err, ctx.Err())
	}
	if out != nil && json.Unmarshal(body, out) != nil {
		return errBadAgentAnswer
	}
	return nil
}

// errOfAgent is the response to a failed call of an agent server.
func errOfAgent(err error) error {
	text := "Failed to reach agent server."
	var failed *AgentError
	switch {
	case errors.Is(err, errBadAgentAnswer):
		text = "Agent server returned unexpected response."
	case errors.As(err, &failed) && failed.Status >= 300:
		text = fmt.Sprintf("Agent server error: %d", failed.Status)
	case errors.As(err, &failed) && failed.Status != 0:
		text = "Agent server returned unexpected response."
	}
	return &response.HTTPError{Status: http.StatusBadGateway, Text: text, Cause: err}
}

// agentOfPath finds the conversation of the path for a read, and refuses an unknown one.
func (c *call) agentOfPath() (*conversationAgent, error) {
	id := c.conversationID()
	if err := c.Check(); err != nil {
		return nil, err
	}
	a, err := c.agentOf(id, c.consistency())
	if err == nil && a == nil {
		err = &response.HTTPError{Status: http.StatusNotFound, Text: "Conversation not found"} // in the route's format
	}
	return a, err
}

// consistency is the one that a read asks for.
func (c *call) consistency() cluster.Consistency {
	if c.Stale() {
		return cluster.Stale
	}
	return cluster.Linearizable
}

// defaultFile is the file that clients show beside a conversation.
const defaultFile = "/workspace/project/PLAN.md"

// handleConversationFile handles GET …/{conversation_id}/file: a JSON string with the file's text, ""
// when there is none or the sandbox does not answer.
func (s *Server) handleConversationFile(c *call) (response.Response, error) {
	file := decode.OrZero(c.Query.Text("file_path", fsm.MaxLine))
	file = cmp.Or(file, defaultFile)
	a, err := c.agentOfPath()
	if err != nil {
		return response.Response{}, err
	}
	if !a.serves() {
		return response.OK("")
	}
	ctx, cancel := context.WithTimeout(c.Ctx(), agentCallTime)
	defer cancel()
	text, err := s.agents.Call(ctx, a.url, a.key,
		AgentRequest{Method: http.MethodGet, Path: "/api/file/download?" + url.Values{"path": {file}}.Encode()})
	if err != nil {
		return response.OK("")
	}
	return response.OK(strings.ToValidUTF8(string(text), "\uFFFD"))
}

// gitChange is a file that a repository's working tree changes.
type gitChange struct {
	Status string `json:"status"`
	Path   string `json:"path"`
}

// handleGitChanges handles GET …/{conversation_id}/git/changes.
func (s *Server) handleGitChanges(c *call) (response.Response, error) {
	var changes []gitChange
	if err := c.git("/api/git/changes", &changes); err != nil {
		return response.Response{}, err
	}
	return response.OK(wire.OrEmpty(changes))
}

// gitDiff is a file before and after, null where it did not exist.
type gitDiff struct {
	Modified *string `json:"modified"`
	Original *string `json:"original"`
}

// handleGitDiff handles GET …/{conversation_id}/git/diff.
func (s *Server) handleGitDiff(c *call) (response.Response, error) {
	var diff gitDiff
	if err := c.git("/api/git/diff", &diff); err != nil {
		return response.Response{}, err
	}
	return response.OK(diff)
}

// git passes a read of the git state on. Unlike a message it does not wake the sandbox.
func (c *call) git(at string, out any) error {
	id := c.conversationID()
	q := url.Values{}
	for _, file := range c.Query.Required("path") {
		if !path.IsAbs(file) || len(file) > fsm.MaxLine {
			c.Problems.Value([]string{"query", "path"}, "the path must be absolute and have at most 4096 bytes",
				decode.Echo(file, false))
		}
		q.Set("path", file)
	}
	if ref := c.Query.Text("ref", fsm.MaxPath); decode.OrZero(ref) != "" {
		q.Set("ref", *ref)
	}
	if err := c.Check(); err != nil {
		return err
	}
	a, err := c.agentOf(id, c.consistency())
	switch {
	case err != nil:
		return err
	case a != nil && a.paused():
		return response.Error(http.StatusConflict, "Sandbox is paused; resume it before reading git state.")
	case a == nil || !a.serves():
		return response.Error(http.StatusNotFound, "Conversation "+id+" is not reachable")
	}
	if err := a.call(c.Ctx(), AgentRequest{Method: http.MethodGet, Path: at + "?" + q.Encode()}, out); err != nil {
		return errOfAgent(err)
	}
	return nil
}

// handleSwitchACPModel handles POST …/{conversation_id}/switch_acp_model.
func (s *Server) handleSwitchACPModel(c *call) (response.Response, error) {
	id, o := c.conversationID(), c.Object()
	model := o.MustText("model", fsm.MaxLine)
	if o.Has("model") && o.Value("model") == "" {
		o.Rule("model", "the model needs a name")
	}
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	if c.Key != "" {
		if _, found, err := c.Recorded(); found || err != nil {
			return response.Response{Status: http.StatusOK, Body: wire.Success{Success: true}}, err
		}
	}
	a, err := c.agentOf(id, cluster.Linearizable)
	switch {
	case err != nil:
		return response.Response{}, err
	case a == nil:
		return response.Response{}, errNoConversation()
	case a.row.AgentKind != "acp":
		return response.Response{}, response.Error(http.StatusBadRequest, "The conversation's agent speaks no ACP: "+
			"start a conversation with llm_model instead.")
	case a.paused():
		return response.Response{}, response.Error(http.StatusConflict,
			"Sandbox is paused; resume it before switching the model.")
	case !a.serves():
		return response.Response{}, response.Error(http.StatusConflict,
			fmt.Sprintf("Sandbox is %s; the model can't be switched now.", a.state()))
	}
	body, err := json.Marshal(map[string]string{"model": model})
	if err != nil {
		return response.Response{}, err
	}
	err = a.call(c.Ctx(), AgentRequest{
		Method: http.MethodPost, Path: "/api/conversations/" + decode.Dashed(id) + "/switch_acp_model", Body: body,
	}, nil)
	var failed *AgentError
	switch {
	case err == nil:
	case errors.As(err, &failed) && (failed.Status == http.StatusBadRequest || failed.Status == http.StatusConflict):
		return response.Response{}, &response.HTTPError{
			Status: failed.Status,
			Text:   "The agent refused the model: " + failed.Detail,
			Cause:  err,
		}
	case errors.Is(err, context.DeadlineExceeded):
		return response.Response{}, &response.HTTPError{
			Status: http.StatusGatewayTimeout,
			Text:   "The agent server did not answer in time.",
			Cause:  err,
		}
	default:
		return response.Response{}, errOfAgent(err)
	}
	if err := s.noteContact(c, a.sandbox.ID, id); err != nil {
		return response.Response{}, err
	}
	return response.OK(wire.Success{Success: true})
}
