package secrets

import (
	"strconv"
	"strings"
)

// Birth records in which cluster's history and when something was created: the cluster's id, the
// nonce of the newest term and the log index, as the creator knew them. The zero Birth is unknown.
// It mirrors fsm.Birth, because this package does not import fsm.
type Birth struct {
	Cluster, Nonce string
	Index          uint64
}

// String returns "cluster/nonce/index", or "" for the zero Birth.
func (b Birth) String() string {
	if b == (Birth{}) {
		return ""
	}
	return b.Cluster + "/" + b.Nonce + "/" + strconv.FormatUint(b.Index, 10)
}

// ParseBirth is the inverse of String. ok is false for any other text, "" included.
func ParseBirth(s string) (Birth, bool) {
	parts := strings.Split(s, "/")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" {
		return Birth{}, false
	}
	index, err := strconv.ParseUint(parts[2], 10, 64)
	return Birth{Cluster: parts[0], Nonce: parts[1], Index: index}, err == nil
}

// covers reports whether every history that contains b also contains other: b is of the same term
// and not before it. Any birth covers the unknown one.
func (b Birth) covers(other Birth) bool {
	if other == (Birth{}) {
		return true
	}
	return b.Cluster == other.Cluster && b.Nonce == other.Nonce && b.Index >= other.Index
}
