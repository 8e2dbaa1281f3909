package secrets

import (
	"maps"
	"strconv"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

const (
	// cacheEntries and cacheValueBytes bound the memory: 8 MiB at most.
	cacheEntries    = 1024
	cacheValueBytes = 8 << 10
	// cacheTTL bounds how long a destroyed secret is still known. It must be
	// far below the grace period: see Vault.Delete.
	cacheTTL = 30 * time.Second
)

// cache remembers versions that were read. A version never changes, so only
// its end can be missed.
type cache struct {
	lru *lru.Cache[string, cached]
	now func() time.Time
}

type cached struct {
	data map[string]string
	read time.Time
}

func newCache() (*cache, error) {
	l, err := lru.New[string, cached](cacheEntries)
	if err != nil {
		return nil, err
	}
	return &cache{lru: l, now: time.Now}, nil
}

func cacheKey(path string, version int) string { return path + "#" + strconv.Itoa(version) }

func (c *cache) get(path string, version int) (map[string]string, bool) {
	key := cacheKey(path, version)
	e, ok := c.lru.Get(key)
	if !ok {
		return nil, false
	}
	if c.now().Sub(e.read) > cacheTTL {
		c.lru.Remove(key)
		return nil, false
	}
	return maps.Clone(e.data), true
}

func (c *cache) put(path string, version int, data map[string]string) {
	size := 0
	for k, v := range data {
		size += len(k) + len(v)
	}
	if size <= cacheValueBytes {
		c.lru.Add(cacheKey(path, version), cached{data: maps.Clone(data), read: c.now()})
	}
}

// forget drops versions that were destroyed.
func (c *cache) forget(path string, versions []int) {
	for _, v := range versions {
		c.lru.Remove(cacheKey(path, v))
	}
}
