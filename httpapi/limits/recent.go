package limits

import (
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

// Recent remembers keys for a time, of those the MaxClients that were used last.
type Recent[K comparable] struct {
	during time.Duration
	until  *lru.Cache[K, time.Time]
}

// NewRecent remembers each key for a time.
func NewRecent[K comparable](during time.Duration) *Recent[K] {
	return &Recent[K]{during: during, until: newMemory[K, time.Time]()}
}

// Add remembers a key from now on.
func (r *Recent[K]) Add(key K, now time.Time) { r.until.Add(key, now.Add(r.during)) }

// Has reports whether a key is remembered.
func (r *Recent[K]) Has(key K, now time.Time) bool {
	until, found := r.until.Get(key)
	return found && now.Before(until)
}
