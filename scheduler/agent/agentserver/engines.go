package agentserver

import "bivouac.dev/bivouac/scheduler/agent/engine"

// newEngine makes the engine of a setup. It starts nothing slow.
func newEngine(setup engine.Setup, _ engine.Conversation) (engine.Engine, error) {
	return nil, &engine.Failure{Code: "LLMNotConfigured", Detail: "There is no engine for the agent kind " + setup.Agent.Kind + "."}
}
