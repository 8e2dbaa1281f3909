package request

import (
	"encoding/base64"
	"slices"
	"strings"

	"bivouac.dev/bivouac/httpapi/decode"
)

// Limits of paging (API.md, "Paging") and batches.
const (
	defaultLimit = 100
	maxLimit     = 100
	MaxBatch     = 100
	maxPageID    = 1024
)

// LimitOf reads the limit parameter.
func LimitOf(q decode.Query) int { return int(q.Integer("limit", defaultLimit, 0, maxLimit)) }

// PageIDOf reads the page_id parameter. An unknown token means the first page, so a token that is
// too long is dropped.
func PageIDOf(q decode.Query) string {
	s, _ := q.Last("page_id")
	if len(s) > maxPageID {
		return ""
	}
	return s
}

// PageAfter cuts one page out of a short list that is sorted by key. The token encodes the key of
// the page's last item. The next page starts after that key, even if the item is gone. An unknown
// token means the first page.
func PageAfter[T any](all []T, key func(T) string, token string, limit int) (items []T, next string) {
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

// tokenMark starts the text of pageAfter's tokens. Earlier versions used the item's name alone,
// which does not give its position.
const tokenMark = "k1:"

// tokenKey decodes a token's key; false if the token is unknown.
func tokenKey(token string) (string, bool) {
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return "", false
	}
	return strings.CutPrefix(string(text), tokenMark)
}
