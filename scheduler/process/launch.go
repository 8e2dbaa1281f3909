package process

import (
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

const (
	// agentCommand in a template stands for the configured agent binary.
	agentCommand = "sandbox-agent"
	localAddress = "127.0.0.1"
	markVariable = "BIVOUAC_SANDBOX_RUN"
)

// launch is a task ready to run except for its ports.
type launch struct {
	sandboxID string
	template  fsm.Template
	workspace string
	command   string
	args      []string
	dir       string
	// inherited is this program's environment; env is the runner's, for every sandbox.
	inherited []string
	env       map[string]string
	// key and sealKey are secret: they exist only here and in the task's environment.
	key, sealKey string
	// deferred: the task starts dormant without a key, also at every restart.
	deferred bool
}

// give takes the key from the sandbox's entry in the secret store.
func (l *launch) give(entry map[string]string, deferred bool) error {
	l.key, l.sealKey, l.deferred = entry[fsm.MemberKey], entry[fsm.MemberSecretKey], deferred
	missing := ""
	switch {
	case deferred && l.sealKey == "":
		missing = fsm.MemberSecretKey
	case deferred:
		l.key = ""
	case l.key == "":
		missing = fsm.MemberKey
	}
	if missing != "" {
		return &scheduler.Failure{
			Reason: fsm.ReasonSecretStore,
			Detail: "the sandbox's entry in the secret store has no " + missing,
		}
	}
	return nil
}

// prepare resolves a template. A template that can't run is a *scheduler.Failure.
func (r *Runner) prepare(id, dir string, t fsm.Template) (launch, error) {
	l := launch{
		sandboxID: id,
		template:  t,
		workspace: filepath.Join(dir, workspaceDir),
		command:   t.Command,
		args:      t.Args,
		inherited: r.cfg.Environ,
		env:       r.cfg.Env,
	}
	if t.Driver != fsm.DriverProcess {
		return l, specFailure("the driver %q needs Nomad; only %q runs here", t.Driver, fsm.DriverProcess)
	}
	if _, ok := t.Ports[fsm.PortAgentServer]; !ok {
		return l, specFailure("the spec has no port %s", fsm.PortAgentServer)
	}
	if t.WorkingDir != "" && !filepath.IsLocal(t.WorkingDir) {
		return l, specFailure("the working directory %q leaves the workspace", t.WorkingDir)
	}
	l.dir = filepath.Join(l.workspace, t.WorkingDir)
	if l.command == "" || l.command == agentCommand {
		l.command = r.cfg.AgentBinary
		if len(l.args) == 0 {
			l.args = []string{"--host", localAddress, "--port", "${port." + fsm.PortAgentServer + "}"}
		}
		l.args = slices.Concat(r.cfg.AgentArgs, l.args)
	}
	return l, nil
}

func specFailure(format string, args ...any) error {
	return &scheduler.Failure{Reason: fsm.ReasonSpec, Detail: fmt.Sprintf(format, args...)}
}

var placeholder = regexp.MustCompile(`\$\{[^}]*\}`)

// expand replaces ${port.<name>} (in any case) and ${workspace}. Other text stays as it is.
func (l launch) expand(s string, ports map[string]int) string {
	return placeholder.ReplaceAllStringFunc(s, func(m string) string {
		name := m[2 : len(m)-1]
		if name == "workspace" {
			return l.workspace
		}
		if port, ok := strings.CutPrefix(name, "port."); ok {
			for k, v := range ports {
				if strings.EqualFold(k, port) {
					return strconv.Itoa(v)
				}
			}
		}
		return m
	})
}

// environ returns the task's whole environment: a few variables of this process, so that none
// of its credentials reach a sandbox; then the template's and the runner's; then the required ones (PROTOCOL.md,
// "Environment").
func (l launch) environ(mark string, ports map[string]int) []string {
	env := map[string]string{"HOME": l.workspace, "PATH": "/usr/local/bin:/usr/bin:/bin"}
	for _, kv := range l.inherited {
		if name, v, _ := strings.Cut(kv, "="); slices.Contains([]string{
			"PATH",
			"LANG",
			"LC_ALL",
			"TZ",
			"TMPDIR",
			"USER",
			"LOGNAME",
		}, name) {
			env[name] = v
		}
	}
	for k, v := range l.template.Env {
		env[k] = l.expand(v, ports)
	}
	maps.Copy(env, l.env)
	for name, port := range ports {
		env[name] = strconv.Itoa(port)
	}
	// A template can't set whether the server requires keys, nor which.
	maps.DeleteFunc(env, func(name, _ string) bool {
		return strings.HasPrefix(name, "OH_SESSION_API_KEYS") ||
			slices.Contains([]string{"SESSION_API_KEY", "OH_SECRET_KEY", "OH_DEFERRED_INIT"}, name)
	})
	if l.deferred {
		env["OH_DEFERRED_INIT"] = "1"
	} else {
		env["OH_SESSION_API_KEYS_0"] = l.key
	}
	if l.sealKey != "" {
		env["OH_SECRET_KEY"] = l.sealKey
	}
	env["OH_CONVERSATIONS_PATH"] = filepath.Join(l.workspace, "conversations")
	env["OH_BASH_EVENTS_DIR"] = filepath.Join(l.workspace, "bash_events")
	env[markVariable] = mark
	out := make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		out = append(out, k+"="+env[k])
	}
	return out
}

// takePorts finds free ports for the template's names and reserves them against other launches
// until giveBack. Another program may still bind one before the task does: then the task ends,
// and its restart gets other ports.
func (r *Runner) takePorts(names map[string]int) (map[string]int, error) {
	r.portsMu.Lock()
	defer r.portsMu.Unlock()
	ports := map[string]int{}
	var held []net.Listener
	defer func() {
		for _, l := range held {
			_ = l.Close() // it only reserved the number
		}
	}()
	for name := range names {
		for {
			l, err := net.Listen("tcp", net.JoinHostPort(localAddress, "0"))
			if err != nil {
				for _, p := range ports {
					delete(r.ports, p)
				}
				return nil, fmt.Errorf("finding a free port: %w", err)
			}
			held = append(held, l)
			port := l.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // a TCP listener's
			if r.ports[port] {
				continue
			}
			r.ports[port], ports[name] = true, port
			break
		}
	}
	return ports, nil
}

func (r *Runner) giveBack(ports map[string]int) {
	r.portsMu.Lock()
	defer r.portsMu.Unlock()
	for _, p := range ports {
		delete(r.ports, p)
	}
}
