// Package agent is the client of the agent server in a sandbox
// (api-contract.md, Part C). It owns the protocol's JSON towards the agent
// server; it knows nothing of sandboxes' lives and decides nothing.
//
// Every call is bounded in time and in the bytes it reads, follows no redirect
// and uses no proxy, so that a sandbox's key goes to the sandbox and nowhere
// else. Errors never hold a key, a request body or a secret.
package agent
