package fsm

import "github.com/hashicorp/go-memdb"

func specTable() *memdb.TableSchema {
	return newTable(tableSpecs,
		newIndex(indexID, func(s *Spec) []byte { return []byte(s.ID) }),
		newIndex(indexPosition, func(s *Spec) []byte { return append(intKey(s.Position), s.ID...) }),
	)
}

// Spec finds a spec by id, or returns nil.
func (v *View) Spec(id string) *Spec { return first[Spec](v.txn, tableSpecs, indexID, []byte(id)) }

// Specs lists the specs by position. The first is the default.
func (v *View) Specs() []*Spec {
	return collect(withPrefix[Spec](v.txn, tableSpecs, indexPosition, nil))
}
