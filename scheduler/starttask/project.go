package starttask

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent"
)

// maxProjectTries is how often a start task tries to load skills and hooks. After that the
// conversation starts without them.
const maxProjectTries = 3

// project has a project's skills and hooks as the agent server encodes them, nil for none.
type project struct {
	skills, hooks json.RawMessage
	tries         int
	loaded        bool
}

// afterPrepare returns the status that follows PREPARING_REPOSITORY. What does not apply is left out.
func afterPrepare(t *fsm.StartTask, found string) fsm.StartTaskStatus {
	switch {
	case !hasProject(t):
		return fsm.StartTaskStartingConversation
	case has(found, foundSetup):
		return fsm.StartTaskRunningSetupScript
	case has(found, foundGitHooks):
		return fsm.StartTaskSettingUpGitHooks
	}
	return fsm.StartTaskSettingUpSkills
}

// has reports whether a line of a script's output is found.
func has(output, found string) bool { return slices.Contains(strings.Split(output, "\n"), found) }

// setUp runs the project's setup script. As upstream's, a script that fails stops no conversation.
func (r *Runner) setUp(ctx context.Context, v *fsm.View, t *fsm.StartTask, p *place) outcome {
	in, err := r.inputs(ctx, v, t, p)
	if err != nil {
		return outcome{err: err}
	}
	next, approved := fsm.StartTaskSettingUpSkills, ""
	if t.Setup != nil {
		if approved = sumOf(t.Setup, gitHooksFile); approved != "" {
			next = fsm.StartTaskSettingUpGitHooks
		}
		if approved = sumOf(t.Setup, setupFile); approved == "" {
			return r.moveTo(ctx, t, next, p)
		}
	}
	r.step(ctx, t, "set up")
	cmd := agent.Command{Command: setupScript(in.workingDir(), t.ID, approved), Timeout: r.cfg.SetupTimeout}
	out, err := r.agents.RunCommand(ctx, p.url, in.key, cmd)
	if err != nil && !errors.Is(err, agent.ErrRefused) {
		return r.agentOutcome(err, in)
	}
	if err != nil || out.ExitCode != 0 {
		r.log.Info("a project's setup script failed", "task", t.ID, "sandbox", t.SandboxID, "reason",
			in.commandFault(out, err))
	}
	if t.Setup == nil && has(out.Stdout, foundGitHooks) {
		next = fsm.StartTaskSettingUpGitHooks
	}
	return r.moveTo(ctx, t, next, p)
}

// installHooks makes the project's pre-commit script a git hook.
func (r *Runner) installHooks(ctx context.Context, v *fsm.View, t *fsm.StartTask, p *place) outcome {
	in, err := r.inputs(ctx, v, t, p)
	if err != nil {
		return outcome{err: err}
	}
	approved := ""
	if t.Setup != nil {
		if approved = sumOf(t.Setup, gitHooksFile); approved == "" {
			return r.moveTo(ctx, t, fsm.StartTaskSettingUpSkills, p)
		}
	}
	r.step(ctx, t, "install git hooks")
	cmd := agent.Command{Command: hooksScript(in.workingDir(), approved), Timeout: r.cfg.RepositoryTimeout}
	out, err := r.agents.RunCommand(ctx, p.url, in.key, cmd)
	if err != nil && !errors.Is(err, agent.ErrRefused) {
		return r.agentOutcome(err, in)
	}
	if err != nil || out.ExitCode != 0 {
		r.log.Info("installing a project's git hooks failed", "task", t.ID, "sandbox", t.SandboxID, "reason",
			in.commandFault(out, err))
	}
	return r.moveTo(ctx, t, fsm.StartTaskSettingUpSkills, p)
}

// commandFault says why a command failed, without secrets.
func (in *inputs) commandFault(out agent.Output, err error) string {
	if err != nil {
		return in.scrub(err.Error())
	}
	return "exit code " + strconv.Itoa(out.ExitCode) + ": " + lastLines(in.scrub(out.Stderr))
}

// loadSkills asks the agent server for the project's skills and hooks and moves on.
func (r *Runner) loadSkills(ctx context.Context, v *fsm.View, t *fsm.StartTask, p *place, d *drawn) outcome {
	in, err := r.inputs(ctx, v, t, p)
	if err != nil {
		return outcome{err: err}
	}
	if o := r.project(ctx, in, d); o != (outcome{}) {
		return o
	}
	return r.moveTo(ctx, t, fsm.StartTaskStartingConversation, p)
}

// project loads skills and hooks into d, once for each leader: they are not in the state. A server
// without these calls has none.
func (r *Runner) project(ctx context.Context, in *inputs, d *drawn) outcome {
	if d.project == nil {
		d.project = &project{loaded: !hasProject(in.task)}
	}
	got := d.project
	if got.loaded {
		return outcome{}
	}
	r.step(ctx, in.task, "load skills")
	skills, err := r.agents.Skills(ctx, in.place.url, in.key,
		agent.SkillsRequest{LoadUser: true, LoadProject: true, ProjectDir: in.workingDir()})
	hooks, err2 := r.agents.Hooks(ctx, in.place.url, in.key, in.workingDir())
	for _, err := range []error{err, err2} {
		switch {
		case err == nil, errors.Is(err, agent.ErrRefused):
		case ctx.Err() != nil:
			return outcome{err: ctx.Err()}
		case got.tries < maxProjectTries && !errors.Is(err, agent.ErrBadAnswer):
			got.tries++
			return r.agentOutcome(err, in)
		default:
			r.log.Info("loading a project's skills or hooks failed", "task", in.task.ID, "sandbox", in.task.SandboxID,
				"reason", in.scrub(err.Error()))
		}
	}
	got.skills, got.hooks, got.loaded = skills, hooks, true
	return outcome{}
}
