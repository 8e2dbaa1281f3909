package cluster

import (
	"context"
	"fmt"

	"bivouac.dev/bivouac/cluster/peernet"
)

// callers are those who may make a peer call.
type callers int

const (
	// byAnybody: whoever has a certificate of the cluster's CA that is not revoked. Such a call stores
	// nothing about a caller that is no member.
	byAnybody callers = iota
	// byMembers: members of the configuration known here, nonvoters and this node too.
	byMembers
	// byLeader: the leader that this node follows.
	byLeader
)

func (c callers) String() string {
	return [...]string{"anybody", "members", "the leader"}[c]
}

// callersOf is the table of who may make each peer call. A revoked certificate makes none: the port
// refuses it. A removed node is nobody's member. senders/ has the same for Raft's messages.
func callersOf(call string) (may callers, known bool) {
	switch call {
	case
		callHello,   // newcomers find the cluster
		callVoted,   // and whom to believe in it
		callPromise, // nodes without a configuration form one
		callJoin,    // as itself, as a nonvoter
		callBegin,   // before Raft starts: nobody knows the members yet
		callLife:
		return byAnybody, true
	case callApply, callPropose, peernet.CallIndex, peernet.CallTerm, callChecksum,
		callRemove, callReplace, callTransfer, callObserve, callRecordsOf: // the last five need an operator's key too
		return byMembers, true
	case callRecords:
		return byLeader, true
	}
	return byLeader, false
}

// admitCaller refuses a peer call that its caller may not make. name is the node of the certificate.
func (n *Node) admitCaller(ctx context.Context, name, call string) error {
	may, known := callersOf(call)
	if !known {
		return errUnknownCall(call)
	}
	if may == byAnybody {
		return nil
	}
	from, _ := peernet.Parties(ctx)
	if may == byMembers && from == "" && name == n.cfg.NodeName {
		return nil // a program beside this node
	}
	is, servers := byAnybody, n.servers()
	for _, s := range servers {
		if from != "" && string(s.ID) != from || peernet.NodeName(s.ID) != name {
			continue
		}
		is = byMembers
		if _, leader := n.raft.Load().LeaderWithID(); leader == s.ID && s.ID != n.id {
			is = byLeader
		}
	}
	if is >= may {
		return nil
	}
	return fmt.Errorf("%w: %q is for %s, and node %q is not one of them here", peernet.ErrUnwelcome, call, may, name)
}
