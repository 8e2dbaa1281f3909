// Package wire has the bodies of the API that both its server and its Go clients use: what operators
// get, pages and times.
package wire

// Success is the body of calls that only confirm.
type Success struct {
	Success bool `json:"success"`
}

// Message is the body of V0 calls that only confirm, in words.
type Message struct {
	Message string `json:"message"`
}

// Page is one page of a listing.
type Page[T any] struct {
	Items      []T     `json:"items"`
	NextPageID *string `json:"next_page_id"`
}

// NewPage makes a page. next is the token of the page after it, "" for none.
func NewPage[T any](items []T, next string) Page[T] {
	return Page[T]{Items: OrEmpty(items), NextPageID: OrNull(next)}
}

// OrNull returns nil for "", which the API encodes as null.
func OrNull[T ~string](s T) *T {
	if s == "" {
		return nil
	}
	return &s
}

// OrEmpty returns an empty list for nil, for members that are never null.
func OrEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// OrEmptyMap is OrEmpty for a map.
func OrEmptyMap[V any](m map[string]V) map[string]V {
	if m == nil {
		return map[string]V{}
	}
	return m
}
