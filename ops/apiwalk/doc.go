// Package apiwalk is a fuzzer of the HTTP API. It reads the API's description,
// makes requests from it, good ones and broken ones, sends them to all nodes of
// a running cluster as several users, and holds every answer to a few rules: no
// 5xx, no hang, nothing that is not described, no secret, nothing that is
// another user's, and nothing of that other user's changed.
//
// It promises that a request it reports can be sent again, and that its seed
// gives the same requests, though their order over several workers is chance.
// It never looks at the product's code but for the description.
package apiwalk
