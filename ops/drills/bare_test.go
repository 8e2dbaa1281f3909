package drills

import (
	"cmp"
	"strings"
)

// raftBlock fills the log store into a raft block; "" is the default store.
func raftBlock(text, store string) string {
	return strings.ReplaceAll(text, "STORE", cmp.Or(store, "boltdb"))
}
