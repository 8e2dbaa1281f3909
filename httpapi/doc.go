// Package httpapi is Bivouac's HTTP API: the eleven endpoints of the seed document, the endpoints
// around them, the health routes without authentication and the operator routes
// (API.md, "Sources").
//
// It decodes and validates a request, turns it into one fsm.Command for Cluster.Propose or reads
// one fsm.View, and encodes the outcome as JSON. It decides nothing about the cluster: package
// cluster elects the leader, fsm decides what may happen, scheduler what runs. It owns the API's
// paths, field names, status codes and error formats.
//
// It also serves the sandbox proxy (package proxy): requests below /sandboxes/ and for a sandbox's
// own host name. Packages decode, response and apikey hold what both use.
//
// Promises:
//   - A request is authenticated first, then validated as a whole, then executed. All
//     field errors of one request are reported together.
//   - Secret values go to the secret store, before the command that refers to them, and
//     nowhere else: not into a command, a log line, an error body or the echoed input of
//     a validation error.
//   - The response to a POST is rendered from fsm.Result alone, so a repeated
//     Idempotency-Key gets the first response byte for byte.
//   - Another user's object looks as if it did not exist.
//
// To add an endpoint: one line in routes.go, one handler in the noun's file, its summary in
// openapi.yaml and, for a new kind of failure, one row in response/errors.go.
package httpapi
