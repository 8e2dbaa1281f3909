package fsm

import "github.com/hashicorp/go-memdb"

func settingsTable() *memdb.TableSchema {
	return newTable(tableSettings, newIndex(indexID, func(s *Settings) []byte { return []byte(s.UserID) }))
}

func customSecretTable() *memdb.TableSchema {
	return newTable(tableCustomSecrets,
		newIndex(indexID, func(c *CustomSecret) []byte { return keyOf(c.UserID, c.Name) }))
}

// secretRefs implements referrer.
func (s *Settings) secretRefs() refSet {
	refs := refSet{s.LLMAPIKey, s.SearchAPIKey, s.SandboxAPIKey, s.MCPConfig}
	for i := range s.Former {
		refs[4+i] = s.Former[i].Key
	}
	return refs
}

// secretRefs implements referrer.
func (c *CustomSecret) secretRefs() refSet { return refSet{c.Ref} }

// Settings returns a user's settings, nil when none were ever stored.
func (v *View) Settings(userID string) *Settings {
	return first[Settings](v.txn, tableSettings, indexID, []byte(userID))
}

// CustomSecrets lists a user's named secrets by name.
func (v *View) CustomSecrets(userID string) []*CustomSecret {
	return collect(withPrefix[CustomSecret](v.txn, tableCustomSecrets, indexID, prefixOf(userID)))
}
