package nomadtest

import (
	"slices"

	"bivouac.dev/bivouac/fsm"
)

// What can be destroyed.
const (
	KindJob       = "job"
	KindWorkspace = "workspace"
)

// TB is the little of testing.TB that a Nomad needs.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
}

// Acknowledged reports whether it was acknowledged to somebody that the job or
// the workspace of a sandbox is deleted. kind is one of the Kind constants.
type Acknowledged func(kind, id string) bool

// DeletedIn knows what a store says is deleted: the job of a row that is
// deleted, and its workspace unless the row keeps it. A missing row
// acknowledges nothing.
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

// Declare says that the test wants the sandbox's jobs and workspaces destroyed
// although no store acknowledges it, as an operator's deletion of an orphan.
func (n *Nomad) Declare(ids ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, id := range ids {
		n.declared[id] = true
	}
}

// Destroyed gives all that was destroyed, in order.
func (n *Nomad) Destroyed() []Destroyed {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.destroyed)
}

// destroy notes that something is destroyed, and fails the test unless that was
// acknowledged. The caller holds the lock.
func (n *Nomad) destroy(kind, id, birth string) {
	n.t.Helper()
	n.destroyed = append(n.destroyed, Destroyed{kind, id, birth})
	if n.declared[id] || n.acknowledged != nil && n.acknowledged(kind, id) {
		return
	}
	n.t.Errorf("the %s of sandbox %s (birth %q) was destroyed, and no deletion was acknowledged", kind, id, birth)
}
