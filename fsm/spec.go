package fsm

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// Driver names what runs a sandbox's task.
type Driver string

// The drivers. DriverProcess runs local processes for the embedded default (`bivouac dev`). The
// others are Nomad's task drivers of the same name.
const (
	DriverDocker  Driver = "docker"
	DriverRawExec Driver = "raw_exec"
	DriverProcess Driver = "process"
	// DriverMock runs nothing. It is for scale tests, with ReadinessAllocation only.
	DriverMock Driver = "mock_driver"
)

// Isolation says what is between a sandbox and the machine that runs it.
type Isolation string

// The isolations.
const (
	// IsolationStandard: a container with namespaces of its own.
	IsolationStandard Isolation = "standard"
	// IsolationNone: a process of the machine, or a container on the machine's network.
	IsolationNone Isolation = "none"
)

// ReadinessAllocation, for Template.Readiness: the sandbox is RUNNING as soon as Nomad reports its
// task as running. No agent server is called.
const ReadinessAllocation = "allocation"

// Spec is a sandbox spec, the template of new sandboxes
// (GET /api/v1/sandbox-specs/search; API.md, "Sandbox specs"). `bivouac specs apply file.hcl` loads
// specs.
type Spec struct {
	// ID is the name that clients use: a label or an image reference.
	ID string `json:"id"`
	// Position orders the listing; the lowest is the default.
	Position int `json:"position"`
	// Template is copied into each sandbox created from the spec.
	Template  Template  `json:"template"`
	CreatedAt time.Time `json:"created_at"`
	// Pool is how many sandboxes are kept started without an owner; 0 is none.
	Pool int `json:"pool,omitempty"`
	// Agents are the agents that users may choose in the spec's sandboxes, beside the built-in one.
	Agents []Agent `json:"agents,omitempty"`
	// AllowAgentCommand lets users run a command line of their own as their agent.
	AllowAgentCommand bool `json:"allow_agent_command,omitempty"`
}

// Template is all that a runner needs to run a sandbox. A sandbox keeps its own copy, resolved with
// its user's settings, so that it can be registered again unchanged even if the spec has changed.
type Template struct {
	Driver Driver `json:"driver"`
	// Image is the container image (docker only).
	Image string `json:"image,omitempty"`
	// Command and Args: with docker the image's arguments when Command is empty; with raw_exec and
	// process the program and its arguments. "${port.<name>}" (for example "${port.agent_server}") is
	// replaced by the port's number, "${workspace}" by the workspace directory as the task sees it.
	Command string   `json:"command,omitempty"`
	Args    []string `json:"args,omitempty"`
	// WorkingDir is the directory of the projects as the task sees it: absolute with docker, relative
	// to the workspace with raw_exec and process.
	WorkingDir string `json:"working_dir"`
	// Env is readable by every user of the installation (initial_env). It must hold no secrets.
	Env map[string]string `json:"env,omitempty"`
	// CPU in MHz and Memory in MiB (Nomad's units): before the resource factor in a Spec, after it in
	// a Sandbox.
	CPU    int `json:"cpu"`
	Memory int `json:"memory"`
	// Ports by name. AGENT_SERVER is required. The value is the port inside the container (bridge
	// mode), or 0 for a dynamic port that is the same inside (host mode, raw_exec, process).
	Ports map[string]int `json:"ports"`
	// NetworkMode is docker's "host" or "bridge" (docker only).
	NetworkMode string `json:"network_mode,omitempty"`
	// VolumePath is where the workspace volume is mounted in the container
	// (docker only).
	VolumePath string `json:"volume_path,omitempty"`
	// User is the user that runs the task (docker only), as in `docker run --user`.
	User string `json:"user,omitempty"`
	// CapAdd are the Linux capabilities that the container has, "CHOWN" for CAP_CHOWN (docker only).
	// It has no others.
	CapAdd []string `json:"cap_add,omitempty"`
	// Runtime is the OCI runtime, "" docker's default (docker only). The client must allow it.
	Runtime string `json:"runtime,omitempty"`
	// ReadonlyRootfs leaves the workspace and a /tmp in memory as the only writable directories
	// (docker only).
	ReadonlyRootfs bool `json:"readonly_rootfs,omitempty"`
	// Isolation is what the operator has accepted. "" is standard, and in specs from before
	// VersionAccess what the driver gives (Isolated).
	Isolation Isolation `json:"isolation,omitempty"`
	// StartTimeout bounds a start or a resume. Zero means the node's default.
	StartTimeout time.Duration `json:"start_timeout,omitempty"`
	// Readiness says when the sandbox is RUNNING: "" when its agent server has responded and proved
	// its identity, or ReadinessAllocation.
	Readiness string `json:"readiness,omitempty"`
	// Policy overrides the installation's and is overridden by the user's.
	Policy Policy `json:"policy,omitzero"`
}

// Hash identifies a template: two templates have the same hash only if they are equal. It is the
// SHA-256 of the encoding, in hex.
func (p *Template) Hash() string {
	b, err := json.Marshal(p)
	must(err) // plain data
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// PortAgentServer is the name of the port that every sandbox must have (PROTOCOL.md, "Ports").
const PortAgentServer = "AGENT_SERVER"

// Bounds of a template, before the resource factor multiplies CPU and Memory.
const (
	maxCPU          = 1 << 20 // MHz
	maxMemory       = 1 << 24 // MiB
	maxStartTimeout = 24 * time.Hour
)

// check adds the rules of one template. spec names it in messages.
func (p *Template) check(r *rules, spec string) {
	spec = clip(spec)
	r.text("command", p.Command, MaxPath)
	r.list("args", p.Args, MaxParagraph)
	r.text("working_dir", p.WorkingDir, MaxPath)
	r.texts("env", p.Env)
	r.check(p.StartTimeout >= 0 && p.StartTimeout <= maxStartTimeout,
		"spec %s: start_timeout must be between 0 and %s", spec, maxStartTimeout)
	r.policy("spec "+spec, p.Policy)
	r.ports(spec, p.Ports)
	_, ok := p.Ports[PortAgentServer]
	r.check(ok, "spec %s needs the port %s", spec, PortAgentServer)
	least := 1
	if p.Driver == DriverProcess {
		least = 0 // a local process has no limits
	}
	r.check(p.CPU >= least && p.CPU <= maxCPU, "spec %s: cpu must be between %d and %d MHz", spec, least, maxCPU)
	r.check(p.Memory >= least && p.Memory <= maxMemory, "spec %s: memory must be between %d and %d MiB", spec, least,
		maxMemory)
	r.check(p.Readiness == "" || p.Readiness == ReadinessAllocation,
		"spec %s: unknown readiness %q: leave it out or use %q",
		spec, clip(p.Readiness), ReadinessAllocation)
	p.checkDriver(r, spec)
	if r.access {
		p.checkConfinement(r, spec)
	}
}

// Isolated returns what is between the sandbox and its machine.
func (p *Template) Isolated() Isolation {
	if p.open() != "" {
		return IsolationNone
	}
	return IsolationStandard
}

// open names what leaves the sandbox without isolation, "" where nothing does. The mock driver runs
// nothing.
func (p *Template) open() string {
	switch {
	case p.Driver == DriverRawExec || p.Driver == DriverProcess:
		return "the driver " + string(p.Driver)
	case p.NetworkMode == "host":
		return `network_mode = "host"`
	}
	return ""
}

// CheckIsolation returns an error with what to write where the template does not say the isolation
// that it gives.
func (p *Template) CheckIsolation() error {
	open := p.open()
	switch {
	case p.Isolation != "" && p.Isolation != IsolationStandard && p.Isolation != IsolationNone:
		return Errorf(CodeInvalid, `isolation must be "standard" or "none", not %q`, clip(string(p.Isolation)))
	case open != "" && p.Isolation != IsolationNone:
		return Errorf(CodeInvalid, `%s gives a sandbox no isolation from the machine: `+
			`write isolation = "none" to accept that`, open)
	case open == "" && p.Isolation == IsolationNone:
		return Errorf(CodeInvalid, `isolation = "none" is for the drivers raw_exec and process and for `+
			`network_mode = "host" only`)
	}
	return nil
}

// checkConfinement adds the rules of what a container is allowed.
func (p *Template) checkConfinement(r *rules, spec string) {
	if err := p.CheckIsolation(); err != nil {
		r.check(false, "spec %s: %s", spec, err)
	}
	r.check(p.Driver == DriverDocker || len(p.CapAdd) == 0 && p.Runtime == "" && !p.ReadonlyRootfs,
		"spec %s: cap_add, runtime and readonly_rootfs are for docker only", spec)
	r.check(p.Runtime == "" || validRuntime(p.Runtime), "spec %s: bad runtime %q: use at most 63 of A-Z a-z 0-9 - _ .",
		spec, clip(p.Runtime))
	known := Capabilities()
	for i, c := range p.CapAdd {
		r.check(slices.Contains(known, c), "spec %s: cap_add: %q is not one of %s", spec, clip(c), strings.Join(known, ", "))
		r.check(!slices.Contains(p.CapAdd[:i], c), "spec %s: cap_add: %q is given twice", spec, clip(c))
	}
}

// checkDriver tests the rules that depend on the driver.
func (p *Template) checkDriver(r *rules, spec string) {
	switch p.Driver {
	case DriverDocker:
		r.name("image", p.Image, MaxName)
		r.check(path.IsAbs(p.WorkingDir), "spec %s: working_dir must be absolute with docker", spec)
		r.check(p.VolumePath == "" || path.IsAbs(p.VolumePath), "spec %s: volume_path must be absolute", spec)
		r.check(slices.Contains([]string{"", "host", "bridge"}, p.NetworkMode),
			`spec %s: network_mode must be "host" or "bridge"`, spec)
		r.text("volume_path", p.VolumePath, MaxPath)
		r.text("user", p.User, MaxName)
	case DriverRawExec, DriverProcess, DriverMock:
		r.check(p.Command != "" || p.Driver == DriverMock, "spec %s: %s needs a command", spec, p.Driver)
		r.check(p.Driver != DriverMock || p.Readiness == ReadinessAllocation, "spec %s: %s is only for readiness = %q",
			spec, p.Driver, ReadinessAllocation)
		r.check(!path.IsAbs(p.WorkingDir) && !strings.Contains("/"+p.WorkingDir+"/", "/../"),
			"spec %s: working_dir must stay inside the workspace", spec)
		r.check(p.Image == "" && p.VolumePath == "" && p.NetworkMode == "" && p.User == "",
			"spec %s: image, volume_path, network_mode and user are for docker only", spec)
	default:
		r.check(false, "spec %s: unknown driver %q", spec, clip(string(p.Driver)))
	}
}

// Capabilities returns the Linux capabilities that a spec may give its containers: those that
// Nomad's docker driver allows by default.
func Capabilities() []string {
	return []string{
		"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP", "SETGID",
		"SETPCAP",
		"SETUID", "SYS_CHROOT",
	}
}

// validRuntime reports whether s is the name of an OCI runtime.
func validRuntime(s string) bool {
	return len(s) <= 63 && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.") == ""
}

// withoutConfinement returns the template as a node below VersionAccess knows it.
func (p Template) withoutConfinement() Template {
	p.CapAdd, p.Runtime, p.ReadonlyRootfs, p.Isolation = nil, "", false, ""
	return p
}

// ports checks a map of port names to numbers.
func (r *rules) ports(of string, ports map[string]int) {
	r.count("ports", len(ports))
	for _, name := range slices.Sorted(maps.Keys(ports)) {
		r.check(validPortName(name), "%s: bad port name %q: use A-Z 0-9 _", of, clip(name))
		r.check(ports[name] >= 0 && ports[name] <= 65535, "%s: port %s is not between 0 and 65535", of, clip(name))
	}
}

// validPortName reports whether s is [A-Z][A-Z0-9_]*, at most 63 bytes.
func validPortName(s string) bool {
	if s == "" || len(s) > 63 || s[0] < 'A' || s[0] > 'Z' {
		return false
	}
	return strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == ""
}

// IsUpstream reports whether the template's image is named as upstream's of its agent server.
func (t Template) IsUpstream() bool {
	name, _, _ := strings.Cut(path.Base(t.Image), ":")
	name, _, _ = strings.Cut(name, "@")
	return name == "agent-server"
}
