// Package httpapi is Bivouac's HTTP surface: the eleven endpoints of
// seed-api.md, the part of api-contract.md around them, the open health routes
// and the operator routes.
//
// It turns a request into a checked value, the value into one fsm.Command for
// Cluster.Propose or one fsm.View to read, and the outcome into the contract's
// JSON. It decides nothing about the cluster: who leads is cluster's business,
// what may happen is fsm's, what runs is scheduler's. It owns the words of the
// API: paths, field names, status codes and error shapes.
//
// Beside the API it serves the door: requests below /sandboxes/ (or for a
// sandbox's own host name) are proxied to the sandbox's ports; see the type door.
//
// Promises:
//   - A request is authenticated first, then checked as a whole, then acts. All
//     field errors of one request are reported together.
//   - Secret values go to the secret store before the command that refers to
//     them, and nowhere else: not into a command, a log line, an error body or
//     the echoed input of a validation error.
//   - The answer to a POST is rendered from fsm.Result alone, so a repeated
//     Idempotency-Key gets the first answer byte for byte.
//   - Another user's object is answered as if it did not exist.
//
// To add an endpoint: one line in routes.go, one handler in the noun's file,
// and, for a new kind of failure, one row in errors.go.
package httpapi
