package starttask

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// acpAgent is the agent of a conversation that is not the built-in one.
type acpAgent struct {
	fsm.Agent
	// spec is the sandbox's; custom the command line of the user, nil for an agent of the spec.
	spec   *fsm.Spec
	custom []string
}

// chooseAgent sets the agent of the task by the request and the settings of now. An error is shown to
// the user as it is.
func (in *inputs) chooseAgent(v *fsm.View) error {
	kind, id := fsm.AgentChoice(&in.task.Request, in.settings)
	if kind != fsm.AgentACP {
		return nil
	}
	spec := v.Spec(in.place.sandbox.SpecID)
	if spec == nil {
		return fmt.Errorf("the sandbox spec %s is gone, and with it the agent %s: "+
			"start in a new sandbox, or with acp_server %q",
			in.place.sandbox.SpecID, id, fsm.AgentOpenHands)
	}
	if err := spec.CheckAgent(kind, id); err != nil {
		return errors.New(err.Message)
	}
	in.agent = &acpAgent{spec: spec, Agent: fsm.Agent{ID: id}}
	if chosen := spec.Agent(id); chosen != nil {
		in.agent.Agent = *chosen
	} else if in.agent.custom = deref(in.settings.Values.ACPCommand); len(in.agent.custom) == 0 {
		return fmt.Errorf("the settings have acp_server %q and no acp_command: store one", id)
	}
	for _, name := range slices.Sorted(maps.Keys(in.agent.EnvFromSecret)) {
		if secret := in.agent.EnvFromSecret[name]; in.ownSecret(secret) == "" {
			return fmt.Errorf("the agent %s of the sandbox spec %s needs the secret %s for its variable %s: "+
				"store it in secrets_store.custom_secrets of the settings",
				id, spec.ID, secret, name)
		}
	}
	return nil
}

// ownSecret is a secret of the user's by its name: the request's, else the stored one.
func (in *inputs) ownSecret(name string) string {
	return cmp.Or(in.requested.Secrets[name], in.custom[name])
}

// settings puts the agent into the body of POST /api/conversations.
func (a *acpAgent) settings(in *inputs, req *agent.CreateRequest) {
	s := &req.AgentSettings
	s.AgentKind, s.ACPServer, s.Condenser = fsm.AgentACP, a.ID, nil
	s.ACPArgs, s.ACPEnv, s.ACPSessionMode, s.ACPModel = a.Args, a.Env, a.SessionMode, a.model(in)
	switch {
	case a.custom != nil:
		s.ACPCommand = a.custom
	case a.Command != "":
		s.ACPCommand = []string{a.Command}
		if p, known := preset.ByID(a.ID); known && len(a.Args) == 0 {
			s.ACPArgs = p.Args // the same agent at another path
		}
	}
	// An agent has the conversation's secrets in its environment.
	for name, secret := range a.EnvFromSecret {
		req.Secrets[name] = agent.StaticSecret(in.ownSecret(secret))
	}
	req.Tags["acpserver"] = a.ID
}

// model is what the agent is asked for, "" for the model of in.llm: a start that names a model means
// that one. That of an agent profile counts before the settings'.
func (a *acpAgent) model(in *inputs) string {
	if model := deref(in.task.Request.ACPModel); model != "" {
		return model
	}
	if deref(in.task.Request.LLMModel) != "" {
		return ""
	}
	return cmp.Or(deref(in.settings.Values.ACPModel), a.Model)
}

// program is what must be in the sandbox, "" where only the sandbox's agent server knows.
func (a *acpAgent) program() string {
	program := a.Command
	if len(a.custom) > 0 {
		program = a.custom[0]
	}
	if p, known := preset.ByID(a.ID); program == "" && known {
		program = p.Command
	}
	if strings.Contains(program, "{{") {
		return ""
	}
	return program
}

// findAgent fails the task where the agent's program is not in the sandbox. Without it the
// conversation would begin and fail at its first message.
func (r *Runner) findAgent(ctx context.Context, in *inputs) outcome {
	if in.agent == nil || in.agent.program() == "" {
		return outcome{}
	}
	program := in.agent.program()
	cmd := agent.Command{Command: "command -v -- " + quote(program), Timeout: 30 * time.Second}
	if strings.Contains(program, "/") && !strings.HasPrefix(program, "/") {
		cmd.Dir = in.workingDir()
	}
	if search := in.agent.Env["PATH"]; search != "" && !strings.Contains(search, "{{") {
		cmd.Env = map[string]string{"PATH": search}
	}
	r.step(ctx, in.task, "find agent")
	out, err := r.agents.RunCommand(ctx, in.place.url, in.key, cmd)
	var refused *agent.Error
	switch {
	case errors.As(err, &refused) && (refused.Status == http.StatusNotFound ||
		refused.Status == http.StatusMethodNotAllowed):
		return outcome{} // it runs no commands, and the conversation's first message tells
	case err != nil:
		return r.agentOutcome(err, in)
	case out.ExitCode < 0:
		return outcome{err: errors.New("looking for the agent " + in.agent.ID + " was cut off")}
	case out.ExitCode != 0:
		return outcome{fatal: in.scrub(fmt.Sprintf("The agent %s is not in this sandbox: it has no program %q. "+
			"Install it in what the sandbox spec %s runs, or choose another agent (%s).", in.agent.ID, program,
			in.agent.spec.ID, in.agent.spec.AgentIDs()))}
	}
	return outcome{}
}
