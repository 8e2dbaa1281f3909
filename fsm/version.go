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
// entry hold several commands.
const ProtocolVersion = 2

// MinVersion is the protocol version a command type came with. Propose asks it
// before the log, Apply again.
func MinVersion(t CommandType) int {
	switch t {
	case TermOpen, ProtocolRaise:
		// These two are what a version is raised with: valid always.
		return 0
	}
	return 1
}

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
	t.meta.ProtocolVersion = max(t.meta.ProtocolVersion, b.Version)
	return Result{}, nil
}
