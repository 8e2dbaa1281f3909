package fsm

import "cmp"

// TermOpenBody opens a leader's term. It is the first command of every term, so that the FSM's
// index reaches the commit index: no-ops never reach the FSM. It is valid at every protocol
// version.
type TermOpenBody struct {
	Term uint64 `json:"term"`
	Node string `json:"node"`
	// ClusterID becomes the cluster's id if it has none yet. It labels the cluster's Nomad jobs and
	// volumes.
	ClusterID string `json:"cluster_id"`
	// Nonce tells this term from any other with the same number: two copies of one log continue with
	// different nonces. The leader draws it.
	Nonce string `json:"nonce,omitempty"`
}

// CommandType implements Body.
func (*TermOpenBody) CommandType() CommandType { return TermOpen }

// check implements Body.
func (b *TermOpenBody) check(r *rules) {
	r.check(b.Term > 0, "term.open needs a term")
	r.name("node", b.Node, MaxName)
	r.id("cluster_id", b.ClusterID)
	if b.Nonce != "" {
		r.id("nonce", b.Nonce)
	}
}

func (t *transaction) applyTermOpen(b *TermOpenBody) (Result, *Error) {
	if b.Term > t.meta.Term {
		t.meta.Term, t.meta.TermNode = b.Term, b.Node
		t.openTerm(b)
	}
	t.meta.ClusterID = cmp.Or(t.meta.ClusterID, b.ClusterID)
	return Result{}, nil
}

// ProtocolRaiseBody raises the replicated protocol version; see version.go.
type ProtocolRaiseBody struct {
	Version int `json:"version"`
}

// CommandType implements Body.
func (*ProtocolRaiseBody) CommandType() CommandType { return ProtocolRaise }

// check implements Body. It refuses a version that this binary does not know, so that a proposer
// can't stop its own cluster.
func (b *ProtocolRaiseBody) check(r *rules) {
	r.check(b.Version >= 1 && b.Version <= ProtocolVersion,
		"protocol.raise needs a version between 1 and %d, got %d", ProtocolVersion, b.Version)
}
