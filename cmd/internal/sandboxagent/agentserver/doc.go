// Package agentserver is an agent server for sandboxes (PROTOCOL.md, "Sources"): health,
// conversations with their events, shell commands and files, authenticated by X-Session-API-Key.
//
// It promises: an acknowledged conversation or event survives kill -9 and a pause of the sandbox,
// because it is synced to the workspace's disk before the response. Creating a conversation again
// with the same id returns the existing one. A conversation's secrets are on disk only encrypted
// with OH_SECRET_KEY, and not at all without it. They are never logged or returned.
//
// With OH_DEFERRED_INIT it starts dormant, as a member of a warm pool; see Deferred. A command that
// a restart killed is reported as killed, without its output; OH_BASH_EVENTS_DIR has only its id.
//
// A request meets the middleware, which does what its row of the route table says (routes.go), and
// then the package that serves it:
//
//	request ─ middleware ─ router ─┬─ conversationapi ─ conversation ─┬─ engine: native or acp
//	           key, body,          ├─ bash                            ├─ relay ─ a node's gateway
//	           activity            ├─ files                           └─ webhook ─ control plane
//	                               └─ git
//
// conversationapi and bash have their WebSockets from socket. Most packages read config and use
// wire, which reads and writes JSON bodies. An engine (package engine) does a conversation's work.
// The package conversation makes it when it is needed and closes it when it is not used; it runs
// the engine's steps, stores its events and tells the subscribers.
//
// cmd/bivouac embeds the server: `bivouac dev` re-executes itself as the sandboxes.
package agentserver
