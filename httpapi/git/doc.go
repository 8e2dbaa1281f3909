// Package git knows the git providers of the API: it reads the tokens of a request, checks tokens
// and repositories with their provider, and turns a suggested task into a start. Package httpapi has
// the handlers.
package git
