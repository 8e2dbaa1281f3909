package fsm

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/hashicorp/go-memdb"
)

// The bounds of keys that have ended: revoked or expired. They are kept for a while, because an
// operator who looks into an incident asks whose they were.
const (
	// EndedKeyTTL is how long, in command time, an ended key is kept.
	EndedKeyTTL = 90 * 24 * time.Hour
	// EndedKeys is how many of one user are kept, the newest.
	EndedKeys = 100
	// collectKeys bounds how many keys one command removes.
	collectKeys = 1000
)

func apiKeyTable() *memdb.TableSchema {
	return newTable(tableAPIKeys,
		newIndex(indexID, func(k *APIKey) []byte { return intKey(k.ID) }),
		newIndex(indexLookup, func(k *APIKey) []byte { return []byte(k.Lookup) }),
		newIndex(indexUser, func(k *APIKey) []byte { return append(prefixOf(k.UserID), intKey(k.ID)...) }),
		// The keys of one user that may be valid, by the time at which they end.
		newIndex(indexValid, func(k *APIKey) []byte { return k.validKey(prefixOf(k.UserID)) }),
		// The keys that end or have ended, by that time: of all users, and of one.
		newIndex(indexTime, func(k *APIKey) []byte { return k.endKey(nil) }),
		newIndex(indexDone, func(k *APIKey) []byte { return k.endKey(prefixOf(k.UserID)) }),
	)
}

// end returns the time from which on the key is revoked or expired, nil for none.
func (k *APIKey) end() *time.Time {
	if k.RevokedAt == nil || k.ExpiresAt != nil && k.ExpiresAt.Before(*k.RevokedAt) {
		return k.ExpiresAt
	}
	return k.RevokedAt
}

// endKey appends the key of an index by end, nil for a key without one.
func (k *APIKey) endKey(prefix []byte) []byte {
	end := k.end()
	if end == nil {
		return nil
	}
	return binary.BigEndian.AppendUint64(appendTime(prefix, *end), uint64(k.ID))
}

// validKey appends the key of the index of valid keys, where a key without an end comes last. It is
// nil for a key that is not valid.
func (k *APIKey) validKey(prefix []byte) []byte {
	switch {
	case k.RevokedAt != nil || k.SuspendedAt != nil || k.Disabled:
		return nil
	case k.ExpiresAt == nil:
		return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(prefix, math.MaxUint64), uint64(k.ID))
	}
	return k.endKey(prefix)
}

// hasValidKey reports whether a user has a key that is valid at a time.
func hasValidKey(txn *memdb.Txn, userID string, now time.Time) bool {
	mine := prefixOf(userID)
	// A key is valid before its end.
	for k := range from[APIKey](txn, tableAPIKeys, indexValid,
		appendTime(mine, now.Truncate(time.Microsecond).Add(time.Microsecond))) {
		return k.UserID == userID
	}
	return false
}

// collectEndedKeys removes the keys that ended EndedKeyTTL ago, and of a user the oldest beyond
// EndedKeys.
func (t *transaction) collectEndedKeys(user string) {
	if !t.meta.active(VersionRoom) {
		return
	}
	var gone, mine []*APIKey
	for k := range withPrefix[APIKey](t.txn, tableAPIKeys, indexTime, nil) {
		if t.now.Sub(*k.end()) <= EndedKeyTTL || len(gone) == collectKeys {
			break
		}
		gone = append(gone, k)
	}
	for _, k := range gone {
		drop(t, tableAPIKeys, k)
	}
	for k := range withPrefix[APIKey](t.txn, tableAPIKeys, indexDone, prefixOf(user)) {
		if k.end().After(t.now) {
			break
		}
		mine = append(mine, k)
	}
	for _, k := range mine[:min(collectKeys, max(0, len(mine)-EndedKeys))] {
		drop(t, tableAPIKeys, k)
	}
}

// APIKeyByLookup finds a key by its public part, revoked keys too.
func (v *View) APIKeyByLookup(lookup string) *APIKey {
	return first[APIKey](v.txn, tableAPIKeys, indexLookup, []byte(lookup))
}

// APIKeys lists every key ever issued, by id.
func (v *View) APIKeys() []*APIKey {
	return collect(withPrefix[APIKey](v.txn, tableAPIKeys, indexID, nil))
}

// APIKeysOf lists a user's keys by id, revoked ones too as long as they are kept.
func (v *View) APIKeysOf(userID string) []*APIKey {
	return collect(withPrefix[APIKey](v.txn, tableAPIKeys, indexUser, prefixOf(userID)))
}

// AnyAPIKey reports whether any key was ever issued.
func (v *View) AnyAPIKey() bool { return v.meta.LastAPIKeyID > 0 }

// LastAPIKeyID returns the id of the newest API key, 0 if none was issued.
func (v *View) LastAPIKeyID() int { return v.meta.LastAPIKeyID }
