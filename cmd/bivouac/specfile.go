package main

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"bivouac.dev/bivouac/fsm"
)

// specIDPattern matches a spec id: a label or an image reference.
var specIDPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,254}$`)

// portNamePattern matches a port's name. The name is also that of an environment variable and,
// in lower case, of "${port.<name>}".
var portNamePattern = regexp.MustCompile(`^[A-Z][A-Z0-9_]{0,62}$`)

// maxPool bounds a warm pool.
const maxPool = 1000

// loadSpecs reads the sandbox specs of an HCL file, in the file's order. Its error is a
// usageError that lists every mistake with file and line.
func loadSpecs(path string) ([]fsm.Spec, error) {
	body, err := parseHCLFile(path)
	if err != nil {
		return nil, err
	}
	return decodeSpecs(body)
}

// decodeSpecs reads spec blocks:
//
//	spec "<id>" {
//	  driver        = "docker"          # docker, raw_exec or process
//	  image         = "registry/image"  # docker only, required there
//	  command       = "/bin/agent"      # required but with docker
//	  args          = ["--port", "${port.agent_server}"]
//	  working_dir   = "/workspace/project"
//	  env           = { LOG_JSON = "true" }
//	  cpu           = 500               # MHz
//	  memory        = 512               # MiB
//	  network_mode  = "bridge"          # docker only: bridge or host
//	  user          = "10001"           # docker only, as are the next three
//	  cap_add       = ["CHOWN"]         # the capabilities that are not dropped; default: none
//	  runtime       = "runsc"           # an OCI runtime that the clients allow
//	  readonly_rootfs = true            # writable are the workspace, and /tmp in memory
//	  isolation     = "standard"        # "none" with raw_exec, process, and the network "host"
//	  start_timeout = "2m"
//	  readiness     = "allocation"      # only for tests of scale: RUNNING on Nomad's word
//	  pool          = 3                 # sandboxes kept started without an owner
//	  agents        = [{ id = "opencode" }]  # what users may choose; httpapi/API.md, "Agents"
//	  allow_agent_command = true        # users may run a command line of their own as their agent
//	  policy { idle_timeout = "1h" }    # over the node's, member by member; see doc.go
//	  port "AGENT_SERVER" { container = 8000 }
//	  volume { path = "/workspace" }    # docker only
//	}
func decodeSpecs(body hcl.Body) ([]fsm.Spec, error) {
	var specs []fsm.Spec
	defined := map[string]hcl.Range{}
	diags := decodeBody(body, nil, []nested{{name: "spec", label: "id", many: true, required: true,
		decode: func(b *hcl.Block) hcl.Diagnostics {
			id := b.Labels[0]
			if before, ok := defined[id]; ok {
				return hcl.Diagnostics{problem(b.LabelRanges[0], "the spec %q is there already, on line %d", id, before.Start.Line)}
			}
			defined[id] = b.DefRange
			spec := fsm.Spec{
				ID:       id,
				Position: len(specs),
				Template: fsm.Template{CPU: 500, Memory: 512, Ports: map[string]int{}},
			}
			diags := decodeSpec(b, &spec)
			specs = append(specs, spec)
			return diags
		}}})
	if err := diagsError(diags); err != nil {
		return nil, err
	}
	return specs, nil
}

func decodeSpec(b *hcl.Block, spec *fsm.Spec) hcl.Diagnostics {
	t := &spec.Template
	diags := decodeBodyWith(specNames(b.Body), b.Body, []attr{
		{
			name:     "driver",
			required: true,
			set:      setString((*string)(&t.Driver), oneOf("docker", "raw_exec", "process", "mock_driver")),
		},
		{name: "readiness", set: setString(&t.Readiness, oneOf(fsm.ReadinessAllocation))},
		{name: "image", set: setString(&t.Image, notEmpty)},
		{name: "command", set: setString(&t.Command, notEmpty)},
		{name: "args", set: setStrings(&t.Args)},
		{name: "working_dir", required: true, set: setString(&t.WorkingDir, notEmpty)},
		{name: "env", set: setStringMap(&t.Env, isEnvName)},
		{name: "cpu", set: setInt(&t.CPU, 1, 1_000_000)},
		{name: "memory", set: setInt(&t.Memory, 10, 10_000_000)},
		{name: "network_mode", set: setString(&t.NetworkMode, oneOf("bridge", "host"))},
		{name: "user", set: setString(&t.User, notEmpty)},
		{name: "cap_add", set: setStrings(&t.CapAdd, oneOf(fsm.Capabilities()...))},
		{name: "runtime", set: setString(&t.Runtime, notEmpty)},
		{name: "readonly_rootfs", set: setBool(&t.ReadonlyRootfs)},
		{
			name: "isolation",
			set:  setString((*string)(&t.Isolation), oneOf(string(fsm.IsolationStandard), string(fsm.IsolationNone))),
		},
		{name: "start_timeout", set: setDuration(&t.StartTimeout, time.Second, time.Hour)},
		{name: "pool", set: setInt(&spec.Pool, 0, maxPool)},
		{name: "agents", set: setAgents(&spec.Agents)},
		{name: "allow_agent_command", set: setBool(&spec.AllowAgentCommand)},
	}, []nested{
		{name: "policy", decode: func(b *hcl.Block) hcl.Diagnostics { return decodePolicy(b, &t.Policy) }},
		{
			name:   "port",
			label:  "name",
			many:   true,
			decode: func(b *hcl.Block) hcl.Diagnostics { return decodePort(b, t.Ports) },
		},
		{name: "volume", decode: func(b *hcl.Block) hcl.Diagnostics {
			return decodeBody(b.Body, []attr{{name: "path", required: true, set: setString(&t.VolumePath, isAbsolutePath)}}, nil)
		}},
	})
	if !specIDPattern.MatchString(spec.ID) {
		diags = append(diags,
			problem(b.LabelRanges[0], "%q is not a spec id: a label or an image reference of at most 255 characters", spec.ID))
	}
	if diags.HasErrors() {
		return diags
	}
	if err := checkTemplate(*t); err != nil {
		for _, line := range strings.Split(err.Error(), "\n") {
			diags = append(diags, problem(b.DefRange, "spec %q: %s", spec.ID, line))
		}
	}
	return diags
}

// specNames lets a spec's texts refer to its ports and its workspace, whose values are known at
// placement. "${port.agent_server}" evaluates to itself here. An unknown port is an error with
// its line.
func specNames(body hcl.Body) *hcl.EvalContext {
	ports := map[string]cty.Value{}
	content, _, _ := body.PartialContent(&hcl.BodySchema{
		Blocks: []hcl.BlockHeaderSchema{{Type: "port", LabelNames: []string{"name"}}},
	})
	for _, b := range content.Blocks {
		name := strings.ToLower(b.Labels[0])
		ports[name] = cty.StringVal("${port." + name + "}")
	}
	return &hcl.EvalContext{Variables: map[string]cty.Value{
		"port":      cty.ObjectVal(ports),
		"workspace": cty.StringVal("${workspace}"),
	}}
}

func decodePort(b *hcl.Block, ports map[string]int) hcl.Diagnostics {
	name := b.Labels[0]
	if !portNamePattern.MatchString(name) {
		return hcl.Diagnostics{
			problem(b.LabelRanges[0], "%q is not a port name: A-Z, 0-9 and \"_\", such as \"AGENT_SERVER\"", name),
		}
	}
	if _, ok := ports[name]; ok {
		return hcl.Diagnostics{problem(b.LabelRanges[0], "the port %q is there already", name)}
	}
	number := 0
	diags := decodeBody(b.Body, []attr{{name: "container", set: setInt(&number, 1, 65535)}}, nil)
	ports[name] = number
	return diags
}

// checkTemplate checks the rules between members. fsm checks them again; here the error has the
// block's line.
func checkTemplate(t fsm.Template) error {
	var errs []error
	say := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	_, hasAgent := t.Ports[fsm.PortAgentServer]
	say(!hasAgent, "a port %q is required", fsm.PortAgentServer)
	docker := t.Driver == fsm.DriverDocker
	say(docker && t.Image == "", "driver %q needs an image", t.Driver)
	say(!docker && t.Image != "", "image is for the driver \"docker\" only")
	say(!docker && t.NetworkMode != "", "network_mode is for the driver \"docker\" only")
	say(!docker && t.User != "", "user is for the driver \"docker\" only")
	say(!docker && (len(t.CapAdd) > 0 || t.Runtime != "" ||
		t.ReadonlyRootfs), "cap_add, runtime and readonly_rootfs are for the driver \"docker\" only")
	say(!docker && t.VolumePath != "", "volume is for the driver \"docker\" only")
	mock := t.Driver == fsm.DriverMock
	say(mock && t.Readiness != fsm.ReadinessAllocation, "driver %q is only for readiness = %q", t.Driver,
		fsm.ReadinessAllocation)
	say(!docker && !mock && t.Command == "", "driver %q needs a command", t.Driver)
	say(docker && !path.IsAbs(t.WorkingDir), "working_dir must be absolute with the driver \"docker\"")
	say(!docker && path.IsAbs(t.WorkingDir), "working_dir must be relative to the workspace with the driver %q", t.Driver)
	say(!projectInVolume(t), "working_dir must be a directory below the workspace: "+
		"what is outside is lost with every pause, and its root "+
		"keeps the sandbox's marker and its conversations, which a clean of the project would take away")
	return errors.Join(append(errs, t.CheckIsolation())...)
}

// projectInVolume reports whether the working directory is below the workspace's root.
func projectInVolume(t fsm.Template) bool {
	switch {
	case t.Driver != fsm.DriverDocker:
		return path.IsAbs(t.WorkingDir) || filepath.IsLocal(t.WorkingDir) && path.Clean(t.WorkingDir) != "."
	case t.VolumePath == "" || !path.IsAbs(t.WorkingDir):
		return true // another check reports it
	}
	return strings.HasPrefix(path.Clean(t.WorkingDir), strings.TrimSuffix(path.Clean(t.VolumePath), "/")+"/") &&
		path.Clean(t.WorkingDir) != path.Clean(t.VolumePath)
}
