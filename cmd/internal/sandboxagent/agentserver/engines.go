package agentserver

import (
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/acp"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/native"
)

// newEngine makes the engine of a setup. It starts nothing slow.
func newEngine(setup engine.Setup, conv engine.Conversation) (engine.Engine, error) {
	switch setup.Agent.Kind {
	case "", "openhands":
		return native.New(setup, conv)
	case "acp":
		return acp.New(setup, conv)
	}
	return nil, &engine.Failure{
		Code:   "LLMNotConfigured",
		Detail: "There is no engine for the agent kind " + setup.Agent.Kind + ".",
	}
}
