package httpapi

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// startTaskBody is the API's AppConversationStartTask (API.md, "Start tasks: members").
type startTaskBody struct {
	ID                string              `json:"id"`
	CreatedByUserID   *string             `json:"created_by_user_id"`
	Status            fsm.StartTaskStatus `json:"status"`
	Detail            *string             `json:"detail"`
	AppConversationID *string             `json:"app_conversation_id"`
	SandboxID         *string             `json:"sandbox_id"`
	AgentServerURL    *string             `json:"agent_server_url"`
	Setup             *taskSetupBody      `json:"setup,omitempty"`
	Request           startRequestBody    `json:"request"`
	CreatedAt         wire.Time           `json:"created_at"`
	UpdatedAt         wire.Time           `json:"updated_at"`
}

// startRequestBody is the echoed request: fsm.StartRequest without omitted members.
type startRequestBody struct {
	fsm.StartRequest
	InitialMessage *messageEcho `json:"initial_message"`
	ACPServer      *string      `json:"acp_server"`
}

// messageEcho is a fsm.Message whose blocks have the members of their type, and all of them.
type messageEcho struct {
	Role    string `json:"role"`
	Content []any  `json:"content"`
	Run     bool   `json:"run"`
}

type textEcho struct {
	CachePrompt bool   `json:"cache_prompt"`
	Type        string `json:"type"`
	Text        string `json:"text"`
}

type imageEcho struct {
	CachePrompt bool     `json:"cache_prompt"`
	Type        string   `json:"type"`
	ImageURLs   []string `json:"image_urls"`
}

// newStartTaskBody shows a task. v has the answers to what it asks; nil for a task that is new.
func newStartTaskBody(v *fsm.View, t *fsm.StartTask, to links) startTaskBody {
	b := startTaskBody{
		ID: t.ID, CreatedByUserID: &t.UserID, Status: t.Status,
		Detail: wire.OrNull(cmp.Or(t.Detail, skippedText(t))), Setup: newTaskSetupBody(v, t),
		SandboxID: wire.OrNull(t.SandboxID), AgentServerURL: wire.OrNull(to.agent(t.SandboxID, t.AgentServerURL)),
		Request: newStartRequestBody(&t.Request), CreatedAt: wire.At(t.CreatedAt), UpdatedAt: wire.At(t.UpdatedAt),
	}
	if t.Status == fsm.StartTaskReady {
		b.AppConversationID = &t.ConversationID
	}
	return b
}

func newStartRequestBody(q *fsm.StartRequest) startRequestBody {
	b := startRequestBody{StartRequest: *q, ACPServer: q.ACPServer}
	b.PRNumber = wire.OrEmpty(q.PRNumber)
	if m := q.InitialMessage; m != nil {
		b.InitialMessage = newMessageEcho(m)
	}
	return b
}

func newMessageEcho(m *fsm.Message) *messageEcho {
	e := &messageEcho{Role: m.Role, Content: make([]any, len(m.Content)), Run: m.Run}
	for i, block := range m.Content {
		if block.Type == fsm.BlockImage {
			e.Content[i] = imageEcho{CachePrompt: block.CachePrompt, Type: block.Type, ImageURLs: wire.OrEmpty(block.ImageURLs)}
			continue
		}
		e.Content[i] = textEcho{CachePrompt: block.CachePrompt, Type: block.Type, Text: block.Text}
	}
	return e
}

// handleStartTaskGet handles GET /api/v1/app-conversations/start-tasks: the tasks with the given
// ids.
func (s *Server) handleStartTaskGet(c *call) (response.Response, error) {
	ids := c.Query.Required("ids")
	hexes := make([]string, len(ids))
	for i, id := range ids {
		hex, f := decode.ToUUID(id)
		if f != nil {
			c.Problems.Add(f.Type, []string{"query", "ids", strconv.Itoa(i)}, f.Message, decode.Echo(id, false), f.Context)
		}
		hexes[i] = hex
	}
	if len(ids) > request.MaxBatch {
		return response.Response{}, request.ErrBatch("start tasks", len(ids))
	}
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	v, err := c.View()
	if err != nil {
		return response.Response{}, err
	}
	rows := make([]*fsm.StartTask, len(ids))
	for i, id := range hexes {
		rows[i] = v.StartTask(c.Caller.User, id)
	}
	items, err := c.Items(s.startTaskList(c, v, rows), request.MaxBatchBytes)
	if err != nil {
		return response.Response{}, err
	}
	if len(items) < len(ids) {
		return response.Response{}, response.Error(http.StatusBadRequest,
			fmt.Sprintf("The answer is larger than %d bytes: ask for fewer start tasks at a time.", request.MaxBatchBytes))
	}
	return response.OK(response.EncodedItems{Before: "[", Items: items, After: "]"})
}

// startTaskList lists tasks, of which some may be nil.
func (s *Server) startTaskList(c *call, v *fsm.View, rows []*fsm.StartTask) request.List {
	to := s.linksFor(c.Request)
	return request.List{N: len(rows), Item: func(i int) any {
		if rows[i] == nil {
			return nil
		}
		return newStartTaskBody(v, rows[i], to)
	}, Size: func(i int) int {
		if rows[i] == nil {
			return 0
		}
		return rows[i].StateBytes()
	}}
}

// startTaskQuery reads the filters of API.md, "Start tasks: search".
func startTaskQuery(q decode.Query) fsm.StartTaskFilter {
	return fsm.StartTaskFilter{ConversationID: q.UUID("conversation_id__eq"), CreatedGTE: q.Time("created_at__gte")}
}

// handleStartTaskSearch handles GET /api/v1/app-conversations/start-tasks/search.
func (s *Server) handleStartTaskSearch(c *call) (response.Response, error) {
	filter := startTaskQuery(c.Query)
	filter.Order = fsm.StartTaskOrder(c.Query.Enum("sort_order", string(fsm.StartTaskCreatedDesc), []string{
		string(fsm.StartTaskCreated), string(fsm.StartTaskCreatedDesc), string(fsm.StartTaskUpdated),
		string(fsm.StartTaskUpdatedDesc),
	}))
	p := fsm.Page{After: request.PageIDOf(c.Query), Limit: request.LimitOf(c.Query)}
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	v, err := c.View()
	if err != nil {
		return response.Response{}, err
	}
	rows, next := v.StartTasks(c.Caller.User, filter, p)
	return c.BoundedPage(s.startTaskList(c, v, rows), next, func(limit int) string {
		_, next := v.StartTasks(c.Caller.User, filter, fsm.Page{After: p.After, Limit: limit})
		return next
	})
}

// handleStartTaskCount handles GET /api/v1/app-conversations/start-tasks/count.
func (s *Server) handleStartTaskCount(c *call) (response.Response, error) {
	filter := startTaskQuery(c.Query)
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	v, err := c.View()
	if err != nil {
		return response.Response{}, err
	}
	return response.OK(v.CountStartTasks(c.Caller.User, filter))
}

// taskSetupBody is what a start task asks its user about (API.md, "Start tasks: setup").
type taskSetupBody struct {
	Repository string           `json:"repository"`
	Hash       string           `json:"hash"`
	Directory  string           `json:"directory"`
	Files      []fsm.SetupFile  `json:"files"`
	Answer     *fsm.SetupAnswer `json:"answer"`
	Skipped    bool             `json:"skipped"`
}

// newTaskSetupBody returns nil for a task that asks nothing. v may be nil: there is no answer yet.
func newTaskSetupBody(v *fsm.View, t *fsm.StartTask) *taskSetupBody {
	s := t.Setup
	if s == nil {
		return nil
	}
	b := &taskSetupBody{
		Repository: s.Repository, Hash: s.Hash, Directory: s.Directory, Files: s.Files, Skipped: s.Skipped,
	}
	if v == nil {
		return b
	}
	if row := v.Setup(t.UserID, s.Repository, s.Hash); row != nil && row.Answer != "" {
		b.Answer = &row.Answer
	}
	return b
}

// skippedText says what a finished start went on without, "" for nothing.
func skippedText(t *fsm.StartTask) string {
	if t.Setup == nil || !t.Setup.Skipped || t.Status != fsm.StartTaskReady {
		return ""
	}
	names := make([]string, 0, len(t.Setup.Files))
	for _, f := range t.Setup.Files {
		names = append(names, f.Path)
	}
	return "The conversation began without the files of " + t.Setup.Repository + " that run by themselves: " +
		decode.Truncate(strings.Join(names, ", "), 300)
}

// handleStartTaskSetup handles POST /api/v1/start-tasks/{task_id}/setup: the user's answer to what the
// task asks.
func (s *Server) handleStartTaskSetup(c *call) (response.Response, error) {
	text := c.Params.ByName("task_id")
	id, f := decode.ToUUID(text)
	if f != nil {
		c.Problems.Add(f.Type, []string{"path", "task_id"}, f.Message, decode.Echo(text, false), f.Context)
	}
	o := c.Object()
	o.Strict("hash", "accept")
	b := &fsm.StartTaskAnswerBody{ID: id, Hash: o.MustText("hash", fsm.MaxName)}
	if o.Require("accept") {
		b.Accept = o.BooleanOr("accept", false)
	}
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	prepare := func() (fsm.Body, request.SecretWrites, error) { return b, request.SecretWrites{}, nil }
	out, err := c.Once(prepare, func(res fsm.Result) (response.Response, error) {
		if res.StartTask == nil {
			return response.Response{}, request.ErrEmptyResult(fsm.StartTaskAnswer)
		}
		return response.OK(wire.Success{Success: true})
	})
	return out, response.NotFoundAs(err, "Start task not found")
}
