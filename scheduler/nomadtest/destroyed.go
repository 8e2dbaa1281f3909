package nomadtest

import (
	"slices"

	"bivouac.dev/bivouac/fsm"
)

// The kinds of things that a Runner destroys.
const (
	KindJob       = "job"
	KindWorkspace = "workspace"
)

// TB is the part of testing.TB that a Nomad needs.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
}

// Acknowledged reports whether some store acknowledged that a sandbox's job or workspace is
// deleted. kind is one of the Kind constants.
type Acknowledged func(kind, id string) bool

// DeletedIn returns an Acknowledged that reads a store: it allows the job of a deleted row, and
// its workspace unless the row keeps it. A missing row acknowledges nothing.
func DeletedIn(view func() *fsm.View) Acknowledged {
	return func(kind, id string) bool {
		sb := view().SandboxAny(id)
		return sb != nil && sb.Desired == fsm.DesiredDeleted && (kind == KindJob || !sb.KeepWorkspace)
	}
}

// Destroyed is a job or a workspace that a call of the Runner destroyed.
type Destroyed struct {
	Kind, ID, Birth string
}

// Declare allows the test to destroy the sandboxes' jobs and workspaces although no store
// acknowledges it, like an operator who deletes an orphan.
func (n *Nomad) Declare(ids ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, id := range ids {
		n.declared[id] = true
	}
}

// Destroyed returns everything that was destroyed, in order.
func (n *Nomad) Destroyed() []Destroyed {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.destroyed)
}

// destroy records a destruction and fails the test unless it was acknowledged or declared. The
// caller holds the lock.
func (n *Nomad) destroy(kind, id, birth string) {
	n.t.Helper()
	n.destroyed = append(n.destroyed, Destroyed{kind, id, birth})
	if n.declared[id] || n.acknowledged != nil && n.acknowledged(kind, id) {
		return
	}
	n.t.Errorf("the %s of sandbox %s (birth %q) was destroyed, and no deletion was acknowledged", kind, id, birth)
}
