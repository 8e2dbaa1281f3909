// Package agent is the client of the agent server in a sandbox (PROTOCOL.md, "Sources"). It owns
// the protocol's JSON. It does not manage sandboxes and decides nothing.
//
// Every call limits its time and the bytes it reads, follows no redirect and uses no proxy, so that
// a sandbox's key goes only to the sandbox. Errors contain neither a key, nor a request body, nor a
// secret.
package agent
