// Package decode reads JSON bodies and query parameters by upstream's validation rules
// (API.md, "Validation"): what counts as an integer, a boolean, a UUID or a time, and the error for
// anything else. Package httpapi, its subpackages and the built-in agent server use it.
//
// Readers collect every fault of a request with its location in a Problems. Echoed input is
// truncated and masked: a fault shows neither a secret nor a text of unbounded length.
//
// It imports only what the program in every sandbox has without it: the standard library and
// go-json-experiment/json.
package decode
