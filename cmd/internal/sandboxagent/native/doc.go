// Package native is the built-in agent: a loop that calls a model, in chat completions, Responses or
// Messages, and executes the tools that it asks for. It implements engine.Engine.
//
// A step is in step.go, and what the model is shown in view.go. The call of the model is in rooms of
// its own: client.go sends, dialect.go and repairs.go know what the server takes, fit.go makes the
// request so, wire.go writes it in its API, reading.go reads the answer, calls.go and readcalls.go say
// what is meant by it, written.go speaks with models without native calls, retry.go asks again,
// display.go shows, and failure.go reads errors. All that must survive a restart is in the events.
package native
