package agentserver

import (
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/acp"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/native"
)

// newEngine returns the engine for the setup's agent kind. The first step starts its processes.
func newEngine(setup engine.Setup, conv engine.Conversation) (engine.Engine, error) {
	switch setup.Agent.Kind {
	case "", "openhands":
		return native.New(setup, conv)
	case "acp":
		return acp.New(setup, conv)
	}
	return nil, &engine.Failure{
		Code:   "LLMNotConfigured",
		Detail: "The agent kind " + setup.Agent.Kind + " is unknown: use openhands or acp.",
	}
}
