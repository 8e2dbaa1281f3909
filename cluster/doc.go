// Package cluster makes several nodes hold one fsm.Store: it owns Raft, the
// peer port, membership and leadership.
//
// It promises:
//
//   - A command for which [Node.Propose] returned nil is on a majority of disks,
//     and is applied exactly once however often it was sent on its way.
//   - [Node.View] with [Linearizable] shows every command that was acknowledged
//     anywhere before the call began.
//   - [Node.Lead] runs a function for each term this node leads, and never two
//     at once.
//   - A node that can't understand a log entry stops; it never skips one.
//
// It never looks inside a command (that is fsm), never speaks HTTP to users
// (that is httpapi), and knows no secret but the node's own private key.
//
// The words: a node is one of our processes, a peer another node; an index is
// always a Raft log index; a term has one leader. Goroutines of a running node:
//
//	Run            starts and stops all others
//	watchLeader    keeps "who leads" current for Propose and View
//	watchTerms     opens each of this node's terms and ends its scope
//	form           first start, joining, a changed address (formation.go)
//	tend           leader only: promotes nonvoters, raises the protocol version
//	catchUp        once: makes Ready true when the store has caught up
//	network.Serve  the peer port
package cluster
