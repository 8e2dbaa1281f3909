// Package response encodes the API's JSON and converts errors to HTTP: the error formats
// (API.md, "Errors") and the one table from fsm's error codes to statuses. Package httpapi and its
// proxy use it. It decides nothing: a handler returns an error, and FailureOf converts it.
package response
