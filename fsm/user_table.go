package fsm

import "github.com/hashicorp/go-memdb"

func userTable() *memdb.TableSchema {
	return newTable(tableUsers, newIndex(indexID, func(u *User) []byte { return []byte(u.ID) }))
}

// User finds a user. It returns nil when no key was ever issued in that name.
func (v *View) User(id string) *User { return first[User](v.txn, tableUsers, indexID, []byte(id)) }

// Users lists every user, by id.
func (v *View) Users() []*User {
	return collect(withPrefix[User](v.txn, tableUsers, indexID, nil))
}
