// Package apifuzz is a fuzzer of the HTTP API. It generates valid and invalid requests from the
// API's OpenAPI description and sends them to all nodes of a running cluster as several users.
// It checks that there is no 5xx, no hang, nothing undescribed, no secret in a response, no
// other user's data, and no change to the other user's data.
//
// A reported request can be sent again. A seed gives the same requests, but their order over
// several workers is random. It uses none of the product's code except for the description.
package apifuzz
