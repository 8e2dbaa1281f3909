package access

import (
	"net"
	"strconv"

	"bivouac.dev/bivouac/fsm"
)

// AgentURL returns the base URL of a sandbox's agent server as the nodes reach it, without a
// trailing slash. It is "" when the placement is nil or has no such port yet.
func AgentURL(p *fsm.Placement) string {
	if p == nil || p.Address == "" {
		return ""
	}
	port := p.Ports[fsm.PortAgentServer]
	if port <= 0 {
		return ""
	}
	return "http://" + net.JoinHostPort(p.Address, strconv.Itoa(port))
}
