package httpapi

import (
	"encoding/base64"
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

// pageAfter cuts one page out of a short list that is held whole. The token is
// the id of the page's last item; an unknown one means the beginning.
func pageAfter[T any](all []T, id func(T) string, token string, limit int) (items []T, next string) {
	start := 0
	if after, err := base64.RawURLEncoding.DecodeString(token); err == nil && len(after) > 0 {
		for i, one := range all {
			if id(one) == string(after) {
				start = i + 1
				break
			}
		}
	}
	items = all[start:]
	if len(items) > limit {
		items = items[:limit]
		next = base64.RawURLEncoding.EncodeToString([]byte(id(items[limit-1])))
	}
	return items, next
}
