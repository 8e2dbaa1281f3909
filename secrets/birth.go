package secrets

import (
	"strconv"
	"strings"
)

// Birth says when in which cluster's history something was made: the cluster's
// id, the nonce of the newest term and the log index that the maker knew. The
// zero Birth is unknown. It is fsm.Birth; this package does not import fsm.
type Birth struct {
	Cluster, Nonce string
	Index          uint64
}

// String gives "cluster/nonce/index", and "" for the zero Birth.
func (b Birth) String() string {
	if b == (Birth{}) {
		return ""
	}
	return b.Cluster + "/" + b.Nonce + "/" + strconv.FormatUint(b.Index, 10)
}

// ParseBirth is String's reverse.
func ParseBirth(s string) (Birth, bool) {
	parts := strings.Split(s, "/")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" {
		return Birth{}, false
	}
	index, err := strconv.ParseUint(parts[2], 10, 64)
	return Birth{Cluster: parts[0], Nonce: parts[1], Index: index}, err == nil
}

// covers reports whether whatever history holds b holds other, too: b is of
// the same term and not before it. Anything covers the unknown birth.
func (b Birth) covers(other Birth) bool {
	if other == (Birth{}) {
		return true
	}
	return b.Cluster == other.Cluster && b.Nonce == other.Nonce && b.Index >= other.Index
}
