package nomad

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// The names in our jobs.
const (
	jobPrefix = "sandbox-"
	groupName = "sandbox"
	taskName  = "agent"

	metaCluster = "bivouac_cluster"
	metaSandbox = "bivouac_sandbox"
	// metaWorkspace is the workspace directory as the task sees it.
	metaWorkspace = "bivouac_workspace"
	metaVolume    = "bivouac_volume"
	// metaBirth is the sandbox's birth. It is set where a job is registered and never changed in
	// place, because a change of meta replaces the task. A revert restores the version's own.
	metaBirth = "bivouac_birth"
	// metaRotations is how often the key was replaced, in decimal; absent for never.
	metaRotations = "bivouac_rotations"
	// metaStart, in the task, makes a task differ from one that failed.
	metaStart = "bivouac_start"

	// Nomad lets a job preempt one whose priority is lower by ten or more, if its scheduler's
	// configuration allows it (deploy/nomad/client.hcl).
	userPriority = 50
	poolPriority = 30

	volumeName = "workspace"
	// mockRunFor is longer than any scale test.
	mockRunFor = "8760h"
	// tagName marks the job version that ran last: Nomad keeps tagged versions.
	tagName = "bivouac-ran"
)

// workspace is the volume a job is made for.
type workspace struct {
	ID string
	// Name is the source by which jobs mount it, NodeID its client.
	Name   string
	NodeID string
	// HostPath is the directory on the client.
	HostPath string
	// Made is when this runner had it made, by our own clock; zero when another leader did.
	Made time.Time
	// Bind says that docker mounts the directory itself, not the volume.
	Bind bool
}

// mounted reports whether the job mounts the volume through Nomad.
func mounted(t fsm.Template, ws workspace) bool { return t.Driver == fsm.DriverDocker && !ws.Bind }

func jobID(sandboxID string) string { return jobPrefix + sandboxID }

// jobSpec makes the job of a sandbox. It is pure. A template that gives no valid job is a Failure
// with ReasonSpec.
func jobSpec(cfg Config, job scheduler.Job, ws workspace) (*api.Job, *scheduler.Failure) {
	t := job.Template
	dir, fail := workspaceDir(t, ws)
	if fail != nil {
		return nil, fail
	}
	if _, ok := t.Ports[fsm.PortAgentServer]; !ok {
		return nil, specFailure("the template has no port %s", fsm.PortAgentServer)
	}
	text := replacer(t, dir)
	config, fail := driverConfig(cfg, t, dir, text)
	if fail != nil {
		return nil, fail
	}
	if t.Driver == fsm.DriverDocker {
		confine(config, t, ws)
	}
	task := &api.Task{
		Name:        taskName,
		Driver:      string(t.Driver),
		User:        t.User,
		Config:      config,
		Env:         environment(cfg, job, dir, text),
		Resources:   &api.Resources{CPU: new(t.CPU), MemoryMB: new(t.Memory)},
		KillTimeout: new(cfg.KillTimeout),
		LogConfig:   &api.LogConfig{MaxFiles: new(logFiles), MaxFileSizeMB: new(logFileMB)},
	}
	if t.Driver == fsm.DriverMock {
		// A mock task writes no logs and needs no log process.
		task.LogConfig.Disabled = new(true)
	}
	if mounted(t, ws) {
		task.VolumeMounts = []*api.VolumeMount{{Volume: new(volumeName), Destination: new(t.VolumePath)}}
	}
	// A mock task needs no key.
	if cfg.VaultMount != "" && t.Driver != fsm.DriverMock {
		if fail := addKey(cfg, job, task); fail != nil {
			return nil, fail
		}
	}
	meta := map[string]string{
		metaCluster: job.ClusterID, metaSandbox: job.SandboxID, metaWorkspace: dir, metaVolume: ws.ID,
	}
	if job.Birth != "" {
		meta[metaBirth] = job.Birth
	}
	if job.Rotations > 0 {
		meta[metaRotations] = strconv.FormatUint(job.Rotations, 10)
	}
	return &api.Job{
		ID:          new(jobID(job.SandboxID)),
		Name:        new(jobID(job.SandboxID)),
		Type:        new("service"),
		Priority:    new(priorityOf(job)),
		Region:      optional(cfg.Region),
		Namespace:   optional(cfg.Namespace),
		NodePool:    optional(cfg.NodePool),
		Datacenters: datacenters(cfg),
		Meta:        meta,
		// No rolling update and no deployment: there is one copy, and the scheduler decides its
		// health itself.
		Update:     &api.UpdateStrategy{MaxParallel: new(0)},
		TaskGroups: []*api.TaskGroup{group(cfg, t, task, ws)},
	}, nil
}

// priorityOf gives members of warm pools a lower priority than users' starts.
func priorityOf(job scheduler.Job) int {
	if job.Deferred {
		return poolPriority
	}
	return userPriority
}

// group prevents a second copy of a sandbox: a failed task is restarted in place and never
// rescheduled, a lost client is waited for, and the job is pinned to the client that has the
// workspace.
func group(cfg Config, t fsm.Template, task *api.Task, ws workspace) *api.TaskGroup {
	g := &api.TaskGroup{
		Name:  new(groupName),
		Count: new(1),
		Constraints: []*api.Constraint{
			{LTarget: "${node.unique.id}", Operand: "=", RTarget: ws.NodeID},
		},
		Networks: []*api.NetworkResource{{Mode: "host", DynamicPorts: ports(cfg, t)}},
		RestartPolicy: &api.RestartPolicy{
			Attempts: new(2), Interval: new(5 * time.Minute), Delay: new(time.Second), Mode: new("fail"),
		},
		ReschedulePolicy: &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)},
		Disconnect: &api.DisconnectStrategy{
			LostAfter: new(cfg.LostAfter), Replace: new(false), Reconcile: new(api.ReconcileOptionKeepOriginal),
		},
		// A drain stops nothing before its deadline: the leader pauses the conversations and
		// stops the job itself.
		Migrate: &api.MigrateStrategy{
			MaxParallel: new(0), HealthCheck: new("task_states"), MinHealthyTime: new(time.Duration(0)),
			HealthyDeadline: new(time.Minute),
		},
		EphemeralDisk: &api.EphemeralDisk{SizeMB: new(50), Sticky: new(false), Migrate: new(false)},
		Tasks:         []*api.Task{task},
	}
	if mounted(t, ws) {
		g.Volumes = map[string]*api.VolumeRequest{volumeName: {
			Name: volumeName, Type: "host", Source: ws.Name,
			AccessMode:     string(api.HostVolumeAccessModeSingleNodeWriter),
			AttachmentMode: string(api.HostVolumeAttachmentModeFilesystem),
		}}
	}
	return g
}

func workspaceDir(t fsm.Template, ws workspace) (string, *scheduler.Failure) {
	switch t.Driver {
	case fsm.DriverDocker:
		if !path.IsAbs(t.VolumePath) {
			return "", specFailure("the template's volume path %q is not absolute", t.VolumePath)
		}
		return t.VolumePath, nil
	case fsm.DriverRawExec, fsm.DriverMock:
		return ws.HostPath, nil
	case fsm.DriverProcess:
	}
	return "", specFailure("the driver %q is not one of Nomad's that sandboxes can use", t.Driver)
}

// replacer replaces the placeholders of a template that are known only here.
func replacer(t fsm.Template, dir string) *strings.Replacer {
	pairs := []string{"${workspace}", dir}
	for _, name := range portNames(t) {
		pairs = append(pairs, "${port."+strings.ToLower(name)+"}", portValue(t, name))
	}
	return strings.NewReplacer(pairs...)
}

// portValue is the port on which the task has to listen; Nomad fills in dynamic ones.
func portValue(t fsm.Template, name string) string {
	if n := t.Ports[name]; n > 0 && bridged(t) {
		return strconv.Itoa(n)
	}
	return "${NOMAD_PORT_" + name + "}"
}

// bridged reports whether the container has its own network, with mapped ports.
func bridged(t fsm.Template) bool {
	return t.Driver == fsm.DriverDocker && t.NetworkMode != "host"
}

func portNames(t fsm.Template) []string { return slices.Sorted(maps.Keys(t.Ports)) }

func ports(cfg Config, t fsm.Template) []api.Port {
	var list []api.Port
	for _, name := range portNames(t) {
		p := api.Port{Label: name, HostNetwork: cfg.HostNetwork}
		if bridged(t) {
			p.To = t.Ports[name]
		}
		list = append(list, p)
	}
	return list
}

func driverConfig(cfg Config, t fsm.Template, dir string, text *strings.Replacer) (map[string]any, *scheduler.Failure) {
	args := make([]string, len(t.Args))
	for i, a := range t.Args {
		args[i] = text.Replace(a)
		if strings.Contains(args[i], "${port.") {
			return nil, specFailure("the argument %q names a port that the template does not have", t.Args[i])
		}
	}
	config := map[string]any{}
	if len(args) > 0 {
		config["args"] = args
	}
	if t.Command != "" {
		config["command"] = text.Replace(t.Command)
	}
	switch {
	case t.Driver == fsm.DriverMock:
		// The mock driver runs nothing, for the given time.
		return map[string]any{"run_for": mockRunFor}, nil
	case t.Driver != fsm.DriverDocker:
		if t.Command == "" {
			return nil, specFailure("the template has no command, and the driver %s needs one", t.Driver)
		}
		// A task without its directory can't start. The agent server would create an empty one in
		// place of lost work.
		config["work_dir"] = dir
	case t.Image == "":
		return nil, specFailure("the template has no image, and the driver docker needs one")
	case strings.Contains(t.Image, "${"):
		// Users' settings name images, and Nomad would put facts of the client into the name.
		return nil, specFailure("the image %q has a variable: write the name itself", t.Image)
	default:
		config["image"] = t.Image
		if bridged(t) {
			config["ports"] = portNames(t)
			if cfg.DockerNetwork != "" {
				config["network_mode"] = cfg.DockerNetwork
			}
		} else {
			config["network_mode"] = "host"
		}
	}
	return config, nil
}

func datacenters(cfg Config) []string {
	if len(cfg.Datacenters) == 0 {
		return []string{"*"}
	}
	return slices.Clone(cfg.Datacenters)
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func specFailure(format string, args ...any) *scheduler.Failure {
	return &scheduler.Failure{Reason: fsm.ReasonSpec, Detail: fmt.Sprintf(format, args...)}
}
