// Package native is the built-in agent: a loop that calls a model behind an OpenAI-compatible
// endpoint and executes the tools that it asks for. It implements engine.Engine.
//
// A step is in step.go, what the model is shown in view.go, the call of the model in client.go and
// stream.go, and its errors in failure.go. All that must survive a restart is in the events.
package native
