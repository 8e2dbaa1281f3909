package nomad

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

var update = flag.Bool("update", false, "rewrite golden files")

// goldenCase is one job whose definition is in testdata.
type goldenCase struct {
	name     string
	cfg      func(*Config)
	t        fsm.Template
	ws       workspace
	deferred bool
}

func goldenCases() []goldenCase {
	ws := workspace{ID: "v1", Name: "sandbox-abc", NodeID: "n1", HostPath: "/var/nomad/host_volumes/v1"}
	bind := ws
	bind.Bind = true
	docker := fsm.Template{
		Driver: fsm.DriverDocker, Image: "ghcr.io/example/agent:1", Args: []string{"--port", "${port.agent_server}"},
		WorkingDir: "/workspace/project", VolumePath: "/workspace", NetworkMode: "bridge", User: "10001", CPU: 1000,
		Memory: 2048,
		Ports:  map[string]int{"AGENT_SERVER": 8000, "VSCODE": 8001},
		Env: map[string]string{
			"LOG_JSON": "true", "OH_CONVERSATIONS_PATH": "${workspace}/own", "AGENT_SERVER": "9",
			"OH_SECRET_KEY": "no", "OH_SESSION_API_KEYS_0": "no", "OH_SESSION_API_KEYS_7": "no", "OH_SESSION_API_KEYS": "no",
			"SESSION_API_KEY": "no", "OH_DEFERRED_INIT": "no",
		},
	}
	options := docker
	options.CapAdd, options.Runtime, options.ReadonlyRootfs = []string{"CHOWN", "SETUID"}, "runsc", true
	named := func(c *Config) { c.HostNetwork = "sandboxes" }
	host := docker
	host.NetworkMode, host.Ports = "host", map[string]int{"AGENT_SERVER": 0, "VSCODE": 0}
	raw := fsm.Template{
		Driver: fsm.DriverRawExec, Isolation: fsm.IsolationNone, Command: "/usr/local/bin/sandbox-agent", Args: []string{
			"--port",
			"${port.agent_server}",
		},
		WorkingDir: "project", CPU: 200, Memory: 256, Ports: map[string]int{"AGENT_SERVER": 0},
	}
	mock := fsm.Template{
		Driver: fsm.DriverMock, Readiness: fsm.ReadinessAllocation, CPU: 20, Memory: 16, Ports: map[string]int{
			"AGENT_SERVER": 0,
		},
	}
	placed := func(c *Config) {
		c.Region, c.Namespace, c.NodePool, c.Datacenters = "eu", "agents", "sandboxes", []string{"dc1", "dc2"}
		c.VaultRole, c.Env = "sandboxes", map[string]string{
			"OH_ALLOW_CORS_ORIGINS_0": "https://example.org",
			"OH_DEFERRED_INIT":        "no",
		}
	}
	return []goldenCase{
		{"docker_bridge_mount", placed, docker, ws, false},
		{"docker_host_bind", nil, host, bind, false},
		{"raw_exec", nil, raw, ws, false},
		{"raw_exec_without_vault", func(c *Config) { c.VaultMount = "" }, raw, ws, false},
		{"raw_exec_deferred", nil, raw, ws, true},
		{"docker_deferred", placed, docker, bind, true},
		{"mock", nil, mock, ws, false},
		{"docker_options", named, options, bind, false},
	}
}

func TestJobSpec_Golden(t *testing.T) {
	for _, c := range goldenCases() {
		t.Run(c.name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.VaultMount = "secret"
			if c.cfg != nil {
				c.cfg(&cfg)
			}
			job := scheduler.Job{
				SandboxID: "abc", ClusterID: "c1", Template: c.t, KeyRef: fsm.SecretRef{Path: "sandboxes/abc/session", Version: 3},
			}
			if c.deferred {
				job.Deferred, job.KeyRef.Path = true, "sandboxes/abc/init"
			}
			spec, fail := jobSpec(cfg, job, c.ws)
			if fail != nil {
				t.Fatal(fail)
			}
			var buf bytes.Buffer
			enc := json.NewEncoder(&buf)
			enc.SetIndent("", "  ")
			enc.SetEscapeHTML(false)
			if err := enc.Encode(prune(t, spec)); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", c.name+".json")
			if *update {
				if err := os.WriteFile(path, buf.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(want, buf.Bytes()) {
				t.Errorf("the job differs from %s; look at the difference, then run with -update:\n%s", path, buf.String())
			}
		})
	}
}

// prune drops unset fields, to keep golden files readable.
func prune(t *testing.T, v any) any {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var tree any
	if err := json.Unmarshal(raw, &tree); err != nil {
		t.Fatal(err)
	}
	return pruneTree(tree)
}

func pruneTree(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if e = pruneTree(e); e == nil || e == "" {
				delete(v, k)
			} else {
				v[k] = e
			}
		}
	case []any:
		for i := range v {
			v[i] = pruneTree(v[i])
		}
	}
	return v
}

func TestJobSpec_RefusesWhatNoJobCanBeMadeOf(t *testing.T) {
	for name, change := range map[string]func(t *fsm.Template){
		"no agent port": func(t *fsm.Template) { t.Ports = map[string]int{"VSCODE": 0} },
		"no command":    func(t *fsm.Template) { t.Command = "" },
		"no image":      func(t *fsm.Template) { t.Driver, t.VolumePath = fsm.DriverDocker, "/w" },
		"variable image": func(t *fsm.Template) {
			t.Driver, t.Image, t.VolumePath = fsm.DriverDocker, "r.example.org/${attr.unique.hostname}:1", "/w"
		},
		"relative volume":  func(t *fsm.Template) { t.Driver, t.Image, t.VolumePath = fsm.DriverDocker, "i", "w" },
		"process":          func(t *fsm.Template) { t.Driver = fsm.DriverProcess },
		"unknown port":     func(t *fsm.Template) { t.Args = []string{"${port.other}"} },
		"unknown driver":   func(t *fsm.Template) { t.Driver = "exec" },
		"no driver at all": func(t *fsm.Template) { t.Driver = "" },
	} {
		t.Run(name, func(t *testing.T) {
			cases := goldenCases()
			tmpl := cases[2].t
			change(&tmpl)
			_, fail := jobSpec(DefaultConfig(), scheduler.Job{SandboxID: "abc", Template: tmpl}, cases[2].ws)
			if fail == nil || fail.Reason != fsm.ReasonSpec || fail.Detail == "" {
				t.Errorf("got %v", fail)
			}
		})
	}
}

func TestJobSpec_RefusesAKeyItsJobCanNotRead(t *testing.T) {
	c := goldenCases()[2]
	cfg := DefaultConfig()
	cfg.VaultMount = "secret"
	for _, path := range []string{
		"",
		"sandboxes/abc",
		"sandboxes/abc/",
		"sandboxes/abcd/session",
		"users/u1/settings/llm_api_key",
	} {
		job := scheduler.Job{SandboxID: "abc", Template: c.t, KeyRef: fsm.SecretRef{Path: path, Version: 1}}
		if _, fail := jobSpec(cfg, job, c.ws); fail == nil || fail.Reason != fsm.ReasonSecretStore {
			t.Errorf("%q: %v", path, fail)
		}
	}
}

func TestConfig_Validate(t *testing.T) {
	for field, change := range map[string]func(*Config){
		"address":        func(c *Config) { c.Address = "nomad:4646" },
		"kill timeout":   func(c *Config) { c.KillTimeout = 0 },
		"lost after":     func(c *Config) { c.LostAfter = -time.Second },
		"call timeout":   func(c *Config) { c.CallTimeout = 0 },
		"volume plugin":  func(c *Config) { c.VolumePlugin = "" },
		"volume timeout": func(c *Config) { c.VolumeTimeout = 0 },
		"remove wait":    func(c *Config) { c.RemoveWait = 0 },
		"certificate":    func(c *Config) { c.TLS.CertFile = "x" },
	} {
		c := DefaultConfig()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
}

func TestJobSpec_CarriesTheBirth(t *testing.T) {
	tmpl := fsm.Template{Driver: fsm.DriverMock, Ports: map[string]int{fsm.PortAgentServer: 0}}
	job := scheduler.Job{SandboxID: "a", ClusterID: "c1", Template: tmpl, Birth: "c1/aa/7"}
	spec, fail := jobSpec(DefaultConfig(), job, workspace{ID: "v1"})
	if fail != nil || spec.Meta[metaBirth] != "c1/aa/7" {
		t.Errorf("meta %v, %v", spec.Meta, fail)
	}
}
