package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi"
)

// wanted reads the expectations of a file in testdata: "# want: text" expects one mistake on
// its line.
func wanted(t *testing.T, path string) []string {
	t.Helper()
	src, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for i, line := range strings.Split(string(src), "\n") {
		for _, text := range strings.Split(line, "# want: ")[1:] {
			want = append(want, fmt.Sprintf("%s:%d: ", path, i+1)+strings.TrimSpace(text))
		}
	}
	return want
}

// checkMistakes compares an error's lines with the expectations: the same number, and one line
// for each.
func checkMistakes(t *testing.T, path string, err error) {
	t.Helper()
	want := wanted(t, path)
	if len(want) == 0 {
		if err != nil {
			t.Fatalf("%s is good, but was refused:\n%v", path, err)
		}
		return
	}
	if err == nil {
		t.Fatalf("%s was accepted", path)
	}
	if got := exitCode(err); got != exitUsage {
		t.Errorf("exit code %d, want %d", got, exitUsage)
	}
	got := strings.Split(err.Error(), "\n")
	for _, w := range want {
		place, text, _ := strings.Cut(w, ": ")
		i := slices.IndexFunc(got, func(line string) bool {
			return strings.HasPrefix(line, place+": ") && strings.Contains(line, text)
		})
		if i < 0 {
			t.Errorf("missing: %s", w)
			continue
		}
		got = slices.Delete(got, i, i+1)
	}
	for _, line := range got {
		t.Errorf("not expected: %s", line)
	}
	if strings.Contains(err.Error(), "canary") {
		t.Errorf("the error shows a value that may be a secret: %v", err)
	}
}

func testdataFiles(t *testing.T, folder string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", folder, "*.hcl"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files in testdata/%s: %v", folder, err)
	}
	return files
}

func TestConfig_EveryRuleIsReportedWithItsLine(t *testing.T) {
	for _, path := range testdataFiles(t, "config") {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".hcl"), func(t *testing.T) {
			_, err := loadConfig(path)
			checkMistakes(t, path, err)
		})
	}
	for _, bad := range badConfigs {
		t.Run(bad.name, func(t *testing.T) {
			path := writeBadConfig(t, bad.name)
			_, err := loadConfig(path)
			checkMistakes(t, path, err)
		})
	}
}

func TestConfig_FullFileIsReadAsWritten(t *testing.T) {
	got, err := loadConfig("testdata/config/good_full.hcl")
	if err != nil {
		t.Fatal(err)
	}
	here := func(name string) string { return filepath.Join("testdata/config", name) }
	want := Config{
		NodeName: "n1", DataDir: here("data"), BootstrapExpect: 3,
		RetryJoin: []string{"10.1.0.12:8441", "10.1.0.13:8441"},
		HTTP: HTTPConfig{
			Address:      ":8440",
			DrainDelay:   8 * time.Second,
			DrainTimeout: time.Minute,
			CertFile:     here("api.pem"),
			KeyFile:      "/etc/bivouac/api-key.pem",
		},
		Peer: PeerConfig{Address: "0.0.0.0:8441", Advertise: "10.1.0.11:8441",
			CAFile: here("ca.pem"), CertFile: here("n1.pem"), KeyFile: here("n1-key.pem"),
			CAKeyFile: here("ca-key.pem"), CertificateLifetime: 240 * time.Hour},
		Raft: RaftConfig{LogStore: "wal", HeartbeatTimeout: 500 * time.Millisecond, ElectionTimeout: 500 * time.Millisecond,
			LeaderLeaseTimeout: 300 * time.Millisecond, SnapshotInterval: time.Minute, SnapshotThreshold: 1000,
			TrailingLogs: 2000, TrailingBytes: 128 << 20, ProposeTimeout: 8 * time.Second, ReadTimeout: 4 * time.Second,
			DeadAfter: 2 * time.Hour, Voters: 5},
		Nomad: NomadConfig{Address: "https://nomad.example.org:4646", Namespace: "agents", Region: "eu",
			Datacenters: []string{"dc1", "dc2"}, TokenFile: here("nomad-token"), CAFile: here("nomad-ca.pem"),
			CertFile: here("nomad.pem"), KeyFile: here("nomad-key.pem"), NodePool: "agents", HostNetwork: "sandboxes",
			DockerNetwork: "bivouac", VolumePlugin: "zfs", VaultRole: "sandboxes",
			Variable: "marks/agents", LostAfter: time.Hour},
		Vault: VaultConfig{Address: "https://vault.example.org:8200", Mount: "kv", Prefix: "agents", Namespace: "team",
			AuthMount: "nodes", RoleIDFile: here("role-id"), SecretIDFile: here("secret-id"), CAFile: here("vault-ca.pem"),
			UnreferencedGrace: 5 * time.Minute, SecretRetention: 24 * time.Hour, CollectInterval: time.Minute},
		Sandboxes: SandboxesConfig{StartTimeout: 90 * time.Second, StopTimeout: 45 * time.Second,
			PauseGrace:     10 * time.Second,
			PlacementGrace: 30 * time.Second, OrphanRetention: 24 * time.Hour, RemovalsPerHour: 20, URL: "proxy",
			Domain: "sandboxes.example.net", PublicURL: "https://bivouac.example.org", MaxStale: 2 * time.Minute,
			APIURLs: []string{"https://n1.example.org:8440", "http://10.0.0.2:8440"}},
		Policy: fsm.Policy{IdleTimeout: time.Hour, MaxRunning: -1, DeletePausedAfter: 720 * time.Hour},
		Limits: LimitsConfig{BodySize: 65536, SnapshotSize: 1 << 30, RatePerSecond: 10, Connections: 2048,
			ConnectionsPerAddress: 100, TrustedProxies: []string{
				"127.0.0.1",
				"10.0.0.0/8",
			},
			User: fsm.Limits{
				Running: 5, Total: 20, StartsPerMinute: 10, CPU: 4000, Memory: 8192, StateBytes: 32 << 20, EventBytes: 5 << 30,
			},
			Installation: fsm.Limits{Running: 500, Total: 10_000, StartsPerMinute: 600}, OnLimit: fsm.OnLimitPauseOldest},
		Git:    GitConfig{VerifyTokens: true, AllowedHosts: []string{"git.example.org", "git.example.org:8443"}},
		CORS:   CORSConfig{Origins: []string{"https://app.example.org"}},
		Backup: BackupConfig{Dir: here("backups"), Interval: 30 * time.Minute, Retain: 48},
		Log:    LogConfig{Level: "debug", Format: "json"}, Metrics: "127.0.0.1:9102",
		UI: UIConfig{Enabled: true, Directory: here("page")},
		LLM: LLMConfig{Gateway: true, Hosts: []string{
			"vendors",
			"llm.example.org",
			"10.1.2.0/24",
		}, Models: []string{"gpt-*", "claude-*"},
			Prices: []fsm.Price{
				{Model: "*", Input: 1, Output: 2},
				{Model: "gpt-5*", Input: 1.25, Output: 10, CachedInput: new(0.125), CacheWrite: new(1.5)},
			},
			Budgets: LLMBudgets{PerTask: 5, PerUserDay: 50.5},
			Servers: []fsm.ModelServer{
				{Host: "llm.example.org:8443", Headers: map[string]string{"X-Team": "agents"}, Slots: 4},
			},
			Profiles: []fsm.ModelProfile{{Model: "qwen*", ModelSettings: fsm.ModelSettings{
				MaxInputTokens: new(int64(32768)), Temperature: new(0.2), DisableVision: new(true),
			}}},
		},
		Seeds: []string{"limits.on_limit", "limits.user", "limits.installation", "policy", "git", "cors", "llm"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestConfig_ExampleIsGood checks deploy/config/node.hcl, as it is and with everything
// commented out switched on.
func TestConfig_ExampleIsGood(t *testing.T) {
	const example = "../../deploy/config/node.hcl"
	if _, err := loadConfig(example); err != nil {
		t.Error(err)
	}
	src, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	commented := regexp.MustCompile(`(?m)^(\s*)# (\s*(?:[a-z_]+ +=|[a-z_]+ \{$|\}$))`)
	all := filepath.Join(t.TempDir(), "all.hcl")
	if err := os.WriteFile(all, commented.ReplaceAll(src, []byte("$1$2")), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := loadConfig(all)
	if err != nil {
		t.Error(err)
	}
	if cfg.HTTP.CertFile == "" || cfg.Raft.Voters == 0 || len(cfg.CORS.Origins) == 0 {
		t.Errorf("not everything was switched on: %+v", cfg)
	}
}

func TestConfig_UnreadableFileIsOneLine(t *testing.T) {
	for _, path := range []string{"testdata/config/none.hcl", "testdata"} {
		_, err := loadConfig(path)
		if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), path) ||
			exitCode(err) != exitUsage {
			t.Errorf("loadConfig(%q) = %v, want one usage line that names the file", path, err)
		}
	}
}

func TestSpecs_EveryRuleIsReportedWithItsLine(t *testing.T) {
	for _, path := range testdataFiles(t, "specs") {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".hcl"), func(t *testing.T) {
			_, err := loadSpecs(path)
			checkMistakes(t, path, err)
		})
	}
}

func TestSpecs_FileIsReadAsWritten(t *testing.T) {
	got, err := loadSpecs("testdata/specs/good.hcl")
	if err != nil {
		t.Fatal(err)
	}
	want := []fsm.Spec{{
		ID: "ghcr.io/example/agent-server:1.44.0",
		Template: fsm.Template{
			Driver: fsm.DriverDocker, Image: "ghcr.io/example/agent-server:1.44.0",
			Args: []string{"--port", "${port.agent_server}"}, WorkingDir: "/workspace/project",
			Env: map[string]string{"LOG_JSON": "true", "ENV_LOG_LEVEL": "20"}, CPU: 1000, Memory: 2048,
			NetworkMode: "bridge", User: "10001", StartTimeout: 3 * time.Minute, VolumePath: "/workspace",
			CapAdd: []string{"CHOWN", "FOWNER"}, Runtime: "runsc", ReadonlyRootfs: true,
			Ports: map[string]int{"AGENT_SERVER": 8000, "VSCODE": 8001},
		},
	}, {
		ID: "plain", Position: 1,
		Template: fsm.Template{
			Policy: fsm.Policy{IdleTimeout: -1, MaxRunning: 8 * time.Hour},
			Driver: fsm.DriverRawExec, Isolation: fsm.IsolationNone, Command: "/usr/local/bin/sandbox-agent",
			Args:       []string{"--port", "${port.agent_server}", "--workspace", "${workspace}"},
			WorkingDir: "project", CPU: 500, Memory: 512, Ports: map[string]int{"AGENT_SERVER": 0},
		},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestSpecs_AgentsAreReadAsWritten(t *testing.T) {
	got, err := loadSpecs("testdata/specs/good_agents.hcl")
	if err != nil || len(got) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	want := []fsm.Agent{{ID: "opencode"}, {
		ID: "mine", DisplayName: "Mine", Command: "my-agent", Args: []string{"acp", "--model={{llm_model}}"},
		Env: map[string]string{"MY_HOME": "{{data_dir}}"}, EnvFromSecret: map[string]string{"LICENCE": "MY_LICENCE"},
		SessionMode: "{{ask?ask:auto}}", Model: "big",
	}}
	if diff := cmp.Diff(want, got[0].Agents); diff != "" || !got[0].AllowAgentCommand {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestSpecs_PoolAndPolicyAreReadAsWritten(t *testing.T) {
	got, err := loadSpecs("testdata/specs/good_pool.hcl")
	if err != nil || len(got) != 1 || got[0].Pool != 3 ||
		got[0].Template.Policy != (fsm.Policy{DeletePausedAfter: 72 * time.Hour}) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestConfig_ConnectionsReachTheAPI(t *testing.T) {
	for given, want := range map[int]int{0: httpapi.DefaultConfig().MaxConnections, 128: 128} {
		api, err := Config{Limits: LimitsConfig{Connections: given}}.apiConfig()
		if err != nil || api.MaxConnections != want {
			t.Errorf("%d connections became %d (%v), want %d", given, api.MaxConnections, err, want)
		}
	}
}
