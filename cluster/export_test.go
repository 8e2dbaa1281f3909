package cluster

import "bivouac.dev/bivouac/cluster/peernet"

// PortOf returns the peer port of a node on real sockets.
func PortOf(n *Node) *peernet.Port { return n.network.(*peernet.Port) }

// Learned returns how many nodes' addresses and starts the node keeps.
func Learned(n *Node) (addresses, starts int) {
	n.addresses.mu.Lock()
	addresses = len(n.addresses.known)
	n.addresses.mu.Unlock()
	n.identity.mu.Lock()
	defer n.identity.mu.Unlock()
	return addresses, len(n.identity.starts)
}
