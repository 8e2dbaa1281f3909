//go:build linux

package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// healed undoes nothing: round restores all links at once.
func healed() error { return nil }

// spoil degrades the link between two nodes in one direction.
func (n *Nemesis) spoil(from, to int, l Link) {
	if old := n.net.links[from][to].Load(); old != nil {
		l = old.with(l)
	}
	n.net.Set(from, to, l)
}

// apart cuts all links between the two groups, both ways.
func (n *Nemesis) apart(a, b []int) {
	for _, i := range a {
		for _, j := range b {
			n.spoil(i, j, Link{Cut: true})
			n.spoil(j, i, Link{Cut: true})
		}
	}
}

// cut carries out a partition. Clients, Vault and Nomad can still reach all nodes.
func (n *Nemesis) cut(kind Kind, node, leader int, chance *rand.Rand) (string, func() error) {
	all := n.all()
	others := func(i int) []int { return slices.DeleteFunc(slices.Clone(all), func(j int) bool { return j == i }) }
	chance.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	switch kind {
	case IsolateLeader:
		n.apart([]int{leader}, others(leader))
		return n.names([]int{leader}), healed
	case Minority:
		few := all[:(len(all)-1)/2]
		n.apart(few, all[len(few):])
		return n.names(few), healed
	case DeafNode, MuteNode:
		if chance.IntN(2) == 0 {
			node = leader
		}
		for _, j := range others(node) {
			if kind == DeafNode {
				n.spoil(j, node, Link{Cut: true})
			} else {
				n.spoil(node, j, Link{Cut: true})
			}
		}
		return n.names([]int{node}), healed
	default: // Bridge
		half := len(all) / 2
		n.apart(all[:half], all[half+1:])
		return fmt.Sprintf("%s and %s, joined by %s", n.names(all[:half]), n.names(all[half+1:]),
			n.names(all[half:half+1])), healed
	}
}

// worsen delays or drops packets on all links between nodes, or on those of one node.
func (n *Nemesis) worsen(kind Kind, chance *rand.Rand) (string, func() error) {
	var l Link
	if kind == Slow {
		delays := []time.Duration{5 * time.Millisecond, 20 * time.Millisecond, 60 * time.Millisecond, 120 * time.Millisecond}
		l.Delay = delays[chance.IntN(len(delays))]
		l.Jitter = l.Delay / 2
	} else {
		l.Loss = []float64{0.02, 0.1, 0.25}[chance.IntN(3)]
	}
	one := -1
	if chance.IntN(2) == 0 {
		one = chance.IntN(len(n.cluster.Nodes))
	}
	for _, i := range n.all() {
		for _, j := range n.all() {
			if i != j && (one < 0 || i == one || j == one) {
				n.spoil(i, j, l)
			}
		}
	}
	where := "all"
	if one >= 0 {
		where = n.names([]int{one})
	}
	if kind == Slow {
		return fmt.Sprintf("%s, by %s and up to %s more", where, l.Delay, l.Jitter), healed
	}
	return fmt.Sprintf("%s, %.0f %%", where, 100*l.Loss), healed
}
