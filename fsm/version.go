package fsm

import "fmt"

// ProtocolVersion is the newest replicated protocol version this binary knows.
// The cluster's own version (View.ProtocolVersion) starts at 1 and is raised by
// protocol.raise, which an operator or the leader proposes once every node
// knows the higher version.
//
// A version goes up with every new command type and with every change to what
// an existing command does to the state, a stricter Validate included: until
// all nodes agree, all must behave as the older ones do. Version 2 lets one log
// entry hold several commands. Version 3 records the history (history.go): terms
// with nonces, births, holds, orphans.
const ProtocolVersion = 3

// historyVersion is the protocol version that records the history.
const historyVersion = 3

// applyProtocolRaise raises the version; a lower or equal one changes nothing.
// A version this binary does not know stops the node, like an unknown command:
// the commands to come would be unknown too.
func (t *transaction) applyProtocolRaise(b *ProtocolRaiseBody) (Result, *Error) {
	if b.Version > ProtocolVersion {
		panic(fmt.Sprintf("fsm: the cluster moved to protocol version %d and this node knows %d: upgrade it",
			b.Version, ProtocolVersion))
	}
	if err := b.Validate(); err != nil {
		return Result{}, asError(err)
	}
	old := t.meta.ProtocolVersion
	t.meta.ProtocolVersion = max(old, b.Version)
	if old < historyVersion && t.meta.ProtocolVersion >= historyVersion {
		t.beginHistory()
		t.showChildren()
	}
	return Result{}, nil
}

// showChildren lets listings show the conversations whose parents are gone, which
// earlier versions left.
func (t *transaction) showChildren() {
	for _, old := range collect(withPrefix[Conversation](t.txn, tableConversations, indexID, nil)) {
		c := *old
		if t.leaveParent(&c); c.ParentID != old.ParentID {
			put(t, tableConversations, old, &c)
		}
	}
}
