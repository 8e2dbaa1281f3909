package httpapi

import (
	"net/http"
	"strings"

	"github.com/google/uuid"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/response"
)

// pathPending is the route of the messages that wait for a conversation.
const pathPending = "/api/v1/conversations/:conversation_id/pending-messages"

// queuedBody is the response of POST …/pending-messages (API.md, "Conversations: messages before the
// start").
type queuedBody struct {
	ID       string `json:"id"`
	Queued   bool   `json:"queued"`
	Position int    `json:"position"`
}

// handlePendingMessage handles POST /api/v1/conversations/{conversation_id}/pending-messages. The
// conversation is that of an unfinished start; its task is named as task-<id>.
func (s *Server) handlePendingMessage(c *call) (answer, error) {
	text, ofTask := strings.CutPrefix(c.params.ByName("conversation_id"), "task-")
	id, f := decode.ToUUID(text)
	if f != nil {
		c.errs.Add(f.Type, []string{"path", "conversation_id"}, f.Message, decode.Echo(text, false), f.Context)
	}
	o := c.object().Masked()
	if list, isList := o.Value("content").([]any); o.Has("content") && (!isList || len(list) == 0) {
		return answer{}, response.Error(http.StatusBadRequest, "content must be a non-empty list")
	}
	msg := readSentMessage(o)
	if err := c.check(); err != nil {
		return answer{}, err
	}
	msg.Run = true
	// A repeated request queues the same message.
	made := uuid.NewSHA1(uuid.NameSpaceOID, []byte(c.commandID()))
	message := strings.ReplaceAll(made.String(), "-", "")
	return c.once(func() (fsm.Body, secretWrites, error) {
		v, err := c.viewWith(cluster.Linearizable)
		if err != nil {
			return nil, secretWrites{}, err
		}
		task := v.StartTask(c.who.user, id)
		if !ofTask {
			if v.Conversation(c.who.user, id) != nil {
				return nil, secretWrites{}, errReady()
			}
			task = v.StartTaskByConversation(c.who.user, id)
		}
		if task == nil {
			return nil, secretWrites{}, errNoConversation()
		}
		return &fsm.StartTaskQueueBody{
			ID:      task.ID,
			Message: fsm.PendingMessage{ID: message, Message: msg},
		}, secretWrites{}, nil
	}, func(res fsm.Result) (answer, error) {
		if res.StartTask == nil {
			return answer{}, errEmptyResult(fsm.StartTaskQueue)
		}
		n := len(res.StartTask.Pending)
		if n == 0 {
			return answer{}, errEmptyResult(fsm.StartTaskQueue)
		}
		return answer{
			status: http.StatusCreated,
			body:   queuedBody{ID: res.StartTask.Pending[n-1].ID, Queued: true, Position: n},
		}, nil
	})
}
