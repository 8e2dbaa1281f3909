// Package agentserver is an agent server for sandboxes that speaks the
// protocol of api-contract.md, Part C: health, conversations with their
// events, shell commands and files, behind X-Session-API-Key.
//
// What it promises: a conversation or an event that was acknowledged survives
// kill -9 and a pause of the sandbox, because it is on the workspace's disk and
// synced before the answer; asking again for a conversation id gives the same
// conversation. Secrets handed over with a conversation are written to disk
// only sealed with OH_SECRET_KEY, and not at all without it; they are never
// logged or shown.
//
// With OH_DEFERRED_INIT it comes up dormant, as the member of a warm pool:
// Deferred. A command that a restart ended is answered as killed, without its
// output; OH_BASH_EVENTS_DIR keeps no more than its id.
//
// What it does not do yet: call a model, or webhooks. A message that asks for a
// run is kept, and the conversation then holds a ConversationErrorEvent with
// the code "ModelNotCalled" and goes back to idle, so that nobody waits for an
// answer.
//
// Beside the standard library it imports a WebSocket library only. It is embedded by cmd/bivouac, which
// re-executes itself as the sandboxes of `bivouac dev`.
package agentserver
