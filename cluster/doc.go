// Package cluster replicates one fsm.Store to several nodes. It owns Raft, the
// peer port, membership and leadership.
//
// It promises:
//
//   - A command for which [Node.Propose] returned nil is on a majority of disks,
//     and is applied exactly once, however often it was sent.
//   - [Node.View] with [Linearizable] shows every command that was acknowledged
//     anywhere before the call began.
//   - [Node.Lead] runs a function for each term this node leads, one at a time.
//   - A node that can't decode a log entry stops; it never skips one.
//
// It never looks inside a command (that is fsm), never speaks HTTP to users
// (that is httpapi), and knows no secret but the node's own private key.
//
// Terms: a node is one process of the control plane, a peer is another node, an index is a Raft
// log index, and a term has one leader. Goroutines of a running node:
//
//	Run               starts and stops all others
//	observeLeader     tracks the leader for Propose and View
//	watchLeader       drops a leader whose process is gone
//	watchTerms        opens each of this node's terms and ends its scope
//	keepMembership    first start, joining, a changed address (bootstrap.go)
//	reconcileMembers  leader only: promotes nonvoters, raises a new cluster's protocol version
//	storage.Watch     the disk's pace, and where the log ends
//	watchRevoked      closes connections with revoked certificates
//	catchUp           once: makes Ready nil when the store has caught up
//	network.Serve     the peer port
package cluster
