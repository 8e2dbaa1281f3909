package httpapi

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"

	"github.com/google/uuid"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/legacy"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
)

// handleV0Start handles POST /api/conversations.
func (s *Server) handleV0Start(c *call) (response.Response, error) {
	o := c.Object()
	start, wished := legacy.ReadStart(o, c.Caller.Bearer)
	in := startInput{request: start, secrets: fsm.StartSecrets{MCPConfig: readMCPConfig(o)}, join: wished != nil}
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	if wished != nil {
		if err := legacy.CheckID(*wished); err != nil {
			return response.Response{}, err
		}
		in.conversation, in.v0ID = legacy.MapID(c.Caller.User, *wished)
	}
	made := "" // the task of this start, "" for a request that an Idempotency-Key repeats
	return c.Once(func() (fsm.Body, request.SecretWrites, error) {
		v, err := c.ViewWith(cluster.Linearizable)
		if err != nil {
			return nil, request.SecretWrites{}, err
		}
		if err := legacy.CheckSettings(v.Settings(c.Caller.User)); err != nil {
			return nil, request.SecretWrites{}, err
		}
		if err := s.sharedNow().git.Repository(c.Ctx(), v.Providers(c.Caller.User), &in.request); err != nil {
			return nil, request.SecretWrites{}, err
		}
		if !in.joins(v, c.Caller.User) {
			err := c.admitted(v, func(v *fsm.View) *fsm.Error { return v.StartAdmission(c.Caller.User, &in.request, c.Now) })
			if err != nil {
				return nil, request.SecretWrites{}, err
			}
		}
		stored := in
		// Before VersionCharacters Apply bounds the id in bytes. It need not be stored: the
		// conversation's id is derived from it.
		if len(in.v0ID) > fsm.MaxCommandID && !v.Active(fsm.VersionCharacters) {
			stored.v0ID = ""
		}
		body, writes, err := stored.command(c.Caller.User)
		if err == nil {
			made = body.ID
		}
		return body, writes, err
	}, func(res fsm.Result) (response.Response, error) {
		if err := c.joinWithMessage(in, res, made); err != nil {
			return response.Response{}, err
		}
		return newV0Start(in, res)
	})
}

// joinWithMessage queues the message of a start that joined another. The message that began the
// conversation is not sent again: the request may be a repetition. made is the start's own task.
func (c *call) joinWithMessage(in startInput, res fsm.Result, made string) error {
	if !in.join || in.request.InitialMessage == nil || res.StartTask != nil && res.StartTask.ID == made {
		return nil
	}
	if res.StartTask == nil {
		return errReady()
	}
	v, err := c.After()
	if err != nil {
		return err
	}
	task := v.StartTask(c.Caller.User, res.StartTask.ID)
	message := *in.request.InitialMessage
	switch {
	case task == nil || task.Done():
		if made == "" {
			return nil // the first request queued it
		}
		return errReady()
	case task.Request.InitialMessage != nil && reflect.DeepEqual(message, *task.Request.InitialMessage):
		return nil
	case !v.Active(fsm.VersionStarts):
		return fsm.NeedsVersion("a message for a conversation that is being started", fsm.VersionStarts, v.ProtocolVersion())
	}
	message.Run = true
	return c.queueJoined(task, message)
}

// queueJoined proposes the message under an id that follows from its content, so that it waits once.
func (c *call) queueJoined(task *fsm.StartTask, message fsm.Message) error {
	text, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("encoding the message: %w", err)
	}
	made := uuid.NewSHA1(uuid.NameSpaceOID, append([]byte(task.ID), text...))
	id := hex.EncodeToString(made[:])
	cmd := c.Command(&fsm.StartTaskQueueBody{ID: task.ID, Message: fsm.PendingMessage{ID: id, Message: message}})
	sum := sha256.Sum256([]byte(cmd.ID + " joins")) // the start has the key's own id
	cmd.ID = "idem#" + hex.EncodeToString(sum[:])
	_, err = c.server.cluster.Propose(c.Ctx(), cmd)
	if fsm.CodeOf(err) != fsm.CodeConflict {
		return err
	}
	v, viewErr := c.After()
	if viewErr != nil {
		return viewErr
	}
	now := v.StartTask(c.Caller.User, task.ID)
	if now == nil || !slices.ContainsFunc(now.Pending, func(m fsm.PendingMessage) bool { return m.ID == id }) {
		return errReady()
	}
	return nil
}

// errReady is the 409 for a message that waits for the start of a conversation which has ended.
func errReady() *response.HTTPError {
	return response.Error(http.StatusConflict, "The conversation is ready: use send-message.")
}

// joins reports whether the start joins a conversation that exists or is being started, and so
// needs no sandbox of its own.
func (in startInput) joins(v *fsm.View, user string) bool {
	if !in.join || in.conversation == "" {
		return false
	}
	task := v.StartTaskByConversation(user, in.conversation)
	return v.Conversation(user, in.conversation) != nil || task != nil && !task.Done()
}

// newV0Start returns the id of the started or joined conversation. A joined conversation without a
// start task has the requested id.
func newV0Start(in startInput, res fsm.Result) (response.Response, error) {
	id := cmp.Or(in.v0ID, in.conversation)
	if id == "" {
		if res.StartTask == nil {
			return response.Response{}, request.ErrEmptyResult(fsm.StartTaskCreate)
		}
		id = res.StartTask.ConversationID
	}
	return response.OK(legacy.NewStartBody(id))
}
