package e2e

import (
	"cmp"
	"strings"
)

// raftBlock writes the log store into a raft block; "" is the default store.
func raftBlock(text, store string) string {
	return strings.ReplaceAll(text, "STORE", cmp.Or(store, "boltdb"))
}
