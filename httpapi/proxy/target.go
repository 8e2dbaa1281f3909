package proxy

import (
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
)

// Path is the proxy's path on the API's address. It is no route: the rest of the path belongs to
// the sandbox.
const Path = "/sandboxes/"

// The ports besides fsm.PortAgentServer (PROTOCOL.md, "Ports").
const (
	PortVSCode  = "VSCODE"
	PortWorker1 = "WORKER_1"
	PortWorker2 = "WORKER_2"
)

// target is the sandbox and port that a request names. It depends on the request alone; find looks
// up the sandbox.
type target struct {
	// id and name are the sandbox and the port in a path; id is "" for a host name.
	id, name string
	// label is the host name's first label, "" for a path.
	label string
	// host is set if the port has a host of its own.
	host bool
	// prefix is the proxy's part of the path, "" for a host name.
	prefix string
	// pass is the pass in the path of a page on the API's origin.
	pass string
	// rest is the path for the sandbox, escaped exactly as the client sent it. It is "" if the path
	// ends with the port's name.
	rest string
}

// targetOf parses a request's target; false if it is not for the proxy. An invalid target is for
// the proxy, and find does not find it.
func targetOf(domain, host, escapedPath string) (target, bool) {
	if label, below := labelBelow(domain, host); below {
		return target{label: label, host: true, rest: escapedPath}, true
	}
	rest, ours := strings.CutPrefix(escapedPath, Path)
	if !ours {
		return target{}, false
	}
	id, rest, _ := strings.Cut(rest, "/")
	name, after, slash := strings.Cut(rest, "/")
	if !isWord(id) || !isWord(name) {
		return target{}, true
	}
	t := target{id: id, name: name, prefix: Path + id + "/" + name}
	if slash {
		t.rest = "/" + after
	}
	t.cutPass()
	return t, true
}

// labelBelow returns the one label of host below domain. It returns "" for several labels or an
// invalid one.
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

// isWord reports whether a text can be a sandbox's id or a port's name. Nothing that needs escaping
// can: "%2e", "..", "a/b".
func isWord(s string) bool {
	return s != "" && len(s) <= 63 && !slices.ContainsFunc([]byte(s), func(b byte) bool {
		return (b < '0' || b > '9') && (b < 'A' || b > 'Z') && (b < 'a' || b > 'z') && b != '-' && b != '_'
	})
}

// find returns the sandbox and the name of its port. The sandbox is nil if there is none with an
// owner; the port is "" if the sandbox has no such port.
//
// Host names ignore case and sandbox ids may contain dashes, so find tries every split of the
// label. The target must match exactly one sandbox.
func (t target) find(v *fsm.View) (*fsm.Sandbox, string) {
	if t.label == "" {
		if t.id == "" {
			return nil, ""
		}
		row := v.SandboxAny(t.id)
		if !IsOwned(row) {
			return nil, ""
		}
		return row, PortNamed(row, t.name)
	}
	var found *fsm.Sandbox
	var port string
	for i, b := range []byte(t.label) {
		if b != '-' {
			continue
		}
		for _, row := range v.SandboxesFolded(t.label[i+1:]) {
			name := PortNamed(row, t.label[:i])
			if !IsOwned(row) || name == "" {
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

// IsOwned reports whether a sandbox exists, has an owner and is not being deleted.
func IsOwned(row *fsm.Sandbox) bool {
	return row != nil && row.UserID != "" && row.Desired != fsm.DesiredDeleted
}

// PortNamed returns a sandbox's port for a client's word: the name, also in its host form, or the
// number in exposed_urls. "" means that the sandbox has no such port.
func PortNamed(row *fsm.Sandbox, word string) string {
	var placed map[string]int
	if p := row.Status.Placement; p != nil {
		placed = p.Ports
	}
	names := decode.SortedKeys(row.Template.Ports)
	for _, name := range names {
		if name == word || HostName(name) == word {
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

// isEventSocket reports whether a request is for one of the agent server's WebSockets
// (PROTOCOL.md, "Sockets"), whose key may come in the first frame. It depends on the request alone,
// so that an unknown sandbox looks the same.
func (t target) isEventSocket(r *http.Request) bool {
	return t.isAgent() && r.Method == http.MethodGet && strings.HasPrefix(t.rest, "/sockets/") && isUpgrade(r)
}

// isAgent reports whether a target names an agent server.
func (t target) isAgent() bool {
	return t.name == fsm.PortAgentServer || t.name == HostName(fsm.PortAgentServer) ||
		strings.HasPrefix(t.label, HostName(fsm.PortAgentServer)+"-")
}

// IsServing reports whether a sandbox runs and has a placement, so that clients get its key and
// URLs.
func IsServing(s *fsm.Sandbox) bool {
	return s.State() == fsm.SandboxRunning && s.Status.Placement != nil
}
