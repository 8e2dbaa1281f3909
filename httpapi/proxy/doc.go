// Package proxy is the reverse proxy to the sandboxes' ports: HTTP, WebSockets, event streams and
// other upgrades, from every node to every sandbox (API.md, "Sandbox proxy").
//
// It authorises a request by the sandbox's own key, an API key of the owner or its own cookie. It
// waits for a starting sandbox and, where the request asks for it, wakes a paused one. It ends open
// streams when the sandbox stops or moves or the key is revoked. It removes the request's secrets:
// a sandbox sees at most its own key.
//
// The struct Server has what it needs of the API server; api.go has what the API server uses. It
// does not manage sandboxes: waking one is a command.
package proxy
