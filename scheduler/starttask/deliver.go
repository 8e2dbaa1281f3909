package starttask

import (
	"context"
	"errors"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent"
)

// pending returns the messages that wait for the task's conversation now.
func (r *Runner) pending(t *fsm.StartTask) []fsm.PendingMessage {
	if now := r.store.View().StartTask(t.UserID, t.ID); now != nil {
		return now.Pending
	}
	return nil
}

// deliver sends the messages that wait for the conversation, one by one in their order. A leader that
// is lost between a delivery and its record makes the next one send that message again, with the same
// id: the built-in agent server stores it once. As upstream does, one that is refused is left out.
func (r *Runner) deliver(ctx context.Context, t *fsm.StartTask, in *inputs) outcome {
	for {
		waiting := r.pending(t)
		if len(waiting) == 0 {
			return outcome{}
		}
		next := waiting[0]
		m := firstMessage(&next.Message)
		m.ID = agent.DashedID(next.ID)
		r.step(ctx, t, "deliver message")
		err := r.agents.SendMessage(ctx, in.place.url, in.key, agent.DashedID(t.ConversationID), *m)
		switch {
		case err == nil:
		case errors.Is(err, agent.ErrRefused):
			r.log.Warn("an agent server refused a message that waited", "task", t.ID, "reason", in.scrub(err.Error()))
		default:
			return r.agentOutcome(err, in)
		}
		r.step(ctx, t, "record delivery")
		_, err = r.propose(ctx, &fsm.StartTaskAdvanceBody{
			ID: t.ID, Status: fsm.StartTaskStartingConversation, Detail: t.Detail, AgentServerURL: in.place.url,
			Delivered: next.ID,
		})
		if err != nil {
			return outcome{err: err}
		}
	}
}
