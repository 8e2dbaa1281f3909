package fsm

import (
	"iter"
	"strings"

	"github.com/hashicorp/go-memdb"
)

// indexFolded finds sandboxes without regard to the case of their ids.
const indexFolded = "folded"

func sandboxTable() *memdb.TableSchema {
	return newTable(tableSandboxes,
		newIndex(indexID, func(s *Sandbox) []byte { return []byte(s.ID) }),
		// What the user sees: not the ones being deleted.
		newIndex(indexCreated, func(s *Sandbox) []byte {
			if s.Desired == DesiredDeleted || s.Member() {
				return nil
			}
			return newestKey(s.UserID, s.CreatedAt, s.ID)
		}),
		newIndex(indexKeyHash, func(s *Sandbox) []byte {
			if s.KeyHash == "" {
				return nil
			}
			return []byte(s.KeyHash)
		}),
		// A user's that should run, those started first first.
		newIndex(indexRunning, func(s *Sandbox) []byte {
			if s.Desired != DesiredRunning || s.Member() {
				return nil
			}
			return append(appendTime(prefixOf(s.UserID), s.DesiredAt), s.ID...)
		}),
		// The members of warm pools, by spec; not the ones being deleted.
		newIndex(indexPool, func(s *Sandbox) []byte {
			if s.Desired == DesiredDeleted || !s.Member() {
				return nil
			}
			return keyOf(s.Pool, s.ID)
		}),
		// The id as a host name carries it.
		newIndex(indexFolded, func(s *Sandbox) []byte {
			if s.Member() {
				return nil
			}
			return keyOf(strings.ToLower(s.ID), s.ID)
		}),
	)
}

// secretRefs implements referrer.
func (s *Sandbox) secretRefs() refSet { return refSet{s.KeyRef, s.InitRef, s.WarmKeyRef} }

// Sandbox finds a user's sandbox; nil when it is unknown, another user's,
// nobody's or being deleted.
func (v *View) Sandbox(userID, id string) *Sandbox {
	s := v.SandboxAny(id)
	if s == nil || s.UserID != userID || s.Member() || s.Desired == DesiredDeleted {
		return nil
	}
	return s
}

// SandboxAny finds a sandbox of any user, also one being deleted. It is the
// scheduler's: nothing it returns may be shown to a user unchecked.
func (v *View) SandboxAny(id string) *Sandbox {
	return first[Sandbox](v.txn, tableSandboxes, indexID, []byte(id))
}

// SandboxesFolded finds the sandboxes of any user whose id is the given one but
// for upper and lower case, those being deleted too. It is for host names, which
// know no case, and not for the members of pools, who have none; more than one is possible, if hardly likely.
func (v *View) SandboxesFolded(id string) []*Sandbox {
	return collect(withPrefix[Sandbox](v.txn, tableSandboxes, indexFolded, prefixOf(strings.ToLower(id))))
}

// Sandboxes lists a user's sandboxes that are not being deleted, newest first,
// and gives the token of the next page ("" at the end).
func (v *View) Sandboxes(userID string, p Page) ([]*Sandbox, string) {
	return page(v.txn, tableSandboxes, indexCreated, userID, p,
		func(s *Sandbox) bool { return s.UserID == userID }, nil,
		func(s *Sandbox) []byte { return newestKey(userID, s.CreatedAt, s.ID) })
}

// AllSandboxes iterates every sandbox of every user, by id, those being deleted
// and the members of warm pools too.
func (v *View) AllSandboxes() iter.Seq[*Sandbox] {
	return withPrefix[Sandbox](v.txn, tableSandboxes, indexID, nil)
}

// SandboxByKeyHash finds the sandbox whose own key has this SHA-256 (hex); nil
// also when it is being deleted.
func (v *View) SandboxByKeyHash(hash string) *Sandbox {
	s := first[Sandbox](v.txn, tableSandboxes, indexKeyHash, []byte(hash))
	if s == nil || s.Desired == DesiredDeleted {
		return nil
	}
	return s
}
