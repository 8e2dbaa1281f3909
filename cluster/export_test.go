package cluster

import "bivouac.dev/bivouac/cluster/peernet"

// PortOf returns the peer port of a node on real sockets.
func PortOf(n *Node) *peernet.Port { return n.network.(*peernet.Port) }
