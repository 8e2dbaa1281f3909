package fsm

import (
	"iter"
	"strings"

	"github.com/hashicorp/go-memdb"
)

// indexFolded finds sandboxes by their id in lower case, indexLingering those of a user whose jobs run on
// after a pause.
const (
	indexFolded    = "folded"
	indexLingering = "lingering"
)

func sandboxTable() *memdb.TableSchema {
	return newTable(tableSandboxes,
		newIndex(indexID, func(s *Sandbox) []byte { return []byte(s.ID) }),
		// What the user sees: without those being deleted.
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
		// A user's sandboxes with DesiredRunning, in the order they were started.
		newIndex(indexRunning, func(s *Sandbox) []byte {
			if s.Desired != DesiredRunning || s.Member() {
				return nil
			}
			return append(appendTime(prefixOf(s.UserID), s.DesiredAt), s.ID...)
		}),
		newIndex(indexLingering, func(s *Sandbox) []byte {
			if !s.lingers() || s.Member() {
				return nil
			}
			return append(appendTime(prefixOf(s.UserID), s.DesiredAt), s.ID...)
		}),
		// The members of warm pools by spec, without those being deleted.
		newIndex(indexPool, func(s *Sandbox) []byte {
			if s.Desired == DesiredDeleted || !s.Member() {
				return nil
			}
			return keyOf(s.Pool, s.ID)
		}),
		// The id as it appears in a host name.
		newIndex(indexFolded, func(s *Sandbox) []byte {
			if s.Member() {
				return nil
			}
			return keyOf(strings.ToLower(s.ID), s.ID)
		}),
	)
}

// secretRefs implements referrer.
func (s *Sandbox) secretRefs() refSet {
	return refSet{s.KeyRef, s.InitRef, s.WarmKeyRef, s.FormerKeyRef}
}

// Sandbox finds a user's sandbox. It returns nil when the sandbox is unknown, another user's, a
// pool member or being deleted.
func (v *View) Sandbox(userID, id string) *Sandbox {
	s := v.SandboxAny(id)
	if s == nil || s.UserID != userID || s.Member() || s.Desired == DesiredDeleted {
		return nil
	}
	return s
}

// SandboxAny finds a sandbox of any user, also one being deleted. It is for the scheduler: callers
// must check the owner before they show the result to a user.
func (v *View) SandboxAny(id string) *Sandbox {
	return first[Sandbox](v.txn, tableSandboxes, indexID, []byte(id))
}

// SandboxesFolded finds the sandboxes of any user whose id equals the given one, ignoring case,
// including those being deleted. It serves host names, which ignore case. Members of pools have no
// host name and are left out. More than one result is possible but unlikely.
func (v *View) SandboxesFolded(id string) []*Sandbox {
	return collect(withPrefix[Sandbox](v.txn, tableSandboxes, indexFolded, prefixOf(strings.ToLower(id))))
}

// Sandboxes lists a user's sandboxes that are not being deleted, newest first, and returns the
// token of the next page ("" at the end).
func (v *View) Sandboxes(userID string, p Page) ([]*Sandbox, string) {
	return page(v.txn, tableSandboxes, indexCreated, userID, p,
		func(s *Sandbox) bool { return s.UserID == userID }, nil,
		func(s *Sandbox) []byte { return newestKey(userID, s.CreatedAt, s.ID) })
}

// AllSandboxes iterates every sandbox of every user by id, including those being deleted and the
// members of warm pools.
func (v *View) AllSandboxes() iter.Seq[*Sandbox] {
	return func(yield func(*Sandbox) bool) {
		rows := uint64(0)
		defer func() {
			if v.visited != nil {
				v.visited.Add(rows)
			}
		}()
		for s := range withPrefix[Sandbox](v.txn, tableSandboxes, indexID, nil) {
			if rows++; !yield(s) {
				return
			}
		}
	}
}

// SandboxByKeyHash finds the sandbox whose own key has this SHA-256 (hex). It returns nil also when
// the sandbox is being deleted.
func (v *View) SandboxByKeyHash(hash string) *Sandbox {
	s := first[Sandbox](v.txn, tableSandboxes, indexKeyHash, []byte(hash))
	if s == nil || s.Desired == DesiredDeleted {
		return nil
	}
	return s
}
