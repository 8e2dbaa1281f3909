package fsm

import "github.com/hashicorp/go-memdb"

func providerTable() *memdb.TableSchema {
	return newTable(tableProviders,
		newIndex(indexID, func(p *Provider) []byte { return keyOf(p.UserID, string(p.Type)) }))
}

// secretRefs implements referrer.
func (p *Provider) secretRefs() refSet { return refSet{p.Ref} }

// Providers lists a user's git provider connections by type.
func (v *View) Providers(userID string) []*Provider {
	return collect(withPrefix[Provider](v.txn, tableProviders, indexID, prefixOf(userID)))
}
