// Package modeltest is a scripted model server over real HTTP, for tests and demonstrations: it
// speaks the vendors' protocols, chooses its answers by what a request holds, shows the faults of
// real servers, and records what it was asked.
//
// A [Script] says what is answered, a [Server] serves it. One file holds each protocol; chat.go is
// OpenAI's chat completions, responses.go its Responses. ops/agents/scriptedmodel is a program of it.
package modeltest
