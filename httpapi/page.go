package httpapi

import (
	"encoding/base64"
	"slices"
	"strings"
)

// Bounds of the limit parameter (api-contract.md A.0.6).
const (
	defaultLimit = 100
	maxLimit     = 100
	maxBatch     = 100
	maxPageID    = 1024
)

// page is one page of a listing.
type page[T any] struct {
	Items      []T     `json:"items"`
	NextPageID *string `json:"next_page_id"`
}

func newPage[T any](items []T, next string) page[T] {
	return page[T]{Items: orEmpty(items), NextPageID: orNull(next)}
}

// limit reads the limit parameter.
func (q query) limit() int { return int(q.integer("limit", defaultLimit, 0, maxLimit)) }

// pageID reads the page_id parameter. A token that is not ours means the
// beginning, so one that is too long is the same as none.
func (q query) pageID() string {
	s, _ := q.last("page_id")
	if len(s) > maxPageID {
		return ""
	}
	return s
}

// pageAfter cuts one page out of a short list that is held whole and sorted by
// key. The token is the key of the page's last item; the next page begins with
// the first key behind it, whether or not that item is still there. What is no
// token of ours means the beginning.
func pageAfter[T any](all []T, key func(T) string, token string, limit int) (items []T, next string) {
	items = all
	if after, ok := tokenKey(token); ok {
		items = slices.DeleteFunc(slices.Clone(all), func(one T) bool { return key(one) <= after })
	}
	if len(items) > limit {
		items = items[:limit]
		next = base64.RawURLEncoding.EncodeToString([]byte(tokenMark + key(items[limit-1])))
	}
	return items, next
}

// tokenMark begins what pageAfter makes tokens of; the name of an item alone, as
// earlier versions had it, says nothing of its place.
const tokenMark = "k1:"

// tokenKey gives the key of a token, false when it is not one of ours.
func tokenKey(token string) (string, bool) {
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return "", false
	}
	return strings.CutPrefix(string(text), tokenMark)
}
