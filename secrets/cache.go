package secrets

import (
	"maps"
	"strconv"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

const (
	// cacheEntries and cacheValueBytes bound the memory of the values to 8 MiB.
	cacheEntries    = 1024
	cacheValueBytes = 8 << 10
	// cacheTTL bounds how long a deleted secret can still be read. It must be far below the grace
	// period: see Vault.Delete.
	cacheTTL = 30 * time.Second
)

// cache keeps versions that were read. A version never changes, so the cache can only miss its
// deletion.
type cache struct {
	lru *lru.Cache[string, cached]
	now func() time.Time
}

type cached struct {
	data          map[string]string
	created, read time.Time
}

func newCache() (*cache, error) {
	l, err := lru.New[string, cached](cacheEntries)
	if err != nil {
		return nil, err
	}
	return &cache{lru: l, now: time.Now}, nil
}

func cacheKey(path string, version int) string { return path + "#" + strconv.Itoa(version) }

// get returns the version that was written at created, or at any time if created is zero.
func (c *cache) get(path string, version int, created time.Time) (map[string]string, bool) {
	key := cacheKey(path, version)
	e, ok := c.lru.Get(key)
	if !ok || !created.IsZero() && !created.Equal(e.created) {
		return nil, false
	}
	if c.now().Sub(e.read) > cacheTTL {
		c.lru.Remove(key)
		return nil, false
	}
	return maps.Clone(e.data), true
}

func (c *cache) put(path string, version int, created time.Time, data map[string]string) {
	size := 0
	for k, v := range data {
		size += len(k) + len(v)
	}
	if size <= cacheValueBytes {
		c.lru.Add(cacheKey(path, version), cached{data: maps.Clone(data), created: created, read: c.now()})
	}
}

// forget removes versions that were deleted or destroyed.
func (c *cache) forget(path string, versions []int) {
	for _, v := range versions {
		c.lru.Remove(cacheKey(path, v))
	}
}
