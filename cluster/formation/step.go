// Package formation decides the first start of a cluster, and holds the promises by which exactly one
// forms (ops/decisions/0025).
package formation

import (
	"cmp"
	"fmt"
	"slices"
)

// Node is a node as it introduces itself.
type Node struct{ ID, Name, Address string }

// Peer is another node's answer to a hello.
type Peer struct {
	Node
	// Formed: it has a cluster configuration. Fresh: it has no state and expects to form a cluster.
	Formed, Fresh bool
	// Promised is the id of the node that may form the cluster with it. Known are the nodes without
	// state that it has discovered.
	Promised string
	Known    []Node
}

// Situation is what NextStep needs to know about this node.
type Situation struct {
	Self   Node
	Expect int
	// Fresh: no state. Configured: Raft's configuration is not empty. Listed: it has this node, at
	// Address.
	Fresh, Configured, Listed bool
	Address                   string
}

// Kind is what a step does.
type Kind int

// The kinds of steps.
const (
	Wait Kind = iota
	Join
	Bootstrap
)

// Step is the next step of a first start.
type Step struct {
	Kind Kind
	// Via lists the addresses of members to join through.
	Via []string
	// Members are the nodes of the new cluster, this one included.
	Members []Node
	// Reason says what the node waits for, for the log.
	Reason string
}

// NextStep decides from this node's situation and the peers' latest answers. It is pure.
func NextStep(s Situation, peers []Peer) Step {
	var formed []string
	for _, p := range peers {
		if p.Formed {
			formed = append(formed, p.Address)
		}
	}
	switch {
	case s.Configured && !s.Listed:
		return Step{Reason: "this node was removed from the cluster; stop it, " +
			"or empty its data directory to let it join again"}
	case s.Configured && s.Address == s.Self.Address:
		return Step{Reason: "no leader; if a majority of the members is lost for good, see " +
			"bivouac runbook recover"}
	case len(formed) > 0:
		return Step{Kind: Join, Via: formed}
	case s.Configured:
		return Step{Reason: "no member answers that could record this node's new address"}
	case s.Expect == 0:
		return Step{Reason: "no cluster found at any RetryJoin address"}
	case !s.Fresh:
		return Step{Reason: "waiting for the node this one voted for"}
	}
	members := []Node{s.Self}
	for _, p := range peers {
		if p.Fresh {
			members = append(members, p.Node)
		}
	}
	slices.SortFunc(members, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	for i := 1; i < len(members); i++ {
		if members[i].Name == members[i-1].Name {
			return Step{Reason: fmt.Sprintf("two nodes are named %q", members[i].Name)}
		}
	}
	if len(members) < s.Expect {
		return Step{Reason: fmt.Sprintf("met %d of the %d nodes expected", len(members), s.Expect)}
	}
	if members[0].ID != s.Self.ID {
		return Step{Reason: "waiting for " + members[0].Name + " to form the cluster"}
	}
	return Step{Kind: Bootstrap, Members: members[:s.Expect]}
}
