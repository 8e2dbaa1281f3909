package httpapi

import (
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"bivouac.dev/bivouac/fsm"
)

// target is what a request to the door names. It is read from the request
// alone: whether there is such a sandbox is for find.
type target struct {
	// id and name are the sandbox and the port as a path names them; id is "" for
	// a host name.
	id, name string
	// label is the host name's first label, "" for a path.
	label string
	// prefix is the part of the path that is the door's, "" for a host name.
	prefix string
	// rest is the path for the sandbox, exactly as the client escaped it; "" when
	// a path ends with the port's name.
	rest string
}

// targetOf reads what a request names; false when it is not for the door at
// all. A target that can name nothing is there, and is never found.
func targetOf(domain, host, escapedPath string) (target, bool) {
	if label, below := labelBelow(domain, host); below {
		return target{label: label, rest: escapedPath}, true
	}
	rest, ours := strings.CutPrefix(escapedPath, pathDoor)
	if !ours {
		return target{}, false
	}
	id, rest, _ := strings.Cut(rest, "/")
	name, after, slash := strings.Cut(rest, "/")
	if !isWord(id) || !isWord(name) {
		return target{}, true
	}
	t := target{id: id, name: name, prefix: pathDoor + id + "/" + name}
	if slash {
		t.rest = "/" + after
	}
	return t, true
}

// labelBelow gives the one label that host has before the domain. A host that
// is deeper below it gives "", which names nothing.
func labelBelow(domain, host string) (string, bool) {
	if domain == "" {
		return "", false
	}
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	label, below := strings.CutSuffix(strings.ToLower(strings.TrimSuffix(host, ".")), "."+domain)
	if !below {
		return "", false
	}
	if !isWord(label) {
		label = ""
	}
	return label, true
}

// isWord reports whether a text can be a sandbox's id or a port's name. Nothing
// that would need escaping is: "%2e", "..", "a/b" and the like name nothing.
func isWord(s string) bool {
	return s != "" && len(s) <= 63 && !slices.ContainsFunc([]byte(s), func(b byte) bool {
		return (b < '0' || b > '9') && (b < 'A' || b > 'Z') && (b < 'a' || b > 'z') && b != '-' && b != '_'
	})
}

// find gives the sandbox and the name of its port; nil when there is none that
// has an owner. The port is "" when the sandbox has no such port.
//
// A host name knows no case and sandbox ids may hold dashes, so every way to
// split the label counts; it names a sandbox only when exactly one is meant.
func (t target) find(v *fsm.View) (*fsm.Sandbox, string) {
	if t.label == "" {
		if t.id == "" {
			return nil, ""
		}
		row := v.SandboxAny(t.id)
		if !isOwned(row) {
			return nil, ""
		}
		return row, portNamed(row, t.name)
	}
	var found *fsm.Sandbox
	var port string
	for i, b := range []byte(t.label) {
		if b != '-' {
			continue
		}
		for _, row := range v.SandboxesFolded(t.label[i+1:]) {
			name := portNamed(row, t.label[:i])
			if !isOwned(row) || name == "" {
				continue
			}
			if found != nil {
				return nil, ""
			}
			found, port = row, name
		}
	}
	return found, port
}

// isOwned leaves out what is being deleted or belongs to nobody yet.
func isOwned(row *fsm.Sandbox) bool {
	return row != nil && row.UserID != "" && row.Desired != fsm.DesiredDeleted
}

// portNamed gives the port of a sandbox that a client's word means: its name, as
// it is or as a host name has it, or its number, the one exposed_urls shows. ""
// when the sandbox exposes no such port.
func portNamed(row *fsm.Sandbox, word string) string {
	var placed map[string]int
	if p := row.Status.Placement; p != nil {
		placed = p.Ports
	}
	names := sortedKeys(row.Template.Ports)
	for _, name := range names {
		if name == word || hostName(name) == word {
			return name
		}
	}
	for _, name := range names {
		n := row.Template.Ports[name]
		if n == 0 {
			n = placed[name]
		}
		if n != 0 && strconv.Itoa(n) == word {
			return name
		}
	}
	return ""
}

// isUpgrade reports whether a request asks to switch protocols.
func isUpgrade(r *http.Request) bool {
	return r.Header.Get("Upgrade") != "" && slices.ContainsFunc(r.Header.Values("Connection"), func(v string) bool {
		return slices.ContainsFunc(strings.Split(v, ","), func(s string) bool {
			return strings.EqualFold(strings.TrimSpace(s), "Upgrade")
		})
	})
}

// isEventSocket reports whether a request is for one of the agent server's
// WebSockets (api-contract.md C.4), whose key may come in the first frame. It
// goes by the words of the request, so that it answers the same for a sandbox
// that does not exist.
func (t target) isEventSocket(r *http.Request) bool {
	return t.isAgent() && r.Method == http.MethodGet && strings.HasPrefix(t.rest, "/sockets/") && isUpgrade(r)
}

// isAgent reports whether a target's words name an agent server.
func (t target) isAgent() bool {
	return t.name == fsm.PortAgentServer || t.name == hostName(fsm.PortAgentServer) ||
		strings.HasPrefix(t.label, hostName(fsm.PortAgentServer)+"-")
}
