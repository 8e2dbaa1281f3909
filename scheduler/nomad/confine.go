package nomad

import (
	"encoding/json"
	"reflect"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/fsm"
)

const (
	// maxPids bounds the processes and threads of a container.
	maxPids = 1024
	tmpDir  = "/tmp"
)

// confine sets what every container gets, whatever its image. Nomad's driver limits the memory to
// the task's, without swap, unless the job says otherwise.
func confine(config map[string]any, t fsm.Template, ws workspace) {
	config["cap_drop"] = []string{"all"}
	if len(t.CapAdd) > 0 {
		config["cap_add"] = t.CapAdd
	}
	config["security_opt"] = []string{"no-new-privileges"}
	config["pids_limit"] = maxPids
	if t.Runtime != "" {
		config["runtime"] = t.Runtime
	}
	var mounts []map[string]any
	if !mounted(t, ws) {
		// A bind mount of a missing directory fails, while the driver's short form would create
		// an empty one.
		mounts = append(mounts,
			map[string]any{"type": "bind", "source": ws.HostPath, "target": t.VolumePath, "readonly": false})
	}
	if t.ReadonlyRootfs {
		config["readonly_rootfs"] = true
	}
	if t.ReadonlyRootfs && t.VolumePath != tmpDir {
		// What is in it counts as the container's memory.
		mounts = append(mounts, map[string]any{
			"type": "tmpfs", "target": tmpDir, "tmpfs_options": []map[string]any{{"size": t.Memory << 20 / 2, "mode": 0o1777}},
		})
	}
	if len(mounts) > 0 {
		config["mount"] = mounts
	}
}

// sameSetup reports whether a job has the limits, the networks, the environment and the key's entry
// that a new one would have. A job of an earlier program, or of another configuration, may not.
func sameSetup(was, now *api.Job) bool {
	return reflect.DeepEqual(setupOf(was), setupOf(now))
}

// setupOf returns the parts of a job that limit its container or come from the nodes'
// configuration, as JSON has them.
func setupOf(job *api.Job) any {
	part := map[string]any{}
	for _, g := range job.TaskGroups {
		for _, n := range g.Networks {
			for _, p := range n.DynamicPorts {
				if p.HostNetwork != "" && p.HostNetwork != defaultHostNetwork {
					part["port "+p.Label] = p.HostNetwork
				}
			}
		}
		for _, t := range g.Tasks {
			for _, name := range []string{
				"cap_drop", "cap_add", "security_opt", "pids_limit", "readonly_rootfs", "runtime", "extra_hosts", "network_mode",
			} {
				part[name] = t.Config[name]
			}
			part["env"], part["keys"] = t.Env, nil
			for _, tmpl := range t.Templates {
				part["keys"] = tmpl.EmbeddedTmpl
			}
		}
	}
	raw, err := json.Marshal(part)
	if err != nil {
		return nil
	}
	var tree any
	if json.Unmarshal(raw, &tree) != nil {
		return nil
	}
	return tree
}

// defaultHostNetwork is what Nomad calls the client's main address.
const defaultHostNetwork = "default"
