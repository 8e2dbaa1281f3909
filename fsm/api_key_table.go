package fsm

import "github.com/hashicorp/go-memdb"

func apiKeyTable() *memdb.TableSchema {
	return newTable(tableAPIKeys,
		newIndex(indexID, func(k *APIKey) []byte { return intKey(k.ID) }),
		newIndex(indexLookup, func(k *APIKey) []byte { return []byte(k.Lookup) }),
		newIndex(indexUser, func(k *APIKey) []byte { return append(prefixOf(k.UserID), intKey(k.ID)...) }),
	)
}

// APIKeyByLookup finds a key by its public part, revoked keys too.
func (v *View) APIKeyByLookup(lookup string) *APIKey {
	return first[APIKey](v.txn, tableAPIKeys, indexLookup, []byte(lookup))
}

// APIKeys lists every key ever issued, by id.
func (v *View) APIKeys() []*APIKey {
	return collect(withPrefix[APIKey](v.txn, tableAPIKeys, indexID, nil))
}

// AnyAPIKey reports whether any key was ever issued.
func (v *View) AnyAPIKey() bool { return v.meta.LastAPIKeyID > 0 }

// LastAPIKeyID returns the id of the newest API key, 0 if none was issued.
func (v *View) LastAPIKeyID() int { return v.meta.LastAPIKeyID }
