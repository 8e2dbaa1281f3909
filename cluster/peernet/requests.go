package peernet

import "context"

// requestsHeader carries the ids of the API requests behind a call. An older program ignores it.
const requestsHeader = "Bivouac-Requests"

// MaxRequests bounds the text of WithRequests, in bytes: the headers of a call hold it.
const MaxRequests = callHeaderBytes / 2

type requestsKey struct{}

// WithRequests adds to ctx the ids of the API requests that a call is made for, which reach the peer
// with the call. The text is cluster's.
func WithRequests(ctx context.Context, ids string) context.Context {
	if ids == "" {
		return ctx
	}
	return context.WithValue(ctx, requestsKey{}, ids)
}

// Requests gives what WithRequests added, here or at the caller.
func Requests(ctx context.Context) string {
	ids, _ := ctx.Value(requestsKey{}).(string)
	return ids
}
