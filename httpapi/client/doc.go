// Package client calls the API of a node, or of several in turn (Addresses): JSON calls, and downloads
// and uploads of any length. An error response is an *Error with the response's text (API.md,
// "Errors"). A Client does not retry and shows no key in an error. The commands of cmd/bivouac and the
// end-to-end tests use it.
package client
