// Package requestid carries the id of an API request in a context, so that every log line and every
// call that the request causes can have it.
package requestid

import (
	"context"
	"slices"
)

// Header is the HTTP header of the id.
const Header = "X-Request-Id"

// maxLength bounds an id, in characters.
const maxLength = 128

type contextKey struct{}

// With returns a context of the request with the id.
func With(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, contextKey{}, id)
}

// Of returns the id of the context's request, "" outside of one.
func Of(ctx context.Context) string {
	id, _ := ctx.Value(contextKey{}).(string)
	return id
}

// Valid reports whether an id that somebody sent is safe to log and to pass on.
func Valid(id string) bool {
	return id != "" && len(id) <= maxLength && !slices.ContainsFunc([]byte(id), func(b byte) bool {
		return (b < '0' || b > '9') && (b < 'A' || b > 'Z') && (b < 'a' || b > 'z') && b != '-' && b != '_' && b != '.'
	})
}
