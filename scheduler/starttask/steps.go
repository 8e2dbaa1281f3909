package starttask

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/access"
	"bivouac.dev/bivouac/scheduler/agent"
)

// advance takes the step for the task's status.
func (r *Runner) advance(ctx context.Context, v *fsm.View, t *fsm.StartTask, d *drawn) outcome {
	if t.SandboxID == "" {
		return r.bind(ctx, t, d)
	}
	place, o := r.sandbox(v, t)
	if place == nil {
		return o
	}
	switch t.Status {
	case fsm.StartTaskWorking, fsm.StartTaskWaitingForSandbox:
		next := fsm.StartTaskStartingConversation
		if needsPreparation(v, t) {
			next = fsm.StartTaskPreparingRepository
		}
		return r.moveTo(ctx, t, next, place)
	case fsm.StartTaskPreparingRepository:
		return r.clones.do(ctx, t.UserID, &d.lateClone, func(ctx context.Context) outcome {
			found, o := r.prepare(ctx, v, t, place)
			if o != (outcome{}) {
				return o
			}
			return r.prepared(ctx, v, t, place, d, found)
		})
	case fsm.StartTaskRunningSetupScript:
		if o, done := r.awaitAnswer(ctx, v, t); !done {
			return o
		}
		return r.clones.do(ctx, t.UserID, &d.lateClone,
			func(ctx context.Context) outcome { return r.setUp(ctx, v, t, place) })
	case fsm.StartTaskSettingUpGitHooks:
		if may, _ := r.permission(v, t); may != allowed {
			return r.moveTo(ctx, t, fsm.StartTaskSettingUpSkills, place)
		}
		return r.clones.do(ctx, t.UserID, &d.lateClone,
			func(ctx context.Context) outcome { return r.installHooks(ctx, v, t, place) })
	case fsm.StartTaskSettingUpSkills:
		return r.calls.do(ctx, t.UserID, &d.late,
			func(ctx context.Context) outcome { return r.loadSkills(ctx, v, t, place, d) })
	case fsm.StartTaskStartingConversation:
		if t.AgentServerURL != place.url {
			// The sandbox was placed again since the last step.
			return r.moveTo(ctx, t, t.Status, place)
		}
		return r.calls.do(ctx, t.UserID, &d.late,
			func(ctx context.Context) outcome { return r.converse(ctx, v, t, place, d) })
	default:
		return r.moveTo(ctx, t, fsm.StartTaskStartingConversation, place)
	}
}

// moveTo advances the task. The agent server's URL is set from STARTING_CONVERSATION on.
func (r *Runner) moveTo(ctx context.Context, t *fsm.StartTask, status fsm.StartTaskStatus, p *place) outcome {
	r.step(ctx, t, "advance "+string(status))
	b := &fsm.StartTaskAdvanceBody{ID: t.ID, Status: status}
	if status == fsm.StartTaskStartingConversation {
		b.AgentServerURL = p.url
	}
	_, err := r.propose(ctx, b)
	return outcome{err: err}
}

// place is where a task's sandbox can be reached.
type place struct {
	sandbox *fsm.Sandbox
	url     string
	// projects is the absolute directory for the task's projects: the sandbox's, or one of the
	// conversation's own below it where a grouping chose the sandbox.
	projects string
}

// projectDir returns the absolute directory of projects as the task sees it: the template's
// working directory, which is relative to the workspace where there is no container. It is ""
// while the workspace's path is not known.
func projectDir(t fsm.Template, p *fsm.Placement) string {
	if path.IsAbs(t.WorkingDir) {
		return path.Clean(t.WorkingDir)
	}
	if p == nil || p.Workspace == "" {
		return ""
	}
	return path.Join(p.Workspace, t.WorkingDir)
}

// sandbox checks whether the task's sandbox is RUNNING. When it is not, place is nil and the
// outcome says whether to wait or to fail.
func (r *Runner) sandbox(v *fsm.View, t *fsm.StartTask) (*place, outcome) {
	sb := v.SandboxAny(t.SandboxID)
	if sb == nil || sb.UserID != t.UserID || sb.Desired == fsm.DesiredDeleted {
		return nil, outcome{fatal: "Sandbox was deleted: " + t.SandboxID}
	}
	if sb.Desired == fsm.DesiredPaused {
		return nil, outcome{fatal: "Sandbox was paused before the conversation was started: " + t.SandboxID}
	}
	switch sb.State() {
	case fsm.SandboxRunning:
	case fsm.SandboxError, fsm.SandboxMissing, fsm.SandboxPaused:
		reason := cmp.Or(sb.Status.Detail, sb.Status.Reason)
		return nil, outcome{fatal: fmt.Sprintf("Sandbox %s is in %s: %s", t.SandboxID, sb.State(), reason)}
	default:
		return nil, outcome{wait: true, detail: sb.Status.Detail}
	}
	p := &place{
		sandbox:  sb,
		url:      access.AgentURL(sb.Status.Placement),
		projects: projectDir(sb.Template, sb.Status.Placement),
	}
	if p.url == "" || p.projects == "" {
		return nil, outcome{wait: true, detail: "the sandbox's address is not known yet"}
	}
	if t.Grouped {
		p.projects = path.Join(p.projects, t.ConversationID)
	}
	return p, outcome{}
}

// converse creates the conversation in the sandbox and finishes the task. Settings and secrets
// are read here, and their values are used for this one call.
func (r *Runner) converse(ctx context.Context, v *fsm.View, t *fsm.StartTask, p *place, d *drawn) outcome {
	in, err := r.inputs(ctx, v, t, p)
	if err != nil {
		return outcome{err: err}
	}
	if o := r.project(ctx, in, d); o != (outcome{}) {
		return o
	}
	may, _ := r.permission(v, t)
	in.project = d.project.permitted(t, may, in.workingDir())
	if err := in.chooseAgent(v); err != nil {
		return outcome{fatal: in.scrub(err.Error())}
	}
	if o := r.findAgent(ctx, in); o != (outcome{}) {
		return o
	}
	req, err := in.request()
	if err != nil {
		return outcome{fatal: in.scrub(err.Error())}
	}
	if !needsPreparation(v, t) {
		r.initEmpty(ctx, in)
	}
	r.step(ctx, t, "create conversation")
	info, created, err := r.agents.CreateConversation(ctx, p.url, in.key, req)
	if err != nil {
		return r.agentOutcome(err, in)
	}
	r.log.Debug("conversation is in its sandbox", "task", t.ID, "conversation", t.ConversationID, "reason",
		map[bool]string{true: "created", false: "found"}[created])
	if o := r.deliver(ctx, t, in); o != (outcome{}) {
		return o
	}
	r.step(ctx, t, "finish")
	_, err = r.propose(ctx, &fsm.StartTaskFinishBody{ID: t.ID, Conversation: in.conversation(r.now(), deref(info.Title))})
	switch fsm.CodeOf(err) {
	case "":
		r.step(ctx, t, "forget")
		r.forget(ctx, t)
		return outcome{}
	case fsm.CodeConflict, fsm.CodeInvalid:
		if len(r.pending(t)) > 0 {
			return outcome{} // a message came meanwhile
		}
		return outcome{fatal: in.scrub(err.Error())}
	default:
		return outcome{err: err}
	}
}

// agentOutcome returns what an agent server's failure means for the task.
func (r *Runner) agentOutcome(err error, in *inputs) outcome {
	text := in.scrub(err.Error())
	if errors.Is(err, agent.ErrRefused) || errors.Is(err, agent.ErrBadAnswer) {
		return outcome{fatal: text}
	}
	// Unreachable, failing, or refusing the key: the sandbox may be restarting. Its own state
	// decides in the end.
	return outcome{err: errors.New(text)}
}
