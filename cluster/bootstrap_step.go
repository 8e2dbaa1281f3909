package cluster

import (
	"cmp"
	"fmt"
	"slices"
)

// situation is what nextStep needs to know about this node.
type situation struct {
	self   member
	expect int
	// fresh: no state. configured: Raft's configuration is not empty. listed: it has this node, at
	// address.
	fresh, configured, listed bool
	address                   string
}

func (n *Node) situation() situation {
	s := situation{self: n.self(), expect: n.cfg.BootstrapExpect, fresh: n.fresh()}
	for _, server := range n.servers() {
		s.configured = true
		if server.ID == n.id {
			s.listed, s.address = true, string(server.Address)
		}
	}
	return s
}

type stepKind int

const (
	stepWait stepKind = iota
	stepJoin
	stepBootstrap
)

// step is the next step of a bootstrap.
type step struct {
	kind stepKind
	// via lists the addresses of members to join through.
	via []string
	// members are the nodes of the new cluster, this one included.
	members []member
	// reason says what the node waits for, for the log.
	reason string
}

// nextStep decides from this node's situation and the peers' latest answers. It is pure.
func nextStep(s situation, peers []helloResponse) step {
	var formed []string
	for _, p := range peers {
		if p.Formed {
			formed = append(formed, p.Member.Address)
		}
	}
	switch {
	case s.configured && !s.listed:
		return step{reason: "this node was removed from the cluster; stop it, " +
			"or empty its data directory to let it join again"}
	case s.configured && s.address == s.self.Address:
		return step{reason: "no leader; if a majority of the members is lost for good, see " +
			"bivouac runbook recover"}
	case len(formed) > 0:
		return step{kind: stepJoin, via: formed}
	case s.configured:
		return step{reason: "no member answers that could record this node's new address"}
	case s.expect == 0:
		return step{reason: "no cluster found at any RetryJoin address"}
	case !s.fresh:
		return step{reason: "waiting for the node this one voted for"}
	}
	members := []member{s.self}
	for _, p := range peers {
		if p.Fresh {
			members = append(members, p.Member)
		}
	}
	slices.SortFunc(members, func(a, b member) int { return cmp.Compare(a.Name, b.Name) })
	for i := 1; i < len(members); i++ {
		if members[i].Name == members[i-1].Name {
			return step{reason: fmt.Sprintf("two nodes are named %q", members[i].Name)}
		}
	}
	if len(members) < s.expect {
		return step{reason: fmt.Sprintf("met %d of the %d nodes expected", len(members), s.expect)}
	}
	if members[0].ID != s.self.ID {
		return step{reason: "waiting for " + members[0].Name + " to form the cluster"}
	}
	return step{kind: stepBootstrap, members: members[:s.expect]}
}
