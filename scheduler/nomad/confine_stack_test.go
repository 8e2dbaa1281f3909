package nomad_test

import (
	"encoding/json"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/access"
	"bivouac.dev/bivouac/scheduler/nomad"
)

// container is what `docker inspect` says.
type container struct {
	ID         string `json:"Id"`
	Config     struct{ User string }
	HostConfig struct {
		CapAdd, CapDrop, SecurityOpt, ExtraHosts    []string
		PidsLimit, Memory, MemorySwap               int64
		Privileged, ReadonlyRootfs, PublishAllPorts bool
		NetworkMode, PidMode, IpcMode, UTSMode      string
		UsernsMode, Runtime                         string
		Devices                                     []any
	}
	NetworkSettings struct {
		IPAddress, Gateway string
		Networks           map[string]struct{ IPAddress, Gateway string }
		Ports              map[string][]struct{ HostIp, HostPort string }
	}
}

// docker runs a docker command.
func (b *bench) docker(args ...string) string {
	b.Helper()
	out, err := exec.CommandContext(b.Context(), "docker", args...).Output()
	if err != nil {
		b.Fatalf("docker %s: %v: %s", strings.Join(args, " "), err, exitText(err))
	}
	return strings.TrimSpace(string(out))
}

func exitText(err error) string {
	if exit, ok := err.(*exec.ExitError); ok { //nolint:errorlint // Output returns it unwrapped
		return string(exit.Stderr)
	}
	return ""
}

// inspect returns the sandbox's container.
func (b *bench) inspect(o scheduler.Observed) container {
	b.Helper()
	id := b.docker("ps", "--quiet", "--filter", "label=com.hashicorp.nomad.alloc_id="+o.Placement.AllocID)
	var list []container
	if err := json.Unmarshal([]byte(b.docker("inspect", id)), &list); err != nil || len(list) != 1 {
		b.Fatalf("%d containers: %v", len(list), err)
	}
	return list[0]
}

// bridgedJob is a docker job on docker's bridge.
func (b *bench) bridgedJob() scheduler.Job {
	job := b.job(fsm.DriverDocker)
	job.Template.NetworkMode = "bridge"
	job.Template.Ports = map[string]int{fsm.PortAgentServer: 8000}
	job.Template.Args = []string{"--host", "0.0.0.0", "--port", "${port.agent_server}"}
	return job
}

// probe is what testdata/probe prints.
type probe struct {
	Status, Errors, Dials map[string]string
}

// probeImage makes the agent's image with the probe in it.
func (b *bench) probeImage() string {
	b.Helper()
	dir, image := b.TempDir(), strings.Replace(b.s.image, "agent:", "probe:", 1)+"-"+b.Name()
	if err := local.BuildGo(b.Context(), "./scheduler/nomad/testdata/probe", filepath.Join(dir, "probe")); err != nil {
		b.Fatal(err)
	}
	text := "FROM " + b.s.image + "\nCOPY probe /probe\n"
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	cmd := exec.CommandContext(b.Context(), "docker", "build", "--quiet", "--tag", image, dir)
	cmd.Env = append(os.Environ(), "DOCKER_BUILDKIT=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("building %s: %v\n%s", image, err, out)
	}
	b.Cleanup(func() {
		if err := local.RemoveImage(image); err != nil {
			b.Error(err)
		}
	})
	return image
}

// run runs the probe in the container.
func (b *bench) probe(c container, addresses ...string) probe {
	b.Helper()
	out := b.docker(append([]string{"exec", c.ID, "/probe"}, addresses...)...)
	var p probe
	if err := json.Unmarshal([]byte(out), &p); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	return p
}

// TestRunner_Docker_IsConfined looks at a container from outside and from inside.
func TestRunner_Docker_IsConfined(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	job := b.bridgedJob()
	job.Template.Image = b.probeImage()
	_, o := b.started(job)
	c := b.inspect(o)
	h := c.HostConfig
	for _, promise := range []struct {
		what string
		kept bool
		got  any
	}{
		{"every capability is dropped", len(h.CapDrop) == 1 && strings.EqualFold(h.CapDrop[0], "all"), h.CapDrop},
		{"no capability is added", len(h.CapAdd) == 0, h.CapAdd},
		{"no new privileges", slices.Contains(h.SecurityOpt, "no-new-privileges"), h.SecurityOpt},
		{"seccomp and AppArmor are docker's", len(h.SecurityOpt) == 1, h.SecurityOpt},
		{"1024 processes", h.PidsLimit == 1024, h.PidsLimit},
		{"memory is limited", h.Memory == int64(job.Template.Memory)<<20, h.Memory},
		{"no swap", h.MemorySwap == h.Memory, h.MemorySwap},
		{"no name for the host", len(h.ExtraHosts) == 0, h.ExtraHosts},
		{"not privileged", !h.Privileged && len(h.Devices) == 0, h.Devices},
		{"its own namespaces", h.NetworkMode != "host" && h.PidMode == "" && h.UTSMode == "" && h.UsernsMode == "" &&
			h.IpcMode == "private",
			[]string{h.NetworkMode, h.PidMode, h.UTSMode, h.UsernsMode, h.IpcMode}},
		{"ports on one address", !h.PublishAllPorts && publishedOn(c, "127.0.0.1"), c.NetworkSettings.Ports},
	} {
		if !promise.kept {
			t.Errorf("%s: not so: %v", promise.what, promise.got)
		}
	}
	second := b.bridgedJob()
	_, o2 := b.started(second)
	other := net.JoinHostPort(b.inspect(o2).NetworkSettings.IPAddress, "8000")
	gateway := c.NetworkSettings.Gateway
	p := b.probe(c, nomadAt(t, b, "127.0.0.1"), nomadAt(t, b, gateway), nomadAt(t, b, "host.docker.internal"),
		"169.254.169.254:80", other)
	t.Logf("inside: %v\n%v\n%v", p.Status, p.Errors, p.Dials)
	for name, want := range map[string]string{
		"CapEff": "0000000000000000", "CapPrm": "0000000000000000", "CapBnd": "0000000000000000", "NoNewPrivs": "1",
		"Seccomp": "2",
	} {
		if p.Status[name] != want {
			t.Errorf("inside, %s is %s, want %s", name, p.Status[name], want)
		}
	}
	for _, what := range []string{"chown", "mknod", "mount", "raw socket"} {
		if p.Errors[what] == "" {
			t.Errorf("inside, %s succeeds", what)
		}
	}
	if e := p.Errors["write workspace"]; e != "" {
		t.Errorf("the workspace can't be written: %s", e)
	}
	for _, host := range []string{"127.0.0.1", gateway, "host.docker.internal"} {
		if a := nomadAt(t, b, host); p.Dials[a] == "" {
			t.Errorf("Nomad's API is reached at %s", a)
		}
	}
}

// nomadAt is Nomad's API at a host's address.
func nomadAt(t *testing.T, b *bench, host string) string {
	t.Helper()
	u, err := url.Parse(b.s.nomad.Address)
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort(host, u.Port())
}

// publishedOn reports whether every port is published, and on this address alone.
func publishedOn(c container, address string) bool {
	for _, bindings := range c.NetworkSettings.Ports {
		for _, p := range bindings {
			if p.HostIp != address {
				return false
			}
		}
	}
	return len(c.NetworkSettings.Ports) > 0
}

// TestRunner_Docker_TakesOptions: what a spec may choose.
func TestRunner_Docker_TakesOptions(t *testing.T) {
	t.Parallel()
	b := benchWith(t, func(c *nomad.Config) { c.HostNetwork = hostNetwork })
	job := b.bridgedJob()
	tmpl := &job.Template
	tmpl.Image, tmpl.User, tmpl.CapAdd, tmpl.Runtime, tmpl.ReadonlyRootfs = b.probeImage(), "10001:10001", []string{
		"CHOWN",
	}, "runc", true
	job, o := b.started(job)
	c := b.inspect(o)
	if h := c.HostConfig; len(h.CapAdd) != 1 || !strings.HasSuffix(strings.ToUpper(h.CapAdd[0]), "CHOWN") ||
		!h.ReadonlyRootfs || h.Runtime != "runc" || c.Config.User != "10001:10001" {
		t.Errorf("container %+v", c)
	}
	if o.Placement.Address == "127.0.0.1" || !publishedOn(c, o.Placement.Address) {
		t.Errorf("placed at %s, published at %v", o.Placement.Address, c.NetworkSettings.Ports)
	}
	p := b.probe(c)
	t.Logf("inside: %v\n%v", p.Status, p.Errors)
	if p.Errors["write root"] == "" || p.Errors["write tmp"] != "" || p.Errors["write workspace"] != "" {
		t.Errorf("writing: %v", p.Errors)
	}
	// The sandbox comes back with its work.
	b.createConversation(o, job, conversation)
	job = b.paused(job)
	job, o = b.started(job)
	b.hasConversation(o, job, conversation)
	if c := b.inspect(o); !c.HostConfig.ReadonlyRootfs {
		t.Errorf("after the resume: %+v", c)
	}
}

// TestRunner_Docker_WideOpenJobIsRegisteredAgain: a sandbox of an earlier program is confined when
// it is resumed, and not before.
func TestRunner_Docker_WideOpenJobIsRegisteredAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	job, o := b.started(b.bridgedJob())
	b.createConversation(o, job, conversation)
	alloc := o.Placement.AllocID
	// What an earlier program registered.
	open := b.raw(job)
	config := open.TaskGroups[0].Tasks[0].Config
	for _, name := range []string{"cap_drop", "security_opt", "pids_limit"} {
		delete(config, name)
	}
	config["extra_hosts"] = []string{"host.docker.internal:host-gateway"}
	_, _, err := b.s.client.Jobs().Register(open, nil)
	b.must(err)
	o = b.look(job, "the wide open copy", func(o scheduler.Observed) bool {
		return o.Live == 1 && o.Placement != nil && o.Placement.AllocID != alloc
	})
	b.until("its agent server", func() error {
		return get(t.Context(), access.AgentURL(o.Placement)+"/api/conversations/count", key(job.SandboxID))
	})
	job.ModifyIndex, job.RevertTo = o.ModifyIndex, o.Version
	if h := b.inspect(o).HostConfig; len(h.SecurityOpt) != 0 || len(h.ExtraHosts) != 1 {
		t.Fatalf("not wide open: %+v", h)
	}
	// A leader that looks at it changes nothing.
	alloc = o.Placement.AllocID
	b.must(b.r.Start(t.Context(), job))
	if o := b.observed(job); o.Placement == nil || o.Placement.AllocID != alloc {
		t.Errorf("the running sandbox was replaced: %+v", o)
	}
	job = b.paused(job)
	job, o = b.started(job)
	if h := b.inspect(o).HostConfig; len(h.SecurityOpt) != 1 || len(h.ExtraHosts) != 0 || h.PidsLimit != 1024 {
		t.Errorf("after the resume: %+v", h)
	}
	b.hasConversation(o, job, conversation)
	version := *b.raw(job).Version
	job = b.paused(job)
	job, _ = b.started(job)
	if now := *b.raw(job).Version; now != version+2 {
		t.Errorf("version %d after a second resume, %d before", now, version)
	}
}
