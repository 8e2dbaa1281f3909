package scheduler

import (
	"net"
	"path"
	"strconv"

	"bivouac.dev/bivouac/fsm"
)

// AgentURL gives the base URL of a sandbox's agent server as our nodes reach
// it, without a trailing slash, or "" when the placement is nil or has no such
// port yet. Observation, start tasks and the API all use this one form.
func AgentURL(p *fsm.Placement) string {
	return PortURL(p, fsm.PortAgentServer)
}

// PortURL gives the URL of the sandbox's port of that name, or "" when it has
// none.
func PortURL(p *fsm.Placement, name string) string {
	if p == nil || p.Address == "" {
		return ""
	}
	port := p.Ports[name]
	if port <= 0 {
		return ""
	}
	return "http://" + net.JoinHostPort(p.Address, strconv.Itoa(port))
}

// ProjectDir gives the directory in which projects live, absolute, as the task
// sees it: the template's working directory, which is relative to the
// workspace wherever there is no container. It is "" when it can't be known
// yet.
func ProjectDir(t fsm.Template, p *fsm.Placement) string {
	if path.IsAbs(t.WorkingDir) {
		return path.Clean(t.WorkingDir)
	}
	if p == nil || p.Workspace == "" {
		return ""
	}
	return path.Join(p.Workspace, t.WorkingDir)
}
