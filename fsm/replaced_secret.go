package fsm

import (
	"encoding/binary"
	"time"

	"github.com/hashicorp/go-memdb"
)

// ReplacedTTL is for how long a value that no row refers to any more counts for its user: the secret
// store keeps it about as long. A value that a backup names may stay there for longer, and then counts for
// nobody.
const ReplacedTTL = 7*24*time.Hour + time.Hour

// forgetReplacedEvery: one command of so many removes values that count no longer, at most
// forgetReplacedMost. It spares the others the look.
const forgetReplacedEvery, forgetReplacedMost = 1024, 4096

// replacedSecret is a value in the secret store that a user's settings, custom secrets, profiles or
// providers referred to and that was replaced or removed.
type replacedSecret struct {
	UserID  string    `json:"user_id"`
	Path    string    `json:"path"`
	Version int       `json:"version"`
	Bytes   int       `json:"bytes"`
	Since   time.Time `json:"since"`
}

func replacedTable() *memdb.TableSchema {
	return newTable(tableReplaced,
		newIndex(indexID, func(r *replacedSecret) []byte {
			if r.UserID == "" || r.Path == "" {
				return nil
			}
			return replacedKey(r.UserID, r.Path, r.Version)
		}),
		// All, oldest first.
		newIndex(indexTime, func(r *replacedSecret) []byte {
			return append(appendTime(nil, r.Since), replacedKey(r.UserID, r.Path, r.Version)...)
		}))
}

func replacedKey(user, path string, version int) []byte {
	return binary.BigEndian.AppendUint64(prefixOf(user, path), uint64(version))
}

func (r *replacedSecret) expired(now time.Time) bool { return now.Sub(r.Since) > ReplacedTTL }

// secretsOwner returns the user whose values the row refers to, "" for rows whose values go when the row
// does.
func secretsOwner(row any) string {
	switch row := row.(type) {
	case *Settings:
		return row.UserID
	case *CustomSecret:
		return row.UserID
	case *Provider:
		return row.UserID
	case *Profile:
		return row.UserID
	}
	return ""
}

// replaced returns what of a row's values no row refers to any more once refs take their place, as far as
// it counts.
func replaced(row any, refs refSet, now time.Time) (list []replacedSecret) {
	user := secretsOwner(row)
	if user == "" {
		return nil
	}
	for _, r := range row.(referrer).secretRefs() {
		still := r.Bytes == 0
		for _, next := range refs {
			still = still || next.Path == r.Path && next.Version == r.Version
		}
		for i := range list {
			still = still || list[i].Path == r.Path && list[i].Version == r.Version
		}
		if !still {
			list = append(list, replacedSecret{UserID: user, Path: r.Path, Version: r.Version, Bytes: r.Bytes, Since: now})
		}
	}
	return list
}

// keepReplaced counts the values of a row to which nothing refers after it was replaced or dropped.
func (t *transaction) keepReplaced(row any, refs refSet) {
	if !t.meta.active(VersionRoom) {
		return
	}
	for _, r := range replaced(row, refs, t.now) {
		if first[secretRef](t.txn, tableSecretRefs, indexID, refKey(SecretRef{Path: r.Path, Version: r.Version})) != nil {
			continue
		}
		old := first[replacedSecret](t.txn, tableReplaced, indexID, replacedKey(r.UserID, r.Path, r.Version))
		put(t, tableReplaced, old, &r)
	}
}

// replacedBytes returns what the values of old will count for when next has taken its place.
func (m *meta) replacedBytes(old any, refs refSet) (n int) {
	if !m.active(VersionRoom) {
		return 0
	}
	for _, r := range replaced(old, refs, time.Time{}) {
		_, bytes := m.rowBytes(&r)
		n += bytes
	}
	return n
}

// forgetReplaced removes a bounded number of values that count no longer.
func (t *transaction) forgetReplaced(most int) {
	var expired []*replacedSecret
	for r := range withPrefix[replacedSecret](t.txn, tableReplaced, indexTime, nil) {
		if !r.expired(t.now) || len(expired) == most {
			break
		}
		expired = append(expired, r)
	}
	for _, r := range expired {
		drop(t, tableReplaced, r)
	}
}
