package nomad

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// dockerMembers are the members of the driver's configuration that our jobs may have. Above all
// privileged, pid_mode, ipc_mode, uts_mode, userns_mode, devices, volumes, volume_driver, sysctl,
// cgroupns, group_add, extra_hosts and labels are not among them.
var dockerMembers = []string{
	"args", "cap_add", "cap_drop", "command", "image", "mount", "network_mode", "pids_limit", "ports", "readonly_rootfs",
	"runtime",
	"security_opt",
}

// FuzzJobSpec_StaysConfined: whatever a spec, a request or a birth says, the job of a container
// drops all capabilities but those that a spec may add, gains no privilege, shares no namespace of
// the host but the network that the spec's isolation accepts, and mounts its workspace alone.
func FuzzJobSpec_StaysConfined(f *testing.F) {
	for _, c := range goldenCases() {
		raw, err := json.Marshal(c.t)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw, "abc", "c1/aa/7", c.deferred, c.ws.Bind)
	}
	for _, bad := range []string{
		`{"driver":"docker","image":"a:1","volume_path":"/w","network_mode":"container:x","ports":{"AGENT_SERVER":1},` +
			`"cap_add":["SYS_ADMIN"],"user":"0:0"}`,
		`{"driver":"docker","image":"a:1","volume_path":"/w","network_mode":"none","runtime":"../x",` +
			`"ports":{"AGENT_SERVER":1},"privileged":true,"pid_mode":"host"}`,
		`{"driver":"docker","image":"${meta.x}","volume_path":"/","command":"seccomp=unconfined","args":["--privileged",` +
			`"security_opt"],"ports":{"AGENT_SERVER":0}}`,
	} {
		f.Add([]byte(bad), `a" }}{{ env "X"`, "privileged", false, true)
	}
	f.Fuzz(func(t *testing.T, raw []byte, id, birth string, deferred, bind bool) {
		var tmpl fsm.Template
		if json.Unmarshal(raw, &tmpl) != nil {
			return
		}
		tmpl.Driver = fsm.DriverDocker
		cfg := DefaultConfig()
		cfg.VaultMount, cfg.DockerNetwork = "secret", "bivouac"
		job := scheduler.Job{
			SandboxID: id, ClusterID: "c1", Birth: birth, Template: tmpl, Deferred: deferred,
			KeyRef: fsm.SecretRef{Path: fsm.SandboxSecrets(id) + "session", Version: 3},
		}
		ws := workspace{ID: "v1", Name: "sandbox-abc", NodeID: "n1", HostPath: "/volumes/v1", Bind: bind}
		spec, fail := jobSpec(cfg, job, ws)
		if fail != nil {
			return
		}
		checkConfined(t, spec, tmpl, ws)
	})
}

// checkConfined fails unless the container of a job is confined.
func checkConfined(t *testing.T, spec *api.Job, tmpl fsm.Template, ws workspace) {
	t.Helper()
	if len(spec.TaskGroups) != 1 || len(spec.TaskGroups[0].Tasks) != 1 || len(spec.TaskGroups[0].Services) != 0 {
		t.Fatalf("the job has other tasks: %+v", spec.TaskGroups)
	}
	group, task := spec.TaskGroups[0], spec.TaskGroups[0].Tasks[0]
	config := task.Config
	for name := range config {
		if !slices.Contains(dockerMembers, name) {
			t.Errorf("the container has %s = %v", name, config[name])
		}
	}
	want := map[string]any{
		"cap_drop":     []string{"all"},
		"security_opt": []string{"no-new-privileges"},
		"pids_limit":   maxPids,
		"network_mode": "bivouac",
	}
	if tmpl.NetworkMode == "host" {
		want["network_mode"] = "host"
	}
	for name, value := range want {
		if !reflect.DeepEqual(config[name], value) {
			t.Errorf("%s is %v, want %v", name, config[name], value)
		}
	}
	if added, ok := config["cap_add"]; ok && !reflect.DeepEqual(added, tmpl.CapAdd) ||
		config["runtime"] != nil && config["runtime"] != tmpl.Runtime {
		t.Errorf("the container has %v and %v, the spec says %v and %q", added, config["runtime"], tmpl.CapAdd, tmpl.Runtime)
	}
	if image, _ := config["image"].(string); image != tmpl.Image || strings.Contains(image, "${") {
		t.Errorf("the image is %q, the sandbox's is %q", image, tmpl.Image)
	}
	checkMounts(t, config, tmpl, ws)
	if group.Networks[0].Mode != "host" || len(group.Networks[0].ReservedPorts) != 0 {
		t.Errorf("networks %+v", group.Networks[0])
	}
	if r := task.Resources; len(r.Devices) != 0 || r.MemoryMaxMB != nil || r.SecretsMB != nil {
		t.Errorf("resources %+v", r)
	}
	if len(task.Artifacts) != 0 || len(task.Templates) != 1 || *task.Templates[0].DestPath != "secrets/session.env" ||
		task.Identity != nil || len(task.Identities) != 0 {
		t.Errorf("the task fetches %v, renders %v and has the identities %v", task.Artifacts, task.Templates, task.Identities)
	}
	if v := task.Vault; v == nil || *v.Env || !*v.DisableFile || len(v.Policies) != 0 {
		t.Errorf("the task sees a token of Vault: %+v", v)
	}
	names := slices.Sorted(maps.Keys(spec.Meta))
	if extra := slices.DeleteFunc(names,
		func(n string) bool { return strings.HasPrefix(n, "bivouac_") }); len(extra) != 0 ||
		len(group.Meta)+len(task.Meta) != 0 {
		t.Errorf("meta %v, %v, %v", spec.Meta, group.Meta, task.Meta)
	}
}

// checkMounts fails unless the container mounts its workspace, and at most a /tmp in memory.
func checkMounts(t *testing.T, config map[string]any, tmpl fsm.Template, ws workspace) {
	t.Helper()
	mounts, _ := config["mount"].([]map[string]any)
	for _, m := range mounts {
		switch {
		case m["type"] == "tmpfs" && m["target"] == tmpDir && tmpl.ReadonlyRootfs:
		case m["type"] == "bind" && ws.Bind && m["source"] == ws.HostPath && m["target"] == tmpl.VolumePath:
		default:
			t.Errorf("the container mounts %v", m)
		}
	}
}

// TestConfig_DockerNetwork: what docker takes for a namespace of the host or of another container
// is no network.
func TestConfig_DockerNetwork(t *testing.T) {
	for _, bad := range []string{
		"host",
		"none",
		"default",
		"container:abc",
		"ns:/proc/1/ns/net",
		"a b",
		"-x",
		"../x",
		strings.Repeat("a", 65),
	} {
		c := DefaultConfig()
		c.DockerNetwork = bad
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "docker network") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for _, good := range []string{"", "bivouac", "bridge", "sand_box-1.x"} {
		c := DefaultConfig()
		c.DockerNetwork = good
		if err := c.Validate(); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
}
